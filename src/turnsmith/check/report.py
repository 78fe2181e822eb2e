"""The result of all checks, as lines of a terminal and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from turnsmith.check.run import CheckResult
from turnsmith.text import wrapped
from turnsmith.trajectory import Trajectory

_WORDS = {"passed": "ok", "warning": "WARNING", "failed": "FAILED", "skipped": "-"}
_NAME_WIDTH, _TEXT = 32, 8
_MOST_MESSAGES, _MOST_CHARACTERS = 40, 2000


def result_lines(result: CheckResult, width: int = 120) -> list[str]:
    """One check as lines of a table; if something is wrong, with why it matters, what to do and where to look.

    Example:
        >>> from turnsmith.check.checks import CHECKS
        >>> from turnsmith.check.finding import Finding
        >>> finding = Finding("failed", "8 of 8 starts opened differently.", "Use the seed.")
        >>> for line in result_lines(CheckResult(CHECKS[0], finding, 0.25), width=80):
        ...     print(line)
        FAILED  same start, same opening           0.2 s
                8 of 8 starts opened differently.
                why it matters: The episodes of a group are compared with each other; if
                they begin differently, luck is trained as skill.
                what to do: Use the seed.
    """
    check, finding = result.check, result.finding
    head = f"{_WORDS[finding.status]:<{_TEXT}}{check.name:<{_NAME_WIDTH}} {result.seconds:5.1f} s"
    if finding.status in ("passed", "skipped"):
        short = f"{head}  {finding.saw}"
        return [short] if len(short) <= width else [head, *_indented(finding.saw, width)]
    episodes = ", ".join(dict.fromkeys(episode.episode_id for episode in finding.episodes))
    texts = {"": finding.saw, "why it matters: ": check.why, "what to do: ": finding.fix, "episodes: ": episodes}
    return [head, *(line for label, text in texts.items() if text for line in _indented(label + text, width))]


def _indented(text: str, width: int) -> list[str]:
    return [" " * _TEXT + line for line in wrapped(text, max(20, width - _TEXT))]


def summary(results: Sequence[CheckResult]) -> str:
    """The last line of the table.

    Example:
        >>> summary([])
        '0 passed, 0 warnings, 0 failed, 0 skipped, in 0 s'
    """
    counts = Counter(result.finding.status for result in results)
    seconds = sum(result.seconds for result in results)
    warnings = f"{counts['warning']} warning{'' if counts['warning'] == 1 else 's'}"
    last = f"{counts['failed']} failed, {counts['skipped']} skipped, in {seconds:.0f} s"
    return f"{counts['passed']} passed, {warnings}, {last}"


def failed(results: Sequence[CheckResult]) -> int:
    """How many checks failed.

    Example:
        >>> failed([])
        0
    """
    return sum(result.finding.status == "failed" for result in results)


def as_dict(results: Sequence[CheckResult]) -> dict[str, Any]:
    """For a JSON file: every check with its words, its finding and the episodes that show it.

    Example:
        >>> as_dict([])
        {'failed': 0, 'checks': []}
    """
    rows = map(as_row, results)
    checks = [{**row, "episodes": [_episode(episode) for episode in row["episodes"]]} for row in rows]
    return {"failed": failed(results), "checks": checks}


def as_row(result: CheckResult) -> dict[str, Any]:
    """All that is known about one check, with the episodes that show it."""
    check, finding = result.check, result.finding
    return {
        "name": check.name,
        "status": finding.status,
        "seconds": round(result.seconds, 3),
        "ran": check.ran,
        "saw": finding.saw,
        "why": check.why,
        "fix": finding.fix,
        "episodes": finding.episodes,
    }


def _episode(episode: Trajectory) -> dict[str, Any]:
    return {
        "id": episode.episode_id,
        "seed": episode.seed,
        "outcome": episode.outcome,
        "reward": episode.total_reward,
        "rewards": episode.rewards,
        "error": episode.error,
        "messages": [
            {**message, "content": str(message.get("content", ""))[:_MOST_CHARACTERS]}
            for message in episode.messages[:_MOST_MESSAGES]
        ],
    }

"""The findings of all checks, as lines of a terminal and as JSON: first what fails, why it matters and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from turnsmith import __version__
from turnsmith.check.finding import Result, Status
from turnsmith.text import duration, wrapped
from turnsmith.trajectory import Trajectory

_WORDS = {"failed": "FAILED", "warning": "WARNING", "passed": "ok", "skipped": "-"}
_INDENT, _NAME = 8, 32
_MOST_SAID = 160
_MOST_EPISODES, _MOST_MESSAGES, _MOST_CHARACTERS = 2, 40, 2000


@dataclass
class Report:
    """Everything that one `turnsmith check` found.

    Example:
        >>> from turnsmith.check.finding import Check, Finding
        >>> check = Check(code="opening", name="same opening", why="Luck is trained as skill.")
        >>> finding = Finding("failed", "8 of 8 starts differ.", "Use the seed.")
        >>> report = Report("MyGame", [Result(check, finding, 0.25), Result(check, Finding("passed", "ok"), 1.0)])
        >>> print(*report.lines(80), sep="\\n")
        MyGame: 1 of 2 checks failed, in 1.2 s
        <BLANKLINE>
        FAILED  same opening (--only opening)
                8 of 8 starts differ.
                why: Luck is trained as skill.
                fix: Use the seed.
        <BLANKLINE>
        1 passed: same opening
    """

    subject: str
    """What was checked, in a few words."""
    results: list[Result] = field(default_factory=list[Result])
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    """What else the JSON has, by name: the machine, what was measured, a forecast."""
    shown: list[str] = field(default_factory=list[str])
    """Lines that follow the findings: the tables of a forecast."""
    more: list[str] = field(default_factory=list[str])
    """Lines that follow only with `-v`."""

    @property
    def failed(self) -> int:
        """How many checks failed."""
        return len(self._having("failed"))

    @property
    def is_empty(self) -> bool:
        """Whether all checks were skipped, so that nothing is known."""
        return bool(self.results) and len(self._having("skipped")) == len(self.results)

    def lines(self, width: int = 120, *, verbose: bool = False) -> list[str]:
        """The verdict and what is wrong, then one line for what passed and one for what was skipped, or all rows."""
        failed, warned = self._having("failed"), self._having("warning")
        to_judge = [result for result in warned if result.check.audit]
        found = [*failed, *(result for result in warned if not result.check.audit), *to_judge]
        lines = [self.verdict()]
        for result in found:
            if to_judge and result is to_judge[0]:
                lines += ["", "For your judgment: what follows is so, and may be meant."]
            lines += ["", *_block(result, width, verbose=verbose)]
        if verbose:
            lines += ["", *(line for result in self.results if result not in found for line in _row(result, width))]
        else:
            others = [(len(some), word, some) for word in ("passed", "skipped") if (some := self._having(word))]
            names = [(f"{count} {word}: ", [one.check.name for one in some]) for count, word, some in others]
            lines += ["", *(_one_line(head, listed, width) for head, listed in names)] if names else []
        return [*lines, *self.shown, *(self.more if verbose else ())]

    def verdict(self) -> str:
        """How the checks ended, in one line.

        Example:
            >>> Report("MyGame").verdict()
            'MyGame: 0 checks ran, none failed'
        """
        ran, warnings = len(self.results) - len(self._having("skipped")), len(self._having("warning"))
        told = f"{self.failed} of {ran} checks failed" if self.failed else f"{ran} checks ran, none failed"
        if self.is_empty:
            told = "nothing was checked"
        told += f", {warnings} warning{'s' * (warnings > 1)}" if warnings else ""
        seconds = sum(result.seconds for result in self.results)
        return f"{self.subject}: {told}" + (f", in {duration(seconds)}" if seconds else "")

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON: every check with its words, its finding and the episodes that show it."""
        checks = [
            {
                **row,
                "shown": None if row["shown"] is None else asdict(row["shown"]),
                "episodes": [_episode(one) for one in row["episodes"]],
            }
            for row in self.rows()
        ]
        return {
            "turnsmith": __version__,
            "subject": self.subject,
            "failed": self.failed,
            "checks": checks,
            **self.facts,
        }

    def rows(self) -> list[dict[str, Any]]:
        """All that is known about each check, with the episodes that show it."""
        return [
            {
                "code": result.check.code,
                "name": result.check.name,
                "status": result.finding.status,
                "seconds": round(result.seconds, 3),
                "ran": result.check.ran,
                "saw": result.finding.saw,
                "why": result.check.why,
                "fix": result.finding.fix,
                "shown": result.finding.shown,
                "episodes": result.finding.episodes,
            }
            for result in self.results
        ]

    def _having(self, status: Status) -> list[Result]:
        return [result for result in self.results if result.finding.status == status]


def table(rows: dict[str, Any]) -> list[str]:
    """Names and their texts, as two columns."""
    width = max(map(len, rows), default=0)
    return [f"  {name:<{width}}  {text}" for name, text in rows.items()]


def _block(result: Result, width: int, *, verbose: bool) -> list[str]:
    """A check that found something: what it saw, why that matters, what to do and where to look."""
    check, finding, shown_by, test = result.check, result.finding, "", list[str]()
    if finding.shown is not None:
        said = " | ".join(map(repr, finding.shown.actions[:3]))
        said = said if len(said) <= _MOST_SAID else f"{said[:_MOST_SAID]}..."
        shown_by = f"{said} from seed {finding.shown.seed} gets {finding.shown.earned:.3g}."
        shown_by += f" Decided at {finding.shown.line}" if finding.shown.line else ""
        test = [" " * _INDENT + line for line in finding.shown.test.splitlines()] if verbose else []
    ids = list(dict.fromkeys(episode.episode_id for episode in finding.episodes))
    shown = ", ".join(ids[:_MOST_EPISODES]) + f" and {len(ids) - _MOST_EPISODES} more" * (len(ids) > _MOST_EPISODES)
    word = {"failed": "PROVEN", "warning": "JUDGE"}[finding.status] if check.audit else _WORDS[finding.status]
    head = f"{word:<{_INDENT}}{check.name} (--only {check.code})"
    if ids and len(head) + 2 + len(shown) <= width:
        head, shown = f"{head}: {shown}", ""
    texts = {"": finding.saw, "shown by: ": shown_by, "why: ": check.why, "fix: ": finding.fix, "see: ": shown}
    return [head, *(line for label, text in texts.items() if text for line in _indented(label + text, width)), *test]


def _row(result: Result, width: int) -> list[str]:
    head = f"{_WORDS[result.finding.status]:<{_INDENT}}{result.check.name:<{_NAME}} {result.seconds:5.1f} s"
    short = f"{head}  {result.finding.saw}"
    return [short] if len(short) <= width else [head, *_indented(result.finding.saw, width)]


def _one_line(head: str, names: list[str], width: int) -> str:
    """Print as many names as fit into a line.

    Example:
        >>> _one_line("3 passed: ", ["one", "two", "three"], 24)
        '3 passed: one, ...'
    """
    line = head + ", ".join(names)
    while len(line) > width and names:
        names = names[:-1]
        line = head + ", ".join([*names, "..."])
    return line


def _indented(text: str, width: int) -> list[str]:
    return [" " * _INDENT + line for line in wrapped(text, max(20, width - _INDENT))]


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

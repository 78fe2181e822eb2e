"""A run's ledger summed over all steps: what happened to its episodes, which were retried, and at what cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

_DECISIONS = ("trained", "masked", "dropped", "filtered")
_MAX_ROWS = 20


@dataclass
class LedgerTotals:
    """The sums over all steps.

    Example:
        >>> step = {"step": 1, "dispatched": 8, "trained": 7, "masked": 1, "given_up": {"worker_lost": 2}}
        >>> totals = LedgerTotals.of([step, {"step": 2, "dispatched": 8, "trained": 8}])
        >>> list(totals.lines())
        ['16 dispatched = 15 trained + 1 masked', 'retried: 2 worker_lost']
        >>> totals.balances
        True
    """

    dispatched: int = 0
    decisions: Counter[str] = field(default_factory=Counter[str])
    """Episodes trained on, masked, dropped and filtered; `in flight` counts those that no step has settled yet."""
    retries: Counter[str] = field(default_factory=Counter[str])
    """Attempts that were retried, by outcome."""
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Masked and dropped episodes, by the outcome of their last attempt."""
    tokens: Counter[str] = field(default_factory=Counter[str])
    episodes: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list[tuple[int, Mapping[str, Any]]])
    """Step and record of each episode that was not simply kept at its first attempt."""

    @classmethod
    def of(cls, steps: Iterable[Mapping[str, Any]]) -> LedgerTotals:
        """Sum the records of a run's `ledger.jsonl`."""
        totals, carried = cls(), 0
        for step in steps:
            totals.dispatched += int(step.get("dispatched", 0))
            for decision in _DECISIONS:
                totals.decisions[decision] += int(step.get(decision, 0))
            carried = len(step.get("carried", ()))
            totals.retries.update(step.get("given_up", {}))
            totals.tokens.update(step.get("tokens", {}))
            for episode in step.get("episodes", ()):
                totals.episodes.append((int(step["step"]), episode))
                if episode["decision"] in _DECISIONS:
                    totals.left_out[episode["attempts"][-1][0]] += 1
        totals.decisions["in flight"] = carried
        return totals

    @property
    def balances(self) -> bool:
        """Whether every dispatched episode is accounted for."""
        return self.dispatched == sum(self.decisions.values())

    def lines(self) -> Iterator[str]:
        """The totals as a few lines of text; none if no step was recorded."""
        if not self.dispatched:
            return
        decisions = " + ".join(f"{count:,} {decision}" for decision, count in self.decisions.items() if count)
        yield f"{self.dispatched:,} dispatched {'=' if self.balances else '!='} {decisions or '0'}"
        if self.left_out:
            yield f"not trained on: {_listed(self.left_out)}"
        if self.retries:
            total, retried = sum(self.tokens.values()), self.tokens["retried"]
            share = f", {retried / total:.1%} of all tokens" if retried else ""
            yield f"retried: {_listed(self.retries)}{share}"


def ledger_html(totals: LedgerTotals) -> str:
    """A section of the report; empty if every episode was kept at its first attempt."""
    if not totals.episodes:
        return ""
    lines = "".join(f"<p>{escape(line)}</p>" for line in totals.lines())
    rows = "".join(_row(step, episode) for step, episode in totals.episodes[-_MAX_ROWS:])
    more = len(totals.episodes) - _MAX_ROWS
    note = f'<p class="quiet">{more:,} earlier ones are in <code>ledger.jsonl</code>.</p>' if more > 0 else ""
    return (
        f'<section><h2>Failed and retried episodes</h2>{lines}{note}<div class="wide"><table class="warnings"><thead>'
        "<tr><th>step</th><th>episode</th><th>decision</th><th>attempts</th><th>error</th></tr>"
        f"</thead><tbody>{rows}</tbody></table></div></section>"
    )


def _row(step: int, episode: Mapping[str, Any]) -> str:
    attempts = "; ".join(f"{outcome}, {tokens} tokens, {spent:.1f} s" for outcome, tokens, spent in episode["attempts"])
    cells = (str(step), episode["episode"], episode["decision"], attempts, episode.get("error", ""))
    return f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in cells)}</tr>"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.most_common())

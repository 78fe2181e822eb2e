"""The ledger of a run, added up: what became of its episodes, what was tried again, and what that cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

_SIDES = ("trained", "masked", "dropped")
_SHOWN = 20


@dataclass
class LedgerTotals:
    """The sums over all steps.

    Example:
        >>> step = {"step": 1, "dispatched": 8, "trained": 7, "masked": 1, "given_up": {"worker_lost": 2}}
        >>> totals = LedgerTotals.of([step, {"step": 2, "dispatched": 8, "trained": 8}])
        >>> list(totals.lines())
        ['16 dispatched = 15 trained + 1 masked', 'tried again: 2 worker_lost']
        >>> totals.balances
        True
    """

    dispatched: int = 0
    sides: Counter[str] = field(default_factory=Counter[str])
    """Episodes that were trained on, masked, dropped; `under way` are those that no step has settled yet."""
    given_up: Counter[str] = field(default_factory=Counter[str])
    """Attempts that were made again, by how they ended."""
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Why episodes were masked or dropped: how their last attempt ended."""
    tokens: Counter[str] = field(default_factory=Counter[str])
    noted: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list[tuple[int, Mapping[str, Any]]])
    """Step and record of the episodes that were not simply played once and kept."""

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> LedgerTotals:
        """Add up the records of a run's `ledger.jsonl`."""
        totals, carried = cls(), 0
        for record in records:
            totals.dispatched += int(record.get("dispatched", 0))
            for side in _SIDES:
                totals.sides[side] += int(record.get(side, 0))
            carried = len(record.get("carried", ()))
            totals.given_up.update(record.get("given_up", {}))
            totals.tokens.update(record.get("tokens", {}))
            for one in record.get("episodes", ()):
                totals.noted.append((int(record["step"]), one))
                if one["decision"] in _SIDES:
                    totals.left_out[one["attempts"][-1][0]] += 1
        totals.sides["under way"] = carried
        return totals

    @property
    def balances(self) -> bool:
        """Whether every episode that was sent off is accounted for."""
        return self.dispatched == sum(self.sides.values())

    def lines(self) -> Iterator[str]:
        """The ledger in a few words; nothing if no step was recorded."""
        if not self.dispatched:
            return
        sides = " + ".join(f"{count:,} {side}" for side, count in self.sides.items() if count)
        yield f"{self.dispatched:,} dispatched {'=' if self.balances else 'IS NOT'} {sides or '0'}"
        if self.left_out:
            yield f"left out because: {_listed(self.left_out)}"
        if self.given_up:
            said, spoilt = sum(self.tokens.values()), self.tokens["retried"]
            share = f", {spoilt / said:.1%} of all tokens" if said and spoilt else ""
            yield f"tried again: {_listed(self.given_up)}{share}"


def ledger_html(totals: LedgerTotals) -> str:
    """A section of the report; nothing where every episode was played once and kept."""
    if not totals.noted:
        return ""
    lines = "".join(f"<p>{escape(line)}</p>" for line in totals.lines())
    rows = "".join(_row(step, one) for step, one in totals.noted[-_SHOWN:])
    more = len(totals.noted) - _SHOWN
    before = f'<p class="quiet">{more:,} earlier ones are in <code>ledger.jsonl</code>.</p>' if more > 0 else ""
    return (
        f'<section><h2>What became of the episodes</h2>{lines}{before}<div class="wide"><table class="warnings"><thead>'
        "<tr><th>step</th><th>episode</th><th>what became of it</th><th>its attempts</th><th>what went wrong</th></tr>"
        f"</thead><tbody>{rows}</tbody></table></div></section>"
    )


def _row(step: int, one: Mapping[str, Any]) -> str:
    attempts = "; ".join(f"{outcome}, {tokens} tokens, {seconds:.1f} s" for outcome, tokens, seconds in one["attempts"])
    cells = (str(step), one["episode"], one["decision"], attempts, one.get("error", ""))
    return f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in cells)}</tr>"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.most_common())

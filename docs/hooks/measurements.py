"""Writes README.md and docs/measurements.md from their templates and the figures in benchmarks/results.

Run, in the project's folder: python -m docs.hooks.measurements

In a template, `[[waiting.goodput:.3f]]` is the median of a figure over all readings in
`benchmarks/results/waiting.json`, in that format; `[[waiting.goodput.spread:.3f]]` adds the range and the number of
runs, `[[letters.seconds.spread:.0f s]]` a unit; `[[learning.success_0.interval:.0%]]` is the mean over runs with its
95 % interval, `[[learning.success_0.ever:.0%]]` the same together with what the command gave at earlier commits, and
`[[learning.success_0.earlier:.0%]]` the range of those;
`[[learning.right_0/held_out:.0%]]` divides two figures; `[[waiting.readings]]` is the number of runs;
`[[waiting.command]]`, `.date` and `.commit` say where they come from. `[[letters.output]]` is a text that was recorded,
`[[file examples/letters.py]]` a file, `[[all results]]` a table of all files.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turnsmith.rollout.evaluation.intervals import estimate_mean

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
TEMPLATES = ROOT / "docs" / "templates"
PAGES = {"README.md.in": ROOT / "README.md", "measurements.md.in": ROOT / "docs" / "measurements.md"}
PLACE = re.compile(r"\[\[([^\[\]\n]+)\]\]")
_FIGURE = re.compile(r"(\w+)\.(\w+)(?:/(\w+))?(?:\.(spread|interval|ever|earlier))?(?::(.+))?")


def write_page(template: str, results: Path = RESULTS) -> str:
    """The text of a template with its figures filled in."""
    found = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(results.glob("*.json"))}

    def fill(place: re.Match[str]) -> str:
        words = place[1]
        if words.startswith("file "):
            return (ROOT / words.removeprefix("file ")).read_text(encoding="utf-8").rstrip("\n")
        return _table(found) if words == "all results" else _figure(found, words)

    return PLACE.sub(fill, template)


def _figure(found: dict[str, Any], words: str) -> str:
    parts = _FIGURE.fullmatch(words)
    if parts is None or parts[1] not in found:
        raise ValueError(f"[[{words}]]: there is no such file in benchmarks/results")
    result, (key, divisor, around, form) = found[parts[1]], parts.groups()[1:]
    if isinstance(result.get(key), str):
        return result[key]
    if key == "readings":
        return str(len(result[key]))
    readings = [one for one in _readings(result, around) if key in one]
    if not readings:
        raise ValueError(f"[[{words}]]: benchmarks/results/{parts[1]}.json has no {key}")
    values = [one[key] / (one[divisor] if divisor else 1) for one in readings]
    form, _, unit = (form or "g").partition(" ")
    show: Callable[[float], str] = lambda value: format(value, form).replace("%", " %")  # noqa: E731
    if around in ("interval", "ever"):
        mean = estimate_mean([[value] for value in values])
        return f"{show(mean.value)} ({show(mean.low)} to {show(mean.high)})" if mean.has_interval else show(mean.value)
    middle = f"{show(statistics.median(values))} {unit}".rstrip()
    if not around:
        return middle
    runs = f"{show(min(values))} to {show(max(values))} in {len(values)} runs" if len(values) > 1 else "one run"
    if around == "earlier":
        return runs if len(values) > 1 else middle
    return f"{middle} ({runs})"


def _readings(result: dict[str, Any], around: str | None) -> list[dict[str, float]]:
    """The readings that are meant: of now, of earlier commits, or both."""
    earlier = [reading for one in result.get("earlier", []) for reading in one["readings"]]
    if around == "earlier":
        return earlier
    return [*earlier, *result["readings"]] if around == "ever" else result["readings"]


def _table(found: dict[str, Any]) -> str:
    rows = [("file", "command", "day", "commit", "runs", "machine", "measured by"), ("---",) * 7]
    for name, one in found.items():
        commit = one["commit"] if "src" in one else f"{one['commit']} (`src` only)"
        where = (one["date"], commit, str(len(one["readings"])), one["machine"], one["measured by"])
        rows.append((f"`{name}.json`", f"`{one['command']}`", *where))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    for name, page in PAGES.items():
        page.write_text(write_page((TEMPLATES / name).read_text(encoding="utf-8")), encoding="utf-8")
        print(f"wrote {page.relative_to(ROOT)}")

"""Every figure on a page of the docs stands in figures.txt, with where it comes from.

Run, in the project's folder: python -m docs.hooks.figures

It lists figures that are new on a page under `?`, and leaves out those that are gone; replace the `?` by a source. A
test fails as long as pages and list differ. A source is one of

    results KEY         a place of a template, as `results waiting.goodput:.3f`: the test compares the two
    measured WHERE      by this command or test, on that day; in no file of benchmarks/results
    setting             a default, a limit or an option of turnsmith, or of a test or a command that is shown
    example             of an example or an output that is shown, a count, a formula, somebody else's number
    name                of a version, a model, a port, a paper

Code, links and formulas are left out, and so are README.md and measurements.md: their templates are pages here. An
output that is shown and has a digit is one figure, named by a digest of its text, unless a test prints it again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from docs.hooks.measurements import write_page

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("figures.txt")
GENERATED = ("docs/measurements.md", "docs/configuration.md")
GLOBS = (
    "docs/*.md",
    "docs/design/*.md",
    "docs/reference/promises.md",
    "docs/coming-from/*.md",
    "docs/templates/[Rm]*.in",
    "recipes/**/*.md",
)
SOURCES = ("results ", "measured ", "setting", "example", "name")
_LEFT_OUT = re.compile(
    r"^```.*?^```|\$\$.*?\$\$|\$[^$\n]+\$|\[\[[^\[\]\n]+\]\]|`[^`\n]+`|\]\([^)\n]+\)|<[^>\n]+>|https?://\S+|"
    r"^\d+\. |#\d+",
    re.MULTILINE | re.DOTALL,
)
_UNITS = (
    "%|ms|s|min|minutes|seconds|hours|days|[KMGT]i?B|kB|times|bytes|x|tokens|points|episodes|steps|seeds|runs|turns|"
    "million|billion"
)
_PARTS = "half|twice|double|thirds?|quarters?|tenths?|hundredths?"
_COUNTS = "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|hundred"
_FIGURE = re.compile(
    rf"(?<![\w.#/-])[+-]?\d[\d.,]*(?<![.,])(?:e[+-]?\d+|\^-?\d+)?(?![\d.,]*\w)(?: ?(?:{_UNITS})(?!\w))?"
    rf"|\b(?:{_PARTS})\b|\b(?:{_COUNTS}) (?:of|in|times|out of) (?:{_COUNTS})\b|\b(?:{_COUNTS}) times\b",
    re.IGNORECASE,
)

_OUTPUT = re.compile(r"(?<!<!-- output -->\n)^```(?:text|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$.*", re.MULTILINE)

Sources = dict[str, list[str]]
"""The figures of a page by their source."""


def pages() -> dict[str, str]:
    """The text of each page, by its path."""
    files = sorted(file for pattern in GLOBS for file in ROOT.glob(pattern))
    found = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}
    return {name: text for name, text in found.items() if name not in GENERATED}


def figures_of(text: str) -> list[str]:
    """Numbers with their units, and parts and ratios in words, in the order of the page; then the outputs.

    A digit by itself, as in `the reward is 0`, counts in a table only.

    Example:
        >>> figures_of("It took 1.5 s of `9 s`, half as long, in four of five runs (10^5 episodes of SmolLM2-135M).")
        ['1.5 s', 'half', 'four of five', '10^5 episodes']
    """
    return [_name(text[start:stop]) for start, stop in places_of(text)]


def places_of(text: str) -> Iterator[tuple[int, int]]:
    """Where the figures of a text begin and end."""
    plain = _LEFT_OUT.sub(lambda left: re.sub(r"[^\n]", " ", left[0]), text)
    for found in _FIGURE.finditer(plain):
        is_table = plain.startswith("|", plain.rfind("\n", 0, found.start()) + 1)
        if is_table or not re.fullmatch(r"\d", found[0]):
            yield found.span()
    for found in _OUTPUT.finditer(text):
        if re.search(r"\d", _COMMAND.sub("", found[1])):
            yield found.span(1)


def _name(figure: str) -> str:
    is_output = "\n" in figure
    return f"output {blake2b(figure.encode(), digest_size=4).hexdigest()}" if is_output else figure


def read_table(text: str) -> dict[str, Sources]:
    """The pages of figures.txt."""
    table: dict[str, Sources] = {}
    page: Sources = {}
    for line in filter(None, text.splitlines()):
        if line.startswith("== "):
            page = table.setdefault(line.removeprefix("== "), {})
        else:
            source, _, listed = line.partition(" :: ")
            for one, _, count in (part.partition(" *") for part in listed.split(" | ")):
                page.setdefault(source, []).extend([one] * int(count or 1))
    return table


def write_table(table: dict[str, Sources]) -> str:
    """The text of figures.txt."""
    lines: list[str] = []
    for page, sources in sorted(table.items()):
        lines.append(f"== {page}")
        for source, listed in sources.items():
            counted = (one if count == 1 else f"{one} *{count}" for one, count in Counter(listed).items())
            lines += [f"{source} :: {' | '.join(counted)}"] if listed else []
    return "\n".join(lines) + "\n"


def problems(page: str, text: str, sources: Sources) -> list[str]:
    """What differs between a page and what is listed for it."""
    on_page, listed = Counter(figures_of(text)), Counter(one for some in sources.values() for one in some)
    found = [f"{page}: `{one}` is not in docs/hooks/figures.txt" for one in on_page - listed]
    found += [f"{page}: `{one}` of docs/hooks/figures.txt is not there" for one in listed - on_page]
    for source, some in sources.items():
        if not source.startswith(SOURCES):
            found.append(f"{page}: say where {', '.join(some)} comes from, in docs/hooks/figures.txt")
        elif source.startswith("results "):
            measured = write_page(f"[[{source.removeprefix('results ')}]]")
            found += [f"{page}: `{one}`, but {source} is {measured}" for one in some if one.split(" ")[0] != measured]
    return found


def updated(page: str, text: str, sources: Sources) -> Sources:
    """The sources of a page with its new figures under `?`, and without those that are gone."""
    left, kept = Counter(figures_of(text)), dict[str, list[str]]()
    for source, listed in sources.items():
        there = list((Counter(listed) & left).elements())
        left -= Counter(there)
        kept[source] = there
    kept.setdefault("?", []).extend(left.elements())
    return kept


if __name__ == "__main__":
    known = read_table(TABLE.read_text(encoding="utf-8"))
    TABLE.write_text(
        write_table({page: updated(page, text, known.get(page, {})) for page, text in pages().items()}),
        encoding="utf-8",
    )
    print(f"wrote {TABLE.relative_to(ROOT)}")

"""Figures of README.md and docs/measurements.md come from files that benchmarks wrote, all others stand in a list."""

from __future__ import annotations

import importlib
import json
import random
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    from docs.hooks import measurements

    return measurements


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    from docs.hooks import figures

    return figures


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import results

    return results


@pytest.mark.parametrize("template", ["README.md.in", "measurements.md.in"])
def test_the_page_has_the_figures_of_the_files(template: str, hook: ModuleType) -> None:
    page = hook.PAGES[template].read_text(encoding="utf-8")
    written = hook.write_page((hook.TEMPLATES / template).read_text(encoding="utf-8"))
    assert page == written, f"edit docs/templates/{template}, then run: python -m docs.hooks.measurements"


def test_every_figure_of_every_page_stands_in_the_list_with_its_source(figures: ModuleType) -> None:
    pages, table = figures.pages(), figures.read_table(figures.TABLE.read_text(encoding="utf-8"))
    found = [one for page, text in pages.items() for one in figures.problems(page, text, table.get(page, {}))]
    assert found == [], "run python -m docs.hooks.figures, then say where each new figure comes from"
    assert table.keys() <= pages.keys()


def test_a_figure_that_is_changed_by_hand_is_found_on_every_page(figures: ModuleType) -> None:
    table = figures.read_table(figures.TABLE.read_text(encoding="utf-8"))
    texts = {page: text for page, text in figures.pages().items() if page in table and figures.figures_of(text)}
    assert len(texts) >= 30
    for page, text in texts.items():
        places = list(figures.places_of(text))
        start, stop = random.Random(page).choice(places)
        figure = text[start:stop]
        other = re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), figure, count=1)
        other = other if other != figure else "nearly all"
        changed = text[:start] + other + text[stop:]
        assert figures.problems(page, changed, table[page]), f"{page}: {figure} was changed to {other}"


def test_a_shown_output_is_one_figure_unless_a_test_prints_it_again(figures: ModuleType) -> None:
    printed = "<!-- output -->\n```text\n5\n```\n\n"
    page = f"```console\n$ turnsmith selftest --port 80\n```\n\n{printed}```text\ntook 5 s\n```\n"
    (name,) = figures.figures_of(page)
    assert re.fullmatch(r"output [0-9a-f]{8}", name)
    assert figures.figures_of(page.replace("took 5 s", "took 4 s")) != [name]
    assert figures.figures_of(page.replace("--port 80", "--port 81")) == [name]


def test_what_is_listed_is_compared_with_the_files_and_needs_a_source(figures: ModuleType) -> None:
    page = "It was 0.9992 of 24 threads."
    assert figures.problems("p", page, {"results waiting.goodput:.4f": ["0.9992"], "setting": ["24"]}) == []
    told = figures.problems("p", page, {"results waiting.goodput:.3f": ["0.9992"], "?": ["24"]})
    assert told == [
        "p: `0.9992`, but results waiting.goodput:.3f is 0.999",
        "p: say where 24 comes from, in docs/hooks/figures.txt",
    ]
    assert figures.updated("p", page, {"setting": ["24", "25"]}) == {"setting": ["24"], "?": ["0.9992"]}


def test_every_file_says_where_it_comes_from(hook: ModuleType) -> None:
    files = sorted(hook.RESULTS.glob("*.json"))
    assert len(files) >= 15
    for file in files:
        found = json.loads(file.read_text(encoding="utf-8"))
        assert {"command", "date", "commit", "machine", "measured by"} <= found.keys(), file.name
        assert found["readings"], file.name
        assert re.match(r"the command$|the command in parts: ", found["measured by"]), (
            f"{file.name}: run it with --json"
        )


@pytest.mark.parametrize(
    ("picture", "module", "files", "options"),
    [
        ("first_result", "first_result", ["learning"], {}),
        ("learning_episodes", "learning", ["learning", "learning_trl"], {"by": "episodes"}),
        ("learning_minutes", "learning", ["learning", "learning_trl"], {"by": "minutes"}),
        ("schedules", "schedules", ["schedules_scale"], {}),
        ("estimators", "estimators", ["estimators"], {}),
    ],
)
def test_the_picture_is_drawn_from_the_files(
    picture: str, module: str, files: list[str], options: dict[str, str], hook: ModuleType
) -> None:
    found = [json.loads((hook.RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in files]
    drawn = importlib.import_module(f"docs.images.{module}").draw(*found, **options)
    assert drawn == (ROOT / "docs" / "images" / f"{picture}.svg").read_text(encoding="utf-8")


def test_a_benchmark_adds_readings_until_the_command_changes(
    results: ModuleType, hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{ROOT}/benchmarks/waiting.py", "--quick", "--json"])
    for goodput in (0.5, 0.75, 0.6):
        results.record("waiting", {"goodput": goodput}, folder=tmp_path)
    assert results.kept("waiting", tmp_path) == [{"goodput": 0.5}, {"goodput": 0.75}, {"goodput": 0.6}]
    template = "[[waiting.readings]]; [[waiting.goodput:.2f]]; [[waiting.goodput.spread:.2f]]; [[waiting.command]]"
    written = "3; 0.60; 0.60 (0.50 to 0.75 in 3 runs); python -m benchmarks.waiting --quick"
    assert hook.write_page(template, tmp_path) == written
    interval = "0.62 (0.30 to 0.93)"  # Student's t: 4.303 standard errors of 0.0726 either side of 0.6167
    assert hook.write_page("[[waiting.goodput.interval:.2f]]", tmp_path) == interval
    monkeypatch.setattr(sys, "argv", [f"{ROOT}/benchmarks/waiting.py", "--json"])
    assert results.kept("waiting", tmp_path) == []
    results.record("waiting", {"goodput": 0.9}, folder=tmp_path)
    written = json.loads((tmp_path / "waiting.json").read_text())
    assert [len(one["readings"]) for one in written["earlier"]] == [3], "nothing is thrown away"
    assert hook.write_page("[[waiting.goodput.spread:.0%]]", tmp_path) == "90 % (one run)"
    assert hook.write_page("[[waiting.goodput.interval:.0%]]", tmp_path) == "90 %"
    results.record("waiting", {"goodput": 0.1}, folder=tmp_path, is_wanted=False)
    assert len(json.loads((tmp_path / "waiting.json").read_text())["readings"]) == 1


def test_readings_of_an_earlier_src_stay_with_their_commit(
    results: ModuleType, hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{ROOT}/benchmarks/waiting.py", "--json"])
    for tree, src, goodput in (("a", "1", 0.5), ("b", "1", 0.7), ("c+", "2", 0.9)):
        monkeypatch.setattr(results, "commit", lambda folder=".", tree=tree, src=src: src if folder == "src" else tree)
        results.record("waiting", {"goodput": goodput}, folder=tmp_path)
    written = json.loads((tmp_path / "waiting.json").read_text())
    assert (written["commit"], written["src"], written["readings"]) == ("c+", "2", [{"goodput": 0.9}])
    [earlier] = written["earlier"]
    assert (earlier["commit"], earlier["src"]) == ("b", "1")
    assert earlier["readings"] == [{"goodput": 0.5}, {"goodput": 0.7}]
    assert hook.write_page("[[waiting.goodput.earlier:.1f]]", tmp_path) == "0.5 to 0.7 in 2 runs"
    assert hook.write_page("[[waiting.goodput.ever:.2f]]", tmp_path).startswith("0.70 (")


@pytest.mark.parametrize("place", ["[[nothing.goodput]]", "[[waiting.speed]]"])
def test_a_figure_that_nobody_measured_is_an_error(place: str, hook: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "waiting.json").write_text('{"readings": [{"goodput": 1}]}')
    with pytest.raises(ValueError, match=r"there is no such file|has no speed"):
        hook.write_page(place, tmp_path)

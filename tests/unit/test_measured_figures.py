"""Every figure of README.md and docs/measurements.md comes from a file that a benchmark wrote."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
NOT_FIGURES = (
    "95 %",  # the level of intervals
    "SmolLM2-135M",
    "SmolLM2",
    "float32",
    "Python 3.11 or 3.12",
    "Python 3.11 or newer",
    "Python 3.13",
    "(version 1.16)",
    "November 2026",
    "](https://github.com/",
    "Apache-2.0",
)
"""Digits that are part of a name."""


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    from docs.hooks import measurements

    return measurements


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


@pytest.mark.parametrize("template", ["README.md.in", "measurements.md.in"])
def test_a_template_has_no_figure_of_its_own(template: str, hook: ModuleType) -> None:
    assert figures_of((hook.TEMPLATES / template).read_text(encoding="utf-8"), hook) == []


def figures_of(template: str, hook: ModuleType) -> list[str]:
    """The lines with digits that are neither filled in, nor code, nor a link, nor a name."""
    text = re.sub(r"^```.*?^```", "", template, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]+`|\]\([^)]+\)", "", hook.PLACE.sub("", text))
    for name in NOT_FIGURES:
        text = text.replace(name, "")
    return [line for line in text.splitlines() if re.search(r"\d", line)]


def test_a_figure_written_by_hand_is_found(hook: ModuleType) -> None:
    assert figures_of("It takes [[waiting.goodput]] and `1` of 95 %.\nIt is 3 times as fast.", hook) == [
        "It is 3 times as fast."
    ]


def test_every_file_says_where_it_comes_from(hook: ModuleType) -> None:
    files = sorted(hook.RESULTS.glob("*.json"))
    assert len(files) >= 15
    for file in files:
        found = json.loads(file.read_text(encoding="utf-8"))
        assert {"command", "date", "commit", "machine", "measured by"} <= found.keys(), file.name
        assert found["readings"], file.name
        assert found["measured by"] == "the command", f"{file.name}: run its command with --json"


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
    assert hook.write_page("[[waiting.goodput.spread:.0%]]", tmp_path) == "90 % (one run)"
    assert hook.write_page("[[waiting.goodput.interval:.0%]]", tmp_path) == "90 %"
    results.record("waiting", {"goodput": 0.1}, folder=tmp_path, is_wanted=False)
    assert len(json.loads((tmp_path / "waiting.json").read_text())["readings"]) == 1


@pytest.mark.parametrize("place", ["[[nothing.goodput]]", "[[waiting.speed]]"])
def test_a_figure_that_nobody_measured_is_an_error(place: str, hook: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "waiting.json").write_text('{"readings": [{"goodput": 1}]}')
    with pytest.raises(ValueError, match=r"there is no such file|has no speed"):
        hook.write_page(place, tmp_path)

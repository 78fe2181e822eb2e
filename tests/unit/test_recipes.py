"""Each recipe is what its README says: it is listed, its environment begins. `test_console.py` types its commands."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.recipes import NAMES, ROOT, training

from turnsmith.cli.main import build_parsers
from turnsmith.cli.train import read_config
from turnsmith.env.spec import EnvironmentSpec


def parse(words: list[str]) -> Any:
    return build_parsers()["turnsmith"].parse_args(words)


def test_the_page_lists_every_recipe() -> None:
    text = (ROOT / "recipes" / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"[{name}]({name}/README.md)" not in text] == []
    assert len(NAMES) == 8


@pytest.mark.parametrize("name", [name for name in NAMES if "--data" not in training(name) and name != "agent"])
def test_its_environment_begins(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    args = parse(training(name))
    config = read_config(args.config, args.model, args.overrides)
    environment = EnvironmentSpec.of(args.environment, config.environment).build()
    environment.ask = lambda player, messages: "b"  # type: ignore[method-assign]
    assert environment.reset(seed=3)


def test_no_held_out_row_is_trained_on() -> None:
    rows = [(ROOT / "recipes" / "sums" / name).read_text().splitlines() for name in ("train.jsonl", "held_out.jsonl")]
    trained, held_out = ([json.loads(row) for row in part] for part in rows)
    questions = {row["question"] for row in trained}
    assert (len(questions), len(held_out)) == (200, 128)
    assert not any(row["question"] in questions for row in held_out)


def test_the_shop_pays_for_the_one_thing_that_was_wanted() -> None:
    shop = EnvironmentSpec.of(f"{ROOT / 'recipes' / 'simulated_user' / 'shop.py'}:Shop").build()
    shop.ask = lambda player, messages: f"{player} hears {messages[-1]['content']}"  # type: ignore[method-assign]
    assert shop.reset(seed=1) == "customer hears Good morning! What can I do for you?"
    assert shop.step("Which bread?") == ("customer hears Which bread?", 0.0, False, {})
    for action, reward in (("Here is bread.", 1.0), ("Here is tea.", 0.0), ("Here is tea, bread and soap.", 0.0)):
        assert shop.step(action)[1:3] == (reward, True)


def test_curves_are_drawn_from_what_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from docs.images.recipes import draw

    recorded = sorted((ROOT / "benchmarks" / "results").glob("recipe_*.json"))
    assert recorded
    for file in recorded:
        folder = ROOT / "recipes" / file.stem.removeprefix("recipe_")
        drawn = draw(json.loads(file.read_text(encoding="utf-8")))
        assert drawn == (folder / "curve.svg").read_text(encoding="utf-8"), "python -m docs.images.recipes"
        assert "](curve.svg)" in (folder / "README.md").read_text(encoding="utf-8")

"""Specs build environments from classes, names, files and objects, or say in a sentence why they cannot."""

from __future__ import annotations

import pickle
import sqlite3
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest

from turnsmith.config import EnvironmentConfig
from turnsmith.env import BaseEnvironment, EnvironmentSpec
from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.env.host import open_host
from turnsmith.env.isolation.pool import close_workers
from turnsmith.env.spec import _is_gymnasium
from turnsmith.errors import ConfigError


class Plain:
    """No base class, own constructor parameters."""

    def __init__(self, size: int = 5, colour: str = "red") -> None:
        self.size = size
        self.colour = colour

    def reset(self) -> str:
        return "start"

    def step(self, action: str) -> tuple:
        return "next", 0.0, False, {}


class Keyed(Plain):
    def __init__(self, api_key: str, size: int) -> None:
        super().__init__(size)
        self.api_key = api_key


def test_a_class_is_built_with_the_config():
    spec = EnvironmentSpec.of(GuessNumber, EnvironmentConfig(highest=4))
    assert spec.name == "GuessNumber"
    assert spec.build().highest == 4
    assert EnvironmentSpec.of(GuessNumber).build().highest == 16


def test_every_build_is_fresh_and_has_its_own_config():
    spec = EnvironmentSpec.of(GuessNumber, EnvironmentConfig(highest=4))
    one, other = spec.build(), spec.build()
    one.config.highest = 99
    assert one is not other
    assert other.highest == 4
    assert spec.build().highest == 4


def test_an_object_stands_for_its_class_and_its_own_config():
    spec = EnvironmentSpec.of(GuessNumber({"highest": 3}), EnvironmentConfig(highest=7))
    assert spec.target is GuessNumber
    assert spec.build().highest == 3


def test_an_object_that_can_be_called_is_no_factory_if_it_has_a_reset():
    class Callable(BaseEnvironment):
        def reset(self) -> str:
            return "Go."

        def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
            return "Done.", 1.0, True, {}

        def __call__(self) -> str:
            return "not an environment"

    assert isinstance(EnvironmentSpec.of(Callable()).build(), Callable)


def test_the_config_of_an_object_may_be_a_dict():
    class Own(Plain):
        config: ClassVar = {"size": 5}

    with pytest.warns(UserWarning, match="size=1 of yours is lost"):
        assert EnvironmentSpec.of(Own(size=1)).build().size == 5


def test_a_plain_class_gets_settings_by_name():
    built = EnvironmentSpec.of(Plain, EnvironmentConfig(size=3)).build()
    assert (built.size, built.colour) == (3, "red")


def test_a_config_under_another_name_is_passed():
    class Renamed(BaseEnvironment):
        def __init__(self, cfg: EnvironmentConfig, colour: str = "red") -> None:
            super().__init__(cfg)

        def reset(self) -> str:
            return ""

        def step(self, action: str) -> tuple:
            return "", 0.0, True, {}

    assert EnvironmentSpec.of(Renamed, EnvironmentConfig(max_steps=2)).build().max_steps == 2


def test_an_object_that_cannot_be_rebuilt_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match=r"needs api_key, size.*rebuilt from its class"):
        EnvironmentSpec.of(Keyed("secret", 3))
    built = EnvironmentSpec.of(Keyed, EnvironmentConfig(api_key="k", size=2)).build()
    assert (built.api_key, built.size) == ("k", 2)


def test_a_name_is_imported():
    assert EnvironmentSpec.of("turnsmith.env.examples.guess_number:GuessNumber").load() is GuessNumber


def test_a_file_is_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "my_game.py"
    file.write_text("class Game:\n    def reset(self): return 'hi'\n    def step(self, a): return 'x', 0.0, True, {}\n")
    spec = EnvironmentSpec.of("my_game.py:Game")
    assert spec.target == f"{file}:Game"  # found from any folder
    assert (spec.name, spec.build().reset()) == ("Game", "hi")
    assert pickle.loads(pickle.dumps(spec)) == spec  # noqa: S301


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("no_colon", "is not a name to import"),
        ("no.such.module:Game", "There is no module 'no'"),
        ("turnsmith.env.examples.guess_number:Gess", "GuessNumber"),
        ("missing.py:Game", "no file '.*missing.py'"),
        (int, "no method reset and no step"),
        (BaseEnvironment, "it lacks the methods reset and step"),
    ],
)
def test_what_is_no_environment_is_refused(target, sentence):
    with pytest.raises(ConfigError, match=sentence):
        EnvironmentSpec.of(target)


def test_a_spec_survives_pickling():
    spec = EnvironmentSpec.of(GuessNumber, EnvironmentConfig(highest=4))
    assert pickle.loads(pickle.dumps(spec)).build().highest == 4  # noqa: S301


def test_a_spec_of_a_spec_keeps_its_config():
    spec = EnvironmentSpec.of(GuessNumber, EnvironmentConfig(highest=4))
    assert EnvironmentSpec.of(spec, EnvironmentConfig(highest=9)) == spec
    assert EnvironmentSpec.of(EnvironmentSpec(GuessNumber), EnvironmentConfig(highest=9)).build().highest == 9


class Board(BaseEnvironment):
    def __init__(self, size: int, colour: str = "red") -> None:
        super().__init__()
        self.size, self.colour, self.is_closed = size, colour, False
        made.append(self)

    def reset(self) -> str:
        return f"{self.size} {self.colour}"

    def step(self, action: str):
        return "", 1.0, True, {}

    def close(self) -> None:
        self.is_closed = True


made: list[Board] = []


def make_board(config: EnvironmentConfig) -> Board:
    return Board(config.size)


def make_nothing() -> str:
    return "a board"


SIZED = partial(Board, 7)


@pytest.mark.parametrize(
    ("factory", "name", "first"),
    [
        (lambda: Board(5), "<lambda>", "5 red"),
        (lambda size, colour="blue": Board(size, colour), "<lambda>", "3 blue"),
        (make_board, "make_board", "3 red"),
        (partial(Board, 4, colour="green"), "Board", "4 green"),
        (f"{__name__}:make_board", "make_board", "3 red"),
        (f"{__name__}:SIZED", "SIZED", "7 red"),
    ],
)
def test_a_factory_is_accepted_where_a_class_is(factory: Any, name: str, first: str) -> None:
    made.clear()
    spec = EnvironmentSpec.of(factory, EnvironmentConfig(size=3))
    assert (spec.name, spec.is_agent, spec.load()) == (name, False, Board)
    assert [board.is_closed for board in made] in ([False], []), "what was made to look at it was never reset"
    one, other = spec.build(), spec.build()
    assert one is not other
    assert one.reset() == other.reset() == first


async def test_episodes_of_a_factory_are_the_same_in_threads_and_in_worker_processes() -> None:
    config = EnvironmentConfig(isolation_workers=1)
    for mode in ("thread", "process"):
        host = open_host(replace(EnvironmentSpec.of(partial(Board, 4), config), isolation=mode))
        try:
            assert await host.reset() == "4 red"
            assert (await host.step("")).reward == 1.0
        finally:
            await host.close()
    await close_workers()


def test_a_factory_that_returns_something_else_is_told_in_words() -> None:
    with pytest.raises(
        ConfigError, match="make_nothing returned str, which is not an environment: it has no method reset"
    ):
        EnvironmentSpec.of(make_nothing)
    with pytest.raises(ConfigError, match=r"Keyed cannot be built: it needs api_key\. Set environment\.api_key=\.\.\."):
        EnvironmentSpec.of(partial(Keyed), EnvironmentConfig(size=2))


def test_a_class_derived_from_gymnasiums_is_one_of_its_own_and_one_that_is_only_called_so_is_not() -> None:
    theirs = type("Env", (), {"__module__": "gymnasium.core"})
    assert _is_gymnasium(type("Light", (theirs,), {"__module__": "my_lights"}))
    assert not _is_gymnasium(type("Env", (), {"__module__": "my_lights"}))
    assert not _is_gymnasium(type("Wrapper", (), {"__module__": "gymnasium.core"}))


def test_a_function_of_two_required_parameters_is_an_agent() -> None:
    assert EnvironmentSpec.of(lambda task, model, retries=3: 1.0).is_agent


class Ledger(BaseEnvironment):
    """As in docs/environments.md: `close` needs what `reset` made."""

    def reset(self) -> str:
        self.database = sqlite3.connect(":memory:")
        return "Book something."

    def step(self, action: str) -> Any:
        return "", 1.0, True, {}

    def close(self) -> None:
        self.database.close()


@pytest.mark.parametrize("factory", [partial(Ledger), lambda: Ledger()], ids=["partial", "function"])
def test_what_a_factory_made_to_look_at_is_not_closed(factory: Any):
    assert EnvironmentSpec.of(factory).load() is Ledger


class TakesMore(Plain):
    def reset(self, seed: int, difficulty: str) -> str:  # type: ignore[override]
        return "start"


class NoSelf(Plain):
    def reset() -> str:  # type: ignore[override, misc]
        return "start"


class NoAction(Plain):
    def step(self) -> tuple:  # type: ignore[override]
        return "next", 0.0, False, {}


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        (TakesMore, r"TakesMore.reset cannot be called: missing a required argument: 'difficulty'. It may take `seed`"),
        (NoSelf, r"NoSelf.reset cannot be called: too many positional arguments. It may take `seed` and `task`"),
        (NoAction, r"NoAction.step cannot be called: .* write it as `def step\(self, action\)`"),
    ],
)
def test_a_method_that_no_episode_can_call_is_refused_at_once(environment: type, what: str):
    with pytest.raises(ConfigError, match=what):
        EnvironmentSpec.of(environment)


def test_methods_that_take_what_episodes_give_are_not_refused():
    class Open(Plain):
        def reset(self, *args: Any, **kwargs: Any) -> str:
            return "start"

        step = staticmethod(lambda action: ("next", 0.0, False, {}))

    assert EnvironmentSpec.of(Open).load() is Open

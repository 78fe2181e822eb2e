"""Classes and functions travel by name where they have one, and whole where they have none."""

from __future__ import annotations

import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
from tests.unit.env.isolation.games import Counter, twice_the_total

from turnsmith.config import EnvironmentConfig
from turnsmith.env import BaseEnvironment, EnvironmentSpec
from turnsmith.env.isolation.messages import encode, read_request
from turnsmith.env.isolation.serialization import define_function, define_spec, unpack_function, unpack_spec
from turnsmith.errors import ConfigError

ROOT = str(Path(__file__).parents[4])


def sent(spec: EnvironmentSpec) -> Any:
    """As it arrives."""
    return read_request(encode(define_spec(spec, 1)))


def test_a_class_of_a_module_travels_by_name():
    definition = sent(EnvironmentSpec(Counter, EnvironmentConfig(goal=3)))
    assert (definition.name, definition.pickled) == ("tests.unit.env.isolation.games:Counter", b"")
    assert definition.folders == [ROOT]
    spec = unpack_spec(definition)
    assert spec.load() is Counter
    assert (spec.config.goal, spec.mode) == (3, "thread")
    function = define_function(twice_the_total, 2)
    assert (function.name, function.pickled) == ("tests.unit.env.isolation.games:twice_the_total", b"")
    assert unpack_function(function) is twice_the_total


def test_a_class_of_a_file_travels_by_its_path(tmp_path: Path):
    (tmp_path / "board_game.py").write_text(
        "from turnsmith import BaseEnvironment\n"
        "class Board(BaseEnvironment):\n    def reset(self): return ''\n    def step(self, action): ...\n"
        "def reward(trajectory, environment): return 1.0\n"
    )
    spec = EnvironmentSpec.of(f"{tmp_path}/board_game.py:Board")
    assert sent(spec).name == f"{tmp_path}/board_game.py:Board"
    assert sent(EnvironmentSpec(spec.load())).name == "board_game:Board"
    reward = sys.modules["board_game"].reward
    definition = define_function(reward, 1)
    assert (definition.name, definition.folders) == ("board_game:reward", [str(tmp_path)])
    assert unpack_function(definition) is reward, "the file is not run a second time"


def test_what_has_no_name_is_pickled_whole():
    class Local(BaseEnvironment):
        def reset(self) -> str:
            return "local"

        def step(self, action: str) -> Any: ...

    definition = sent(EnvironmentSpec(Local))
    assert definition.name == ""
    assert unpack_spec(definition).build().reset() == "local"
    scale = 3
    assert unpack_function(define_function(lambda trajectory, environment: scale, 1))(None, None) == 3


def test_a_module_that_nobody_can_import_is_sent_along(monkeypatch: pytest.MonkeyPatch):
    module = types.ModuleType("made_by_hand")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    source = "WORD = 'hello'\nclass Made:\n    def reset(self): return WORD\n    def step(self, action): ..."
    exec(source, module.__dict__)  # noqa: S102
    definition = sent(EnvironmentSpec(module.Made))
    monkeypatch.delitem(sys.modules, module.__name__)
    assert unpack_spec(definition).build().reset() == "hello"


def test_settings_keep_their_types():
    plain = EnvironmentConfig(board={"size": 3}, words=["a"], rate=0.5)
    assert not sent(EnvironmentSpec(Counter, plain)).config_is_pickled
    assert unpack_spec(sent(EnvironmentSpec(Counter, plain))).config == plain
    odd = EnvironmentConfig(pair=(1, 2), kind=complex)
    definition = sent(EnvironmentSpec(Counter, odd))
    assert definition.config_is_pickled
    assert unpack_spec(definition).config.pair == (1, 2)


def test_what_cannot_be_sent_is_refused_with_the_way_out():
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"cannot be sent to a worker process.*environment.isolation=thread"):
        define_function(lambda trajectory, environment: lock, 1)

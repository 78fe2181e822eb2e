"""BaseEnvironment as the seeds use it."""

from __future__ import annotations

import pytest

from turnsmith.config import EnvironmentConfig
from turnsmith.env import BaseEnvironment


class TextGame(BaseEnvironment):
    """The text game of the seeds: no constructor, `_done`, no step counting."""

    def reset(self) -> str:
        self.score = 0
        return "Welcome"

    def step(self, action: str) -> tuple:
        self._done = "attack" in action
        return "next", 1.0, self._done, {}


def test_config_may_be_a_config_a_dict_or_missing():
    assert TextGame(EnvironmentConfig(max_steps=3)).max_steps == 3
    assert TextGame({"max_steps": 4, "size": 2}).config.size == 2
    assert TextGame().max_steps == 10


def test_the_old_name_of_done_is_the_same_thing():
    game = TextGame()
    game.step("attack")
    assert game.done
    assert game.is_done()
    game.done = False
    assert not game._done


def test_step_count_and_max_steps_end_an_episode():
    game = TextGame({"max_steps": 2})
    game.step_count = 2
    assert game.is_done()


def test_a_subclass_that_forgets_super_init_still_works():
    class Forgetful(TextGame):
        def __init__(self, config: EnvironmentConfig) -> None:
            self.mine = config

    game = Forgetful(EnvironmentConfig())
    assert (game.done, game.step_count, game.max_steps, game.is_done()) == (False, 0, 10, False)


def test_reset_and_step_must_be_written():
    with pytest.raises(TypeError, match="abstract"):
        BaseEnvironment()  # type: ignore[abstract]

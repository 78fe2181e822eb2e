"""Limits come from the config and are checked."""

from __future__ import annotations

import pytest

from turnsmith.config import InferenceConfig
from turnsmith.config_sources import apply_overrides, from_dict
from turnsmith.errors import ConfigError
from turnsmith.rollout import Limits


def test_limits_of_a_config():
    config = InferenceConfig(max_turns=4, max_episode_tokens=99, max_seconds=5.0, max_prompt_tokens=7)
    assert Limits.of(config) == Limits(turns=4, tokens=99, seconds=5.0, prompt_tokens=7)
    config.multi_turn = False
    assert Limits.of(config).turns == 1
    assert Limits.of(InferenceConfig(max_tool_calls=2)) == Limits(tool_calls=2)


def test_limits_of_a_command_line():
    config = apply_overrides(from_dict({}), ["inference.max_tool_calls=3"])
    assert Limits.of(config.inference).tool_calls == 3
    assert Limits.of(apply_overrides(config, ["inference.max_tool_calls=null"]).inference).tool_calls is None


@pytest.mark.parametrize("name", ["turns", "tokens", "seconds", "prompt_tokens", "tool_calls"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_of_nothing_is_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        Limits(**{name: value})


def test_limits_without_a_config_are_those_of_an_empty_one_and_1_is_enough():
    assert Limits() == Limits.of(InferenceConfig())
    assert Limits(turns=1, tokens=1, prompt_tokens=1, tool_calls=1).turns == 1

"""Limits come from the config and are checked."""

from __future__ import annotations

import pytest

from turnwise.config import InferenceConfig
from turnwise.errors import ConfigError
from turnwise.rollout import Limits


def test_limits_of_a_config():
    config = InferenceConfig(max_turns=4, max_episode_tokens=99, max_seconds=5.0, max_prompt_tokens=7)
    assert Limits.of(config) == Limits(turns=4, tokens=99, seconds=5.0, prompt_tokens=7)
    config.multi_turn = False
    assert Limits.of(config).turns == 1


@pytest.mark.parametrize("name", ["turns", "tokens", "seconds", "prompt_tokens"])
def test_a_limit_of_nothing_is_refused(name):
    with pytest.raises(ConfigError, match=name):
        Limits(**{name: 0})

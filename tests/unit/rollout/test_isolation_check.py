"""What cannot get to where environments run is refused before anything starts."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from turnsmith.config import ConfigStore, EnvironmentConfig
from turnsmith.env import BaseEnvironment, EnvironmentSpec
from turnsmith.errors import ConfigError
from turnsmith.rollout.spec import check_isolation
from turnsmith.trainer import RayPPOTrainer


class Game(BaseEnvironment):
    def reset(self) -> str:
        return "start"

    def step(self, action: str) -> Any: ...


LOCK = threading.Lock()


def locked(environment: Any) -> Any:
    lock = LOCK
    return lambda trajectory, environment: float(lock.locked())


def test_code_of_the_users_runs_in_processes_and_ours_in_threads():
    assert EnvironmentSpec.of(Game).mode == "thread"
    assert EnvironmentSpec.of(Game).isolated().mode == "process"
    assert EnvironmentSpec.of(Game, EnvironmentConfig(isolation="thread")).isolated().mode == "thread"
    assert EnvironmentSpec.of("turnsmith.env.examples:GuessNumber").isolated().mode == "thread"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"isolation": "docker"}, "environment.isolation='docker' is unknown"),
        (
            {"isolation": "tcp://10.0.0.7:9000"},
            "play openenv://10.0.0.7:9000 as the environment",
        ),
        ({"isolation_token_file": "env.token"}, "play openenv://host:port .* with environment.token_file if it needs"),
        ({"isolation_workers": -1}, "environment.isolation_workers=-1 must be"),
        ({"isolation_memory_gib": float("nan")}, "environment.isolation_memory_gib=nan must be"),
        ({"isolation_processes": 0}, "environment.isolation_processes=0 must be a number of at least 1"),
        ({"call_seconds": 0}, "environment.call_seconds=0 must be a number above 0"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], sentence: str):
    with pytest.raises(ConfigError, match=sentence):
        EnvironmentSpec.of(Game, EnvironmentConfig(**settings))


def test_a_reward_that_cannot_be_sent_is_refused_before_training():
    config = ConfigStore()
    reward = locked(None)
    with pytest.raises(ConfigError, match=r"cannot be sent to a worker process.*environment.isolation=thread"):
        RayPPOTrainer(config, Game, reward_fn=reward)
    config.environment.isolation = "thread"
    RayPPOTrainer(config, Game, reward_fn=reward)
    RayPPOTrainer(ConfigStore(), Game, reward_fn=lambda trajectory: float(LOCK.locked()))  # stays in this process
    check_isolation(EnvironmentSpec.of(Game, EnvironmentConfig(isolation="process")))

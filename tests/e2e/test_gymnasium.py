"""Gymnasium's environments in words, with the real package: ten play without a line of code, and one is trained in."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from tests.e2e.packages import install
from tests.e2e.trained_on import assert_two_steps_train
from turnsmith.config import EnvironmentConfig
from turnsmith.env.adapters.gymnasium import GymnasiumEnvironment
from turnsmith.env.host import open_host
from turnsmith.env.isolation.pool import close_workers
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError
from turnsmith.inference import Chat, ScriptedEngine
from turnsmith.inference.models import resolve
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan, evaluate

pytestmark = pytest.mark.e2e
PACKAGES = ("gymnasium==1.4.0", "farama-notifications==0.0.6")
PLAYED = (
    "FrozenLake-v1",
    "FrozenLake8x8-v1",
    "CliffWalking-v1",
    "Taxi-v4",
    "Blackjack-v1",
    "CartPole-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Acrobot-v1",
    "Pendulum-v1",
)
WAY = ("down", "down", "right", "right", "down", "right")


@pytest.fixture(scope="module", autouse=True)
def gymnasium(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The real package, in a folder of its own: turnsmith does not need it."""
    install(tmp_path_factory.mktemp("packages"), *PACKAGES)
    import gymnasium

    return gymnasium


@pytest.mark.parametrize("name", PLAYED)
def test_it_plays_without_a_line_of_code(name: str) -> None:
    environment = EnvironmentSpec.of(f"gymnasium:{name}", EnvironmentConfig(max_steps=1000)).build()
    first = environment.reset(seed=1)
    assert environment.reset(seed=1) == first
    assert environment.get_prompt_prefix().startswith(f"You are playing {name}. Answer with ")
    told, reward, *ends, info = environment.step("hm")
    assert told.startswith("That is not an action. Answer with ")
    assert (reward, *ends, info) == (0.0, False, False, {"invalid_action": True})
    environment.env.action_space.seed(0)
    for _ in range(1000):
        action = np.asarray(environment.env.action_space.sample()).flatten()
        words = [environment.action_names[int(one)] if environment.action_names else str(one) for one in action]
        observation, reward, terminated, truncated, info = environment.step(
            f"I choose this.\nAnswer: {' '.join(words)}"
        )
        assert observation
        assert "invalid_action" not in info
        if terminated or truncated:
            break
    environment.close()


def lake(policy: Any, **settings: Any) -> float:
    chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))
    spec = EnvironmentSpec.of("gymnasium:FrozenLake-v1", EnvironmentConfig(is_slippery=False, **settings))
    return evaluate(spec, ScriptedEngine(policy, chat), chat, EvaluationPlan(episodes=20)).reward.value


def test_who_knows_the_way_gets_everything_and_chance_does_not() -> None:
    draw = random.Random(0)
    assert lake(lambda turn, prompt: WAY[turn]) == 1.0
    assert lake(lambda turn, prompt: draw.choice(WAY)) < 0.5
    assert lake(lambda turn, prompt: "nothing") == 0.0


def test_classes_factories_and_objects_are_taken(gymnasium: Any) -> None:
    from gymnasium.envs.toy_text.blackjack import BlackjackEnv

    made = gymnasium.make("FrozenLake-v1", is_slippery=False, map_name="8x8")
    specs = [EnvironmentSpec.of(one) for one in (BlackjackEnv, partial(gymnasium.make, "Blackjack-v1"), made)]
    assert {spec.load() for spec in specs} == {GymnasiumEnvironment}
    assert specs[0].build().reset(seed=3) == specs[1].build().reset(seed=3)
    assert specs[2].build().reset(seed=0).startswith("[S]FFFFFFF\n")
    with pytest.raises(ConfigError, match=r"BlackjackEnv was not made by gymnasium\.make"):
        EnvironmentSpec.of(BlackjackEnv())


async def test_the_ends_of_an_episode_are_kept_apart_in_a_worker_process_too() -> None:
    config = EnvironmentConfig(isolation="process", isolation_workers=1, max_episode_steps=2)
    host = open_host(EnvironmentSpec.of("gymnasium:FrozenLake-v1", config))
    try:
        await host.reset(seed=0)
        results = [await host.step("left"), await host.step("left")]
    finally:
        await host.close()
        await close_workers()
    assert [(result.terminated, result.truncated) for result in results] == [(False, False), (False, True)]


def test_what_cannot_be_played_is_told_in_words(gymnasium: Any) -> None:
    class Camera(gymnasium.Env):
        action_space = gymnasium.spaces.Discrete(2)
        observation_space = gymnasium.spaces.Box(0, 255, (64, 64, 3))

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            return self.observation_space.sample(), 1.0, True, False, {}

    with pytest.raises(ConfigError, match=r"Observations of Box\(.*\) have no text form: pass observe=, a function of"):
        EnvironmentSpec.of(Camera).build()
    seen = GymnasiumEnvironment(Camera(), observe=lambda env, observation: "a wall", act=("stay", "go"))
    assert (seen.reset(), seen.step("go")[:3]) == ("a wall", ("a wall", 1.0, True))
    with pytest.raises(ConfigError, match=r"Gymnasium cannot make FrozenLak-v1: .* Did you mean: `FrozenLake`"):
        EnvironmentSpec.of("gymnasium:FrozenLak-v1")


def test_actions_of_nested_spaces_are_json(gymnasium: Any) -> None:
    spaces = gymnasium.spaces

    class Panel(gymnasium.Env):
        action_space = spaces.Dict(
            {
                "lamp": spaces.Discrete(3),
                "knobs": spaces.Tuple([spaces.MultiDiscrete([2, 4]), spaces.MultiBinary(2)]),
                "level": spaces.Box(-1, 1, (2,)),
                "label": spaces.Text(5),
            }
        )
        observation_space = spaces.Text(20)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return f"{options}", {}

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action)
            return "ok", 1.0, True, False, {}

    panel = GymnasiumEnvironment(Panel())
    assert panel.reset(task={"a": 1}) == "{'a': 1}"
    good = '{"lamp": 2, "knobs": [[1, 3], [0, 1]], "level": [0.5, -1], "label": "on"}'
    assert panel.step(good)[1] == 1.0
    for bad in (
        "lamp 2",
        good.replace("2,", "3,"),
        good.replace("[1, 3]", "[1, 4]"),
        good.replace("[0, 1]]", "[0, 0.5]]"),
        good.replace("-1]", "-1.5]"),
        good.replace('"on"', '"too long"'),
        good.replace(', "label": "on"', ""),
        "[" * 10_000,
    ):
        assert panel.step(bad)[4] == {"invalid_action": True}, bad


def by_length(env: Any, text: str) -> int:
    """An action that an untrained model gives as well."""
    return len(text) % 2


@pytest.mark.nightly
def test_it_is_trained_in(tmp_path: Path) -> None:
    environment = partial(GymnasiumEnvironment, "CartPole-v1", act=by_length)
    settings = ("inference.max_tokens=4", "inference.max_turns=20", "environment.max_steps=20")
    records = assert_two_steps_train(environment, tmp_path, *settings)
    assert all(record["grad_norm"] > 0 for record in records)


def test_a_module_may_register_it() -> None:
    names = ("gymnasium:FrozenLake-v1", "gymnasium:gymnasium.envs:FrozenLake-v1")
    plain, named = (EnvironmentSpec.of(name, EnvironmentConfig()).build() for name in names)
    assert named.reset(seed=3) == plain.reset(seed=3)
    with pytest.raises(ConfigError, match="Gymnasium cannot make"):
        EnvironmentSpec.of("gymnasium:no_such_module:FrozenLake-v1", EnvironmentConfig()).build()

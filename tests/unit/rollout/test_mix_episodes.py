"""Episodes of a mix: each is played in its own environment, with its tools, limits, rewards and process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.rollout.mixed import MIX, Shop
from transformers import AutoTokenizer

from turnsmith import (
    Chat,
    EnvironmentConfig,
    EnvironmentMix,
    EnvironmentSpec,
    EpisodeStart,
    EvaluationPlan,
    Limits,
    MixMember,
    Outcome,
    RunFolder,
    Sampling,
    ScriptedEngine,
    Trajectory,
    evaluate,
    read_episodes,
    run_episode,
)
from turnsmith.errors import ConfigError
from turnsmith.records.episodes import write_episodes
from turnsmith.rollout.attempt import in_mix
from turnsmith.rollout.episode_report import report_of
from turnsmith.rollout.spec import RolloutSpec


@pytest.fixture(scope="module")
def chat(tiny_folder: str) -> Chat:
    return Chat(AutoTokenizer.from_pretrained(tiny_folder))


def play(
    chat: Chat, name: str, mix: EnvironmentMix = MIX, replies: tuple[str, ...] = ("a", "b", "c"), **more: Any
) -> Trajectory:
    return asyncio.run(
        run_episode(
            EpisodeStart("e", environment=name),
            environment=EnvironmentSpec.of(mix, more.pop("config", EnvironmentConfig(isolation="thread"))),
            engine=ScriptedEngine(list(replies), chat),
            chat=chat,
            limits=Limits(turns=2),
            sampling=Sampling(),
            **more,
        )
    )


def test_limits_and_rewards_are_those_of_its_environment(chat: Chat) -> None:
    counted, bought = play(chat, "counting"), play(chat, "shop", replies=("bye",))
    assert (counted.environment, counted.outcome, counted.num_turns) == ("counting", Outcome.TURN_LIMIT, 3)
    assert (counted.rewards, counted.total_reward) == ([0.25, 0.25, 0.25], 0.75)
    assert (bought.environment, bought.total_reward) == ("shop", pytest.approx(0.2))


def test_a_reward_function_sees_the_environment_and_is_scaled_too(chat: Chat) -> None:
    seen: list[tuple[str, float]] = []

    def pay(trajectory: Trajectory) -> float:
        seen.append((trajectory.environment, trajectory.total_reward))
        return 4.0

    assert play(chat, "counting", reward_fn=pay).score == 0.5
    assert seen == [("counting", 6.0)], "before it is scaled"


def test_the_tools_are_those_of_its_environment(chat: Chat) -> None:
    call = '<tool_call>{"name": "price", "arguments": {"what": "tea"}}</tool_call>'
    bought, counted = play(chat, "shop", replies=(call, "bye")), play(chat, "counting", replies=(call, "b", "c"))
    assert "tea costs 3." in str(bought.messages)
    assert bought.infos[0]["tool_calls"][0]["ok"]
    assert "price" not in str(counted.messages[:1])
    assert "tool_calls" not in counted.infos[0]


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_they_run_where_the_setting_says(chat: Chat, isolation: str) -> None:
    config = EnvironmentConfig(isolation=isolation, isolation_workers=1)
    for name, turns in (("counting", 3), ("shop", 1)):
        played = play(chat, name, config=config)
        assert (played.environment, played.num_turns) == (name, turns), played.error
        assert (played.infos[0]["process"] == os.getpid()) == (isolation == "thread")


def test_an_agent_beside_an_environment(chat: Chat) -> None:
    async def solve(task: Any, model: Any) -> float:
        return 4.0

    members = {"agent": MixMember(solve, reward_range=(0, 8)), "shop": Shop}
    mix = EnvironmentMix(members)
    solved, bought = play(chat, "agent", mix), play(chat, "shop", mix)
    assert (solved.environment, solved.total_reward) == ("agent", 0.5), solved.error
    assert (bought.environment, bought.total_reward) == ("shop", -3.0)


def test_a_mix_that_was_not_looked_up_is_refused(chat: Chat) -> None:
    spec = RolloutSpec(environment=EnvironmentMix([Shop]))
    with pytest.raises(ConfigError, match=r"pass EnvironmentSpec\.of\(mix\)"):
        in_mix(EpisodeStart("e"), spec)


def test_an_evaluation_divides_the_seeds_and_reports_each_environment(chat: Chat, tmp_path: Path) -> None:
    plan = EvaluationPlan(episodes=40, samples=2, limits=Limits(turns=2))
    config = EnvironmentConfig(isolation="thread")
    mix = EnvironmentSpec.of(EnvironmentMix({"counting": MIX.members["counting"], "shop": (Shop, 3)}), config)
    result = evaluate(mix, ScriptedEngine(["bye"], chat), chat, plan)
    metrics, groups = result.metrics(), {one.group_id: set[str]() for one in result.trajectories}
    for one in result.trajectories:
        groups[one.group_id].add(one.environment)
    assert all(len(names) == 1 for names in groups.values()), "the episodes of a group share their environment"
    assert metrics["environment/shop/episodes"] + metrics["environment/counting/episodes"] == 40
    assert 26 <= metrics["environment/shop/episodes"] <= 34
    assert (metrics["environment/shop/success"], metrics["environment/counting/success"]) == (1.0, 1.0)
    assert metrics["environment/shop/reward"] == -3.0
    run = RunFolder.create(tmp_path, "run")
    write_episodes(run, 0, result.trajectories)
    assert [one.environment for one in read_episodes(run)] == [one.environment for one in result.trajectories]


def test_success_is_what_the_environment_says_or_a_reward_above_0() -> None:
    def episode(name: str, reward: float, outcome: Outcome = Outcome.COMPLETED, **info: Any) -> Trajectory:
        return Trajectory(actions=["a"], rewards=[reward], infos=[info], outcome=outcome, environment=name)

    report = report_of([episode("says", 1.0, success=False), episode("says", 0.0, success=True), episode("says", 1.0)])
    report += report_of([episode("pays", 1.0), episode("pays", 0.0), episode("pays", 9.0, Outcome.ENVIRONMENT_FAILED)])
    assert report.successes_by_environment() == {"says": (1, 3), "pays": (1, 2)}
    metrics = report.metrics()
    assert (metrics["environment/pays/episodes"], metrics["environment/pays/reward"]) == (3, 0.5)
    failed = report_of([episode("pays", 9.0, Outcome.ENVIRONMENT_FAILED)]).metrics()
    assert failed["environment/pays/episodes"] == 1
    assert "environment/pays/success" not in failed
    assert not [name for name in report_of([episode("", 1.0)]).metrics() if name.startswith("environment/")]

"""Many episodes through the one loop: which starts, how many at once, what is counted, recorded and compared."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest
from transformers import AutoTokenizer

from turnsmith.env import BaseEnvironment
from turnsmith.errors import ConfigError, EnvironmentFailure, RecordError
from turnsmith.inference import Chat, ScriptedEngine
from turnsmith.inference.engine import Generation, Sampling
from turnsmith.inference.sync.base import BaseInferenceEngine
from turnsmith.records.episodes import read_episodes
from turnsmith.records.run_folder import RunFolder
from turnsmith.rollout import same_failure
from turnsmith.rollout.evaluation.evaluate import FIRST_SEED, EvaluationPlan, evaluate, run_evaluation
from turnsmith.rollout.evaluation.result import EvaluationResult, check_same_starts
from turnsmith.rollout.spec import Limits
from turnsmith.trajectory import Outcome, Trajectory


class Parity(BaseEnvironment):
    """Odd seeds want `odd`, even ones `even`; seed 13 breaks."""

    def reset(self, seed: int = 0) -> str:
        self.seed = seed
        return f"Seed {seed}."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if self.seed == 13:
            raise RuntimeError("unlucky")
        return "", float(action == ("even", "odd")[self.seed % 2]), True, {}


class Sums(BaseEnvironment):
    """Takes tasks."""

    def reset(self, task: dict[str, int]) -> str:
        self.answer = task["a"] + task["b"]
        return f"{task['a']} + {task['b']}"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "", float(action == str(self.answer)), True, {}


@pytest.fixture(scope="module")
def chat(tiny_folder: str) -> Chat:
    return Chat(AutoTokenizer.from_pretrained(tiny_folder))


def episode(start: str, reward: float = 0.0, outcome: Outcome = Outcome.COMPLETED, **info: Any) -> Trajectory:
    return Trajectory(
        states=["hello"], actions=["a"], rewards=[reward], dones=[True], infos=[info], group_id=start, outcome=outcome
    )


def test_the_same_plan_gives_the_same_starts_and_training_does_not_have_them() -> None:
    starts = EvaluationPlan(episodes=6, samples=3).starts()
    assert [start.seed for start in starts] == [FIRST_SEED] * 3 + [FIRST_SEED + 1] * 3
    assert len({start.episode_id for start in starts}) == 6
    assert starts == EvaluationPlan(episodes=6, samples=3).starts()
    assert starts[:3] == EvaluationPlan(episodes=3, samples=3).starts()


def test_tasks_are_dealt_out_and_named() -> None:
    starts = EvaluationPlan(episodes=3, seed=0, tasks=[{"a": 1}, {"a": 2}]).starts()
    assert [start.task for start in starts] == [{"a": 1}, {"a": 2}, {"a": 1}]
    other = EvaluationPlan(episodes=3, seed=0, tasks=[{"a": 3}]).starts()
    assert not {start.group_id for start in starts} & {start.group_id for start in other}


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ({"episodes": 10, "samples": 4}, "samples, which is 4: try 12"),
        ({"episodes": 3, "samples": 4}, "try 4"),
        ({"episodes": 0}, "episodes is 0"),
        ({"samples": 0}, "samples is 0"),
        ({"concurrency": 0}, "concurrency is 0"),
    ],
)
def test_an_invalid_plan_is_refused(plan: dict[str, int], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        EvaluationPlan(**plan)


def test_rewards_success_outcomes_and_faults(chat: Chat) -> None:
    ended: list[str] = []
    result = evaluate(
        Parity,
        ScriptedEngine(["odd"], chat),
        chat,
        EvaluationPlan(episodes=8, seed=10),
        on_episode=lambda trajectory: ended.append(trajectory.episode_id),
    )
    assert sorted(ended) == sorted(trajectory.episode_id for trajectory in result.trajectories)
    assert [trajectory.seed for trajectory in result.trajectories] == list(range(10, 18))
    assert len(result.counted) == 7
    assert (result.reward.value, result.success.value) == (pytest.approx(3 / 7), pytest.approx(3 / 7))
    assert result.report.outcomes == {"completed": 7, "environment_failed": 1}
    assert "unlucky" in result.report.first_error
    assert not result.has_success_info
    metrics = result.metrics()
    assert (metrics["episodes/total"], metrics["starts"], metrics["tokens/model"]) == (8, 8, 4)
    assert metrics["reward/low"] < metrics["reward/mean"] < metrics["reward/high"]


def test_tasks_reach_the_environment(chat: Chat) -> None:
    plan = EvaluationPlan(episodes=2, tasks=[{"a": 1, "b": 2}, {"a": 3, "b": 4}])
    assert evaluate(Sums, ScriptedEngine(["7"], chat), chat, plan).reward.value == 0.5


def test_the_folder_of_an_evaluation_has_the_task_of_each_episode(chat: Chat, tmp_path: Path) -> None:
    plan = EvaluationPlan(episodes=2, tasks=[{"a": 1, "b": 2}, {"a": 3, "b": 4}])
    run = RunFolder.create(tmp_path, "run")
    evaluate(Sums, ScriptedEngine(["7"], chat), chat, plan).record(run)
    assert [episode.task for episode in EvaluationResult.read(run).trajectories] == plan.tasks


async def test_no_more_than_so_many_episodes_run_at_once_and_sampling_repeats(chat: Chat) -> None:
    running, most = 0, 0
    seeds: dict[str, int | None] = {}

    class Watching:
        async def generate(self, prompt_ids: Any, sampling: Sampling, *, session: str) -> Generation:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1
            seeds[session] = sampling.seed
            return Generation([chat.close_id], [0.0])

    plan = EvaluationPlan(episodes=20, samples=2, seed=20, concurrency=3)
    await run_evaluation(Parity, Watching(), chat, plan)
    assert most == 3
    assert len(set(seeds.values())) == 20  # samples of one start must differ
    before = dict(seeds)
    await run_evaluation(Parity, Watching(), chat, plan)
    assert seeds == before


def test_a_synchronous_engine_has_its_own_chat_and_loop(tiny_folder: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    with BaseInferenceEngine(ScriptedEngine(["odd"], Chat(tokenizer)), tokenizer) as engine:
        assert evaluate(Parity, engine, plan=EvaluationPlan(episodes=2, seed=0)).reward.value == 0.5


def test_an_engine_without_a_chat_is_refused(chat: Chat) -> None:
    with pytest.raises(ConfigError, match="pass chat="):
        evaluate(Parity, ScriptedEngine(["odd"], chat))


async def test_cancelling_keeps_what_has_ended(chat: Chat) -> None:
    async def reply(turn: int, prompt: str) -> str:
        if "Seed 3." in prompt:
            await asyncio.sleep(60)
        return "odd"

    ended: list[Trajectory] = []
    threads = threading.active_count()
    plan = EvaluationPlan(episodes=4, seed=0, limits=Limits(seconds=60))
    task = asyncio.create_task(run_evaluation(Parity, ScriptedEngine(reply, chat), chat, plan, on_episode=ended.append))
    while len(ended) < 3:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    result = plan.result(reversed(ended))
    assert [trajectory.seed for trajectory in result.trajectories] == [0, 1, 2]
    assert threading.active_count() <= threads + plan.episodes, "an environment needs one thread at most"


def test_success_is_what_the_environment_says_and_silence_is_failure() -> None:
    result = EvaluationResult([episode("a", 5.0), episode("b", 0.0, success=True), episode("c", 5.0, success=False)])
    assert result.has_success_info
    assert result.success.value == pytest.approx(1 / 3)
    silent = EvaluationResult([episode("a", 5.0), episode("b", 0.0), episode("c", -1.0)])
    assert silent.success.value == pytest.approx(1 / 3)
    by_reward = EvaluationResult([episode("a", 5.0), episode("b", 0.0, success=True)], success_reward=5.0)
    assert (by_reward.has_success_info, by_reward.success.value) == (False, 0.5)


def test_pass_at_k_goes_up_in_powers_of_two_and_ends_with_all_samples() -> None:
    six = EvaluationResult([episode(start, float(n == 0)) for start in "ab" for n in range(6)])
    assert list(six.pass_at()) == [1, 2, 4, 6]
    assert six.pass_at()[6].value == 1.0
    assert six.pass_at()[1] == six.success
    one_less = EvaluationResult(six.trajectories[:-1])
    assert list(one_less.pass_at()) == [1, 2, 4]
    assert EvaluationResult([episode("a"), episode("b")]).pass_at() == {}


def test_an_evaluation_without_episodes_has_a_record_too() -> None:
    for result in (EvaluationResult([]), EvaluationResult([episode("a", 1.0, Outcome.ENGINE_FAILED)])):
        metrics = result.metrics()
        assert "reward/mean" not in metrics
        assert metrics["episodes/total"] == len(result.trajectories)


def test_a_run_folder_keeps_it_and_gives_it_back(chat: Chat, tmp_path: Path) -> None:
    result = evaluate(Parity, ScriptedEngine(["odd"], chat), chat, EvaluationPlan(episodes=4, seed=0))
    run = RunFolder.create(tmp_path, "eval")
    result.record(run, note="x")
    (record,) = run.read_metrics()
    assert (record["step"], record["reward/mean"], record["note"]) == (0, 0.5, "x")
    assert read_episodes(run) == result.trajectories
    assert EvaluationResult.read(run.path).trajectories == result.trajectories
    with pytest.raises(RecordError, match="has no evaluation"):
        EvaluationResult.read(RunFolder.create(tmp_path, "train"))


def test_evaluations_of_the_same_starts_are_compared_in_pairs(chat: Chat) -> None:
    plan = EvaluationPlan(episodes=10, seed=0)
    odd = evaluate(Parity, ScriptedEngine(["odd"], chat), chat, plan)
    right = evaluate(Parity, ScriptedEngine(lambda turn, prompt: answer(prompt), chat), chat, plan)
    better = right.compare(odd)
    assert (better.reward.difference.value, better.starts) == (0.5, 10)
    assert better.reward.p_value == better.success.p_value == 0.0625
    assert odd.compare(right).reward.difference.value == -0.5
    assert odd.compare(odd).reward.p_value == 1.0
    record = better.metrics("runs/odd")
    assert (record["compare/run"], record["compare/success"], record["compare/success/p"]) == ("runs/odd", 0.5, 0.0625)
    assert record["compare/reward/low"] < 0.5 < record["compare/reward/high"]


def answer(prompt: str) -> str:
    return "odd" if int(prompt.partition("Seed ")[2].partition(".")[0]) % 2 else "even"


def test_a_start_counts_once_however_often_it_was_played() -> None:
    new = EvaluationResult([episode("a", 1.0), episode("a", 0.0), episode("b", 1.0), episode("b", 1.0)])
    old = EvaluationResult([episode("a", 0.0), episode("b", 1.0), episode("c", 0.0)])
    found = new.compare(old)
    assert (found.starts, found.reward.difference.value) == (2, 0.25)


def test_one_rule_of_success_holds_for_both_sides() -> None:
    new = EvaluationResult([episode("a", 1.0), episode("b", 1.0)])
    old = EvaluationResult([episode("a", 1.0, success=False), episode("b", 1.0, success=True)])
    assert new.compare(old).success.difference.value == -0.5


def test_starts_that_all_failed_are_left_out() -> None:
    new = EvaluationResult([episode("a", 1.0), episode("b", 0.0, Outcome.ENGINE_FAILED)])
    old = EvaluationResult([episode("a", 0.0), episode("b", 1.0)])
    assert new.compare(old).starts == 1


def test_other_starts_are_refused() -> None:
    old = EvaluationResult([episode("seed-1"), episode("seed-2")])
    with pytest.raises(ConfigError, match=r"it lacks 1 of the 2 starts of this one, the first being seed-3.*had \(2\)"):
        EvaluationResult([episode("seed-2"), episode("seed-3")]).compare(old)
    check_same_starts(["seed-2", "seed-2"], old)
    changed = episode("seed-1")
    changed.states = ["another board"]
    with pytest.raises(ConfigError, match="start seed-1 began with a different observation"):
        EvaluationResult([changed]).compare(old)


def test_a_result_is_shown_in_one_line_without_its_tokens(chat: Chat) -> None:
    result = evaluate(Parity, ScriptedEngine(["odd"], chat), chat, EvaluationPlan(episodes=4, seed=0))
    result.trajectories[0].outcome = Outcome.ENGINE_FAILED
    reward, success = "reward 0.667 (-0.768 to 2.1)", "success 0.667 (0.208 to 0.939)"
    assert repr(result) == f"EvaluationResult(4 episodes (1 failed), 4 starts, {reward}, {success})"
    assert repr(EvaluationResult([])) == "EvaluationResult(0 episodes, 0 starts, reward unknown, success unknown)"


class Broken(Sums):
    """Fails in the same way in every step."""

    attempts: ClassVar[list[int]] = []

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.attempts.append(self.answer)
        raise OSError(f"no service at port {self.answer}")


def test_an_evaluation_in_which_everything_fails_in_the_same_way_stops_and_says_so(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(same_failure, "_BACKOFF_SECONDS", 0.1)
    tasks = [{"a": number, "b": 1} for number in range(100)]
    plan = EvaluationPlan(episodes=100, tasks=tasks, concurrency=4)
    with pytest.raises(
        EnvironmentFailure, match=r"(?s)All \d+ attempts at \d episodes failed in the same way: Broken.step"
    ):
        evaluate(Broken, ScriptedEngine(["1"], chat), chat, plan)
    assert len(Broken.attempts) < 20


def test_an_evaluation_in_which_one_thing_works_goes_on(chat: Chat) -> None:
    class Flaky(Broken):
        def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
            return super().step(action) if self.answer > 2 else ("", 1.0, True, {})

    plan = EvaluationPlan(episodes=20, tasks=[{"a": number, "b": 1} for number in range(20)], concurrency=4)
    result = evaluate(Flaky, ScriptedEngine(["1"], chat), chat, plan)
    assert dict(result.report.outcomes) == {"completed": 2, "environment_failed": 18}

"""Retried episodes: what is replayed, what is resampled, and that random faults do not move a group's mean."""

from __future__ import annotations

import asyncio
import random
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from transformers import AutoTokenizer

from turnsmith.config import EnvironmentConfig, FailuresConfig
from turnsmith.env import BaseEnvironment, EnvironmentSpec
from turnsmith.env.local_host import EnvironmentHost
from turnsmith.errors import EnvironmentTimeout, WorkerLost
from turnsmith.inference import Chat, Generation, Sampling
from turnsmith.rollout import EpisodeStart, Limits, same_failure
from turnsmith.rollout.episode_report import report_of
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan, run_evaluation
from turnsmith.rollout.failure_policy import FailurePolicy
from turnsmith.rollout.retry import EpisodeResult, play_episode
from turnsmith.rollout.same_failure import SameFailure
from turnsmith.rollout.spec import RolloutSpec
from turnsmith.tools.step_result import StepResult
from turnsmith.trajectory import Decision, Outcome

GO, STOP = "go", "stop"


class Walk(BaseEnvironment):
    """Goes on as long as the model says so, with a reward of 1 a step. Faults are raised by the number of the step."""

    faults: ClassVar[dict[int, list[Exception]]] = {}
    """By step, what to raise there, one after another."""

    def reset(self, seed: int = 0) -> str:
        return f"start {seed}"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        waiting = self.faults.get(self.step_count, [])
        if waiting:
            raise waiting.pop(0)
        return f"at {self.step_count}", 1.0, action == STOP, {}


class Coin:
    """Says go or stop by the seed of the turn, and counts how often it was asked."""

    def __init__(self, chat: Chat) -> None:
        self.replies = [[*chat.encode(word), chat.close_id] for word in (GO, STOP)]
        self.asked = 0
        self.sessions: list[str] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        self.asked += 1
        self.sessions.append(session)
        ids = self.replies[random.Random(sampling.seed).random() < 0.5]
        return Generation(ids, [-0.5] * len(ids))


@pytest.fixture(autouse=True)
def no_faults() -> None:
    Walk.faults = {}


@pytest.fixture(scope="module")
def chat() -> Chat:
    from turnsmith.inference.models import resolve

    return Chat(AutoTokenizer.from_pretrained(resolve("tiny")))


async def play(chat: Chat, seed: int | None = 0, engine: Any = None, **options: Any) -> EpisodeResult:
    spec = RolloutSpec(
        failures=FailurePolicy.of(FailuresConfig(**options.pop("failures", {}))),
        environment=EnvironmentSpec.of(options.pop("environment", Walk), EnvironmentConfig()),
        limits=options.pop("limits", Limits(turns=50)),
        sampling=Sampling(seed=seed),
        **options,
    )
    return await play_episode(EpisodeStart("e", "g", seed or 0), spec, engine or Coin(chat), chat)


async def long_walk(chat: Chat) -> tuple[int, EpisodeResult]:
    """A seed with which the model walks at least four steps, and that walk."""
    for seed in range(100):
        whole = await play(chat, seed)
        if whole.trajectory.num_turns >= 4:
            return seed, whole
    raise AssertionError


async def test_a_random_fault_leaves_no_trace_in_the_episode(chat):
    seed, whole = await long_walk(chat)
    for fault in (OSError("gone"), EnvironmentTimeout("late"), WorkerLost("killed")):
        engine = Coin(chat)
        Walk.faults = {2: [fault]}
        played = await play(chat, seed, engine)
        assert played.trajectory.tokens == whole.trajectory.tokens
        assert played.trajectory.rewards == whole.trajectory.rewards
        assert engine.asked == whole.trajectory.num_turns  # nothing was generated twice
        assert (played.trajectory.attempt, played.trajectory.decision) == (1, Decision.KEPT)
        assert [one.num_turns for one in played.given_up] == [3]


async def test_two_faults_in_different_places_are_both_retried(chat):
    seed, whole = await long_walk(chat)
    Walk.faults = {1: [OSError()], 3: [WorkerLost()]}
    played = await play(chat, seed)
    assert played.trajectory.tokens == whole.trajectory.tokens
    assert [one.episode_id for one in played.attempts] == ["e-try1", "e-try2", "e"]
    assert [one.decision.value for one in played.attempts] == ["retried", "retried", "kept"]


async def test_what_breaks_in_the_same_place_again_and_again_is_given_up(chat):
    seed, whole = await long_walk(chat)
    Walk.faults = {2: [OSError(), OSError(), OSError()]}
    engine = Coin(chat)
    played = await play(chat, seed, engine)
    assert (played.trajectory.outcome, played.trajectory.decision) == (Outcome.ENVIRONMENT_FAILED, Decision.MASKED)
    assert engine.asked == 3  # an episode that nothing saves costs no token more than it had
    assert (await play(chat, seed)).trajectory.tokens == whole.trajectory.tokens


async def test_an_engine_that_fails_is_asked_again_for_that_turn_only(chat):
    class Shaky(Coin):
        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
            if self.asked == 2:
                self.asked += 1
                raise ConnectionError("server gone")
            return await super().generate(prompt_ids, sampling, session=session)

    seed, whole = await long_walk(chat)
    Walk.faults = {}
    engine = Shaky(chat)
    played = await play(chat, seed, engine)
    assert played.given_up[0].outcome is Outcome.ENGINE_FAILED
    assert played.trajectory.tokens == whole.trajectory.tokens
    assert engine.asked == whole.trajectory.num_turns + 1


async def test_each_cause_has_attempts_of_its_own(chat):
    class Shaky(Coin):
        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
            generation = await super().generate(prompt_ids, sampling, session=session)
            if self.asked in (3, 4):
                raise ConnectionError("server gone")
            return generation

    seed, whole = await long_walk(chat)
    Walk.faults = {1: [OSError(), OSError()]}
    played = await play(chat, seed, Shaky(chat))  # two of one and two of the other; two are allowed
    assert [one.outcome for one in played.given_up].count(Outcome.ENGINE_FAILED) == 2
    assert played.trajectory.tokens == whole.trajectory.tokens


@pytest.mark.parametrize(
    ("policy", "decision"),
    [("retry:1", "masked"), ("drop", "dropped"), ("retry:1,drop", "dropped"), ("mask", "masked")],
)
async def test_what_becomes_of_an_episode_that_never_works(chat, policy, decision):
    Walk.faults = {1: [OSError(f"number {n}") for n in range(9)], 0: []}
    seed, _ = 0, None
    while True:
        played = await play(chat, seed, failures={"environment": policy})
        if played.trajectory.outcome is Outcome.ENVIRONMENT_FAILED:
            break
        seed += 1
    assert played.trajectory.decision.value == decision
    assert len(played.given_up) == (1 if "retry" in policy else 0)
    assert not played.trajectory.is_counted


async def test_a_penalty_is_on_the_last_turn_and_counts(chat):
    class Broken(Walk):
        def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
            if self.step_count == 1:
                raise OSError
            return "on", 1.0, False, {}

    failures = {"environment": "penalise:-3"}
    played = await play(chat, environment=Broken, failures=failures)
    assert played.trajectory.rewards == [1.0, -3.0]
    assert played.trajectory.is_counted
    scored = await play(chat, environment=Broken, failures=failures, reward_fn=lambda trajectory: 7.0)
    assert scored.trajectory.total_reward == -3.0  # nothing was earned by the reward function

    class Unstartable(Walk):
        def reset(self, seed: int = 0) -> str:
            raise OSError

    assert (await play(chat, environment=Unstartable, failures=failures)).trajectory.decision is Decision.MASKED


async def test_a_retry_after_a_limit_resamples(chat):
    seed, whole = await long_walk(chat)
    played = await play(chat, seed, failures={"limit": "retry:5"}, limits=Limits(turns=2))
    assert played.given_up[0].outcome is Outcome.TURN_LIMIT
    assert played.trajectory.tokens != whole.trajectory.tokens
    assert played.trajectory.decision is Decision.KEPT


async def test_a_retry_without_a_seed_keeps_the_sampling(chat):
    class Stop(Coin):
        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
            assert sampling.seed is None
            self.asked += 1
            ids = self.replies[self.asked > 2]
            return Generation(ids, [-0.5] * len(ids))

    played = await play(chat, None, Stop(chat), failures={"limit": "retry:5"}, limits=Limits(turns=2))
    assert [attempt.outcome for attempt in played.given_up] == [Outcome.TURN_LIMIT]
    assert (played.trajectory.outcome, played.trajectory.num_turns) == (Outcome.COMPLETED, 1)


class LossyHost(EnvironmentHost):
    """A host whose worker dies in the first `losses` steps, as a process that runs environments may."""

    losses = 8

    async def step(self, action: str) -> StepResult:
        if type(self).losses:
            type(self).losses -= 1
            raise WorkerLost("killed")
        return await super().step(action)


async def test_only_after_a_lost_worker_is_there_a_back_off(chat, monkeypatch):
    delays: list[float] = []
    wait = asyncio.sleep

    async def record(seconds: float) -> None:
        delays.append(seconds)
        await wait(0)

    seed, whole = await long_walk(chat)
    monkeypatch.setattr(asyncio, "sleep", record)
    Walk.faults = {1: [OSError(), EnvironmentTimeout()]}
    assert (await play(chat, seed)).trajectory.tokens == whole.trajectory.tokens
    assert delays == []
    monkeypatch.setattr("turnsmith.rollout.episode.open_host", LossyHost)
    result = await play(chat, seed)
    assert [attempt.outcome for attempt in result.given_up] == [Outcome.WORKER_LOST] * 8
    assert result.trajectory.tokens == whole.trajectory.tokens
    # A bound that doubles up to 15 s, times a jitter that is the same whenever the episode is played.
    bounds = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    jitter = [zlib.crc32(f"e/{retry}".encode()) / 2**32 for retry in range(8)]
    assert delays == pytest.approx([share * bound for share, bound in zip(jitter, bounds, strict=True)])


async def test_an_evaluation_retries_faults_but_counts_mistakes_of_the_model(chat):
    Walk.faults = {0: [OSError(), WorkerLost()]}
    failures = FailurePolicy.of(FailuresConfig(limit="mask"))
    plan = EvaluationPlan(episodes=24, seed=3, limits=Limits(turns=2), failures=failures)
    result = await run_evaluation(Walk, Coin(chat), chat, plan)
    assert len(result.counted) == 24
    assert result.metrics()["failures/retried"] == 2
    assert result.report.outcomes["turn_limit"] > 0


class Faulty(Walk):
    """A walk in which every step may fail: long walks are hit more often. The same faults whatever the scheduling."""

    visits: ClassVar[Counter[str]] = Counter()
    fault_rate: ClassVar[float] = 0.0

    def reset(self, seed: int = 0) -> str:
        self.seed = seed
        return super().reset(seed)

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        place = f"{self.seed}/{self.step_count}"
        self.visits[place] += 1
        if random.Random(f"{place}/{self.visits[place]}").random() < self.fault_rate:
            raise OSError("by chance")
        return super().step(action)


async def mean_reward(chat: Chat, fault_rate: float, policy: str, episodes: int = 120) -> tuple[float, int]:
    """The mean over episodes that count, and how many do. Without faults it is that of a geometric distribution."""
    Faulty.visits, Faulty.fault_rate, Walk.faults = Counter(), fault_rate, {}
    played = await asyncio.gather(
        *[play(chat, seed, environment=Faulty, failures={"environment": policy}) for seed in range(episodes)]
    )
    counted = [one.trajectory.total_reward for one in played if one.trajectory.is_counted]
    return sum(counted) / len(counted), len(counted)


async def test_faults_that_hit_long_episodes_do_not_move_the_mean(chat):
    """The known answer: the walk is as long as it is without faults, whatever their share; masking makes it shorter."""
    whole, _ = await mean_reward(chat, 0.0, "retry:2")
    assert whole == pytest.approx(2.0, abs=0.35)  # 1 / 0.5
    for fault_rate in (0.01, 0.05):
        mean, counted = await mean_reward(chat, fault_rate, "retry:8")
        assert (mean, counted) == (whole, 120)
    masked, counted = await mean_reward(chat, 0.2, "mask")
    # P(length = n) is (1/2)^n, and 0.8^n of those survive: their mean length is 1 / (1 - 0.4).
    assert masked == pytest.approx(1 / 0.6, abs=0.35)
    assert masked < whole - 0.15
    assert counted < 90


class Starting(Walk):
    """Needs a server that refuses everyone until `opens_at`."""

    opens_at: ClassVar[float] = 0.0

    def reset(self, seed: int = 0) -> str:
        if time.monotonic() < self.opens_at:
            raise ConnectionRefusedError("port 8000")
        return super().reset(seed)


@pytest.mark.parametrize("opens", [True, False])
async def test_a_burst_of_failures_costs_no_episode_its_retries(chat, monkeypatch, opens):
    monkeypatch.setattr(same_failure, "_BACKOFF_SECONDS", 0.2)
    monkeypatch.setattr(Starting, "opens_at", time.monotonic() + (0.1 if opens else 1e9))
    failing = SameFailure()
    # The machine decides how many attempts there are, and so the seeds: of 1,000 walks one has no end in ten turns.
    limits = Limits(turns=40)
    spec = RolloutSpec(environment=EnvironmentSpec.of(Starting, EnvironmentConfig(isolation="thread")), limits=limits)
    starts = [EpisodeStart(f"e{seed}", "g", seed) for seed in range(16)]
    played = await asyncio.gather(*[play_episode(start, spec, Coin(chat), chat, failing) for start in starts])
    report = report_of(result.trajectory for result in played)
    if opens:
        assert (report.ends, report.not_retried) == ("16 completed", 0)
    else:
        assert report.ends == "16 environment_failed"
        assert report.not_retried >= 8
        assert "port 8000 (in reset, test_retry.py" in report.first_error
        assert all(result.trajectory.attempt > 0 for result in played)

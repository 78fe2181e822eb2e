"""Every episode ends in exactly one outcome, with exact tokens, and keeps what was recorded."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from typing import Any, ClassVar

import pytest
from transformers import AutoTokenizer

from turnsmith.config import EnvironmentConfig
from turnsmith.env import BaseEnvironment, EnvironmentSpec
from turnsmith.inference import Chat, Generation, Sampling, ScriptedEngine
from turnsmith.rollout import EpisodeStart, Limits, run_episode
from turnsmith.trajectory import Outcome, Trajectory


class Count(BaseEnvironment):
    """Pays 1, 2, 3 ... and ends after `length` steps; it raises at step `at`."""

    closed: ClassVar[list[int]] = []

    def reset(self, seed: int = 0) -> str:
        self.steps = 0
        if self.config.get("at") == 0:
            raise OSError("no board")
        return f"start {seed}"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.steps += 1
        if self.config.get("at") == self.steps:
            time.sleep(self.config.get("sleep", 0.0))
            raise KeyError(action)
        return f"obs {self.steps}", float(self.steps), self.steps >= self.config.get("length", 3), {"n": self.steps}

    def get_prompt_prefix(self) -> str:
        return self.config.get("prefix", "")

    def close(self) -> None:
        self.closed.append(id(self))


@pytest.fixture(scope="module")
def chat() -> Chat:
    from turnsmith.models import resolve

    return Chat(AutoTokenizer.from_pretrained(resolve("tiny")))


async def play(
    chat: Chat,
    replies: Any = ("a", "bb", "ccc", "d", "e"),
    *,
    limits: Limits | None = None,
    engine: Any = None,
    **options: Any,
) -> Trajectory:
    settings = {name: options.pop(name) for name in list(options) if name not in ("reward_fn", "sampling", "start")}
    Count.closed.clear()
    trajectory = await run_episode(
        options.get("start", EpisodeStart("e1", "g1", 7)),
        environment=EnvironmentSpec.of(settings.pop("environment", Count), EnvironmentConfig(**settings)),
        engine=engine or ScriptedEngine(replies, chat, log_prob=-0.5),
        chat=chat,
        limits=limits or Limits(),
        sampling=options.get("sampling", Sampling()),
        reward_fn=options.get("reward_fn"),
    )
    check_consistent(trajectory)
    return trajectory


def check_consistent(trajectory: Trajectory) -> None:
    """What must hold for every trajectory, however it ended."""
    turns = len(trajectory.turns)
    tokens = trajectory.tokens
    assert trajectory.outcome is not None
    assert bool(trajectory.error) == (not trajectory.outcome.is_behaviour)
    for entries in (trajectory.states, trajectory.actions, trajectory.rewards, trajectory.dones, trajectory.infos):
        assert len(entries) == turns
    assert len(tokens.ids) == len(tokens.log_probs) == len(tokens.mask)
    marked = [place for turn in trajectory.turns for place in range(turn.start, turn.stop)]
    assert [place for place, bit in enumerate(tokens.mask) if bit] == marked
    assert all(tokens.log_probs[place] == 0.0 for place, bit in enumerate(tokens.mask) if not bit)


async def test_a_completed_episode(chat):
    trajectory = await play(chat, prefix="Rules")
    assert trajectory.outcome is Outcome.COMPLETED
    assert trajectory.states == ["start 7", "obs 1", "obs 2"]
    assert trajectory.actions == ["a", "bb", "ccc"]
    assert trajectory.rewards == [1.0, 2.0, 3.0]
    assert trajectory.dones == [False, False, True]
    assert trajectory.infos == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert [m["role"] for m in trajectory.messages] == ["system", "user", *["assistant", "user"] * 3]
    assert trajectory.messages[-1]["content"] == "obs 3"
    assert (trajectory.episode_id, trajectory.group_id, trajectory.seed) == ("e1", "g1", 7)
    assert trajectory.seconds > 0
    assert len(Count.closed) == 1


async def test_tokens_are_those_of_the_template_and_rewards_sit_on_last_model_tokens(chat):
    trajectory = await play(chat)
    tokens = trajectory.tokens
    text = chat.show(tokens.ids)
    assert text == (
        "<|im_start|>user\nstart 7<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
        "<|im_start|>user\nobs 1<|im_end|>\n<|im_start|>assistant\nbb<|im_end|>\n"
        "<|im_start|>user\nobs 2<|im_end|>\n<|im_start|>assistant\nccc<|im_end|>"
    )
    assert [chat.show(tokens.ids[turn.start : turn.stop]) for turn in trajectory.turns] == [
        "a<|im_end|>",
        "bb<|im_end|>",
        "ccc<|im_end|>",
    ]
    rewarded = [(place, reward) for place, reward in enumerate(trajectory.token_rewards()) if reward]
    assert rewarded == [
        (turn.stop - 1 - tokens.prompt_length, pay) for turn, pay in zip(trajectory.turns, (1.0, 2.0, 3.0), strict=True)
    ]


async def test_sampled_tokens_are_never_re_tokenised(smollm2_folder):
    chat = Chat(AutoTokenizer.from_pretrained(smollm2_folder))
    whole = chat.encode("hello world")
    letters = [token for letter in "hello world" for token in chat.encode(letter)]
    assert letters != whole
    trajectory = await play(chat, [letters, [*letters, chat.close_id], "end"])
    first, second, _ = trajectory.turns
    assert list(trajectory.tokens.ids[first.start : first.stop]) == letters
    assert list(trajectory.tokens.ids[second.start : second.stop]) == [*letters, chat.close_id]
    assert trajectory.actions[:2] == ["hello world"] * 2
    # The first reply did not end its turn, so the bridge does; either way there is exactly one end.
    assert trajectory.tokens.ids[first.stop] == chat.close_id
    assert trajectory.tokens.ids[second.stop] != chat.close_id


async def test_turn_limit_and_max_steps(chat):
    limited = await play(chat, limits=Limits(turns=2))
    assert (limited.outcome, limited.num_turns, limited.messages[-1]["content"]) == (Outcome.TURN_LIMIT, 2, "obs 2")
    cut = await play(chat, max_steps=2)
    assert (cut.outcome, cut.num_turns, cut.dones) == (Outcome.TRUNCATED, 2, [False, True])


@pytest.mark.parametrize("budget", range(1, 60))
async def test_the_token_budget_is_never_passed(chat, budget):
    trajectory = await play(chat, limits=Limits(tokens=budget), sampling=Sampling(max_tokens=3))
    used = len(trajectory.tokens) - trajectory.tokens.prompt_length
    assert used <= budget
    assert trajectory.turns
    assert trajectory.tokens.mask[-1] == 1  # an observation that leads nowhere is not kept
    assert trajectory.outcome in (Outcome.TOKEN_LIMIT, Outcome.COMPLETED)
    assert all(turn.stop - turn.start <= 3 for turn in trajectory.turns)


async def test_a_prompt_that_is_too_long_is_an_error_and_not_cut(chat):
    trajectory = await play(chat, limits=Limits(prompt_tokens=10))
    assert trajectory.outcome is Outcome.ENVIRONMENT_FAILED
    assert "more than the 10 allowed" in trajectory.error
    assert len(trajectory.tokens) == 0


async def test_a_failing_environment_costs_its_own_episode_and_keeps_what_was(chat):
    early = await play(chat, at=0)
    assert early.outcome is Outcome.ENVIRONMENT_FAILED
    assert "Count.reset raised OSError: no board" in early.error
    late = await play(chat, at=2)
    assert late.outcome is Outcome.ENVIRONMENT_FAILED
    assert "Count.step raised KeyError: 'bb'" in late.error
    assert (late.actions, late.rewards, late.dones) == (["a", "bb"], [1.0, 0.0], [False, False])
    assert len(Count.closed) == 1


async def test_an_environment_whose_constructor_or_import_fails(chat, tmp_path):
    spec = EnvironmentSpec("no.such.module:Game")
    trajectory = await run_episode(
        EpisodeStart("e"),
        environment=spec,
        engine=ScriptedEngine([], chat),
        chat=chat,
        limits=Limits(),
        sampling=Sampling(),
    )
    assert trajectory.outcome is Outcome.ENVIRONMENT_FAILED
    assert "There is no module" in trajectory.error


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (RuntimeError("gpu lost"), "ScriptedEngine.generate raised RuntimeError: gpu lost"),
        (Generation([], []), "returned 0 tokens"),
        (Generation([5, 6], [-1.0]), "2 token ids but 1 log-probs"),
        (Generation([5, 2**40], [-1.0, -1.0]), "OverflowError"),
        (Generation([5, 6], [-1.0, "x"]), "TypeError"),  # type: ignore[list-item]
        (Generation([5], [float("nan")]), "a log-prob that is not finite"),
        (Generation([5], [-1.0], "abort"), "aborted"),
        (Generation([5], [-1.0], "error"), "the unknown stop reason 'error'"),
        (Generation([5] * 300, [-1.0] * 300), "returned 300 tokens; 1 to 256 were requested"),
    ],
)
async def test_a_failing_engine(chat, reply, sentence):
    trajectory = await play(chat, ["a", reply])
    assert trajectory.outcome is Outcome.ENGINE_FAILED
    assert sentence in trajectory.error
    assert (trajectory.actions, trajectory.rewards) == (["a"], [1.0])
    assert len(Count.closed) == 1


async def test_the_clock_stands_still_while_the_engine_has_the_turn(chat):
    async def paused(turn: int, prompt: str) -> str:
        await asyncio.sleep(0.4)  # longer than the episode may take
        return "a"

    trajectory = await play(chat, paused, limits=Limits(seconds=0.3))
    assert (trajectory.outcome, trajectory.num_turns, trajectory.total_reward) == (Outcome.COMPLETED, 3, 6.0)


async def test_the_clock_goes_on_after_the_engine_has_answered(chat):
    async def paused(turn: int, prompt: str) -> str:
        await asyncio.sleep(0.3)
        return "a"

    class Slow(Count):
        async def step(self, action: str) -> Any:  # type: ignore[override]
            await asyncio.sleep(0.4)
            return super().step(action)

    trajectory = await play(chat, paused, environment=Slow, limits=Limits(seconds=1.0))
    assert (trajectory.outcome, trajectory.rewards) == (Outcome.TIME_LIMIT, [1.0, 2.0, 0.0]), "the third step is cut"


async def test_an_environment_that_cannot_be_cancelled_ends_at_its_next_turn(chat):
    class Stubborn(Count):
        async def step(self, action: str) -> Any:  # type: ignore[override]
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                pass
            return super().step(action)

    trajectory = await play(chat, environment=Stubborn, limits=Limits(seconds=0.1))
    assert (trajectory.outcome, trajectory.rewards, trajectory.error) == (Outcome.TIME_LIMIT, [1.0], "")


async def test_time_limit_in_a_step(chat):
    trajectory = await play(chat, limits=Limits(seconds=0.3), at=2, sleep=1.0)
    assert (trajectory.outcome, trajectory.rewards) == (Outcome.ENVIRONMENT_TIMEOUT, [1.0, 0.0])
    assert trajectory.error.startswith("The environment's step or a tool did not return within ")
    assert Count.closed == []  # closed when its thread comes back, not while it runs
    await asyncio.sleep(1.0)
    assert len(Count.closed) == 1


async def test_an_environments_own_timeout_error_is_a_failure(chat):
    class Late(Count):
        def step(self, action: str) -> Any:
            raise TimeoutError("service")

    trajectory = await play(chat, environment=Late)
    assert trajectory.outcome is Outcome.ENVIRONMENT_FAILED


async def test_what_cancels_itself_is_a_failure_and_no_cancellation(chat):
    class Cancelled(Count):
        async def step(self, action: str) -> Any:  # type: ignore[override]
            raise asyncio.CancelledError

    trajectory = await play(chat, environment=Cancelled)
    assert trajectory.outcome is Outcome.ENVIRONMENT_FAILED

    async def reply(turn: int, prompt: str) -> str:
        raise asyncio.CancelledError

    assert (await play(chat, reply)).outcome is Outcome.ENGINE_FAILED


async def test_cancelling_closes_the_environment_and_goes_on(chat):
    async def never(turn: int, prompt: str) -> str:
        await asyncio.sleep(30)
        return ""

    task = asyncio.create_task(play(chat, never))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(Count.closed) == 1


async def score_async(trajectory: Trajectory, environment: Count) -> float:
    await asyncio.sleep(0)
    return environment.steps + len(trajectory.actions)


class Scorer:
    def __call__(self, trajectory: Trajectory) -> int:
        return 9


@pytest.mark.parametrize(
    ("function", "score"),
    [
        (lambda trajectory: sum(trajectory.rewards), 6.0),
        (lambda trajectory, environment: environment.steps, 3.0),
        (lambda trajectory, scale=0.5: scale, 0.5),
        (lambda trajectory, env=None: env.steps, 3.0),
        (score_async, 6.0),
        (Scorer(), 9.0),
    ],
)
async def test_reward_functions_of_every_shape(chat, function, score):
    trajectory = await play(chat, reward_fn=function)
    assert (trajectory.outcome, trajectory.score, trajectory.total_reward) == (Outcome.COMPLETED, score, score)
    assert len(Count.closed) == 1


def raising(trajectory: Trajectory) -> float:
    raise ValueError("no gold")


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (raising, "raising raised ValueError: no gold"),
        (lambda trajectory: None, "returned 'None'; it must return a finite number"),
        (lambda trajectory: float("inf"), "returned 'inf'"),
        (lambda trajectory: "1.0", "must return a finite number"),
        (lambda trajectory: [1.0], "must return a finite number"),
    ],
)
async def test_a_failing_reward_function(chat, function, sentence):
    trajectory = await play(chat, reward_fn=function)
    assert trajectory.outcome is Outcome.REWARD_FAILED
    assert sentence in trajectory.error
    assert (trajectory.score, trajectory.num_turns) == (None, 3)


async def test_a_reward_function_that_hangs_is_given_up(chat):
    trajectory = await play(chat, reward_fn=lambda trajectory: time.sleep(1.0), limits=Limits(seconds=0.3))
    assert trajectory.outcome is Outcome.REWARD_FAILED
    assert "longer than 0.3 seconds" in trajectory.error


async def test_a_fault_is_not_scored(chat):
    called: list[Trajectory] = []
    trajectory = await play(chat, at=2, reward_fn=lambda trajectory: called.append(trajectory) or 1.0)
    assert (trajectory.outcome, trajectory.score, called) == (Outcome.ENVIRONMENT_FAILED, None, [])


async def test_what_the_engine_is_asked(chat):
    asked: list[tuple[int, Sampling, str]] = []

    class Watching(ScriptedEngine):
        async def generate(self, prompt_ids: Any, sampling: Sampling, *, session: str) -> Generation:
            asked.append((len(prompt_ids), sampling, session))
            return await super().generate(prompt_ids, sampling, session=session)

    engine = Watching(["a", "b", "c"], chat)
    trajectory = await play(
        chat, engine=engine, sampling=Sampling(max_tokens=40, seed=3, stop_token_ids=(50,)), limits=Limits(tokens=60)
    )
    assert [size for size, _, _ in asked] == [turn.start for turn in trajectory.turns]
    assert asked[0][1].stop_token_ids == (*chat.stop_token_ids, 50)
    assert asked[0][1].max_tokens == 40
    assert asked[1][1].max_tokens == 60 - (trajectory.turns[1].start - trajectory.tokens.prompt_length)
    assert len({sampling.seed for _, sampling, _ in asked}) == len(asked)  # turns must not repeat each other
    assert {session for _, _, session in asked} == {"e1"}


async def test_many_waiting_episodes_hold_no_thread_and_little_memory(chat):
    import threading

    episodes, words = 300, 2000
    gate = asyncio.Event()
    waiting = 0

    async def wait(turn: int, prompt: str) -> str:
        nonlocal waiting
        waiting += 1
        await gate.wait()
        return "a"

    class Long(Count):
        def reset(self, seed: int = 0) -> str:
            self.steps = 2
            return LONG

    engine = ScriptedEngine(wait, chat)
    engine._chat = _Mute(chat)  # type: ignore[assignment]  # the prompt as text would be memory of the test's own
    spec = EnvironmentSpec.of(Long)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tasks = [
        asyncio.create_task(
            run_episode(
                EpisodeStart(f"e{place}"),
                environment=spec,
                engine=engine,
                chat=chat,
                limits=Limits(prompt_tokens=words + 100, seconds=60),
                sampling=Sampling(),
            )
        )
        for place in range(episodes)
    ]
    while waiting < episodes:
        await asyncio.sleep(0.01)
    gc.collect()
    held = (tracemalloc.get_traced_memory()[0] - before) / episodes
    tracemalloc.stop()
    assert threading.active_count() < 80
    gate.set()
    done = await asyncio.gather(*tasks)
    assert {trajectory.outcome for trajectory in done} == {Outcome.COMPLETED}
    assert held < 9 * 1.2 * words + 10_000, held


LONG = "x" * 2000


class _Mute:
    def __init__(self, chat: Chat) -> None:
        self.encode, self.close_id = chat.encode, chat.close_id

    def show(self, ids: Any) -> str:
        return ""

"""Every episode ends in exactly one outcome, with exact tokens, and keeps what was recorded."""

from __future__ import annotations

import asyncio
import gc
import math
import tracemalloc
from typing import Any

import pytest
from tests.unit.env.isolation.games import Shown, row_of_task
from tests.unit.rollout.counting import Count, play
from transformers import AutoTokenizer

from turnsmith.config import EnvironmentConfig
from turnsmith.env import BaseEnvironment, EnvironmentSpec
from turnsmith.env.isolation.pool import close_workers
from turnsmith.inference import Chat, Generation, Sampling, ScriptedEngine
from turnsmith.rollout import EpisodeStart, Limits, run_episode
from turnsmith.trajectory import Outcome, Trajectory


@pytest.fixture(scope="module")
def chat(tiny_folder: str) -> Chat:
    return Chat(AutoTokenizer.from_pretrained(tiny_folder))


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


async def test_an_episode_is_recorded_with_its_row(chat):
    options = {"engine": ScriptedEngine(["5"], chat), "chat": chat, "limits": Limits(), "sampling": Sampling()}
    for isolation in ("thread", "process"):
        config = EnvironmentConfig(isolation=isolation, isolation_workers=1)
        start = EpisodeStart(isolation, task={"row": 1})
        environment = EnvironmentSpec.of(Shown, config)
        episode = await run_episode(start, environment=environment, reward_fn=row_of_task, **options)
        assert (episode.task, episode.score) == ({"row": 1}, 1.0)
    await close_workers()


async def test_messages_of_reset_are_the_opening_and_only_the_last_is_answered(chat):
    spec, engine = EnvironmentSpec.of(Shown), ScriptedEngine(["5"], chat)
    options = {"environment": spec, "engine": engine, "chat": chat, "limits": Limits(), "sampling": Sampling()}
    episode = await run_episode(EpisodeStart("e", prompt="Next.", system_prompt="Rules."), **options)
    opening = [
        {"role": "system", "content": "Rules.\n\nAnswer with a number."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "Next.\n\n2 + 3?"},
    ]
    tokens = episode.tokens
    assert chat.show(tokens.ids[: tokens.prompt_length]) == chat.tokenizer.apply_chat_template(
        opening, tokenize=False, add_generation_prompt=True
    )
    assert episode.messages[:4] == opening
    assert (episode.states, episode.actions, episode.rewards) == (["2 + 3?"], ["5"], [1.0])
    assert sum(tokens.mask[: tokens.prompt_length]) == 0


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
        (Generation([5, 2**40], [-1.0, -1.0]), "returned invalid token ids"),
        (Generation([5, 6], [-1.0, "x"]), "a log-prob that is not a number"),  # type: ignore[list-item]
        (Generation([5], [float("nan")]), "a log-prob that is not a number"),
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
        (lambda trajectory: 1e39, "<lambda> returned '1e+39'; it must return a number from -1e+15 to 1e+15"),
    ],
)
async def test_a_failing_reward_function(chat, function, sentence):
    trajectory = await play(chat, reward_fn=function)
    assert trajectory.outcome is Outcome.REWARD_FAILED
    assert sentence in trajectory.error
    assert (trajectory.score, trajectory.num_turns) == (None, 3)


class Huge(BaseEnvironment):
    def reset(self) -> str:
        return "Go."

    def step(self, action: str):
        self.step_count += 1
        return "Once more.", self.config.reward, self.step_count == 2, {}


@pytest.mark.parametrize("reward", [1e39, -1e39, 1.7e308, 1.1e15])
async def test_a_reward_that_float32_cannot_hold_is_a_failure_that_names_it(chat, reward):
    trajectory = await play(chat, environment=Huge, reward=reward)
    assert trajectory.outcome is Outcome.ENVIRONMENT_FAILED
    assert f"Huge.step returned the reward {reward!r}; it must be a number from -1e+15 to 1e+15" in trajectory.error
    assert math.isfinite(trajectory.total_reward)


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
    before, threads_before = tracemalloc.get_traced_memory()[0], threading.active_count()
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
    assert threading.active_count() - threads_before <= 64
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

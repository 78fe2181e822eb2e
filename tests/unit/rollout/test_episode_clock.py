"""The clock stands still while the engine has the turn; what takes too long or is cancelled ends in its own outcome."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.unit.rollout.counting import Count, play
from transformers import AutoTokenizer

from turnsmith.concurrency.clocks import Bottleneck, waiting
from turnsmith.inference import Chat
from turnsmith.rollout import Limits
from turnsmith.trajectory import Outcome


@pytest.fixture(scope="module")
def chat(tiny_folder: str) -> Chat:
    return Chat(AutoTokenizer.from_pretrained(tiny_folder))


async def test_the_clock_stands_still_while_the_engine_has_the_turn(chat):
    async def paused(turn: int, prompt: str) -> str:
        await asyncio.sleep(0.4)  # longer than the episode may take
        return "a"

    trajectory = await play(chat, paused, limits=Limits(seconds=0.3))
    assert (trajectory.outcome, trajectory.num_turns, trajectory.total_reward) == (Outcome.COMPLETED, 3, 6.0)


async def test_the_clock_goes_on_after_the_engine_has_answered(chat):
    async def paused(turn: int, prompt: str) -> str:
        await asyncio.sleep(0.6)
        return "a"

    class Slow(Count):
        async def step(self, action: str) -> Any:  # type: ignore[override]
            await asyncio.sleep(0.8)
            return super().step(action)

    trajectory = await play(chat, paused, environment=Slow, limits=Limits(seconds=2.0))
    assert (trajectory.outcome, trajectory.rewards) == (Outcome.TIME_LIMIT, [1.0, 2.0, 0.0]), "the third step is cut"


async def test_an_environment_that_cannot_be_cancelled_ends_at_its_next_turn(chat):
    class Stubborn(Count):
        async def reset(self) -> str:  # type: ignore[override]
            return super().reset()

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


async def test_time_that_a_step_took_is_recorded_with_its_turn(chat):
    class Slow(Count):
        async def step(self, action: str) -> Any:  # type: ignore[override]
            await asyncio.sleep(0.05)
            return super().step(action)

    async def reply(turn: int, prompt: str) -> str:
        await asyncio.sleep(0.03)
        return "a"

    trajectory = await play(chat, reply, environment=Slow, length=2)
    for turn in trajectory.turns:
        assert 0.05 <= turn.step_seconds < trajectory.seconds
        assert 0.03 <= turn.generate_seconds < trajectory.seconds


async def test_a_step_that_hangs_is_told_even_if_an_earlier_one_waited_for_its_turn(chat):
    class Waiting(Count):
        async def step(self, action: str) -> Any:  # type: ignore[override]
            if self.steps == 0:
                async with waiting(Bottleneck("a desk", "buy one")):
                    await asyncio.sleep(0.6)
            else:
                await asyncio.sleep(60)
            return super().step(action)

    trajectory = await play(chat, environment=Waiting, limits=Limits(seconds=1.0))
    assert (trajectory.outcome, trajectory.num_turns) == (Outcome.ENVIRONMENT_TIMEOUT, 2)


async def test_a_call_that_took_less_than_half_of_the_time_is_not_to_blame_for_its_end(chat):
    class Slow(Count):
        async def step(self, action: str) -> Any:  # type: ignore[override]
            await asyncio.sleep(0.6 if self.steps == 0 else 60)
            return super().step(action)

    trajectory = await play(chat, environment=Slow, limits=Limits(seconds=1.0))
    assert (trajectory.outcome, trajectory.error) == (Outcome.TIME_LIMIT, "")


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


async def test_a_reward_function_that_hangs_is_given_up(chat):
    trajectory = await play(chat, reward_fn=lambda trajectory: time.sleep(1.0), limits=Limits(seconds=0.3))
    assert trajectory.outcome is Outcome.REWARD_FAILED
    assert "longer than 0.3 seconds" in trajectory.error

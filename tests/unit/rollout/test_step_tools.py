"""Tools whose calls are steps: what `step` returns for a call counts as for any action, and its faults are faults."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from turnsmith import (
    BaseEnvironment,
    Chat,
    EnvironmentConfig,
    EnvironmentSpec,
    EpisodeStart,
    Limits,
    Outcome,
    Sampling,
    ScriptedEngine,
    Trajectory,
    run_episode,
    tool,
)
from turnsmith.tools.definition import ToolDefinition

NUMBER = {"type": "object", "properties": {"door": {"type": "integer"}}, "required": ["door"]}


class Doors(BaseEnvironment):
    """Door 1 pays, 2 ends it, 3 is a mistake, 4 breaks and 5 hangs; a text is no call."""

    async def reset(self) -> str:
        self.step_tools = [ToolDefinition("open", "Open a door.", NUMBER)]
        return "Open door 2."

    async def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if not action.startswith("{"):
            return "Open a door.", 0.0, False, {"invalid_action": True}
        call = json.loads(action)
        door = call["arguments"]["door"]
        if door == 3:
            return "There is a wall.", 0.0, False, {"invalid_action": True}
        if door == 4:
            raise OSError("the house fell down")
        if door == 5:
            await asyncio.sleep(60)
        return f"{call['name']} {door}", 0.5, door == 2, {"door": door}

    @tool
    async def leave(self) -> str:
        """Leave the house."""
        self.done = True
        return "You leave."


@pytest.fixture(scope="module")
def chat(tiny_folder: str) -> Chat:
    from transformers import AutoTokenizer

    return Chat(AutoTokenizer.from_pretrained(tiny_folder))


async def play(chat: Chat, *turns: str, **settings: Any) -> Trajectory:
    return await run_episode(
        EpisodeStart("episode"),
        environment=EnvironmentSpec.of(Doors, EnvironmentConfig(**settings)),
        engine=ScriptedEngine(list(turns), chat),
        chat=chat,
        limits=Limits(turns=20, tokens=200_000, prompt_tokens=20_000),
        sampling=Sampling(max_tokens=1000),
    )


def opened(*doors: object) -> str:
    calls = ({"name": "open", "arguments": {"door": door}} for door in doors)
    return "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)


def answers(trajectory: Trajectory) -> list[str]:
    return [message["content"] for message in trajectory.messages if message["role"] == "tool"]


async def test_rewards_ends_and_info_are_those_of_the_steps(chat: Chat) -> None:
    episode = await play(chat, opened(1), "Open it.", opened(3), opened(2))
    assert "Open a door." in episode.messages[0]["content"]
    assert (episode.rewards, episode.outcome) == ([0.5, 0.0, 0.0, 0.5], Outcome.COMPLETED)
    assert answers(episode) == ["open 1", "There is a wall.", "open 2"]
    assert [info.get("door") for info in episode.infos] == [1, None, None, 2]
    calls = [info["tool_calls"][0] for info in episode.infos if "tool_calls" in info]
    assert [call["ok"] for call in calls] == [True, False, True], "an action that is a mistake is a call that is one"
    assert all(call["seconds"] == round(call["seconds"], 6) for call in calls), "to the microsecond"


async def test_several_calls_in_a_turn_add_up_and_none_comes_after_the_end(chat: Chat) -> None:
    episode = await play(chat, opened(1, 2, 4))
    assert (episode.rewards, episode.outcome) == ([1.0], Outcome.COMPLETED)
    assert answers(episode) == ["open 1", "open 2", "The episode had ended before this call."]


async def test_a_call_with_wrong_arguments_is_no_step(chat: Chat) -> None:
    episode = await play(chat, opened("two"), opened(1), opened(1), max_steps=2)
    assert (episode.rewards, episode.outcome) == ([0.0, 0.5, 0.5], Outcome.TRUNCATED)
    assert answers(episode)[0] == "The argument door must be of type integer, not 'two'."


async def test_a_method_may_end_it_after_a_step(chat: Chat) -> None:
    leave = '<tool_call>{"name": "leave", "arguments": {}}</tool_call>'
    episode = await play(chat, opened(1) + leave)
    assert (episode.rewards, episode.outcome) == ([0.5], Outcome.COMPLETED)


async def test_faults_are_those_of_the_environment_and_not_told_to_the_model(chat: Chat) -> None:
    broken = await play(chat, opened(1), opened(4))
    assert broken.outcome is Outcome.ENVIRONMENT_FAILED
    assert "Doors.step raised OSError: the house fell down" in broken.error
    hanging = await play(chat, opened(5), call_seconds=0.1)
    assert hanging.outcome is Outcome.ENVIRONMENT_TIMEOUT
    assert answers(hanging) == []

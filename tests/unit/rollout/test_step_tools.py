"""Tools whose calls are steps: what `step` returns for a call counts as for any action, and its faults are faults."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from turnsmith import (
    BaseEnvironment,
    BaseInferenceEngine,
    Chat,
    ConfigError,
    ConfigStore,
    EnvironmentConfig,
    EnvironmentSpec,
    EnvironmentStepTool,
    EpisodeStart,
    JSONActionParser,
    Limits,
    MultiTurnChatHarness,
    MultiTurnInferenceEngine,
    MultiTurnManager,
    Outcome,
    RayPPOTrainer,
    Sampling,
    ScriptedEngine,
    SimpleGameEnvironment,
    ToolRegistry,
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


QUEST = ("move north", "move east", "pick up", "complete quest")


def quest(*actions: str) -> list[str]:
    return [json.dumps({"tool": "environment_step", "arguments": {"action": action}}) for action in actions]


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_the_environments_own_step_as_a_tool_wins_the_quest_of_the_episode(chat: Chat, isolation: str) -> None:
    callers = SimpleGameEnvironment({"isolation": isolation, "isolation_workers": 1})
    manager = MultiTurnManager(ToolRegistry([EnvironmentStepTool(callers)]), JSONActionParser(), callers)
    with BaseInferenceEngine(ScriptedEngine(quest(*QUEST), chat), chat.tokenizer) as engine:
        conversation = MultiTurnInferenceEngine(engine, 6, tool_manager=manager, enable_tools=True)
        conversation.run_episode(callers, "Go.")
    played = conversation.trajectory
    assert played is not None
    assert (played.rewards, played.outcome) == ([0.1, 0.1, 0.5, 10.0], Outcome.COMPLETED)
    assert callers.position == (0, 0), "the caller's object is not an episode's"
    assert manager.get_episode_summary() == {
        "num_turns": 4,
        "total_reward": pytest.approx(10.7),
        "done": True,
        "format_problems": 0,
        "tools": {"environment_step": {"calls": 4, "failures": 0}},
    }
    assert [turn.tool_calls[0].arguments["action"] for turn in manager.turns] == list(QUEST)
    assert manager.turns[0].tool_calls[0].result is not None
    assert manager.turns[0].tool_calls[0].result.text == manager.turns[0].observation
    assert manager.turns[0].observation.startswith("You go north.")


def test_each_episode_of_a_batch_steps_its_own(chat: Chat) -> None:
    tools = ToolRegistry([EnvironmentStepTool(SimpleGameEnvironment())])
    engine = BaseInferenceEngine(ScriptedEngine(quest("move north", "sing"), chat), chat.tokenizer)
    harness = MultiTurnChatHarness(engine, SimpleGameEnvironment(), 2, tools=tools, parser=JSONActionParser())
    first, second = harness.run_batch(["a", "b"])
    assert first["rewards"] == second["rewards"] == [0.1, -0.1]
    assert first["observations"] == second["observations"]
    assert [info["tool_calls"][0]["ok"] for info in first["infos"]] == [True, False]
    engine.close()


def test_turn_by_turn_the_managers_environment_is_stepped(chat: Chat) -> None:
    environment = SimpleGameEnvironment()
    manager = MultiTurnManager(ToolRegistry([EnvironmentStepTool(environment)]), JSONActionParser())
    environment.reset()
    ends = [manager.step(call).result.done for call in quest(*QUEST)]
    assert ends == [False, False, False, True]
    assert manager.get_episode_summary()["total_reward"] == pytest.approx(10.7)


def test_a_tool_made_with_another_environment_is_refused_before_anything_starts() -> None:
    tools = ToolRegistry([EnvironmentStepTool(SimpleGameEnvironment())])
    with pytest.raises(ConfigError, match=r"was made with a SimpleGameEnvironment, but .* a Doors: make it with that"):
        RayPPOTrainer(ConfigStore(), Doors, tools=tools)

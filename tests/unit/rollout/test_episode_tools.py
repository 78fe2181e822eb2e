"""Tools inside the episode loop: whatever a tool does wrong costs one recorded failure, and the episode goes on."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import pytest

from turnsmith import (
    BaseEnvironment,
    Chat,
    EnvironmentSpec,
    EpisodeStart,
    Limits,
    Outcome,
    ReActActionParser,
    Sampling,
    ScriptedEngine,
    ToolError,
    ToolRegistry,
    Trajectory,
    current_episode,
    run_episode,
    tool,
)
from turnsmith.tools.parsing import ActionParser

SECRET = "the key is 4711"


class Workshop(BaseEnvironment):
    """Every tool but two goes wrong, each in its own way."""

    def reset(self) -> str:
        """Say hello."""
        self.used = 0
        return "Use the tools, then say done."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Take the final answer."""
        return "Thank you.", float(self.used), True, {}

    @tool
    def work(self) -> str:
        """Do it right."""
        self.used += 1
        return f"done in {current_episode()}"

    @tool
    def refuse(self, amount: int) -> str:
        """Say no."""
        raise ToolError(f"{amount} is too much.")

    @tool
    def raise_(self) -> str:
        """Raise."""
        raise RuntimeError(SECRET)

    @tool(time_limit=0.05)
    def hang(self) -> str:
        """Take far too long."""
        time.sleep(0.5)
        return "late"

    @tool
    def leave(self) -> str:
        """Leave the process."""
        sys.exit(SECRET)

    @tool
    async def cancel(self) -> str:
        """Cancel itself."""
        raise asyncio.CancelledError(SECRET)

    @tool
    def wrong_type(self) -> Any:
        """Return what no model can read."""
        return object()

    @tool
    def huge(self) -> str:
        """Return 50 MB."""
        return "x" * 50_000_000

    @tool
    async def unclean(self) -> str:
        """Fail while cleaning up."""
        try:
            return "fine"
        finally:
            raise ValueError(SECRET)


class Listener(BaseEnvironment):
    """Has no tools, and answers with what it heard."""

    def reset(self) -> str:
        return "Speak."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return action, 1.0, True, {}


@pytest.fixture(scope="module")
def chat(tiny_folder: str) -> Chat:
    from transformers import AutoTokenizer

    return Chat(AutoTokenizer.from_pretrained(tiny_folder))


async def play(
    chat: Chat,
    replies: list[str],
    parser: ActionParser | None = None,
    tools: ToolRegistry | None = None,
    environment: type[BaseEnvironment] = Workshop,
) -> Trajectory:
    return await run_episode(
        EpisodeStart("episode-7"),
        environment=EnvironmentSpec.of(environment),
        engine=ScriptedEngine(replies, chat),
        chat=chat,
        limits=Limits(turns=20, tokens=200_000, prompt_tokens=20_000),
        sampling=Sampling(max_tokens=1000),
        parser=parser,
        tools=tools,
    )


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


BROKEN = ["raise_", "hang", "leave", "cancel", "wrong_type", "unclean"]


async def test_a_broken_tool_costs_one_failure_and_the_episode_goes_on(chat: Chat) -> None:
    trajectory = await play(chat, [*[call(name) for name in BROKEN], call("work"), "done"])
    assert trajectory.outcome is Outcome.COMPLETED, trajectory.error
    assert trajectory.total_reward == 1.0
    records = [info["tool_calls"][0] for info in trajectory.infos[:-1]]
    assert [record["name"] for record in records] == [*BROKEN, "work"]
    assert [record["ok"] for record in records] == [False] * len(BROKEN) + [True]
    assert all(record["failure"] for record in records[:-1])
    shown = chat.show(trajectory.tokens.ids)
    assert SECRET not in shown
    assert "Traceback" not in shown
    assert "done in episode-7" in shown


async def test_a_huge_result_is_cut_and_the_episode_goes_on(chat: Chat) -> None:
    trajectory = await play(chat, [call("huge"), "done"])
    assert trajectory.outcome is Outcome.COMPLETED
    assert trajectory.infos[0]["tool_calls"][0]["cut"]
    assert len(trajectory.tokens) < 20_000


async def test_mistakes_are_shown_to_the_model(chat: Chat) -> None:
    replies = [
        call("refuse", '{"amount": 9}'),
        call("refuse", '{"amount": "many"}'),
        call("wrok"),
        "<tool_call>{",
        "done",
    ]
    trajectory = await play(chat, replies)
    assert trajectory.outcome is Outcome.COMPLETED
    answers = [message["content"] for message in trajectory.messages if message["role"] in ("tool", "user")][1:]
    assert answers[0] == "9 is too much."
    assert "amount" in answers[1]
    assert "work" in answers[2]
    assert trajectory.infos[3] == {"format_problem": "unfinished"}
    assert all("failure" not in info["tool_calls"][0] for info in trajectory.infos[:3])


async def test_several_calls_in_one_turn_run_in_order(chat: Chat) -> None:
    trajectory = await play(chat, [call("work") + call("work"), "done"])
    assert trajectory.total_reward == 2.0
    assert len(trajectory.infos[0]["tool_calls"]) == 2
    assert trajectory.num_turns == 2


async def test_given_tools_stand_beside_the_environments_own(chat: Chat) -> None:
    @tool
    def double(number: int) -> int:
        """Twice the number."""
        return 2 * number

    replies = ['Thought: hm\nAction: double\nAction Input: {"number": 21}', "Final Answer: done"]
    trajectory = await play(chat, replies, ReActActionParser(), ToolRegistry([double]))
    assert trajectory.outcome is Outcome.COMPLETED, trajectory.error
    assert "double" in trajectory.messages[0]["content"]
    assert "wrong_type" in trajectory.messages[0]["content"]
    assert trajectory.messages[3]["content"] == "42"


async def test_a_plain_react_input_goes_to_the_only_parameter(chat: Chat) -> None:
    trajectory = await play(chat, ["Action: refuse\nAction Input: 5", "Final Answer: done"], ReActActionParser())
    assert trajectory.messages[3]["content"] == "5 is too much."


async def test_calls_that_could_be_read_run_beside_one_that_could_not(chat: Chat) -> None:
    trajectory = await play(chat, [call("work") + "<tool_call>{oops}</tool_call>", "done"])
    assert trajectory.total_reward == 1.0
    assert [message["role"] for message in trajectory.messages[2:]] == [
        "assistant",
        "tool",
        "user",
        "assistant",
        "user",
    ]
    assert trajectory.infos[0]["format_problem"] == "invalid_json"


async def test_rewards_and_tokens_of_tool_turns(chat: Chat) -> None:
    trajectory = await play(chat, [call("work"), "done"])
    assert trajectory.rewards == [0.0, 1.0]
    tokens = trajectory.tokens
    assert len(tokens.ids) == len(tokens.mask) == len(tokens.log_probs)
    assert sum(tokens.mask) == sum(turn.stop - turn.start for turn in trajectory.turns)
    placed = trajectory.token_rewards()
    assert placed[trajectory.turns[-1].stop - 1 - tokens.prompt_length] == 1.0
    assert sum(placed) == 1.0


@pytest.mark.parametrize("tools", [None, ToolRegistry()])
async def test_without_tools_a_turn_that_looks_like_a_call_is_an_action(chat: Chat, tools: ToolRegistry | None) -> None:
    trajectory = await play(chat, [call("work")], tools=tools, environment=Listener)
    assert (trajectory.outcome, trajectory.messages[-1]["content"]) == ("completed", call("work"))
    assert trajectory.messages[0] == {"role": "user", "content": "Speak."}, "and none are described"

"""The specification's wrappers of the episode loop: `MultiTurnChatHarness` plays whole episodes, `MultiTurnManager`
handles one turn at a time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from turnsmith.concurrency.loop_thread import run_blocking, run_here
from turnsmith.env.local_host import EnvironmentHost
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine, Sampling
from turnsmith.inference.sync.base import BaseInferenceEngine
from turnsmith.rollout.episode import EpisodeStart, run_attempt
from turnsmith.rollout.evaluation.evaluate import engine_and_chat
from turnsmith.rollout.spec import Limits, RolloutSpec, check_tools
from turnsmith.rollout.turn import EpisodeTools, TurnResult, apply_action
from turnsmith.tools.definition import ToolCall, ToolResult
from turnsmith.tools.parsing import ActionParser, FormatProblem
from turnsmith.tools.registry import ToolRegistry
from turnsmith.tools.step_tool import EnvironmentStepTool
from turnsmith.trajectory import Trajectory


class MultiTurnChatHarness:
    """Plays an environment's episodes with an engine, from synchronous code.

    Without `sampling`, at temperature 0.7 and with at most 128 tokens a turn.

    Example:
        >>> from transformers import AutoTokenizer
        >>> from turnsmith import Chat, ScriptedEngine, resolve
        >>> from turnsmith.env.examples import GuessNumber
        >>> chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))
        >>> harness = MultiTurnChatHarness(ScriptedEngine(["8", "12"], chat), GuessNumber, max_turns=2, chat=chat)
        >>> episode = harness.run_episode("Play well.")
        >>> episode["actions"], episode["num_turns"], episode["total_reward"]
        (['8', '12'], 2, 0.0)
    """

    def __init__(
        self,
        inference_engine: Engine | BaseInferenceEngine,
        environment: Any,
        max_turns: int = 5,
        *,
        chat: Chat | None = None,
        limits: Limits | None = None,
        sampling: Sampling | None = None,
        tools: ToolRegistry | None = None,
        parser: ActionParser | None = None,
    ) -> None:
        self.inference_engine, self.chat = engine_and_chat(inference_engine, chat)
        self.rollout = RolloutSpec(
            environment=EnvironmentSpec.of(environment),
            limits=limits or Limits(turns=max_turns),
            sampling=sampling or Sampling(max_tokens=128, temperature=0.7),
            tools=tools,
            parser=parser,
        )
        check_tools(self.rollout.environment, tools)

    def run_episode(self, initial_prompt: str = "", seed: int = 0) -> dict[str, Any]:
        """Play one episode; the prompt is prepended to the environment's first observation.

        A failure raises nothing; `outcome` and `error` say what it was.
        """
        return run_blocking(self._play(initial_prompt, seed))

    def run_batch(self, prompts: Sequence[str]) -> list[dict[str, Any]]:
        """Play one episode per prompt, all concurrently; episode `i` has seed `i`."""

        async def play_all() -> list[dict[str, Any]]:
            return await asyncio.gather(*[self._play(prompt, seed) for seed, prompt in enumerate(prompts)])

        return run_blocking(play_all())

    async def _play(self, prompt: str, seed: int) -> dict[str, Any]:
        start = EpisodeStart(uuid4().hex, seed=seed, prompt=prompt)
        return as_mapping(await run_attempt(start, self.rollout, self.inference_engine, self.chat), prompt)


def as_mapping(trajectory: Trajectory, prompt: str = "") -> dict[str, Any]:
    """An episode as the plain mapping of lists in the specification."""
    last = trajectory.messages[-1]["content"] if trajectory.messages else ""
    return {
        "prompts": [prompt],
        "states": trajectory.states,
        "actions": trajectory.actions,
        "observations": [*trajectory.states[1:], last][: trajectory.num_turns],
        "rewards": trajectory.rewards,
        "dones": trajectory.dones,
        "infos": trajectory.infos,
        "total_reward": trajectory.total_reward,
        "num_turns": trajectory.num_turns,
        "outcome": trajectory.outcome,
        "error": trajectory.error,
    }


@dataclass(slots=True)
class ManagedTurn:
    """One turn that a `MultiTurnManager` handled."""

    state: str
    output: str
    result: TurnResult

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The turn's tool calls, each with its `result`."""
        return self.result.calls

    @property
    def tool_call(self) -> ToolCall:
        """The turn's first tool call; if it has none, one without a name and with the result None."""
        return self.tool_calls[0] if self.tool_calls else ToolCall("", {})

    @property
    def problem(self) -> FormatProblem | None:
        """Why a tool call could not be parsed, if the model seems to have written one."""
        return self.result.problem

    @property
    def observation(self) -> str:
        """What to show the model next."""
        return "\n".join(message["content"] for message in self.result.messages)


class MultiTurnManager:
    """Parses a model's output, runs the tools or steps the environment, and keeps count; one turn at a time.

    Example:
        >>> from turnsmith.env.examples import GuessNumber
        >>> from turnsmith import FunctionCallingParser, ToolRegistry, tool
        >>> @tool
        ... def double(number: int) -> int:
        ...     "Twice the number."
        ...     return 2 * number
        >>> environment = GuessNumber()
        >>> manager = MultiTurnManager(ToolRegistry([double]), FunctionCallingParser(), environment)
        >>> call = '<tool_call>{"name": "double", "arguments": {"number": 4}}</tool_call>'
        >>> turn = manager.step(call, environment.reset())
        >>> turn.tool_call.result.text
        '8'
        >>> manager.step("Is it 1?", turn.observation).observation
        'Higher than 1.'
        >>> manager.get_episode_summary()["tools"]
        {'double': {'calls': 1, 'failures': 0}}
    """

    def __init__(self, tool_registry: ToolRegistry, action_parser: ActionParser, environment: Any = None) -> None:
        self.tool_registry = tool_registry
        self.action_parser = action_parser
        if environment is None:  # then it is the one that the tool was made with
            stepping = (tool for tool in tool_registry if isinstance(tool, EnvironmentStepTool))
            environment = next((tool.environment for tool in stepping), None)
        self.environment = environment
        self.turns: list[ManagedTurn] = []

    def step(self, model_output: str, state: str = "") -> ManagedTurn:
        """Handle the model's answer to `state`."""
        host = EnvironmentHost.around(self.environment)
        turn = apply_action(model_output, host, EpisodeTools(host, self.tool_registry, self.action_parser))
        # A plain environment belongs to the caller's thread, an async one to the loop that its other steps ran on.
        result = run_blocking(turn) if host.is_async else run_here(turn)
        self.turns.append(ManagedTurn(state, model_output, result))
        return self.turns[-1]

    def get_episode_summary(self) -> dict[str, Any]:
        """Turns, rewards, format problems, and calls and failures of each tool."""
        calls = [call for turn in self.turns for call in turn.tool_calls]
        failed = Counter(call.name for call in calls if call.result and not call.result.ok)
        return {
            "num_turns": len(self.turns),
            "total_reward": sum(turn.result.reward for turn in self.turns),
            "done": bool(self.turns) and self.turns[-1].result.done,
            "format_problems": sum("format_problem" in turn.result.info for turn in self.turns),
            "tools": {
                name: {"calls": count, "failures": failed[name]}
                for name, count in Counter(call.name for call in calls).items()
            },
        }

    def reset(self) -> None:
        """Clear the turns before the next episode."""
        self.turns = []

    def show_episode(self, trajectory: Trajectory) -> None:
        """Replace the turns by those of a whole episode."""
        results = map(_turn, _answers(trajectory), trajectory.rewards, trajectory.dones, trajectory.infos)
        self.turns = list(map(ManagedTurn, trajectory.states, trajectory.actions, results))


def _answers(trajectory: Trajectory) -> list[list[dict[str, str]]]:
    """The messages after each of the model's turns."""
    answers = list[list[dict[str, str]]]()
    for message in trajectory.messages:
        if message["role"] == "assistant":
            answers.append([])
        elif answers:
            answers[-1].append(message)
    return answers


def _turn(messages: list[dict[str, str]], reward: float, done: bool, info: dict[str, Any]) -> TurnResult:
    texts = [message["content"] for message in messages if message["role"] == "tool"]
    calls = [
        ToolCall(call["name"], call["arguments"], result=ToolResult(call["ok"], text))
        for call, text in zip(info.get("tool_calls", ()), texts, strict=False)
    ]
    return TurnResult(messages, reward, terminated=done, info=info, calls=calls)

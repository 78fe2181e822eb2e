"""The seeds' faces of the one episode loop: `MultiTurnChatHarness` for whole episodes, `MultiTurnManager` for one turn
at a time. Neither has a loop of its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from turnsmith.env.local_host import EnvironmentHost
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine, Sampling
from turnsmith.inference.sync.base import BaseInferenceEngine
from turnsmith.loop_thread import run_blocking
from turnsmith.rollout.episode import EpisodeStart, run_attempt
from turnsmith.rollout.limits import Limits
from turnsmith.rollout.spec import RolloutSpec
from turnsmith.rollout.turn import EpisodeTools, TurnResult, apply_action
from turnsmith.tools.definition import ToolCall
from turnsmith.tools.parsing import ActionParser, FormatProblem
from turnsmith.tools.registry import ToolRegistry
from turnsmith.trajectory import Trajectory


class MultiTurnChatHarness:
    """Runs an environment's episodes with an engine, from plain synchronous code.

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
        found = chat or getattr(inference_engine, "chat", None)
        if not isinstance(found, Chat):
            raise ConfigError("The engine brings no chat template: pass chat=Chat(tokenizer).")
        # A synchronous face has the engine behind it; episodes talk to that one.
        is_face = isinstance(inference_engine, BaseInferenceEngine)
        self.inference_engine = inference_engine.engine if is_face else inference_engine
        self.chat = found
        self.rollout = RolloutSpec(
            environment=EnvironmentSpec.of(environment),
            limits=limits or Limits(turns=max_turns),
            sampling=sampling or Sampling(),
            tools=tools,
            parser=parser,
        )

    def run_episode(self, initial_prompt: str = "", seed: int = 0) -> dict[str, Any]:
        """One episode; the prompt is put in front of the environment's first observation."""
        return run_blocking(self._play(initial_prompt, seed))

    def run_batch(self, prompts: Sequence[str]) -> list[dict[str, Any]]:
        """One episode a prompt, all at the same time; episode `i` has seed `i`."""

        async def play_all() -> list[dict[str, Any]]:
            return await asyncio.gather(*[self._play(prompt, seed) for seed, prompt in enumerate(prompts)])

        return run_blocking(play_all())

    async def _play(self, prompt: str, seed: int) -> dict[str, Any]:
        start = EpisodeStart(uuid4().hex, seed=seed, prompt=prompt)
        return as_mapping(await run_attempt(start, self.rollout, self.inference_engine, self.chat), prompt)


def as_mapping(trajectory: Trajectory, prompt: str = "") -> dict[str, Any]:
    """An episode as the plain mapping of lists that the architecture document describes."""
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
    }


@dataclass(slots=True)
class ManagedTurn:
    """One turn that a `MultiTurnManager` handled."""

    state: str
    output: str
    result: TurnResult
    tool_calls: list[ToolCall] = field(default_factory=list)

    @property
    def tool_call(self) -> ToolCall | None:
        """The turn's first tool call, with its `result`; None if it had none."""
        return self.tool_calls[0] if self.tool_calls else None

    @property
    def problem(self) -> FormatProblem | None:
        """Why no call could be read, when the model seems to have tried one."""
        return self.result.problem

    @property
    def observation(self) -> str:
        """What the model is told next."""
        return "\n".join(message["content"] for message in self.result.messages)


class MultiTurnManager:
    """Parses what a model said, runs the tools or the environment, and keeps count; one turn at a time.

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
        self.environment = environment
        self.turns: list[ManagedTurn] = []

    def step(self, model_output: str, state: str = "") -> ManagedTurn:
        """Handle one thing the model said, in answer to `state`."""
        toolbox = EpisodeTools(self.environment, self.tool_registry, self.action_parser)
        result = run_blocking(apply_action(model_output, EnvironmentHost.around(self.environment), toolbox))
        turn = ManagedTurn(state, model_output, result, result.calls)
        self.turns.append(turn)
        return turn

    def get_episode_summary(self) -> dict[str, Any]:
        """Turns, rewards, problems, and for each tool how often it was called and failed."""
        calls = [call for turn in self.turns for call in turn.tool_calls]
        failed = Counter(call.name for call in calls if call.result and not call.result.ok)
        return {
            "num_turns": len(self.turns),
            "total_reward": sum(turn.result.reward for turn in self.turns),
            "done": bool(self.turns) and self.turns[-1].result.done,
            "format_problems": sum(turn.problem is not None for turn in self.turns),
            "tools": {
                name: {"calls": count, "failures": failed[name]}
                for name, count in Counter(call.name for call in calls).items()
            },
        }

    def reset(self) -> None:
        """Forget the turns, for the next episode."""
        self.turns = []

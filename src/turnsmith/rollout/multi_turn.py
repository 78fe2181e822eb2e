"""Conversations from synchronous code: turn by turn, with the caller as the environment, or as whole episodes.

Token-exact: sampled tokens are never re-tokenised, only the bridge to the next turn is appended. Whole episodes use the
same loop as training.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

from turnsmith.env.local_host import EnvironmentHost
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError, EngineFailure, EnvironmentFailure, InternalError
from turnsmith.inference.sync.base import BaseInferenceEngine, make_sampling
from turnsmith.rollout.episode import EpisodeStart, run_attempt
from turnsmith.rollout.harness import MultiTurnManager
from turnsmith.rollout.spec import Limits, RolloutSpec, check_tools
from turnsmith.rollout.turn import EpisodeTools
from turnsmith.trajectory import Outcome, TokenBuffer, Trajectory


class MultiTurnInferenceEngine:
    """One conversation at a time with a model, in the model's chat template.

    Args:
        engine: A synchronous engine, from `create_inference_engine`.
        max_turns: Maximum number of the model's turns in a conversation.
        system_prompt: The system prompt; in `run_episode` it precedes the environment's own.
        tool_manager: Provides the tools and the parser.
        enable_tools: Whether to offer the model the tools. `run_episode` runs its calls; after a single `step`, pass
            the answer to `tool_manager.step`, and the observation that it returns to `add_observation`.

    Example:
        >>> from transformers import AutoTokenizer
        >>> from turnsmith import Chat, ScriptedEngine
        >>> from turnsmith.env.examples import GuessNumber
        >>> from turnsmith.inference.sync.base import BaseInferenceEngine
        >>> from turnsmith.inference.models import resolve
        >>> tokenizer = AutoTokenizer.from_pretrained(resolve("tiny"))
        >>> engine = BaseInferenceEngine(ScriptedEngine(["8", "12"], Chat(tokenizer)), tokenizer)
        >>> conversation = MultiTurnInferenceEngine(engine, system_prompt="Answer with a number.")
        >>> conversation.start_conversation("Guess!")
        >>> conversation.step(max_tokens=8)
        '8'
        >>> conversation.add_observation("Higher.")
        >>> conversation.step(max_tokens=8)
        '12'
        >>> print(conversation.format_conversation())
        <|im_start|>system
        Answer with a number.<|im_end|>
        <|im_start|>user
        Guess!<|im_end|>
        <|im_start|>assistant
        8<|im_end|>
        <|im_start|>user
        Higher.<|im_end|>
        <|im_start|>assistant
        12<|im_end|>
        >>> conversation.run_episode(GuessNumber, "Play well.", max_turns=2)
        ['8', '12']
        >>> conversation.trajectory.rewards, conversation.trajectory.outcome.value
        ([0.0, 0.0], 'turn_limit')
        >>> engine.close()
    """

    def __init__(
        self,
        engine: BaseInferenceEngine,
        max_turns: int = 5,
        system_prompt: str = "",
        tool_manager: MultiTurnManager | None = None,
        enable_tools: bool = False,
    ) -> None:
        if max_turns < 1:
            raise ConfigError(f"max_turns is {max_turns}; it must be at least 1.")
        if enable_tools and tool_manager is None:
            raise ConfigError("enable_tools needs tools: pass tool_manager=MultiTurnManager(registry, parser).")
        self.engine = engine
        self.chat = engine.chat
        self.max_turns = max_turns
        self.system_prompt = system_prompt
        self.tool_manager = tool_manager if enable_tools else None
        self.messages: list[dict[str, str]] = []
        """The conversation as chat messages."""
        self.tokens = TokenBuffer()
        """The conversation as tokens: ids, log-probs, and which of them the model sampled."""
        self.num_turns = 0
        self.trajectory: Trajectory | None = None
        """The last episode of `run_episode`."""
        self._session = ""

    def start_conversation(self, prompt: str) -> None:
        """Start a new conversation with `prompt` as the user's first message."""
        system, schemas = self._prompt_and_schemas()
        opening = [{"role": "system", "content": system}] if system else []
        opening.append({"role": "user", "content": prompt})
        ids = self.chat.open(opening, tools=schemas)
        self.messages, self.tokens, self.num_turns = opening, TokenBuffer(), 0
        self.tokens.open(ids)
        self._session = uuid4().hex

    def step(self, max_tokens: int = 256, temperature: float = 0.7, top_p: float = 0.9, seed: int | None = None) -> str:
        """Generate the model's next turn, append it to the conversation and return its text."""
        if not self.tokens:
            raise EngineFailure("There is no conversation yet: call start_conversation first.")
        if self._has_answered:
            raise EngineFailure("The model has already answered: call add_observation before the next step.")
        if self.num_turns >= self.max_turns:
            raise EngineFailure(f"The conversation has reached max_turns={self.max_turns}: raise it to go on.")
        sampling = make_sampling(max_tokens, temperature, top_p, seed)
        sampling = replace(sampling, stop_token_ids=self.chat.stop_token_ids)
        generation = self.engine.run(self.engine.engine.generate(self.tokens.ids, sampling, session=self._session))
        answer = self.chat.text(generation.token_ids)
        self.tokens.append_model(generation.token_ids, generation.log_probs)
        self.messages.append({"role": "assistant", "content": answer})
        self.num_turns += 1
        return answer

    def add_observation(self, observation: str, *, role: str = "user") -> None:
        """Append the observation that follows the model's answer. `role` may be `tool`."""
        if not self._has_answered:
            raise EngineFailure("The model has not answered yet: call step before add_observation.")
        message = {"role": role, "content": observation}
        self.tokens.append_context(self.chat.bridge([message], closed=self.chat.is_closed(self.tokens.ids)))
        self.messages.append(message)

    def format_conversation(self) -> str:
        """The conversation exactly as the model sees it: its tokens as text, with control tokens."""
        return self.chat.show(self.tokens.ids)

    def run_episode(
        self,
        environment: Any,
        initial_prompt: str = "",
        max_turns: int | None = None,
        *,
        max_tokens: int = 256,
        temperature: float = 0.7,
        top_p: float = 0.9,
        seed: int = 0,
        limits: Limits | None = None,
    ) -> list[str]:
        """Play one episode and return the model's turns as text; the full record is in `trajectory`, and
        `tool_manager.get_episode_summary()` counts this episode.

        Args:
            environment: A class, `module:Name`, or an instance, whose class and config are used: the episode is played
                in a fresh one.
            initial_prompt: Prepended to the environment's first observation.
            max_turns: Maximum number of turns; None: that of the constructor.
            max_tokens: Maximum number of tokens per turn.
            temperature: Sampling temperature; 0 is greedy decoding.
            top_p: Nucleus sampling: sample from the smallest set of tokens with at least this probability.
            seed: Seed of the environment and of sampling.
            limits: All limits of an episode; overrides `max_turns`.

        Raises:
            EnvironmentFailure: The environment failed.
            EngineFailure: The engine failed.
            InternalError: turnsmith itself failed.
        """
        manager = self.tool_manager
        turns = self.max_turns if max_turns is None else max_turns
        start = EpisodeStart(uuid4().hex, seed=seed, prompt=initial_prompt, system_prompt=self.system_prompt)
        spec = RolloutSpec(
            environment=EnvironmentSpec.of(environment),
            limits=limits or Limits(turns=turns),
            sampling=make_sampling(max_tokens, temperature, top_p, seed),
            tools=manager.tool_registry if manager else None,
            parser=manager.action_parser if manager else None,
        )
        check_tools(spec.environment, spec.tools)
        trajectory = self.engine.run(run_attempt(start, spec, self.engine.engine, self.chat))
        self.trajectory, self.tokens, self._session = trajectory, trajectory.tokens, trajectory.episode_id
        self.messages, self.num_turns = list(trajectory.messages), trajectory.num_turns
        if manager is not None:
            manager.show_episode(trajectory)
        # Only the texts are returned: without an exception, a failure would look like a short episode.
        if trajectory.outcome is Outcome.INTERNAL_ERROR:
            raise InternalError.read(trajectory.error)
        if trajectory.outcome is Outcome.ENGINE_FAILED:
            raise EngineFailure(trajectory.error)
        if trajectory.outcome is not None and not trajectory.outcome.is_behaviour:
            raise EnvironmentFailure(trajectory.error)
        return list(trajectory.actions)

    @property
    def _has_answered(self) -> bool:
        return bool(self.tokens.mask) and self.tokens.mask[-1] == 1

    def _prompt_and_schemas(self) -> tuple[str, list[dict[str, Any]] | None]:
        manager = self.tool_manager
        if manager is None:
            return self.system_prompt, None
        tools = EpisodeTools(EnvironmentHost.around(manager.environment), manager.tool_registry, manager.action_parser)
        return tools.prompt_and_schemas(self.system_prompt, self.chat)

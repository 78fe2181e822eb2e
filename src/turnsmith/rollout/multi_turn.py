"""Conversations from plain synchronous code: turn by turn with you as the environment, or a whole episode with one.

Token-exact inside: the model's tokens stay as sampled, and only the bridge to the next turn is added. Whole episodes
run through the one episode loop.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError, EngineFailure, EnvironmentFailure
from turnsmith.rollout.episode import EpisodeStart, run_attempt
from turnsmith.rollout.limits import Limits
from turnsmith.rollout.spec import RolloutSpec
from turnsmith.rollout.turn import EpisodeTools
from turnsmith.trajectory import Outcome, TokenBuffer, Trajectory

if TYPE_CHECKING:
    from turnsmith.inference.sync.base import BaseInferenceEngine
    from turnsmith.rollout.harness import MultiTurnManager


class MultiTurnInferenceEngine:
    """One conversation at a time with a model, in its own chat template.

    Args:
        engine: The synchronous face of an engine, from `create_inference_engine`.
        max_turns: Most turns of the model in one conversation.
        system_prompt: What the model is told before all else; in `run_episode` the environment's own follows it.
        tool_manager: Whose tools and parser to use.
        enable_tools: Whether the model is offered them. In `run_episode` its calls are run; after a single `step`, pass
            the answer to `tool_manager.step` and what that says to `add_observation`.

    Example:
        >>> from transformers import AutoTokenizer
        >>> from turnsmith import Chat, ScriptedEngine
        >>> from turnsmith.env.examples import GuessNumber
        >>> from turnsmith.inference.sync.base import BaseInferenceEngine
        >>> from turnsmith.models import resolve
        >>> tokenizer = AutoTokenizer.from_pretrained(resolve("tiny"))
        >>> engine = BaseInferenceEngine(ScriptedEngine(["8", "12"], Chat(tokenizer)), tokenizer)
        >>> talk = MultiTurnInferenceEngine(engine, system_prompt="Answer with a number.")
        >>> talk.start_conversation("Guess!")
        >>> talk.step(max_tokens=8)
        '8'
        >>> talk.add_observation("Higher.")
        >>> talk.step(max_tokens=8)
        '12'
        >>> print(talk.format_conversation())
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
        >>> talk.run_episode(GuessNumber, "Play well.", max_turns=2)
        ['8', '12']
        >>> talk.trajectory.rewards, talk.trajectory.outcome.value
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
            raise ConfigError("enable_tools needs the tools: pass tool_manager=MultiTurnManager(registry, parser).")
        self.engine = engine
        self.chat = engine.chat
        self.max_turns = max_turns
        self.system_prompt = system_prompt
        self.tool_manager = tool_manager if enable_tools else None
        self.messages: list[dict[str, str]] = []
        """The conversation, to read."""
        self.tokens = TokenBuffer()
        """The conversation as the model has it: ids, log-probs, and which of them it sampled."""
        self.num_turns = 0
        self.trajectory: Trajectory | None = None
        """The last episode that `run_episode` ran."""
        self._session = ""

    def start_conversation(self, prompt: str) -> None:
        """Begin anew, with `prompt` as the user's first message."""
        system, offered = self._introduction()
        opening = [{"role": "system", "content": system}] if system else []
        opening.append({"role": "user", "content": prompt})
        ids = self.chat.open(opening, tools=offered)
        self.messages, self.tokens, self.num_turns = opening, TokenBuffer(), 0
        self.tokens.open(ids)
        self._session = uuid4().hex

    def step(self, max_tokens: int = 256, temperature: float = 0.7, top_p: float = 0.9, seed: int | None = None) -> str:
        """Let the model answer, add that to the conversation and return it."""
        from turnsmith.inference.sync.base import make_sampling

        if not self.tokens:
            raise EngineFailure("There is no conversation yet: call start_conversation first.")
        if self._has_answered:
            raise EngineFailure("The model has answered already: call add_observation before the next step.")
        if self.num_turns >= self.max_turns:
            raise EngineFailure(f"The conversation has had its {self.max_turns} turns: raise max_turns for more.")
        sampling = make_sampling(max_tokens, temperature, top_p, seed)
        sampling = replace(sampling, stop_token_ids=self.chat.stop_token_ids)
        said = self.engine.run(self.engine.engine.generate(self.tokens.ids, sampling, session=self._session))
        answer = self.chat.text(said.token_ids)
        self.tokens.append_model(said.token_ids, said.log_probs)
        self.messages.append({"role": "assistant", "content": answer})
        self.num_turns += 1
        return answer

    def add_observation(self, observation: str, *, role: str = "user") -> None:
        """Tell the model what came of its answer. `role` may be `tool`."""
        if not self._has_answered:
            raise EngineFailure("The model has not answered yet: call step before add_observation.")
        message = {"role": role, "content": observation}
        self.tokens.append_context(self.chat.bridge([message], closed=self.chat.is_closed(self.tokens.ids)))
        self.messages.append(message)

    def format_conversation(self) -> str:
        """The conversation exactly as the model has it, in its own chat template, control tokens and all."""
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
        """Play one episode and return what the model said, turn by turn; the rest of it is in `trajectory`.

        Args:
            environment: A class, `module:Name`, or an object, which stands for its class and config: the episode is
                played in a fresh one.
            initial_prompt: Put in front of the environment's first observation.
            max_turns: Most turns; None: those of the constructor.
            max_tokens: Most tokens in one turn.
            temperature: 0 takes the most likely token each time.
            top_p: Sample from the most likely tokens that make up this much of the probability.
            seed: Of the environment and of sampling.
            limits: On tokens and seconds as well; wins over `max_turns`.

        Raises:
            EnvironmentFailure: If the environment failed.
            EngineFailure: If the engine failed.
        """
        from turnsmith.inference.sync.base import make_sampling

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
        played = self.engine.run(run_attempt(start, spec, self.engine.engine, self.chat))
        self.trajectory, self.tokens, self._session = played, played.tokens, played.episode_id
        self.messages, self.num_turns = list(played.messages), played.num_turns
        # Only the answers are returned, so a failure would pass for a short episode.
        if played.outcome in (Outcome.ENVIRONMENT_FAILED, Outcome.ENVIRONMENT_TIMEOUT, Outcome.WORKER_LOST):
            raise EnvironmentFailure(played.error)
        if played.outcome is Outcome.ENGINE_FAILED:
            raise EngineFailure(played.error)
        return list(played.actions)

    @property
    def _has_answered(self) -> bool:
        return bool(self.tokens.mask) and self.tokens.mask[-1] == 1

    def _introduction(self) -> tuple[str, list[dict[str, Any]] | None]:
        """The system prompt, and the tools for the template where the model's own format is used."""
        manager = self.tool_manager
        if manager is None:
            return self.system_prompt, None
        toolbox = EpisodeTools(manager.environment, manager.tool_registry, manager.action_parser)
        return toolbox.prompt_and_schemas(self.system_prompt, self.chat)

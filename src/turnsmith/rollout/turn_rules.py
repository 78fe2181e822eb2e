"""The rules of one turn of the model: the same in an environment, for an agent and in a served conversation."""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import dataclass, replace
from functools import lru_cache

from turnsmith.concurrency.clocks import Clock
from turnsmith.concurrency.threads import is_cancelled_from_outside
from turnsmith.errors import EngineFailure, describe_failure, is_ours
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine, Generation, Sampling, derived_seed, engine_name
from turnsmith.rollout.spec import Limits
from turnsmith.tools.parsing import ActionParser, FunctionCallingParser
from turnsmith.trajectory import Outcome

_DEFAULT_PARSER = FunctionCallingParser()


@dataclass(frozen=True, slots=True)
class TurnRules:
    """How the turns of one episode are sampled, read, and ended by its limits.

    Example:
        >>> from transformers import AutoTokenizer
        >>> from turnsmith.inference.models import resolve
        >>> chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))
        >>> rules = TurnRules.of("episode-1", chat, limits=Limits(), sampling=Sampling(max_tokens=50, seed=1))
        >>> first, second = rules.sampling(turn=0, left=200), rules.sampling(turn=1, left=30)
        >>> first.max_tokens, second.max_tokens, first.seed == second.seed
        (50, 30, False)
        >>> rules.cut_by(Generation([7] * 30, [-0.5] * 30, stop_reason="length"), second)
        <Outcome.TOKEN_LIMIT: 'token_limit'>
    """

    episode_id: str
    chat: Chat
    limits: Limits
    plan: Sampling
    """The run's sampling, with the stop tokens of the chat template."""
    parser: ActionParser

    @classmethod
    def of(
        cls, episode_id: str, chat: Chat, *, limits: Limits, sampling: Sampling, parser: ActionParser | None = None
    ) -> TurnRules:
        """The rules of an episode; without a `parser`, `FunctionCallingParser` reads the tool calls."""
        plan = _with_stop_tokens(sampling, chat.stop_token_ids)
        return cls(episode_id, chat, limits, plan, parser or _DEFAULT_PARSER)

    def sampling(self, turn: int, left: int, wanted: int | None = None) -> Sampling:
        """How a turn is sampled.

        Args:
            turn: Its number. Every turn of every episode has a seed of its own, the same when the run is repeated.
            left: How many tokens the episode may still have.
            wanted: How many the agent asks for at most.
        """
        max_tokens = min(self.plan.max_tokens, left, left if wanted is None else max(1, wanted))
        seed = derived_seed(self.plan.seed, self.episode_id, turn)
        if (max_tokens, seed) == (self.plan.max_tokens, self.plan.seed):
            return self.plan
        return replace(self.plan, max_tokens=max_tokens, seed=seed)

    async def generate(self, engine: Engine, ids: array[int], sampling: Sampling, clock: Clock) -> Generation:
        """Sample a turn; raises an `EngineFailure` for whatever the engine raises.

        The clock stands still meanwhile, because the engine may be waiting for the trainer.
        """
        clock.pause()
        try:
            generation = await engine.generate(ids, sampling, session=self.episode_id)
            generation.check(sampling)
            return generation
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled_from_outside(error) or is_ours(error):
                raise
            raise EngineFailure(describe_failure(f"{engine_name(engine)}.generate", error)) from error
        finally:
            clock.resume()

    def cut_by(self, generation: Generation, sampling: Sampling, wanted: int | None = None) -> Outcome | None:
        """The limit that cut a turn short; None: it ended by itself, the agent wanted no more, or no limit ends it."""
        if generation.stop_reason != "length" or self.chat.is_closed(generation.token_ids):
            return None
        # Fewer tokens than allowed: the engine's context is full. If it returns only text, the count says nothing.
        if generation.exact and len(generation.token_ids) < sampling.max_tokens:
            return Outcome.TOKEN_LIMIT
        if wanted is not None and sampling.max_tokens >= wanted:
            return None
        return Outcome.TOKEN_LIMIT if sampling.max_tokens < self.plan.max_tokens else None

    def timed_out(self, in_call: float, hangs: str, *, has_turn: bool = True) -> tuple[Outcome, str]:
        """The end of an episode whose time is up: the model's fault unless one call took most of it and so hangs.

        Args:
            in_call: Seconds since the call to the environment or of the agent began.
            hangs: What to say of a call that hangs; the seconds are added.
            has_turn: Whether the model has had a turn at all.
        """
        if has_turn and in_call <= self.limits.seconds / 2:
            return Outcome.TIME_LIMIT, ""
        return Outcome.ENVIRONMENT_TIMEOUT, f"{hangs} within {in_call:.0f} s."


@lru_cache(maxsize=64)
def _with_stop_tokens(sampling: Sampling, stop_token_ids: tuple[int, ...]) -> Sampling:
    """Cached, so that episodes with the same settings share one object."""
    return replace(sampling, stop_token_ids=tuple(dict.fromkeys((*stop_token_ids, *sampling.stop_token_ids))))

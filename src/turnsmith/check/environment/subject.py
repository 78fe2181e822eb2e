"""What is checked: an environment, the settings of a run, and the means to play episodes with any policy."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from turnsmith.check.finding import Check, Finding, Skipped
from turnsmith.config import ConfigStore
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError, EngineFailure, InternalError
from turnsmith.inference.chat import Chat
from turnsmith.inference.chat.byte_chat import ByteChat
from turnsmith.inference.engine import Engine, Generation, Sampling
from turnsmith.inference.engines.scripted_engine import Reply, ScriptedEngine
from turnsmith.rollout.episode import EpisodeStart, run_attempt
from turnsmith.rollout.episode_players import NOBODY
from turnsmith.rollout.players import Players
from turnsmith.rollout.spec import EpisodeParts, Limits, RolloutSpec
from turnsmith.trajectory import Outcome, Trajectory

Policy = Callable[[int, str], Reply | Awaitable[Reply]]
"""Gets the number of the turn and the whole prompt as text, and returns the model's turn."""

T = TypeVar("T")
_NO_LIMIT = 10**9


def _greet(turn: int, prompt: str) -> Reply:
    return "Hello."


class _NoTurn:
    """An engine that refuses every turn of the model. Other players, which `reset` may ask, still answer."""

    def __init__(self, for_players: Engine) -> None:
        self.for_players = for_players

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Refuse the turn."""
        raise EngineFailure("no turn is taken")


class CannotPlay(ConfigError):
    """No episode can be played with these settings, whatever is checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject(EpisodeParts):
    """One environment with the settings that it will be trained with.

    Checks play episodes with `play`, by the loop that training uses.
    """

    environment: EnvironmentSpec
    config: ConfigStore
    chat: Chat | ByteChat = field(default_factory=ByteChat)
    """The chat of the model's tokenizer. Without one, episodes are played in bytes, and no limit on tokens applies."""
    engine: Engine | None = None
    """The model. If none is loaded, the checks that need one are skipped."""
    tasks: Sequence[dict[str, Any]] | None = None
    validation_tasks: Sequence[dict[str, Any]] | None = None
    model_path: str | None = None
    """The folder of the model, if it is known."""
    success_reward: float | None = None
    attempts: Sequence[Mapping[str, Any]] | None = None
    """Attempts that somebody wrote, with whether they are right."""
    seconds: float = 30.0
    """Longest time of the search for what the reward pays."""
    episodes: int = 8
    """How many starts a check looks at, unless it needs more."""
    seed: int = 0
    unscored: list[Any] = field(default_factory=list[Any], repr=False, compare=False)
    """Rows that the reward does not score, of which the search says so."""
    played: dict[Any, Any] = field(default_factory=dict[Any, Any], repr=False, compare=False)
    """What checks have played, by the function that plays it, so that others can use it: see `once` and `known`."""

    @property
    def has_tokenizer(self) -> bool:
        """Whether episodes are played with the tokens of a model."""
        return not isinstance(self.chat, ByteChat)

    @property
    def is_agent(self) -> bool:
        """Whether an agent is checked, which has its own loop and decides itself what it asks the model."""
        return any(one.is_agent for one in self.environment.each())

    def starts(self, count: int | None = None) -> list[EpisodeStart]:
        """The first starts of training."""
        rows = [row for row in self.tasks or () if row not in self.unscored] if self.unscored else self.tasks
        return [
            EpisodeStart(
                f"check-{number}",
                f"check-{number}",
                self.seed + number,
                dict(rows[number % len(rows)]) if rows else None,
            )
            for number in range(count or self.episodes)
        ]

    async def play(
        self,
        policy: Policy | Sequence[Reply] | Engine,
        starts: Sequence[EpisodeStart] | None = None,
        *,
        concurrency: int = 8,
        rollout: RolloutSpec | None = None,
    ) -> list[Trajectory]:
        """Play one attempt from each start with a scripted policy or an engine, and return them in the same order."""
        engine = (
            cast("Engine", policy)
            if hasattr(policy, "generate")
            else ScriptedEngine(cast("Policy", policy), self._chat)
        )
        spec, free = rollout or self.rollout(), asyncio.Semaphore(concurrency)

        async def one(start: EpisodeStart) -> Trajectory:
            async with free:
                trajectory = await run_attempt(start, spec, engine, self._chat)
                if trajectory.outcome is Outcome.OVERLOADED:  # its turn did not come: training would try again, too
                    trajectory = await run_attempt(start, spec, engine, self._chat)
                if NOBODY in (trajectory.error or ""):
                    raise CannotPlay(trajectory.error)
                if trajectory.outcome is Outcome.INTERNAL_ERROR:
                    raise InternalError.read(trajectory.error)  # says nothing about the environment
                return trajectory

        return await asyncio.gather(*map(one, self.starts() if starts is None else starts))

    async def openings(
        self, starts: Sequence[EpisodeStart] | None = None, *, rollout: RolloutSpec | None = None
    ) -> list[Trajectory]:
        """Reset from each start, and take no turn: the episodes end where the model would be asked."""
        return await self.play(_NoTurn(self.engine or ScriptedEngine(_greet, self._chat)), starts, rollout=rollout)

    async def first_openings(self) -> list[Trajectory]:
        """The openings of the first starts, played once for all checks."""
        return await self.once(Subject.openings)

    async def once(self, play: Callable[[Subject], Awaitable[T]]) -> T:
        """The result of `play`, which is played when the first check asks for it."""
        if play not in self.played:
            self.played[play] = await play(self)
        return self.played[play]

    def known(self, play: Callable[[Subject], Awaitable[T]]) -> T | None:
        """The result of `play` if it has been played, else None."""
        return self.played.get(play)

    def rollout(self, **changes: Any) -> RolloutSpec:
        """How training will play the episodes; `changes` are fields of `RolloutSpec`."""
        inference, limits = self.config.inference, Limits.of(self.config.inference)
        sampling = Sampling(
            inference.max_tokens, inference.temperature, inference.top_p, inference.top_k, seed=self.seed
        )
        if not self.has_tokenizer:
            limits = replace(limits, tokens=_NO_LIMIT, prompt_tokens=_NO_LIMIT)
            sampling = replace(sampling, max_tokens=_NO_LIMIT)
        spec = RolloutSpec(
            environment=self.environment,
            limits=limits,
            sampling=sampling,
            players=Players.of(self.config.players),
            **self.parts(),
        )
        return replace(spec, **changes)

    @property
    def _chat(self) -> Chat:
        return cast("Chat", self.chat)


CheckFunction = Callable[[Subject], Awaitable[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentCheck(Check):
    """A check of an environment, with a model and the settings of a run."""

    function: CheckFunction
    quick: bool = False
    """Whether `RayPPOTrainer.fit` runs it before training: it takes a second or two, and needs no model."""
    plays: bool = True
    """Whether it needs episodes that open."""
    rehearsed: bool = False
    """Whether `--rehearse` runs it: it takes seconds, and needs a tokenizer at most."""

    async def __call__(self, subject: Subject) -> Finding:
        """Run the function, and raise what it raises, but that it is skipped."""
        try:
            return await self.function(subject)
        except Skipped as reason:
            return Finding("skipped", str(reason))


def environment_check(code: str, name: str, **flags: bool) -> Callable[[CheckFunction], EnvironmentCheck]:
    """Make a check of a function whose docstring says what it runs and, in a second paragraph, what it prevents.

    Example:
        >>> @environment_check("greeting", "it greets", quick=True)
        ... async def check_greeting(subject):
        ...     '''Reset once.
        ...
        ...     A model that is not greeted stays silent.
        ...     '''
        >>> check_greeting.ran, check_greeting.why, check_greeting.quick
        ('Reset once.', 'A model that is not greeted stays silent.', True)
    """

    def make(function: CheckFunction) -> EnvironmentCheck:
        ran, _, why = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
        return EnvironmentCheck(code, name, " ".join(why.split()), ran, function=function, **flags)

    return make

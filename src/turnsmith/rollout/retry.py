"""One episode by the run's failure policy: tried again where that is said, and settled by a decision in the end.

Everything that plays episodes in numbers, training and evaluation alike, plays them through here.
"""

from __future__ import annotations

import asyncio
import zlib
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine, Generation, Sampling
from turnsmith.rollout.episode import EpisodeStart, run_attempt
from turnsmith.rollout.failure_policy import Cause
from turnsmith.rollout.spec import RolloutSpec
from turnsmith.trajectory import Decision, Trajectory

_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 15.0


@dataclass(slots=True)
class EpisodeResult:
    """An episode that is over, with the attempts at it that were given up."""

    trajectory: Trajectory
    given_up: list[Trajectory] = field(default_factory=list[Trajectory])
    """Earlier attempts, oldest first; each has a name of its own, `<episode>-try1` and so on."""
    cause: Cause | None = None
    """Why the last attempt is not simply kept; None if it is."""

    @property
    def attempts(self) -> list[Trajectory]:
        """All attempts, the one that counts last."""
        return [*self.given_up, self.trajectory]


async def play_episode(start: EpisodeStart, spec: RolloutSpec, engine: Engine, chat: Chat) -> EpisodeResult:
    """Play one episode as `run_episode` does, retry it where `spec.failures` says so, and decide whether it counts.

    A retry begins from the same start in a fresh environment, and the model says again, word for word, what it had
    said until then: nothing is drawn anew, so a fault that comes by chance changes nothing, and long episodes, which
    faults hit more often, are not replaced by short ones. Where the environment answers something else than before,
    the engine is asked from there on. Only where the model itself is the cause (a limit, an unreadable call) is a retry
    drawn anew, with the number of the attempt in its seed.

    Example:
        >>> import asyncio
        >>> from transformers import AutoTokenizer
        >>> from turnsmith.env import EnvironmentSpec
        >>> from turnsmith.env.examples.guess_number import GuessNumber
        >>> from turnsmith.inference.engines.scripted_engine import ScriptedEngine
        >>> from turnsmith.models import resolve
        >>> chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))
        >>> class Shaky(GuessNumber):
        ...     crashes = [True]
        ...
        ...     def step(self, action):
        ...         if self.crashes and action == "12":
        ...             self.crashes.pop()
        ...             raise OSError("gone")
        ...         return super().step(action)
        >>> spec = RolloutSpec(environment=EnvironmentSpec.of(Shaky))
        >>> engine = ScriptedEngine(["8", "12", "9"], chat)
        >>> played = asyncio.run(play_episode(EpisodeStart("e", seed=5), spec, engine, chat))
        >>> played.trajectory.outcome.value, played.trajectory.actions, played.trajectory.attempt
        ('completed', ['8', '12', '9'], 1)
        >>> [(one.episode_id, one.outcome.value, one.decision.value) for one in played.given_up]
        [('e-try1', 'environment_failed', 'retried')]
    """
    given_up: list[Trajectory] = []
    tried: Counter[Cause] = Counter()  # each cause has attempts of its own
    said: Trajectory | None = None
    suffix = ""
    while True:
        attempt = len(given_up)
        again = spec if attempt == 0 or said is not None else replace(spec, sampling=_anew(spec.sampling, attempt))
        speaker = engine if attempt == 0 else _Again(engine, said, suffix)
        trajectory = await run_attempt(start, again, speaker, chat)
        trajectory.attempt = attempt
        cause, policy = spec.failures.judge(trajectory)
        if cause is None or tried[cause] >= policy.retries:
            break
        tried[cause] += 1
        said = None if cause in (Cause.PARSE, Cause.LIMIT) else trajectory
        # A server may still be busy with a request of this attempt: those that are made again get another name.
        suffix = "" if said is not None and cause is not Cause.ENGINE else f"-try{attempt + 2}"
        trajectory.decision = Decision.RETRIED
        trajectory.episode_id = f"{start.episode_id}-try{attempt + 1}"
        given_up.append(trajectory)
        if cause is Cause.WORKER:
            await asyncio.sleep(_pause(start.episode_id, tried[cause] - 1))
    trajectory.decision = policy.decision
    if policy.decision is Decision.PENALISED:
        _penalise(trajectory, policy.penalty, has_reward_fn=spec.reward_fn is not None)
    return EpisodeResult(trajectory, given_up, cause)


class _Again:
    """Says what was said in the attempt before, as long as it is asked the same; from then on the engine speaks."""

    def __init__(self, engine: Engine, said: Trajectory | None, suffix: str) -> None:
        self.inner = engine
        self._said = said
        self._suffix = suffix
        self._turns = {turn.start: turn for turn in said.turns} if said is not None else {}

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Continue `prompt_ids`."""
        turn = self._turns.get(len(prompt_ids))
        if turn is not None and self._said is not None:
            tokens = self._said.tokens
            if tokens.ids[: turn.start] == array("i", prompt_ids):
                return Generation(
                    token_ids=tokens.ids[turn.start : turn.stop],
                    log_probs=tokens.log_probs[turn.start : turn.stop],
                    stop_reason=turn.stop_reason,
                    weights_version=turn.weights_version,
                    exact=self._said.exact,
                    swaps=tuple((place - turn.start, version) for place, version in turn.swaps),
                )
        self._turns = {}  # what comes now was not said before, and nothing after it was either
        return await self.inner.generate(prompt_ids, sampling, session=session + self._suffix)


def _pause(episode_id: str, attempt: int) -> float:
    """How long to wait before the next attempt, up to twice as long each time, and another time for each episode.

    Many environments share a process. One that ends it every time takes the others with it: at different times, they
    get through in between.
    """
    share = zlib.crc32(f"{episode_id}/{attempt}".encode()) / 2**32
    return share * min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE)


def _anew(sampling: Sampling, attempt: int) -> Sampling:
    if sampling.seed is None:
        return sampling
    return replace(sampling, seed=zlib.crc32(f"{sampling.seed}/attempt-{attempt}".encode()))


def _penalise(trajectory: Trajectory, penalty: float, *, has_reward_fn: bool) -> None:
    """Take something off the episode's reward, on its last turn; without a turn there is nothing to train."""
    if not trajectory.turns:
        trajectory.decision = Decision.MASKED
    elif trajectory.score is not None or has_reward_fn:
        trajectory.score = (trajectory.score or 0.0) + penalty
    else:
        trajectory.rewards[-1] += penalty

"""One episode under the run's failure policy: retried after a fault, then kept, penalised, masked or dropped.

Training and evaluation both play their episodes through `play_episode`.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from turnsmith.errors import InternalError, bugs_named
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine, Generation, Sampling, derived_seed
from turnsmith.rollout.attempt import finish_reward
from turnsmith.rollout.episode import EpisodeStart, run_attempt
from turnsmith.rollout.failure_policy import Cause
from turnsmith.rollout.same_failure import NOT_RETRIED, SameFailure
from turnsmith.rollout.spec import RolloutSpec
from turnsmith.trajectory import Decision, Trajectory, TurnRecord

_FIRST_BACKOFF_SECONDS = 0.25
_MAX_BACKOFF_SECONDS = 15.0


@dataclass(slots=True)
class EpisodeResult:
    """A finished episode, with the attempts that were retried."""

    trajectory: Trajectory
    """The last attempt, which is the one that counts."""
    given_up: list[Trajectory] = field(default_factory=list[Trajectory])
    """Earlier attempts, oldest first; their ids are `<episode>-try1` and so on."""
    cause: Cause | None = None
    """Why the last attempt is not simply kept; None if it is."""

    def __repr__(self) -> str:
        last, attempts = self.trajectory, len(self.given_up) + 1
        played = f"{last.outcome}, {last.num_turns} turns, reward {last.total_reward:.3g}"
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        return f"EpisodeResult({last.episode_id!r}, {played}, {last.decision} after {tries})"

    @property
    def attempts(self) -> list[Trajectory]:
        """All attempts, oldest first."""
        return [*self.given_up, self.trajectory]


async def play_episode(
    start: EpisodeStart, spec: RolloutSpec, engine: Engine, chat: Chat, failing: SameFailure | None = None
) -> EpisodeResult:
    """Play one episode as `run_episode` does, retry it where `spec.failures` says so, and decide whether it counts.

    A retry begins from the same start in a fresh environment and replays the tokens that were sampled before the fault;
    nothing is resampled. So a random fault leaves no trace, and long episodes, which faults hit more often, are not
    replaced by short ones. From the first observation that differs, the engine generates again. Only where the model is
    the cause (a limit, an unparseable call) does a retry resample, with another sampling seed. Episodes that share
    `failing` are not retried any more once all of them fail in the same way, also after a back-off.

    Raises:
        InternalError: The retries themselves have a bug. One in the episode is its outcome; `check_not_stopped` raises
            it, which whoever plays episodes has to call.

    Example:
        >>> import asyncio
        >>> from transformers import AutoTokenizer
        >>> from turnsmith.env import EnvironmentSpec
        >>> from turnsmith.env.examples.guess_number import GuessNumber
        >>> from turnsmith.inference.engines.scripted_engine import ScriptedEngine
        >>> from turnsmith.inference.models import resolve
        >>> chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))
        >>> class Flaky(GuessNumber):
        ...     crashes = [True]
        ...
        ...     def step(self, action):
        ...         if self.crashes and action == "12":
        ...             self.crashes.pop()
        ...             raise OSError("gone")
        ...         return super().step(action)
        >>> spec = RolloutSpec(environment=EnvironmentSpec.of(Flaky))
        >>> engine = ScriptedEngine(["8", "12", "9"], chat)
        >>> result = asyncio.run(play_episode(EpisodeStart("e", seed=5), spec, engine, chat))
        >>> result
        EpisodeResult('e', completed, 3 turns, reward 1, kept after 2 attempts)
        >>> result.trajectory.actions
        ['8', '12', '9']
        >>> [(attempt.episode_id, attempt.outcome.value, attempt.decision.value) for attempt in result.given_up]
        [('e-try1', 'environment_failed', 'retried')]
    """
    with bugs_named():
        return await _play(start, spec, engine, chat, failing or SameFailure())


async def _play(
    start: EpisodeStart, spec: RolloutSpec, engine: Engine, chat: Chat, failing: SameFailure
) -> EpisodeResult:
    given_up: list[Trajectory] = []
    retries: Counter[Cause] = Counter()  # each cause has its own number of retries
    attempt_spec, attempt_engine = spec, engine
    while True:
        began = time.monotonic()
        trajectory = await run_attempt(start, attempt_spec, attempt_engine, chat)
        trajectory.attempt = attempt = len(given_up)
        cause, policy = spec.failures.decide(trajectory)
        failing.add(start.episode_id, trajectory, began)
        if cause is None or retries[cause] >= policy.retries:
            break
        if failing.sentence:
            trajectory.error += NOT_RETRIED
            break
        retries[cause] += 1
        if cause in (Cause.PARSE, Cause.LIMIT):
            seed = derived_seed(spec.sampling.seed, f"attempt-{attempt + 1}")
            attempt_spec = replace(spec, sampling=replace(spec.sampling, seed=seed))
            attempt_engine = _ReplayEngine(engine, None, f"-try{attempt + 2}")
        else:
            # A server may still be busy with this attempt's request: the same one is sent again under another session.
            suffix = f"-try{attempt + 2}" if cause is Cause.ENGINE else ""
            attempt_spec, attempt_engine = spec, _ReplayEngine(engine, trajectory, suffix)
        trajectory.decision = Decision.RETRIED
        trajectory.episode_id = f"{start.episode_id}-try{attempt + 1}"
        given_up.append(trajectory)
        pause = failing.pause()
        if pause or cause is Cause.WORKER:
            await asyncio.sleep(pause + _backoff_seconds(start.episode_id, retries[cause] - 1))
    trajectory.decision = policy.decision
    if policy.decision is Decision.PENALISED:
        is_scored = spec.reward_fn is not None
        # An episode without a turn has nothing to train on.
        if not trajectory.turns or not finish_reward(trajectory, penalty=policy.penalty, is_scored=is_scored):
            trajectory.decision = Decision.MASKED
    return EpisodeResult(trajectory, given_up, cause)


def check_not_stopped(trajectory: Trajectory) -> None:
    """Raise the `InternalError` of an episode that the run has to stop at."""
    if trajectory.decision is Decision.STOPPED:
        bug = InternalError.read(trajectory.error)
        advice = "Until it is mended, failures.internal=mask leaves such episodes out"
        raise InternalError(f"{bug}. {advice}", bug.traceback)


class _ReplayEngine:
    """Replays the previous attempt's tokens while the prompts match, then falls through to the engine."""

    def __init__(self, engine: Engine, previous: Trajectory | None, session_suffix: str) -> None:
        self.inner = self.for_players = engine  # what others say is not replayed
        self._previous = previous
        self._session_suffix = session_suffix
        self._turns: dict[int, list[TurnRecord]] = {}
        for turn in previous.turns if previous is not None else ():
            self._turns.setdefault(turn.start, []).append(turn)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Continue `prompt_ids`."""
        prompt = array("i", prompt_ids)
        for turn in self._turns.get(len(prompt), ()):
            if self._previous is None:
                break
            tokens = self._previous.buffer(turn.branch)
            if tokens.ids[: turn.start] == prompt:
                return Generation(
                    token_ids=tokens.ids[turn.start : turn.stop],
                    log_probs=tokens.log_probs[turn.start : turn.stop],
                    stop_reason=turn.stop_reason,
                    weights_version=turn.weights_version,
                    exact=self._previous.exact,
                    swaps=tuple((place - turn.start, version) for place, version in turn.swaps),
                )
        self._turns = {}  # once the prompts differ, nothing after that may be replayed
        return await self.inner.generate(prompt_ids, sampling, session=session + self._session_suffix)


def _backoff_seconds(episode_id: str, retry: int) -> float:
    """Exponential back-off with jitter that depends on the episode.

    Many environments share a worker process, and one that always kills it takes the others down with it. Retried at
    different times, the others get through in between.
    """
    jitter = zlib.crc32(f"{episode_id}/{retry}".encode()) / 2**32
    return jitter * min(_FIRST_BACKOFF_SECONDS * 2**retry, _MAX_BACKOFF_SECONDS)

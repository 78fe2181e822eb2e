"""The recorded episode: what was said, the exact tokens, the rewards, and how it ended.

Token data lives in three packed arrays of 9 bytes a token (4 id, 4 log-prob, 1 mask), because 10^5 suspended episodes
must fit in one process. This module knows nothing of engines, environments or training.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How an episode ended. Every episode that starts ends in exactly one of these.

    Example:
        >>> Outcome.COMPLETED.is_behaviour, Outcome.ENVIRONMENT_FAILED.is_behaviour
        (True, False)
    """

    COMPLETED = "completed"
    """The environment said that the task is over."""
    TRUNCATED = "truncated"
    """The environment stopped the episode early (its own step limit, or Gymnasium's `truncated`)."""
    TURN_LIMIT = "turn_limit"
    """The episode used all the turns it was allowed."""
    TOKEN_LIMIT = "token_limit"
    """The episode's token budget ran out: in the middle of a turn, or the next turn did not fit."""
    TURN_TOKEN_LIMIT = "turn_token_limit"
    """One turn grew to the most tokens a turn may have, and the model had not ended it."""
    TOOL_CALL_LIMIT = "tool_call_limit"
    """The model asked for more tool calls than the episode may have; those of its last turn were not run."""
    TIME_LIMIT = "time_limit"
    """The episode ran out of wall-clock time."""
    ENVIRONMENT_FAILED = "environment_failed"
    """The user's environment raised an exception or returned something of the wrong type."""
    ENVIRONMENT_TIMEOUT = "environment_timeout"
    """A single call of the environment or of a tool did not come back in time."""
    WORKER_LOST = "worker_lost"
    """The process that ran the environment, or the whole episode, is gone."""
    ENGINE_FAILED = "engine_failed"
    """The engine raised while generating, or its server is gone."""
    REWARD_FAILED = "reward_failed"
    """The user's reward function raised, or its reward is not a finite number."""

    @property
    def is_behaviour(self) -> bool:
        """Whether the model brought this end about, so that it may be trained on; infrastructure faults are not."""
        return self not in _FAULTS


_FAULTS = {
    Outcome.ENVIRONMENT_FAILED,
    Outcome.ENVIRONMENT_TIMEOUT,
    Outcome.WORKER_LOST,
    Outcome.ENGINE_FAILED,
    Outcome.REWARD_FAILED,
}


class Decision(StrEnum):
    """What became of an episode, or of one attempt at it, by the run's failure policy.

    Example:
        >>> Decision.PENALISED.is_counted, Decision.MASKED.is_counted
        (True, False)
    """

    KEPT = "kept"
    """It counts as it is: trained on, or part of an evaluation's means."""
    PENALISED = "penalised"
    """It counts, and something was taken off its reward."""
    MASKED = "masked"
    """It counts nowhere: neither in the loss nor in what its group is compared with."""
    DROPPED = "dropped"
    """Its whole group was thrown away and another one played in its place."""
    RETRIED = "retried"
    """This attempt was given up, and another one was made from the same start."""

    @property
    def is_counted(self) -> bool:
        """Whether the episode is trained on."""
        return self in (Decision.KEPT, Decision.PENALISED)


@dataclass(slots=True, repr=False)
class TokenBuffer:
    """Token ids, sampling log-probs and model mask of one episode, in parallel packed arrays.

    The first `prompt_length` tokens are the opening prompt. Mask is 1 where the model sampled the token, 0 elsewhere;
    the log-prob of a token the model did not sample is 0.

    Example:
        >>> tokens = TokenBuffer()
        >>> tokens.open([1, 2, 3])
        >>> tokens.append_model([7, 8], [-0.5, -0.25])
        (3, 5)
        >>> tokens.append_context([4])
        >>> list(tokens.ids), list(tokens.mask), tokens.prompt_length
        ([1, 2, 3, 7, 8, 4], [0, 0, 0, 1, 1, 0], 3)
        >>> tokens
        TokenBuffer(tokens=6, prompt=3, sampled=2)
    """

    ids: array[int] = field(default_factory=lambda: array("i"))
    log_probs: array[float] = field(default_factory=lambda: array("f"))
    mask: array[int] = field(default_factory=lambda: array("b"))
    prompt_length: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"TokenBuffer(tokens={len(self)}, prompt={self.prompt_length}, sampled={sum(self.mask)})"

    def open(self, prompt_ids: Sequence[int]) -> None:
        """Start the buffer with the opening prompt."""
        self.append_context(prompt_ids)
        self.prompt_length = len(self.ids)

    def append_model(self, ids: Sequence[int], log_probs: Sequence[float]) -> tuple[int, int]:
        """Append tokens that the model sampled; return their span as (start, stop)."""
        if len(ids) != len(log_probs):
            raise ValueError(f"{len(ids)} token ids but {len(log_probs)} log-probs: the engine must give one for each.")
        start = len(self.ids)
        self.ids.extend(ids)
        self.log_probs.extend(log_probs)
        self.mask.frombytes(b"\x01" * len(ids))
        return start, len(self.ids)

    def append_context(self, ids: Sequence[int]) -> None:
        """Append tokens that the model did not sample (prompt, observation, turn markers)."""
        self.ids.extend(ids)
        self.log_probs.frombytes(bytes(4 * len(ids)))
        self.mask.frombytes(bytes(len(ids)))


@dataclass(slots=True)
class TurnRecord:
    """Where one turn's model tokens lie in the buffer, how sampling stopped, and how long things took."""

    start: int
    """Index of the turn's first model token."""
    stop: int
    """One past the turn's last model token; the turn's reward belongs to token `stop - 1`."""
    stop_reason: str
    """`stop` (the model ended its turn), `length` (it was cut) or `abort`."""
    weights_version: int
    """The version of the weights that sampled this turn, or the first tokens of it."""
    generate_seconds: float = 0.0
    step_seconds: float = 0.0
    swaps: tuple[tuple[int, int], ...] = ()
    """Where new weights came in the middle of the turn: (index of the first token that they sampled, their version)."""

    @property
    def versions(self) -> tuple[int, ...]:
        """All versions of the weights that sampled tokens of this turn, in order; nearly always one."""
        return (self.weights_version, *(version for _, version in self.swaps))


@dataclass(slots=True, repr=False)
class Trajectory:
    """One recorded episode.

    The lists `states`, `actions`, `rewards`, `dones` and `infos` have one entry a turn: `states[t]` is the observation
    the model answered with `actions[t]`, `rewards[t]` what the environment paid for it.

    Example:
        >>> trajectory = Trajectory()
        >>> trajectory.states = ["a door", "a dragon"]
        >>> trajectory.actions = ["open it", "run"]
        >>> trajectory.rewards = [0.0, 1.0]
        >>> trajectory.dones = [False, True]
        >>> trajectory.total_reward, trajectory.num_turns
        (1.0, 2)
        >>> trajectory
        Trajectory(episode_id='', outcome=None, turns=2, tokens=0, reward=1.0)
    """

    states: list[str] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    dones: list[bool] = field(default_factory=list)
    infos: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)
    """The conversation as chat messages, for people and tools to read; training uses `tokens`."""
    turns: list[TurnRecord] = field(default_factory=list)
    tokens: TokenBuffer = field(default_factory=TokenBuffer)
    outcome: Outcome | None = None
    error: str = ""
    """For a fault: what went wrong, with the traceback's last line. Never shown to the model."""
    score: float | None = None
    """What `reward_fn` paid for the whole episode; None when the environment's own rewards count."""
    reward_shares: dict[str, float] = field(default_factory=dict)
    """What each term of a `RewardManager` gave to `score`, by the term's name."""
    episode_id: str = ""
    group_id: str = ""
    """Episodes with the same group id began from the same start."""
    seed: int = 0
    seconds: float = 0.0
    exact: bool = True
    """Whether all tokens and log-probs are those that were sampled; if not (an engine that gives only text), the
    episode counts for evaluation, and training refuses it."""
    decision: Decision = Decision.KEPT
    """What the failure policy made of it; of a fault that no policy has looked at, nothing is counted either."""
    attempt: int = 0
    """How many attempts at this episode had been given up before this one."""

    def __repr__(self) -> str:
        outcome = None if self.outcome is None else self.outcome.value
        return (
            f"Trajectory(episode_id={self.episode_id!r}, outcome={outcome!r}, turns={self.num_turns}, "
            f"tokens={len(self.tokens)}, reward={self.total_reward!r})"
        )

    @property
    def is_counted(self) -> bool:
        """Whether its reward counts: it may be trained on, or be part of an evaluation's mean."""
        if self.outcome is None:
            return False
        return self.decision is Decision.PENALISED or (self.outcome.is_behaviour and self.decision.is_counted)

    @property
    def total_reward(self) -> float:
        """The reward the episode trains on: `score` if a reward function gave one, else the sum over turns."""
        return sum(self.rewards) if self.score is None else self.score

    @property
    def num_turns(self) -> int:
        """How many times the model acted."""
        return len(self.actions)

    def token_versions(self) -> list[int]:
        """For each token after the prompt, the version of the weights that sampled it; -1 where the model did not.

        Example:
            >>> trajectory = Trajectory()
            >>> trajectory.tokens.open([5])
            >>> span = trajectory.tokens.append_model([6, 7, 8], [-0.5, -0.5, -0.5])
            >>> trajectory.tokens.append_context([9])
            >>> trajectory.turns.append(TurnRecord(*span, "stop", weights_version=3, swaps=((2, 4),)))
            >>> trajectory.token_versions()
            [3, 4, 4, -1]
        """
        first = self.tokens.prompt_length
        versions = [-1] * (len(self.tokens) - first)
        for turn in self.turns:
            starts = ((turn.start, turn.weights_version), *turn.swaps)
            stops = (*(place for place, _ in turn.swaps), turn.stop)
            for (start, version), stop in zip(starts, stops, strict=True):
                versions[start - first : stop - first] = [version] * (stop - start)
        return versions

    def token_rewards(self) -> list[float]:
        """One reward for each token after the prompt; a turn's reward sits on the last token the model sampled in it.

        A `score` replaces the environment's rewards and sits on the last model token of the episode.
        """
        placed = [0.0] * (len(self.tokens) - self.tokens.prompt_length)
        if not self.turns:
            return placed
        if self.score is not None:
            placed[self.turns[-1].stop - 1 - self.tokens.prompt_length] = self.score
            return placed
        for turn, reward in zip(self.turns, self.rewards, strict=False):
            placed[turn.stop - 1 - self.tokens.prompt_length] += reward
        return placed


@dataclass(slots=True, repr=False)
class RolloutData:
    """The episodes of one batch.

    Example:
        >>> batch = RolloutData([Trajectory(rewards=[0.0, 1.0]), Trajectory(rewards=[0.5])])
        >>> len(batch), batch.rewards
        (2, [1.0, 0.5])
        >>> batch
        RolloutData(episodes=2, turns=0, tokens=0, mean_reward=0.75)
    """

    trajectories: list[Trajectory] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.trajectories)

    def __repr__(self) -> str:
        turns = sum(trajectory.num_turns for trajectory in self.trajectories)
        tokens = sum(len(trajectory.tokens) for trajectory in self.trajectories)
        mean = sum(self.rewards) / len(self) if self.trajectories else None
        return f"RolloutData(episodes={len(self)}, turns={turns}, tokens={tokens}, mean_reward={mean!r})"

    @property
    def rewards(self) -> list[float]:
        """What each episode trains on."""
        return [trajectory.total_reward for trajectory in self.trajectories]

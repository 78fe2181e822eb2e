"""The record of an episode: its conversation, the exact tokens, the rewards, and how it ended.

Tokens are kept in three packed arrays of 9 bytes per token (4 id, 4 log-prob, 1 mask), so that 10^5 episodes in
progress fit in one process. This module does not depend on engines, environments or training.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any


class Outcome(StrEnum):
    """How an episode ended: every episode ends in exactly one of these.

    Example:
        >>> Outcome.COMPLETED.is_behaviour, Outcome.ENVIRONMENT_FAILED.is_behaviour
        (True, False)
    """

    COMPLETED = "completed"
    """The environment reported that the task is done."""
    TRUNCATED = "truncated"
    """The environment stopped the episode early: by its own step limit, or with Gymnasium's `truncated`."""
    TURN_LIMIT = "turn_limit"
    """The episode used all its turns."""
    TOKEN_LIMIT = "token_limit"
    """The episode's token budget ran out, in the middle of a turn or because the next turn did not fit."""
    TURN_TOKEN_LIMIT = "turn_token_limit"
    """The model did not end its turn within the tokens allowed per turn; only in records of earlier versions."""
    TOOL_CALL_LIMIT = "tool_call_limit"
    """The model made more tool calls than the episode allows; those of its last turn were not run."""
    TIME_LIMIT = "time_limit"
    """The episode ran out of wall-clock time."""
    ENVIRONMENT_FAILED = "environment_failed"
    """The user's environment raised an exception or returned a value of the wrong type."""
    ENVIRONMENT_TIMEOUT = "environment_timeout"
    """A single call to the environment or to a tool timed out."""
    WORKER_LOST = "worker_lost"
    """The process that ran the environment, or the whole episode, died."""
    OVERLOADED = "overloaded"
    """A call to the environment, a tool or the reward function waited too long for its turn, so it was never made."""
    ENGINE_FAILED = "engine_failed"
    """The engine raised while generating, or its server died."""
    REWARD_FAILED = "reward_failed"
    """The user's reward function raised, or the episode's reward is no number that can be trained on."""
    INTERNAL_ERROR = "internal_error"
    """turnsmith itself failed: a bug of ours, which stops the run; `error` has the place and the traceback."""

    @property
    def is_behaviour(self) -> bool:
        """Whether the model's own behaviour led here, so that it can be trained on; False for infrastructure faults."""
        return self not in _FAULTS


_FAULTS = {
    Outcome.ENVIRONMENT_FAILED,
    Outcome.ENVIRONMENT_TIMEOUT,
    Outcome.WORKER_LOST,
    Outcome.OVERLOADED,
    Outcome.ENGINE_FAILED,
    Outcome.REWARD_FAILED,
    Outcome.INTERNAL_ERROR,
}


class Decision(StrEnum):
    """What the run's failure policy did with an episode, or with one attempt at it.

    Example:
        >>> Decision.PENALISED.is_counted, Decision.MASKED.is_counted
        (True, False)
    """

    KEPT = "kept"
    """Used as it is: trained on, or part of an evaluation's means."""
    PENALISED = "penalised"
    """Used, with a penalty subtracted from its reward."""
    MASKED = "masked"
    """Ignored: part of neither the loss nor its group's baseline."""
    DROPPED = "dropped"
    """Discarded with its whole group, which was replaced by a new one."""
    FILTERED = "filtered"
    """Discarded with its whole group, whose rewards were all equal, and which was replaced by a new one."""
    RETRIED = "retried"
    """Abandoned; another attempt was made from the same start."""
    STOPPED = "stopped"
    """Not decided: the run stops at it, because turnsmith itself failed."""

    @property
    def is_counted(self) -> bool:
        """Whether the episode is used, for training or in an evaluation's means."""
        return self in (Decision.KEPT, Decision.PENALISED)


def is_success(reported: bool | None, reward: float, *, by_info: bool, least_reward: float | None = None) -> bool:
    """Whether an episode is a success; the one rule, for training, evaluation and checks.

    Args:
        reported: `Trajectory.reported_success`.
        reward: Its total reward.
        by_info: Whether any of the episodes that it stands among reports success; then one without a report is none,
            else one with a reward above 0 is.
        least_reward: If the user has said from which reward on an episode is a success, this alone counts.

    Example:
        >>> is_success(None, 1.0, by_info=False), is_success(None, 1.0, by_info=True)
        (True, False)
    """
    if least_reward is not None:
        return reward >= least_reward
    return bool(reported) if by_info else reward > 0


@dataclass(slots=True, repr=False)
class TokenBuffer:
    """The tokens of one episode: ids, log-probs under the sampling policy, and mask, in parallel packed arrays.

    The first `prompt_length` tokens are the initial prompt. The mask is 1 on tokens that the model sampled and 0 on all
    others, whose log-prob is 0.

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
        """Start the buffer with the initial prompt."""
        self.append_context(prompt_ids)
        self.prompt_length = len(self.ids)

    def append_model(self, ids: Sequence[int], log_probs: Sequence[float]) -> tuple[int, int]:
        """Append tokens that the model sampled; return their span as (start, stop)."""
        if len(ids) != len(log_probs):
            raise ValueError(
                f"The engine returned {len(ids)} token ids but {len(log_probs)} log-probs: it must return one for each."
            )
        start = len(self.ids)
        self.ids.extend(ids)
        self.log_probs.extend(log_probs)
        self.mask.frombytes(b"\x01" * len(ids))
        return start, len(self.ids)

    def append_context(self, ids: Sequence[int]) -> None:
        """Append tokens that the model did not sample: prompt, observations, turn markers."""
        self.ids.extend(ids)
        self.log_probs.frombytes(bytes(4 * len(ids)))
        self.mask.frombytes(bytes(len(ids)))


@dataclass(slots=True)
class TurnRecord:
    """One turn: the span of its model tokens in the buffer, why sampling stopped, the weights, and the time it took.

    Example:
        >>> turn = TurnRecord(start=12, stop=20, stop_reason="stop", weights_version=3)
        >>> turn.stop - turn.start, turn.versions
        (8, (3,))
    """

    start: int
    """Index of the turn's first model token."""
    stop: int
    """One past the turn's last model token; the turn's reward belongs to token `stop - 1`."""
    stop_reason: str
    """`stop` (the model ended its turn), `length` (it ran out of tokens) or `abort`."""
    weights_version: int
    """Version of the weights that sampled this turn; of its first tokens, if new weights arrived in the middle."""
    generate_seconds: float = 0.0
    step_seconds: float = 0.0
    swaps: tuple[tuple[int, int], ...] = ()
    """Weight updates in the middle of the turn: (index of the first token sampled with them, their version)."""
    branch: int = 0
    """Which of the episode's token buffers it is in: 0 is `Trajectory.tokens`, others count `Trajectory.branches`."""

    @property
    def versions(self) -> tuple[int, ...]:
        """All versions of the weights that sampled this turn, in order; nearly always one."""
        return (self.weights_version, *(version for _, version in self.swaps))


@dataclass(slots=True, repr=False)
class Trajectory:
    """One recorded episode.

    The lists `states`, `actions`, `rewards`, `dones` and `infos` have one entry per turn: `states[t]` is the
    observation that the model responded to with `actions[t]`, and `rewards[t]` the environment's reward for it.

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
    """The conversation as chat messages, for people and tools to read. Training uses `tokens`."""
    turns: list[TurnRecord] = field(default_factory=list)
    tokens: TokenBuffer = field(default_factory=TokenBuffer)
    branches: list[TokenBuffer] = field(default_factory=list[TokenBuffer])
    """Further token sequences of an agent that rewrote its history or ran several conversations. Each sampled token
    has mask 1 in exactly one of `tokens` and these, and is trained there."""
    outcome: Outcome | None = None
    error: str = ""
    """For a fault: what went wrong, and the line of code that raised. Never shown to the model."""
    score: float | None = None
    """The result of `reward_fn` for the whole episode; None if the environment's own rewards count."""
    reward_shares: dict[str, float] = field(default_factory=dict)
    """The contribution of each term of a `RewardManager` to `score`, by name."""
    episode_id: str = ""
    group_id: str = ""
    """Episodes with the same group id began from the same task and seed."""
    seed: int = 0
    environment: str = ""
    """In a mix of environments, the name of the one that it was played in."""
    task: dict[str, Any] | None = None
    """The dataset's row that it was played from; None: there was none."""
    others: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The other players, by name: `who` played, how many `replies` they gave, and the `tokens` of these, none of which
    is trained on."""
    seconds: float = 0.0
    waits: dict[str, float] = field(default_factory=dict)
    """Seconds that its calls waited for their turn, by what they waited for; no time limit counts them."""
    exact: bool = True
    """Whether tokens and log-probs are exactly those that were sampled. If not, because the engine returns only text,
    the episode can be evaluated but not trained on."""
    decision: Decision = Decision.KEPT
    """What the failure policy did with it. A fault that no policy has handled is not used either, see `is_counted`."""
    attempt: int = 0
    """How many attempts at this episode were abandoned before this one."""

    if not TYPE_CHECKING:  # for which every attribute would exist

        def __getattr__(self, name: str) -> Any:
            hint = ""
            if name in ("batch", "non_tensor_batch"):
                hint = ": a reward function gets one episode, and not verl's DataProto. Read trajectory.actions"
            raise AttributeError(f"'Trajectory' object has no attribute {name!r}{hint}", name=name, obj=self)

    def __repr__(self) -> str:
        outcome = None if self.outcome is None else self.outcome.value
        return (
            f"Trajectory(episode_id={self.episode_id!r}, outcome={outcome!r}, turns={self.num_turns}, "
            f"tokens={len(self.tokens)}, reward={self.total_reward!r})"
        )

    @property
    def is_counted(self) -> bool:
        """Whether it is used: trained on, or part of an evaluation's means."""
        if self.outcome is None:
            return False
        return self.decision is Decision.PENALISED or (self.outcome.is_behaviour and self.decision.is_counted)

    @property
    def reported_success(self) -> bool | None:
        """What the environment says in the `info` of the last turn, under `success`; None: it has no word on it.

        Example:
            >>> Trajectory(infos=[{"success": True}, {}]).reported_success is None
            True
        """
        if not self.infos or "success" not in self.infos[-1]:
            return None
        try:
            return bool(self.infos[-1]["success"])
        except Exception:  # noqa: BLE001  (an array, or an object of the user's own: not a success)
            return False

    @property
    def total_reward(self) -> float:
        """The reward that the episode is trained on: `score` if there is one, else the sum of `rewards`."""
        return sum(self.rewards) if self.score is None else self.score

    @property
    def num_turns(self) -> int:
        """Number of turns the model took."""
        return len(self.actions)

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the model sampled."""
        return sum(tokens.mask.tobytes().count(1) for tokens in self.segments)

    @property
    def segments(self) -> list[TokenBuffer]:
        """All its token sequences: `tokens`, then `branches`.

        Numbers for "each token after the prompt" are those of all segments, one segment after another.
        """
        return [self.tokens, *self.branches]

    def buffer(self, branch: int) -> TokenBuffer:
        """The tokens of one branch; 0 is `tokens`."""
        return self.branches[branch - 1] if branch else self.tokens

    @property
    def response_length(self) -> int:
        """How many tokens there are after the prompt."""
        return sum(len(tokens) - tokens.prompt_length for tokens in self.segments)

    def response_mask(self) -> list[int]:
        """For each token after the prompt, whether the model sampled it and is trained on it there."""
        return [sampled for tokens in self.segments for sampled in tokens.mask[tokens.prompt_length :]]

    def turn_spans(self) -> list[tuple[int, int]]:
        """Where each turn is among the tokens after the prompt: its first one, and one past its last.

        Example:
            >>> trajectory = Trajectory(branches=[TokenBuffer()])
            >>> for branch, tokens in enumerate(trajectory.segments):
            ...     tokens.open([5, 6])
            ...     span = tokens.append_model([7, 8, 9], [-0.5] * 3)
            ...     trajectory.turns.append(TurnRecord(*span, "stop", 0, branch=branch))
            >>> trajectory.turn_spans()
            [(0, 3), (3, 6)]
        """
        shifts, before = list[int](), 0
        for tokens in self.segments:
            shifts.append(before - tokens.prompt_length)
            before += len(tokens) - tokens.prompt_length
        return [(turn.start + shifts[turn.branch], turn.stop + shifts[turn.branch]) for turn in self.turns]

    def token_versions(self) -> list[int]:
        """The version of the weights that sampled each token after the prompt; -1 on tokens the model did not sample.

        Example:
            >>> trajectory = Trajectory()
            >>> trajectory.tokens.open([5])
            >>> span = trajectory.tokens.append_model([6, 7, 8], [-0.5, -0.5, -0.5])
            >>> trajectory.tokens.append_context([9])
            >>> trajectory.turns.append(TurnRecord(*span, "stop", weights_version=3, swaps=((2, 4),)))
            >>> trajectory.token_versions()
            [3, 4, 4, -1]
        """
        versions = [-1] * self.response_length
        for turn, (first, _) in zip(self.turns, self.turn_spans(), strict=True):
            shift = first - turn.start
            starts = ((turn.start, turn.weights_version), *turn.swaps)
            stops = (*(index for index, _ in turn.swaps), turn.stop)
            for (start, version), stop in zip(starts, stops, strict=True):
                versions[start + shift : stop + shift] = [version] * (stop - start)
        return versions

    def token_rewards(self) -> list[float]:
        """The reward of each token after the prompt: a turn's reward is on the turn's last model token.

        A `score` replaces the environment's rewards, and is on the last model token of the episode.
        """
        rewards, spans = [0.0] * self.response_length, self.turn_spans()
        if not spans:
            return rewards
        if self.score is not None:
            rewards[spans[-1][1] - 1] = self.score
            return rewards
        for (_, stop), reward in zip(spans, self.rewards, strict=False):
            rewards[stop - 1] += reward
        return rewards


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
        """The reward that each episode is trained on."""
        return [trajectory.total_reward for trajectory in self.trajectories]

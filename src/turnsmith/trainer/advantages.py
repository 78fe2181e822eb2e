"""The advantage estimators that `training.adv_estimator` can name, built-in and users' own, and what they compute on.

verl calls `AdvantageEstimator.compute` in every step. `advantages_of` calls it again on what a run folder holds, so
that anybody can check or explore what a model was trained on. Knows nothing of verl; imports torch when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from turnsmith.errors import ConfigError
from turnsmith.importing import import_object
from turnsmith.trainer.segments import EpisodeRows, places_in_episode
from turnsmith.trajectory import Trajectory

if TYPE_CHECKING:
    from torch import Tensor

    from turnsmith.algo import TurnScale
    from turnsmith.config import TrainingConfig
    from turnsmith.records.advantages import StepAdvantages


@dataclass(frozen=True)
class AdvantageInputs:
    """What an estimator computes on: tensors of shape `(episodes, tokens)` over the tokens after the prompt.

    Example:
        >>> import torch
        >>> inputs = AdvantageInputs(rewards=torch.tensor([[0.0, 1.0]]), mask=torch.ones(1, 2), groups=["a"])
        >>> inputs.gamma
        1.0
    """

    rewards: Tensor
    """Rewards; a turn's reward is on its last model token."""
    mask: Tensor
    """1 where the model sampled the token, 0 for observations and padding."""
    groups: Tensor | Iterable[Hashable]
    """The group of each episode."""
    gamma: float = 1.0
    """`training.gamma`."""
    lam: float = 1.0
    """`training.lam`."""
    values: Tensor | None = None
    """The critic's values, for estimators that need one."""
    anchors: Tensor | None = None
    """On each turn's tokens a number for the observation that the turn began from; with `training.credit=anchored`."""


Compute = Callable[[AdvantageInputs], "Tensor | tuple[Tensor, Tensor]"]
"""Advantages, or advantages and returns."""


@dataclass(frozen=True)
class AdvantageEstimator:
    """An estimator: a function for each kind of `training.credit` that it supports."""

    name: str
    by_credit: Mapping[str, Compute] = field(repr=False)
    needs_critic: bool = False
    compares_groups: bool = True
    """Whether it compares the episodes of a group: a group with equal rewards then gives no gradient."""

    def check_credit(self, credit: str) -> None:
        """Raise a `ConfigError` if the estimator does not support this `training.credit`."""
        if credit not in self.by_credit:
            others = [estimator.name for estimator in ESTIMATORS.values() if credit in estimator.by_credit]
            raise ConfigError(
                f"training.credit={credit!r} does not go with training.adv_estimator={self.name!r}: use "
                f"{' or '.join(f'credit={one!r}' for one in self.by_credit)}, or one of {', '.join(others)}."
            )

    def compute(self, credit: str, inputs: AdvantageInputs, rows: EpisodeRows | None = None) -> tuple[Tensor, Tensor]:
        """Advantages and returns, `(episodes, tokens)`.

        Args:
            credit: `training.credit`.
            inputs: What it computes on.
            rows: If the rows of `inputs` are segments of episodes: which. It is computed over episodes all the same.

        Example:
            >>> import torch
            >>> rewards, mask = torch.tensor([[1.0, 0.0, 2.0]]), torch.tensor([[1, 0, 1]])
            >>> inputs = AdvantageInputs(rewards, mask, ["start"], gamma=0.5)
            >>> get_estimator("rloo").compute("turn", inputs)[1]
            tensor([[2., 0., 2.]])
        """
        if rows is not None:
            advantages, returns = self.compute(credit, _join(inputs, rows))
            return rows.split(advantages), rows.split(returns)
        result = self.by_credit[credit](inputs)
        advantages, returns = result if isinstance(result, tuple) else (result, result)
        if advantages.shape != inputs.rewards.shape:
            raise ValueError(
                f"The estimator {self.name} returned advantages of shape {tuple(advantages.shape)} for rewards of "
                f"shape {tuple(inputs.rewards.shape)}: return one for each token."
            )
        return advantages, returns


def advantage_estimator(
    function: Compute | None = None, /, *, needs_critic: bool = False, compares_groups: bool = True
) -> Any:
    """Make a function an advantage estimator that `training.adv_estimator=module:name` can name.

    The function takes `AdvantageInputs` and returns advantages, or advantages and returns. It decides itself what
    credit a turn gets, so `training.credit` stays `episode`.

    Args:
        function: The function, when the decorator is used without brackets.
        needs_critic: Whether it uses `inputs.values`; then a critic is trained as well.
        compares_groups: Whether it compares the episodes of a group; warnings about constant groups depend on it.

    Example:
        >>> @advantage_estimator
        ... def centered(inputs: AdvantageInputs):
        ...     totals = inputs.rewards.sum(dim=1, keepdim=True)
        ...     return (totals - totals.mean()) * inputs.mask
        >>> centered.name
        'centered'
    """

    def decorate(compute: Compute) -> AdvantageEstimator:
        name = getattr(compute, "__name__", "estimator")
        return AdvantageEstimator(name, {"episode": compute}, needs_critic, compares_groups)

    return decorate if function is None else decorate(function)


def get_estimator(name: str) -> AdvantageEstimator:
    """The estimator that `training.adv_estimator` names: a built-in one, or the user's own as `module:name`.

    Example:
        >>> get_estimator("gae").needs_critic
        True
        >>> get_estimator("pathlib:Path")
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: training.adv_estimator='pathlib:Path' is not an estimator: decorate the function \
with @advantage_estimator.
    """
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    found = import_object(name)
    if not isinstance(found, AdvantageEstimator):
        raise ConfigError(
            f"training.adv_estimator={name!r} is not an estimator: decorate the function with @advantage_estimator."
        )
    return found


def turn_anchors(trajectory: Trajectory) -> list[int]:
    """One number for each token after the prompt: on a turn's tokens, a hash of the observation before the turn.

    Example:
        >>> from turnsmith.trajectory import TurnRecord
        >>> episode = Trajectory(states=["a door"], turns=[TurnRecord(2, 4, "stop", 0)])
        >>> episode.tokens.open([1, 2])
        >>> span = episode.tokens.append_model([3, 4], [0.0, 0.0])
        >>> first, second = turn_anchors(episode)
        >>> first == second
        True
    """
    anchors = [0] * trajectory.response_length
    for (start, stop), observation in zip(trajectory.turn_spans(), trajectory.states, strict=False):
        # The same in every process, unlike hash(); 63 bits, so that it fits a signed integer.
        digest = blake2b(observation.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        anchors[start:stop] = [int.from_bytes(digest) >> 1] * (stop - start)
    return anchors


def advantages_of(
    trajectories: Sequence[Trajectory],
    training: TrainingConfig,
    recorded: StepAdvantages | None = None,
) -> dict[str, list[float]]:
    """Advantages of recorded episodes by episode id, one number for each token after the prompt.

    Args:
        trajectories: The episodes of one step that were trained on.
        training: The run's settings.
        recorded: What `read_advantages` returns for the step; needed with a critic or a KL penalty in the reward.

    Example:
        >>> from turnsmith.config import TrainingConfig
        >>> from turnsmith.trajectory import TurnRecord
        >>> def episode(name, reward):
        ...     one = Trajectory(rewards=[reward], turns=[TurnRecord(1, 2, "stop", 0)], episode_id=name, group_id="g")
        ...     one.tokens.open([5])
        ...     _ = one.tokens.append_model([6], [-0.5])
        ...     return one
        >>> advantages_of([episode("a", 1.0), episode("b", 0.0)], TrainingConfig(adv_estimator="rloo"))
        {'a': [1.0], 'b': [-1.0]}
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    def padded(rows: Iterable[Sequence[float]], dtype: torch.dtype) -> Tensor:
        return pad_sequence([torch.tensor(row, dtype=dtype) for row in rows], batch_first=True)

    values, rewards = (recorded.values, recorded.rewards) if recorded else ({}, {})
    masks = [trajectory.response_mask() for trajectory in trajectories]
    inputs = AdvantageInputs(
        padded((rewards.get(one.episode_id) or one.token_rewards() for one in trajectories), torch.float32),
        padded(masks, torch.int64),
        [trajectory.group_id for trajectory in trajectories],
        training.gamma,
        training.lam,
        padded((values[one.episode_id] for one in trajectories), torch.float32) if values else None,
        padded((turn_anchors(one) for one in trajectories), torch.int64) if training.credit == "anchored" else None,
    )
    rows = None
    if any(one.branches for one in trajectories):
        rows = EpisodeRows.of(range(len(masks)), padded(map(places_in_episode, trajectories), torch.int64))
    advantages, _ = get_estimator(training.adv_estimator).compute(training.credit, inputs, rows)
    return {
        trajectory.episode_id: row[: len(mask)].tolist()
        for trajectory, row, mask in zip(trajectories, advantages, masks, strict=True)
    }


def _join(inputs: AdvantageInputs, rows: EpisodeRows) -> AdvantageInputs:
    """The same inputs with a row for each episode."""
    tensors = {name: getattr(inputs, name) for name in ("rewards", "mask", "values", "anchors")}
    joined = {name: rows.join(tensor) for name, tensor in tensors.items() if tensor is not None}
    return replace(inputs, groups=rows.first(list(inputs.groups)), **joined)


# The built-in estimators: functions of `turnsmith.algo`, which is imported when one of them is called.


def _compare_episodes(data: AdvantageInputs, name: str) -> Any:
    from turnsmith import algo

    functions = {
        "grpo": algo.compute_grpo_advantage,
        "dr_grpo": algo.compute_dr_grpo_advantage,
        "grpo_passk": algo.compute_pass_at_k_advantage,
        "rloo": algo.compute_rloo_advantage,
        "opo": algo.compute_opo_advantage,
        "reinforce_plus_plus_baseline": algo.compute_reinforce_plus_plus_baseline_advantage,
    }
    return functions[name](data.rewards, data.mask, data.groups)


def _reinforce_plus_plus(data: AdvantageInputs) -> Any:
    from turnsmith.algo import compute_reinforce_plus_plus_advantage

    return compute_reinforce_plus_plus_advantage(data.rewards, data.mask, data.gamma)


def _gae(data: AdvantageInputs, *, by_turn: bool) -> Any:
    from turnsmith.algo import compute_gae_advantage_return, compute_turn_gae_advantage_return

    if data.values is None:
        raise ValueError("gae needs the values of a critic")
    compute = compute_turn_gae_advantage_return if by_turn else compute_gae_advantage_return
    return compute(data.rewards, data.values, data.mask, data.gamma, data.lam)


def _turn_returns(data: AdvantageInputs, scale: TurnScale) -> Any:
    from turnsmith.algo import compute_turn_return_advantage

    return compute_turn_return_advantage(data.rewards, data.mask, data.groups, data.gamma, scale=scale)


def _gigpo(data: AdvantageInputs, *, normalize: bool) -> Any:
    from turnsmith.algo import compute_gigpo_advantage

    if data.anchors is None:
        raise ValueError("anchored credit needs the observation that each turn began from")
    return compute_gigpo_advantage(data.rewards, data.mask, data.groups, data.anchors, data.gamma, normalize=normalize)


def _episodes(name: str, **more: Compute) -> AdvantageEstimator:
    """An estimator that compares the episodes of a group, with what it does for other kinds of credit."""
    return AdvantageEstimator(name, {"episode": partial(_compare_episodes, name=name), **more})


_PLAIN_TURNS = partial(_turn_returns, scale="none")
_ALL = (
    _episodes("grpo", turn=partial(_turn_returns, scale="group"), anchored=partial(_gigpo, normalize=True)),
    _episodes("dr_grpo", turn=_PLAIN_TURNS, anchored=partial(_gigpo, normalize=False)),
    _episodes("grpo_passk"),
    _episodes("rloo", turn=_PLAIN_TURNS),
    _episodes("opo"),
    AdvantageEstimator("reinforce_plus_plus", {"episode": _reinforce_plus_plus}, compares_groups=False),
    _episodes("reinforce_plus_plus_baseline", turn=partial(_turn_returns, scale="batch")),
    AdvantageEstimator(
        "gae",
        {"episode": partial(_gae, by_turn=False), "turn": partial(_gae, by_turn=True)},
        needs_critic=True,
        compares_groups=False,
    ),
)
ESTIMATORS = {estimator.name: estimator for estimator in _ALL}
"""The estimators that `training.adv_estimator` names, in the order of `config.Estimator`."""

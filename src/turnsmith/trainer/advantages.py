"""Which function of `algo` a run's settings stand for, and the tensors of recorded episodes that it takes.

verl calls `estimate` in every step. `advantages_of` calls it again on what a run folder holds, so that anybody can
check or explore what a model was trained on. Knows nothing of verl; torch is imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from turnsmith.errors import ConfigError
from turnsmith.trajectory import Trajectory

if TYPE_CHECKING:
    from torch import Tensor

    from turnsmith.algo import TurnScale
    from turnsmith.config import TrainingConfig
    from turnsmith.records.advantages import StepAdvantages

ESTIMATORS = (
    "grpo",
    "dr_grpo",
    "grpo_passk",
    "rloo",
    "opo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "gae",
)
"""What `training.adv_estimator` may be."""
CREDITS = {
    "episode": ESTIMATORS,
    "turn": ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline", "gae"),
    "anchored": ("grpo", "dr_grpo"),
}
"""What `training.credit` may be, and the estimators that each goes with."""
_TURN_SCALE: dict[str, TurnScale] = {
    "grpo": "group",
    "dr_grpo": "none",
    "rloo": "none",
    "reinforce_plus_plus_baseline": "batch",
}


def check_combination(estimator: str, credit: str) -> None:
    """Raise if the estimator has no such credit.

    Example:
        >>> check_combination("opo", "turn")
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: training.credit='turn' does not go with training.adv_estimator='opo': use one of \
grpo, dr_grpo, rloo, reinforce_plus_plus_baseline, gae, or credit='episode'.
    """
    if estimator not in CREDITS[credit]:
        raise ConfigError(
            f"training.credit={credit!r} does not go with training.adv_estimator={estimator!r}: use one of "
            f"{', '.join(CREDITS[credit])}, or credit='episode'."
        )


def needs_critic(estimator: str) -> bool:
    """Whether the estimator compares rewards with what a critic expected."""
    return estimator == "gae"


def estimate(
    estimator: str,
    credit: str,
    rewards: Tensor,
    mask: Tensor,
    index: Tensor | Iterable[Hashable],
    gamma: float,
    lam: float,
    values: Tensor | None = None,
    anchors: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns `(batch, time)` by the function that the two names stand for.

    Example:
        >>> import torch
        >>> rewards, mask = torch.tensor([[1.0, 0.0, 2.0]]), torch.tensor([[1, 0, 1]])
        >>> estimate("rloo", "turn", rewards, mask, ["start"], gamma=0.5, lam=1.0)[1]
        tensor([[2., 0., 2.]])
    """
    from turnsmith import algo

    if estimator == "gae":
        if values is None:
            raise ValueError("gae needs the values of a critic")
        gae = algo.compute_turn_gae_advantage_return if credit == "turn" else algo.compute_gae_advantage_return
        return gae(rewards, values, mask, gamma, lam)
    if credit == "turn":
        return algo.compute_turn_return_advantage(rewards, mask, index, gamma, scale=_TURN_SCALE[estimator])
    if credit == "anchored":
        if anchors is None:
            raise ValueError("anchored credit needs the observation that each turn began from")
        return algo.compute_gigpo_advantage(rewards, mask, index, anchors, gamma, normalize=estimator == "grpo")
    if estimator == "reinforce_plus_plus":
        return algo.compute_reinforce_plus_plus_advantage(rewards, mask, gamma)
    function = {
        "grpo": algo.compute_grpo_advantage,
        "dr_grpo": algo.compute_dr_grpo_advantage,
        "grpo_passk": algo.compute_pass_at_k_advantage,
        "rloo": algo.compute_rloo_advantage,
        "opo": algo.compute_opo_advantage,
        "reinforce_plus_plus_baseline": algo.compute_reinforce_plus_plus_baseline_advantage,
    }[estimator]
    return function(rewards, mask, index)


def turn_anchors(trajectory: Trajectory) -> list[int]:
    """One number for each token after the prompt: on a turn's tokens, the observation that the turn began from.

    Example:
        >>> from turnsmith.trajectory import TurnRecord
        >>> episode = Trajectory(states=["a door"], turns=[TurnRecord(2, 4, "stop", 0)])
        >>> episode.tokens.open([1, 2])
        >>> span = episode.tokens.append_model([3, 4], [0.0, 0.0])
        >>> first, second = turn_anchors(episode)
        >>> first == second
        True
    """
    prompt = trajectory.tokens.prompt_length
    anchors = [0] * (len(trajectory.tokens) - prompt)
    for turn, observation in zip(trajectory.turns, trajectory.states, strict=False):
        # Stable from process to process, unlike hash(); 63 bits, so that it fits a signed integer.
        digest = blake2b(observation.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        anchors[turn.start - prompt : turn.stop - prompt] = [int.from_bytes(digest) >> 1] * (turn.stop - turn.start)
    return anchors


def advantages_of(
    trajectories: Sequence[Trajectory],
    training: TrainingConfig,
    trained: StepAdvantages | None = None,
) -> dict[str, list[float]]:
    """Advantages of recorded episodes by episode id, one number for each token after the prompt.

    Args:
        trajectories: The episodes of one step that were trained on.
        training: The run's settings.
        trained: What `read_advantages` gives for the step: needed where a critic or a KL penalty had a say.

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

    values, rewards = (trained.values, trained.rewards) if trained else ({}, {})
    masks = [trajectory.tokens.mask[trajectory.tokens.prompt_length :].tolist() for trajectory in trajectories]
    advantages, _ = estimate(
        training.adv_estimator,
        training.credit,
        padded((rewards.get(one.episode_id) or one.token_rewards() for one in trajectories), torch.float32),
        padded(masks, torch.int64),
        [trajectory.group_id for trajectory in trajectories],
        training.gamma,
        training.lam,
        padded((values[one.episode_id] for one in trajectories), torch.float32) if values else None,
        padded((turn_anchors(one) for one in trajectories), torch.int64) if training.credit == "anchored" else None,
    )
    return {
        trajectory.episode_id: row[: len(mask)].tolist()
        for trajectory, row, mask in zip(trajectories, advantages, masks, strict=True)
    }

"""An episode as bytes, for a reward function that runs where the environment is."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from turnsmith.errors import EnvironmentFailure
from turnsmith.trajectory import Outcome, TokenBuffer, Trajectory, TurnRecord


class _Episode(msgspec.Struct, array_like=True):
    states: list[str]
    actions: list[str]
    rewards: list[float]
    dones: list[bool]
    infos: list[dict[str, Any]]
    messages: list[dict[str, str]]
    turns: list[tuple[int, int, str, int, float, float, tuple[tuple[int, int], ...]]]
    ids: bytes
    log_probs: bytes
    mask: bytes
    prompt_length: int
    outcome: str
    episode_id: str
    group_id: str
    seed: int
    exact: bool


def pack_trajectory(trajectory: Trajectory) -> bytes:
    """What a reward function may read of an episode that has ended.

    Example:
        >>> there = unpack_trajectory(pack_trajectory(Trajectory(actions=["left"], rewards=[1.0])))
        >>> there.actions, there.total_reward
        (['left'], 1.0)
    """
    tokens = trajectory.tokens
    episode = _Episode(
        trajectory.states,
        trajectory.actions,
        trajectory.rewards,
        trajectory.dones,
        trajectory.infos,
        trajectory.messages,
        [
            (
                turn.start,
                turn.stop,
                turn.stop_reason,
                turn.weights_version,
                turn.generate_seconds,
                turn.step_seconds,
                turn.swaps,
            )
            for turn in trajectory.turns
        ],
        tokens.ids.tobytes(),
        tokens.log_probs.tobytes(),
        tokens.mask.tobytes(),
        tokens.prompt_length,
        trajectory.outcome or "",
        trajectory.episode_id,
        trajectory.group_id,
        trajectory.seed,
        trajectory.exact,
    )
    try:
        return msgspec.msgpack.encode(episode)
    except (Exception, RecursionError) as error:
        raise EnvironmentFailure(f"The episode cannot be sent to its environment: {error}") from error


def unpack_trajectory(packed: bytes) -> Trajectory:
    """The episode that `pack_trajectory` packed."""
    episode = msgspec.msgpack.decode(packed, type=_Episode)
    return Trajectory(
        episode.states,
        episode.actions,
        episode.rewards,
        episode.dones,
        episode.infos,
        episode.messages,
        turns=[TurnRecord(*turn) for turn in episode.turns],
        tokens=TokenBuffer(
            array("i", episode.ids), array("f", episode.log_probs), array("b", episode.mask), episode.prompt_length
        ),
        outcome=Outcome(episode.outcome) if episode.outcome else None,
        episode_id=episode.episode_id,
        group_id=episode.group_id,
        seed=episode.seed,
        exact=episode.exact,
    )

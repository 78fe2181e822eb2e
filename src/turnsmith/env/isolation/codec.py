"""A trajectory as bytes, for a reward function that runs in the environment's worker."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from turnsmith.errors import EnvironmentFailure
from turnsmith.trajectory import Decision, Outcome, TokenBuffer, Trajectory, TurnRecord


def pack_trajectory(trajectory: Trajectory) -> bytes:
    """A trajectory as bytes.

    Example:
        >>> copy = unpack_trajectory(pack_trajectory(Trajectory(actions=["left"], rewards=[1.0])))
        >>> copy.actions, copy.total_reward
        (['left'], 1.0)
    """
    try:
        return msgspec.msgpack.encode(trajectory, enc_hook=_encode_array)
    except (Exception, RecursionError) as error:
        raise EnvironmentFailure(f"The trajectory cannot be sent to its environment's worker: {error}") from error


def unpack_trajectory(packed: bytes) -> Trajectory:
    """The trajectory in the bytes of `pack_trajectory`."""
    fields = msgspec.msgpack.decode(packed)
    fields |= {
        "tokens": _tokens(fields["tokens"]),
        "branches": list(map(_tokens, fields["branches"])),
        "turns": [TurnRecord(**turn | {"swaps": tuple(map(tuple, turn["swaps"]))}) for turn in fields["turns"]],
        "outcome": Outcome(fields["outcome"]) if fields["outcome"] else None,
        "decision": Decision(fields["decision"]),
    }
    return Trajectory(**fields)


def _tokens(fields: dict[str, Any]) -> TokenBuffer:
    arrays = (array(*fields[name]) for name in ("ids", "log_probs", "mask"))
    return TokenBuffer(*arrays, prompt_length=fields["prompt_length"])


def _encode_array(value: Any) -> Any:
    if isinstance(value, array):
        return value.typecode, value.tobytes()
    raise TypeError(f"{type(value).__name__} is not plain data")

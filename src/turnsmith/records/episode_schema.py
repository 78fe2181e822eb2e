"""The columns of an episode file, in order, and how each is encoded.

One row is one episode. `turn_*` columns have one entry per turn; `token_ids`, `mask` and `log_probs` one per token.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

FORMAT = "1"
"""Raised when older readers could misread a new file."""

_CATEGORY = pa.dictionary(pa.int8(), pa.string())
_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
_SWAP = pa.struct([("token", pa.int32()), ("version", pa.int64())])

_BRANCH = pa.struct(
    [
        ("prompt_length", pa.int32()),
        ("token_ids", pa.list_(pa.int32())),
        ("mask", pa.list_(pa.bool_())),
        ("log_probs", pa.list_(pa.float32())),
    ]
)

SCHEMA: Any = pa.schema(
    [
        ("episode_id", pa.string()),
        ("group_id", pa.string()),
        ("step", pa.int64()),
        ("seed", pa.int64()),
        ("outcome", _CATEGORY),
        ("error", pa.string()),
        ("score", pa.float64()),
        ("reward", pa.float64()),
        ("seconds", pa.float64()),
        ("num_turns", pa.int32()),
        ("prompt_length", pa.int32()),
        ("messages", pa.list_(_MESSAGE)),
        ("token_ids", pa.list_(pa.int32())),
        ("mask", pa.list_(pa.bool_())),
        ("log_probs", pa.list_(pa.float32())),
        ("turn_start", pa.list_(pa.int32())),
        ("turn_stop", pa.list_(pa.int32())),
        # float64: rewards are few, and readers must get exactly the number that the environment returned.
        ("turn_rewards", pa.list_(pa.float64())),
        ("turn_stop_reason", pa.list_(pa.string())),
        ("turn_weights_version", pa.list_(pa.int64())),
        ("generate_seconds", pa.list_(pa.float64())),
        ("step_seconds", pa.list_(pa.float64())),
        ("states", pa.list_(pa.string())),
        ("actions", pa.list_(pa.string())),
        ("dones", pa.list_(pa.bool_())),
        ("infos", pa.string()),
        ("reward_shares", pa.string()),
        ("exact", pa.bool_()),
        ("turn_weights_swaps", pa.list_(pa.list_(_SWAP))),
        ("decision", _CATEGORY),
        ("attempt", pa.int32()),
        ("turn_branch", pa.list_(pa.int32())),
        ("branches", pa.list_(_BRANCH)),
        ("environment", pa.string()),
        ("others", pa.string()),
        ("task", pa.string()),
    ],
    metadata={"turnsmith.format": FORMAT},
)

NEWER_COLUMNS = (
    "reward_shares",
    "exact",
    "turn_weights_swaps",
    "decision",
    "attempt",
    "turn_branch",
    "branches",
    "environment",
    "others",
    "task",
)
"""Columns that files of earlier versions do not have."""
NULLABLE_COLUMNS = ("outcome", "score", *NEWER_COLUMNS)

# Byte-stream split lets zstd compress the exponents, which repeat. The other columns compress better with dictionaries.
SPLIT_COLUMNS = ("log_probs.list.element",)
DICTIONARY_COLUMNS = (
    "episode_id",
    "group_id",
    "step",
    "seed",
    "outcome",
    "error",
    "score",
    "reward",
    "prompt_length",
    "num_turns",
    "messages.list.element.role",
    "messages.list.element.content",
    "token_ids.list.element",
    "turn_rewards.list.element",
    "turn_stop_reason.list.element",
    "turn_weights_version.list.element",
    "states.list.element",
    "actions.list.element",
    "infos",
    "reward_shares",
    "decision",
    "attempt",
    "environment",
    "others",
    "task",
)

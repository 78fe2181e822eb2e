"""Episodes on disk: Parquet files with typed columns and zstd, which any Parquet reader opens.

Each writer makes one file per step, `step-<step>-<part>.parquet`. `records.compaction` merges many of them into one,
`steps-<first>-<last>.parquet`, which from then on replaces all files of those steps. A file appears complete or not
at all. Rows are written in blocks of bounded size, so that a step of thousands of long episodes is never in memory
twice.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from turnsmith.errors import RecordError
from turnsmith.records.episode_files import episode_files, steps_of
from turnsmith.records.episode_schema import (
    DICTIONARY_COLUMNS,
    FORMAT,
    NEWER_COLUMNS,
    NULLABLE_COLUMNS,
    SCHEMA,
    SPLIT_COLUMNS,
)
from turnsmith.records.files import atomic_write, make_folder
from turnsmith.records.json_text import to_json
from turnsmith.records.parquet_reader import ParquetSource, damage_named, read_batches
from turnsmith.records.run_folder import RunFolder
from turnsmith.text import replace_surrogates
from turnsmith.trajectory import Decision, Outcome, TokenBuffer, Trajectory, TurnRecord

_TOKENS_IN_BLOCK = 4_000_000
_MOST_OF_A_TASK = 16_000
"""Characters of a task, which is repeated for each episode of a group, in each epoch."""
_MOST_COLUMNS, _MOST_OF_A_COLUMN = 50, 1_000
MOST_RECORDED = 1e100
"""Larger rewards and times are damage; sums and squares of smaller ones are finite."""

WRITER_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 3,
    "use_dictionary": list(DICTIONARY_COLUMNS),
    "use_byte_stream_split": list(SPLIT_COLUMNS),
}
"""How columns are encoded."""


def write_episodes(
    folder: RunFolder | str | Path,
    step: int,
    trajectories: Sequence[Trajectory],
    part: str = "0",
    subfolder: str = "episodes",
) -> Path:
    """Write one step's episodes to `episodes/step-<step>-<part>.parquet` of a run, replacing a file of that name.

    Args:
        folder: The run, or the path of its folder.
        step: The training step that these episodes were sampled for.
        trajectories: The episodes, in the order to write them.
        part: Distinguishes the files of several processes that write the same step.
        subfolder: Where in the run folder to write.

    Raises:
        RecordError: `read_episodes` would refuse one of them.
    """
    if not re.fullmatch(r"[\w.-]+", part):
        raise RecordError(f"{part!r} is not a valid part name: use letters, digits, '.', '-' and '_'.")
    target = Path(folder) / subfolder / f"step-{step:08d}-{part}.parquet"
    make_folder(target.parent)
    with atomic_write(target) as temporary, pq.ParquetWriter(temporary, SCHEMA, **WRITER_OPTIONS) as writer:
        for block in _blocks(trajectories):
            _check_readable(block)
            writer.write_table(_table(step, block))
    return target


def read_episodes(source: RunFolder | str | Path, step: int | None = None) -> list[Trajectory]:
    """Read the episodes of a run, of one of its steps, or of one Parquet file, as they were recorded.

    Args:
        source: A run, the path of its folder, or the path of one file.
        step: Read only this step's episodes.

    Example:
        >>> import tempfile
        >>> run = RunFolder.create(tempfile.mkdtemp(), "demo")
        >>> episode = Trajectory(actions=["open"], rewards=[1.0], outcome=Outcome.COMPLETED, episode_id="e1")
        >>> file = write_episodes(run, step=1, trajectories=[episode])
        >>> read_episodes(run, step=1) == [episode]
        True
    """
    return list(iter_episodes(source, step))


def iter_episodes(source: RunFolder | str | Path, step: int | None = None) -> Iterator[Trajectory]:
    """Like `read_episodes`, but one episode at a time, for runs that do not fit in memory."""
    read = Counter[int]()  # episodes of each step
    files, before = episode_files(source), None
    while files != before:
        try:
            yield from _unread(files, step, read)
            return
        except FileNotFoundError:  # it was merged with others, in the same order
            files, before = episode_files(source), files
    raise RecordError(f"An episode file at {source} cannot be opened: it is listed, but does not exist.")


def _unread(files: list[Path], step: int | None, read: Counter[int]) -> Iterator[Trajectory]:
    """The episodes that `read` does not count yet; adds them to it."""
    again = read.copy()
    last = max(read, default=0)
    for file in files:
        steps = steps_of(file)
        if steps and (steps.stop <= last or (step is not None and step not in steps)):
            continue
        for number, trajectory in read_episode_file(file, step):
            if again[number]:
                again[number] -= 1
            else:
                read[number] += 1
                yield trajectory


def _blocks(trajectories: Sequence[Trajectory]) -> Iterator[list[Trajectory]]:
    """Split the episodes into row groups of at most `_TOKENS_IN_BLOCK` tokens, and at least one episode."""
    block: list[Trajectory] = []
    tokens = 0
    for trajectory in trajectories:
        more = sum(map(len, trajectory.segments))
        if block and tokens + more > _TOKENS_IN_BLOCK:
            yield block
            block, tokens = [], 0
        block.append(trajectory)
        tokens += more
    if block:
        yield block


def _check_readable(episodes: list[Trajectory]) -> None:
    for episode in episodes:
        try:
            _check(episode)
        except ValueError as error:
            raise RecordError(f"The episode {episode.episode_id} cannot be recorded: {error}.") from error


def _table(step: int, episodes: list[Trajectory]) -> Any:
    columns: dict[str, Any] = {
        "episode_id": [episode.episode_id for episode in episodes],
        "group_id": [episode.group_id for episode in episodes],
        "step": [step] * len(episodes),
        "seed": [episode.seed for episode in episodes],
        "outcome": [None if episode.outcome is None else episode.outcome.value for episode in episodes],
        "error": [replace_surrogates(episode.error) for episode in episodes],
        "score": [episode.score for episode in episodes],
        "reward": [episode.total_reward for episode in episodes],
        "seconds": [episode.seconds for episode in episodes],
        "num_turns": [episode.num_turns for episode in episodes],
        "prompt_length": [episode.tokens.prompt_length for episode in episodes],
        "messages": [[_message(message) for message in episode.messages] for episode in episodes],
        "token_ids": _packed([episode.tokens.ids for episode in episodes], pa.int32()),
        "mask": _packed([episode.tokens.mask for episode in episodes], pa.int8()).cast(pa.list_(pa.bool_())),
        "log_probs": _packed([episode.tokens.log_probs for episode in episodes], pa.float32()),
        "turn_start": [[turn.start for turn in episode.turns] for episode in episodes],
        "turn_stop": [[turn.stop for turn in episode.turns] for episode in episodes],
        "turn_rewards": [episode.rewards for episode in episodes],
        "turn_stop_reason": [[turn.stop_reason for turn in episode.turns] for episode in episodes],
        "turn_weights_version": [[turn.weights_version for turn in episode.turns] for episode in episodes],
        "generate_seconds": [[turn.generate_seconds for turn in episode.turns] for episode in episodes],
        "step_seconds": [[turn.step_seconds for turn in episode.turns] for episode in episodes],
        "states": [[replace_surrogates(state) for state in episode.states] for episode in episodes],
        "actions": [[replace_surrogates(action) for action in episode.actions] for episode in episodes],
        "dones": [episode.dones for episode in episodes],
        "infos": [to_json(episode.infos) for episode in episodes],
        "reward_shares": [to_json(episode.reward_shares) for episode in episodes],
        "exact": [episode.exact for episode in episodes],
        "turn_weights_swaps": [[_swaps(turn) for turn in episode.turns] for episode in episodes],
        "decision": [episode.decision.value for episode in episodes],
        "attempt": [episode.attempt for episode in episodes],
        "turn_branch": [[turn.branch for turn in episode.turns] for episode in episodes],
        "branches": [list(map(_branch, episode.branches)) for episode in episodes],
        "environment": [episode.environment for episode in episodes],
        "others": [to_json(episode.others) for episode in episodes],
        "task": [_task_json(episode.task) for episode in episodes],
    }
    arrays = [
        values if isinstance(values, pa.Array) else pa.array(values, SCHEMA.field(name).type)
        for name, values in columns.items()
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _message(message: dict[str, str]) -> dict[str, str]:
    return {"role": message["role"], "content": replace_surrogates(message["content"])}


def _task_json(task: Mapping[str, Any] | None) -> str | None:
    """The row as JSON; if it is too large, only the beginning of each column."""
    if task is None:
        return None
    if len(text := to_json(task)) <= _MOST_OF_A_TASK:
        return text
    return to_json({str(name): _shortened(value) for name, value in islice(task.items(), _MOST_COLUMNS)})


def _shortened(value: Any) -> Any:
    text = value if isinstance(value, str) else to_json(value)
    if len(text) <= _MOST_OF_A_COLUMN:
        return value
    return f"{text[:_MOST_OF_A_COLUMN]} ... ({len(text):,} characters)"


def _swaps(turn: TurnRecord) -> list[dict[str, int]]:
    return [{"token": token, "version": version} for token, version in turn.swaps]


def _branch(tokens: TokenBuffer) -> dict[str, Any]:
    return {
        "prompt_length": tokens.prompt_length,
        "token_ids": tokens.ids.tolist(),
        "mask": list(map(bool, tokens.mask)),
        "log_probs": tokens.log_probs.tolist(),
    }


def _packed(arrays: list[array[Any]], kind: Any) -> Any:
    """A list column made from packed arrays without a Python object per token."""
    values: array[Any] = array(arrays[0].typecode)
    offsets = array("i", [0])
    for tokens in arrays:
        values.extend(tokens)
        offsets.append(len(values))
    flat = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
    return pa.ListArray.from_arrays(
        pa.Array.from_buffers(pa.int32(), len(offsets), [None, pa.py_buffer(offsets)]), flat
    )


def read_episode_file(file: ParquetSource, step: int | None = None) -> Iterator[tuple[int, Trajectory]]:
    """The episodes of one file, or of a stream with its bytes, each with its step."""
    batches = read_batches(file, SCHEMA, version=FORMAT, optional=NEWER_COLUMNS, nullable=NULLABLE_COLUMNS, step=step)
    for block in batches:
        with damage_named(file):
            episodes = list(_episodes(block, step))
        yield from episodes


def _episodes(block: Any, step: int | None) -> Iterator[tuple[int, Trajectory]]:
    packed = ("token_ids", "mask", "log_probs")
    rows: list[dict[str, Any]] = block.drop_columns(list(packed)).to_pylist()
    ids, mask, log_probs = (block.column(name) for name in packed)
    for index, row in enumerate(rows):
        if step is None or row["step"] == step:
            tokens = TokenBuffer(
                ids=_unpacked(ids[index].values, "i", pa.int32()),
                log_probs=_unpacked(log_probs[index].values, "f", pa.float32()),
                mask=_unpacked(mask[index].values, "b", pa.int8()),
                prompt_length=row["prompt_length"],
            )
            trajectory = _trajectory(row, tokens)
            _check(trajectory)
            yield row["step"], trajectory


def _check(trajectory: Trajectory) -> None:
    """Raise a ValueError if an episode's columns do not fit together."""
    for tokens in trajectory.segments:
        if not len(tokens.ids) == len(tokens.log_probs) == len(tokens.mask) >= tokens.prompt_length >= 0:
            raise ValueError("the tokens of an episode do not fit together")
    for turn in trajectory.turns:
        tokens = trajectory.buffer(turn.branch) if 0 <= turn.branch <= len(trajectory.branches) else TokenBuffer()
        if not tokens.prompt_length <= turn.start <= turn.stop <= len(tokens.ids):
            raise ValueError("a turn of an episode is not within its tokens")
    if not all(
        abs(value) < MOST_RECORDED for value in (*trajectory.rewards, trajectory.score or 0.0, trajectory.seconds)
    ):
        raise ValueError("a reward or a time of an episode is not a finite number")


def _unpacked(values: Any, typecode: str, kind: Any) -> array[Any]:
    unpacked: array[Any] = array(typecode)
    values = values.cast(kind)
    begin = values.offset * unpacked.itemsize
    unpacked.frombytes(memoryview(values.buffers()[1] or b"")[begin : begin + len(values) * unpacked.itemsize])
    return unpacked


def _trajectory(row: dict[str, Any], tokens: TokenBuffer) -> Trajectory:
    turns = zip(
        row["turn_start"],
        row["turn_stop"],
        row["turn_stop_reason"],
        row["turn_weights_version"],
        row["generate_seconds"],
        row["step_seconds"],
        # Older files have no column for what is read with `get`, here and below.
        row.get("turn_weights_swaps") or [()] * len(row["turn_start"]),
        row.get("turn_branch") or [0] * len(row["turn_start"]),
        strict=True,
    )
    return Trajectory(
        states=row["states"],
        actions=row["actions"],
        rewards=row["turn_rewards"],
        dones=row["dones"],
        infos=msgspec.convert(json.loads(row["infos"]), list[dict[str, Any]]),
        reward_shares=msgspec.convert(json.loads(row.get("reward_shares") or "{}"), dict[str, Any]),
        messages=row["messages"],
        turns=[TurnRecord(*turn, swaps=_pairs(swaps), branch=branch) for *turn, swaps, branch in turns],
        tokens=tokens,
        branches=[_tokens_of(branch) for branch in row.get("branches") or ()],
        outcome=None if row["outcome"] is None else Outcome(row["outcome"]),
        error=row["error"],
        score=row["score"],
        episode_id=row["episode_id"],
        group_id=row["group_id"],
        seed=row["seed"],
        seconds=row["seconds"],
        exact=row.get("exact") is not False,
        decision=Decision(row.get("decision") or Decision.KEPT),
        attempt=row.get("attempt") or 0,
        environment=row.get("environment") or "",
        others=msgspec.convert(json.loads(row.get("others") or "{}"), dict[str, dict[str, Any]]),
        task=msgspec.convert(json.loads(row.get("task") or "null"), dict[str, Any] | None),
    )


def _tokens_of(branch: dict[str, Any]) -> TokenBuffer:
    ids, log_probs = array("i", branch["token_ids"]), array("f", branch["log_probs"])
    return TokenBuffer(ids, log_probs, array("b", branch["mask"]), branch["prompt_length"])


def _pairs(swaps: Sequence[dict[str, int]]) -> tuple[tuple[int, int], ...]:
    return tuple((swap["token"], swap["version"]) for swap in swaps)

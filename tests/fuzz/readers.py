"""What must hold for every reader of somebody else's bytes: an answer, or a `TurnsmithError`, and nothing else raised.

Each target takes the bytes of one input. `files` puts them in place of one JSON or YAML file of a run folder,
`parquet` reads them as episodes and advantages, `frames` as what a worker or its client receives, and `session` sends
its lines to an environment server.
The run folder is in memory: nothing is written.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from turnsmith.env.isolation import messages as m
from turnsmith.env.isolation.wire import FrameDecoder, MessageTooLong
from turnsmith.env.local_host import EnvironmentHost
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import TurnsmithError
from turnsmith.gateway import environment_server
from turnsmith.records.advantages import parse_advantages
from turnsmith.records.episodes import read_episode_file
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_warnings import warnings_in
from turnsmith.rollout.evaluation.result import EvaluationResult
from turnsmith.text import printable
from turnsmith.verify.run import verify_run
from turnsmith.viewer.episode_html import episodes_html
from turnsmith.viewer.episode_selection import SelectedEpisode, read_rows
from turnsmith.viewer.evaluation_html import evaluation_html
from turnsmith.viewer.report import view_html
from turnsmith.viewer.run_view import read_run
from turnsmith.viewer.summary import describe_run

CORPUS = Path(__file__).parent / "corpus"
FILES = (
    "run.json",
    "resume.json",
    "metrics.jsonl",
    "evaluations.jsonl",
    "ledger.jsonl",
    "events.jsonl",
    "config.yaml",
)
SERVED = "turnsmith.env.examples:GuessNumber"


def sample_files() -> dict[str, bytes]:
    """The small files of a run that has a bit of everything."""
    warning = {"name": "zero_gradient", "step": 2, "what": "w", "why": "y", "advice": "a", "episodes": ["e1"]}
    metrics = {"reward/mean": 0.1, "grad_norm": 0.0, "episodes/total": 2, "episodes/completed": 2, "time/step": 1.5}
    episode = {"episode": "e1", "decision": "masked", "attempts": [["worker_lost", 3, 1.0]], "error": "gone"}
    ledger = {"dispatched": 2, "trained": 1, "masked": 1, "carried": ["e2"], "given_up": {"worker_lost": 1}}
    ledger |= {"tokens": {"kept": 5, "retried": 3}, "outcomes": {"completed": 1}, "episodes": [episode]}
    events = [
        {"time": 1.0, "kind": "training", "pid": 1, "host": "h", "born": 5},
        {"time": 2.0, "kind": "warning", "content": warning},
        {"time": 3.0, "kind": "resumed", "step": 1},
        {"time": 4.0, "kind": "failed", "content": "It broke.\nHere."},
    ]
    more: list[dict[str, Any]] = [{"tools/calls": 3, "time/generate": 0.5, "entropy": "NaN", "kl": 0.1}, {}]
    return {
        "run.json": b'{"format":1,"name":"run","created":1.7e9}\n',
        "resume.json": b'{"steps":5,"environment":"games:Board","nameless":{"reward_fn":"<lambda>"}}\n',
        "metrics.jsonl": _lines({"step": step, **metrics, **each} for step, each in enumerate(more, start=1)),
        "evaluations.jsonl": _lines([{"step": 0, "reward/mean": 0.5, "reward/low": 0.4, "reward/high": 0.6}]),
        "ledger.jsonl": _lines({"step": step, **ledger} for step in (1, 2)),
        "events.jsonl": _lines(events),
        "config.yaml": b"model: {model_name: tiny}\ntraining: {batch_size: 8, group_size: 4, adv_estimator: grpo}\n",
    }


def _lines(records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


@dataclass(frozen=True)
class MemoryRun(RunFolder):
    """A run folder whose small files are in memory."""

    files: dict[str, bytes] = field(default_factory=dict)

    def read_bytes(self, name: str) -> bytes:
        return self.files.get(name, b"")


_READERS: dict[str, Callable[[RunFolder], Any]] = {
    "run.json": RunFolder.read_about,
    "metrics.jsonl": RunFolder.read_metrics,
    "evaluations.jsonl": RunFolder.read_evaluations,
    "ledger.jsonl": RunFolder.read_ledger,
    "events.jsonl": lambda run: warnings_in(run.read_events()),
}
SAMPLE = sample_files() | {"config.yaml": b""}  # which takes longer to read than all the others
NOWHERE = Path("/nowhere/run")
_VIEW = read_run(MemoryRun(NOWHERE, SAMPLE))


def files(data: bytes) -> None:
    """The first byte says which file of a run the others replace."""
    if data:
        read_files({FILES[data[0] % len(FILES)]: data[1:]})


def read_files(changed: dict[str, bytes]) -> None:
    """Show and report a run in which these files are as given."""
    run = MemoryRun(NOWHERE, SAMPLE | changed)
    try:
        for name in changed:  # what is refused here needs no look at the other files
            if name in _READERS:
                _READERS[name](run)
        view = read_run(run)
    except TurnsmithError:
        return
    printable(describe_run(view)).encode()
    printable("\n".join(verify_run(run).lines())).encode()
    if zlib.crc32(repr(changed).encode()) % 8 == 0:  # it takes ten times as long
        view_html(view).encode()


def parquet(data: bytes) -> None:
    """Read the bytes as a file of episodes, of which some columns, and of advantages; and show what they contain."""
    for read in (_show_episodes, _show_rows, parse_advantages):
        try:
            read(pa.BufferReader(data))
        except TurnsmithError:
            pass


def _show_rows(file: Any) -> None:
    evaluation_html(_VIEW, read_rows(file)).encode()


def _show_episodes(file: Any) -> None:
    episodes = list(read_episode_file(file))
    episodes_html([SelectedEpisode(step, one, ["typical"]) for step, one in episodes]).encode()
    result = EvaluationResult([one for _, one in episodes])
    result.metrics()
    result.compare(result)


def frames(data: bytes) -> None:
    """Cut the bytes into messages, in two pieces, and read each as what either side may receive."""
    decoder = FrameDecoder()
    try:
        half = len(data) // 2
        messages = [bytes(one) for piece in (data[:half], data[half:]) for one in decoder.feed(piece)]
    except MessageTooLong:
        return
    for message in messages:
        read_message(message)


def read_message(message: bytes) -> None:
    """Read one message as a request, a reply, and the data within a reply."""
    for read in (m.read_request, m.read_reply, m.read_tools, m.read_dict):
        try:
            read(message)
        except m.BadMessage:
            pass


_loop = asyncio.new_event_loop()


def session(data: bytes) -> None:
    """Send each line to a session of an environment server: each gets an answer with a JSON form, and no bug."""
    _loop.run_until_complete(_talk(data))


async def _talk(data: bytes) -> None:
    talk = environment_server._Session(EnvironmentSpec(SERVED))
    with patch.object(environment_server, "RemoteHost", EnvironmentHost):
        for line in data.split(b"\n"):
            reply = await talk.answer(line.decode("utf-8", "replace"))
            text = "" if reply is None else environment_server._text(reply)
            assert "a bug of turnsmith" not in text
            assert "The environment server" not in text
        await talk.close()


TARGETS: dict[str, Callable[[bytes], None]] = {"files": files, "parquet": parquet, "frames": frames, "session": session}

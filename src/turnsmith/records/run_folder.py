"""The folder of one run: all that training and the tools that read a run share.

run.json          what wrote this folder, and in which format
config.yaml       all settings, resolved
verl.yaml         the config that verl was given
resume.json       what the run is made from, by import name
metrics.jsonl     one record per step
evaluations.jsonl one record per evaluation during training
ledger.jsonl      per step, how many episodes were kept, retried or dropped, and why
events.jsonl      everything else that happened, with its time
episodes/         every training episode, Parquet
evaluations/      every episode of those evaluations, in the same format
checkpoints/      model and trainer state after some steps
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from turnsmith.errors import RecordError
from turnsmith.records.files import append_line, flush_file, flush_folder, make_folder, read_file, write_text
from turnsmith.records.json_records import About, Event, LedgerStep, Metrics, parse_lines, parse_object
from turnsmith.records.json_text import restore_number, to_json
from turnsmith.records.run_state import EventKind
from turnsmith.records.yaml_text import dump_yaml

FORMAT = 1
"""Raised when older readers could misread a new folder."""


@dataclass(frozen=True)
class RunFolder:
    """One run on disk. Safe to read while the run is writing; usable wherever a path is.

    Example:
        >>> import tempfile
        >>> run = RunFolder.create(tempfile.mkdtemp(), "tictactoe")
        >>> run.append_metrics({"step": 1, "reward/mean": 0.25})
        >>> RunFolder.open(run.path).read_metrics()
        [{'step': 1, 'reward/mean': 0.25}]
    """

    path: Path

    @classmethod
    def create(cls, parent: str | Path, name: str) -> Self:
        """Create a new folder in `parent`. If `name` is taken it becomes `name-2` and so on, so runs never mix."""
        if not name or name in (".", "..") or "/" in name or not name.isprintable():
            raise RecordError(f"{name!r} is not a valid run name: it must be the name of a single folder.")
        parent = Path(parent)
        try:
            make_folder(parent)
            run = cls(_make_folder(parent, name).resolve())
            run.episodes_dir.mkdir()
            run.checkpoints_dir.mkdir()
            about = {"format": FORMAT, "name": run.name, "created": time.time()}
            write_text(run.path / "run.json", to_json(about) + "\n")
            flush_folder(parent)
        except OSError as error:
            raise RecordError(
                f"Cannot create the run folder {parent / name}: {error.strerror or error}. Set "
                "checkpoint.output_dir to a folder that you can write to."
            ) from error
        return run

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the folder of an existing run.

        Raises:
            RecordError: There is no run there, or a newer turnsmith wrote it.
        """
        path = Path(path)
        if not path.is_dir():
            raise RecordError(f"There is no run folder {path}.")
        run = cls(path.resolve())
        if not run.read_bytes("run.json"):
            raise RecordError(f"{path} is not a run folder: it has no run.json.")
        run_format = run.read_about()["format"]
        if run_format > FORMAT:
            raise RecordError(
                f"{path} has run format {run_format}, but this turnsmith reads up to {FORMAT}. Update turnsmith."
            )
        return run

    @staticmethod
    def is_at(path: Path) -> bool:
        """Whether there is a run folder, damaged or not, that this user may enter."""
        try:
            return (path / "run.json").is_file()
        except OSError:
            return False

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def episodes_dir(self) -> Path:
        """The folder of the episodes, which `turnsmith.records.episodes` reads and writes."""
        return self.path / "episodes"

    @property
    def checkpoints_dir(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    def read_bytes(self, name: str) -> bytes:
        """The content of a file of the run; empty if there is none."""
        return read_file(self.path / name)

    def read_about(self) -> dict[str, Any]:
        """What run.json says: `format`, `name` and `created`."""
        return parse_object(self.read_bytes("run.json"), About, str(self.path / "run.json"))

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Save the resolved settings (`config_sources.to_dict`) as config.yaml, which `config_sources.load` reads."""
        write_text(self.path / "config.yaml", dump_yaml(dict(config)))

    def write_verl_config(self, text: str) -> None:
        """Save the config that verl was given."""
        write_text(self.path / "verl.yaml", text if text.endswith("\n") else text + "\n")

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Append one step's metrics. NaN and infinity are written as strings, because JSON has no numbers for them.

        Events so far are flushed to disk as well.
        """
        flush_file(self.path / "events.jsonl")
        self._append("metrics", metrics)

    def read_metrics(self) -> list[dict[str, Any]]:
        """The metrics of all steps so far, without a step that was being written when the run died."""
        return self._read_numbers("metrics")

    def append_evaluation(self, metrics: Mapping[str, Any]) -> None:
        """Append the metrics of an evaluation during training, with its step."""
        self._append("evaluations", metrics)

    def read_evaluations(self) -> list[dict[str, Any]]:
        """The metrics of all evaluations so far, oldest first."""
        return self._read_numbers("evaluations")

    def append_ledger(self, record: Mapping[str, Any]) -> None:
        """Append what became of the episodes of one step."""
        self._append("ledger", record)

    def read_ledger(self) -> list[dict[str, Any]]:
        """What became of the episodes of each step so far."""
        return self._read("ledger", LedgerStep)

    def append_event(self, kind: EventKind, /, **fields: Any) -> None:
        """Append an event with its time in seconds since 1970. Until the step ends, a power failure may lose it."""
        record = {"time": time.time(), "kind": kind, **fields}
        append_line(self.path / "events.jsonl", to_json(record), flush=False)

    def record(self, kind: EventKind, content: Any) -> None:
        """Write what has happened in training into the file that has its kind."""
        files = {
            EventKind.STEP: self.append_metrics,
            EventKind.EVALUATION: self.append_evaluation,
            EventKind.LEDGER: self.append_ledger,
        }
        if kind in files:
            files[kind](content)
        else:
            self.append_event(kind, content=content)

    def read_events(self) -> list[dict[str, Any]]:
        """All events so far, oldest first, without damaged ones, because no reader needs all of them."""
        return self._read("events", Event, skip_damaged=True)

    def _append(self, file: str, record: Mapping[str, Any]) -> None:
        append_line(self.path / f"{file}.jsonl", to_json(record))

    def _read(self, file: str, shape: type, *, skip_damaged: bool = False) -> list[dict[str, Any]]:
        name = f"{file}.jsonl"
        return parse_lines(self.read_bytes(name), shape, str(self.path / name), skip_damaged=skip_damaged)

    def _read_numbers(self, file: str) -> list[dict[str, Any]]:
        records = self._read(file, Metrics)
        return [{name: restore_number(value) for name, value in record.items()} for record in records]


def _make_folder(parent: Path, name: str) -> Path:
    """Create the first of name, name-2, name-3, ... that does not exist; no other process gets the same folder."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    while True:
        path = parent / next(names)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)  # private, because it has episodes and weights; users share it with chmod
            return path

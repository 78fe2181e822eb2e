"""The folder of one run: the only thing that training and the readers of a run share.

run.json          what wrote this folder, and in which format
config.yaml       all settings, resolved
verl.yaml         the config that verl was given
resume.json       what the run is made from, by names to import
metrics.jsonl     one record a step
evaluations.jsonl one record an evaluation in training
ledger.jsonl      what became of the episodes of each step, and why
events.jsonl      what happened besides, with its time
episodes/         every episode, Parquet
evaluations/      every episode of those evaluations, the same
checkpoints/      the run as it was after some steps
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from turnsmith.errors import RecordError
from turnsmith.records.files import append_line, read_json_lines, write_text
from turnsmith.records.json_text import restore_number, to_json
from turnsmith.records.yaml_text import dump_yaml

FORMAT = 1
"""Goes up when a reader of the old format could misread a new folder."""


@dataclass(frozen=True)
class RunFolder:
    """One run on disk. Safe to read while the run is going on.

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
        """Make a new folder in `parent`. If `name` is taken it becomes `name-2`, so that two runs never mix."""
        if not name or name in (".", "..") or "/" in name or not name.isprintable():
            raise RecordError(f"{name!r} cannot be the name of a run: it must be the name of one folder.")
        parent = Path(parent)
        try:
            parent.mkdir(parents=True, exist_ok=True)
            path = _make_new(parent, name)
            run = cls(path.resolve())
            run.episodes_dir.mkdir()
            run.checkpoints_dir.mkdir()
            write_text(
                run.path / "run.json", to_json({"format": FORMAT, "name": path.name, "created": time.time()}) + "\n"
            )
        except OSError as error:
            raise RecordError(f"The run folder {parent / name} cannot be made: {error.strerror or error}.") from error
        return run

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the folder of an earlier run.

        Raises:
            RecordError: There is no run there, or a newer turnsmith wrote it.
        """
        path = Path(path)
        if not path.is_dir():
            raise RecordError(f"There is no run folder {path}.")
        try:
            about = json.loads((path / "run.json").read_text(encoding="utf-8"))
            written_in = int(about["format"])
        except FileNotFoundError:
            raise RecordError(f"{path} is not a run folder: it has no run.json.") from None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise RecordError(f"{path / 'run.json'} is damaged.") from None
        if written_in > FORMAT:
            raise RecordError(
                f"{path} has run format {written_in}; this turnsmith reads up to {FORMAT}. Update turnsmith."
            )
        return cls(path.resolve())

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def episodes_dir(self) -> Path:
        """Where the episodes are; `turnsmith.records.episodes` reads and writes them."""
        return self.path / "episodes"

    @property
    def checkpoints_dir(self) -> Path:
        """Where the checkpoints are."""
        return self.path / "checkpoints"

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Keep the resolved settings (`config_sources.to_dict`) as config.yaml, which `config_sources.load` reads."""
        write_text(self.path / "config.yaml", dump_yaml(dict(config)))

    def write_verl_config(self, text: str) -> None:
        """Keep the config that verl was given."""
        write_text(self.path / "verl.yaml", text if text.endswith("\n") else text + "\n")

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Add one step's metrics. NaN and infinity are written as texts, because JSON has no numbers for them."""
        append_line(self.path / "metrics.jsonl", to_json(metrics))

    def read_metrics(self) -> list[dict[str, Any]]:
        """The metrics of all steps so far; a step that was being written when the run died is left out."""
        records = read_json_lines(self.path / "metrics.jsonl")
        return [{name: restore_number(value) for name, value in record.items()} for record in records]

    def append_evaluation(self, metrics: Mapping[str, Any]) -> None:
        """Add what an evaluation in training found, with the step after which it was made."""
        append_line(self.path / "evaluations.jsonl", to_json(metrics))

    def read_evaluations(self) -> list[dict[str, Any]]:
        """What the evaluations so far found, oldest first."""
        records = read_json_lines(self.path / "evaluations.jsonl")
        return [{name: restore_number(value) for name, value in record.items()} for record in records]

    def append_ledger(self, record: Mapping[str, Any]) -> None:
        """Add what became of the episodes of one step."""
        append_line(self.path / "ledger.jsonl", to_json(record))

    def read_ledger(self) -> list[dict[str, Any]]:
        """What became of the episodes of each step so far."""
        return read_json_lines(self.path / "ledger.jsonl")

    def append_event(self, kind: str, /, **fields: Any) -> None:
        """Note that something happened, with the time in seconds since 1970."""
        append_line(self.path / "events.jsonl", to_json({"time": time.time(), "kind": kind, **fields}))

    def read_events(self) -> list[dict[str, Any]]:
        """All events so far, oldest first."""
        return read_json_lines(self.path / "events.jsonl")


def _make_new(parent: Path, name: str) -> Path:
    """The first of name, name-2, name-3, ... that is free; making it is what claims it."""
    number = 1
    while True:
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path

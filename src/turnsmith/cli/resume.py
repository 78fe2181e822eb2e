"""`turnsmith resume`: go on with a run that stopped."""

from __future__ import annotations

import argparse
from typing import Any

from turnsmith.cli.runs import RUN_HELP

_DESCRIPTION = """\
Go on with a run that was stopped or killed: in the same folder, from its newest
good checkpoint, up to the steps that were first asked for.

A damaged checkpoint is passed over for the one
before it. What the folder holds of steps after the checkpoint is removed, and
those steps are made again."""

_EXAMPLES = """\
examples:
  turnsmith resume runs/MyGame-20261115-120000
  turnsmith resume runs/chess training.num_epochs=20

The environment, reward and tools are imported by the names they had. If one has
no name (a lambda, say), go on from Python with RayPPOTrainer.resume(...)."""


def add_resume_command(commands: Any) -> None:
    """Add `turnsmith resume` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "resume",
        help="go on with a run that stopped",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("run_folder", metavar="RUN", help=RUN_HELP)
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="a setting to change")
    parser.add_argument(
        "--trust",
        action="store_true",
        help="go on with what another user or machine wrote: doing so runs code that it names or holds",
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Resume."""
    from turnsmith.cli.run_folders import find_run
    from turnsmith.trainer import RayPPOTrainer

    run = find_run(args.run_folder, containing="resume.json")
    trainer = RayPPOTrainer.resume(run, overrides=args.overrides, trust=args.trust)
    try:
        trainer.fit()
    finally:
        trainer.cleanup()
    return 0

"""`turnsmith export`: a run's model as a plain Hugging Face folder."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from turnsmith.cli.runs import RUN_HELP
from turnsmith.text import print_line

STEP_HELP = "step of a checkpoint, `best` or `last` (default: last)"
"""Help text of every `--step`."""

_DESCRIPTION = """\
Write a run's model as a plain Hugging Face folder (safetensors, tokenizer and a
model card) that transformers and vLLM load. The default is the newest intact
checkpoint; a damaged one is never exported."""

_EXAMPLES = """\
examples:
  turnsmith export runs/MyGame-20261115-120000
  turnsmith export runs/chess --step best --out chess-model --dtype bfloat16
  turnsmith export runs/chess --adapter
  turnsmith export latest --step best --push my-name/chess"""


def add_export_command(commands: Any) -> None:
    """Add `turnsmith export` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "export", help="write a run's model as a Hugging Face folder", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    add = parser.add_argument
    add("run_folder", metavar="RUN", help=RUN_HELP)
    add("--step", metavar="N", type=checkpoint_step, default="last", help=STEP_HELP)
    add("--out", metavar="FOLDER", help="new folder to write to (default: RUN/exports/step-N)")
    add("--adapter", action="store_true", help="write only the LoRA adapter (default: merge it into the model)")
    add("--dtype", choices=["float32", "bfloat16", "float16"], help="dtype of the weights (default: as trained)")
    add("--push", metavar="OWNER/NAME", help="also upload it to the Hugging Face hub (private, if it is new there)")
    add("--public", action="store_true", help="with --push: let all see a repository that is new")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Export the model and print its folder."""
    from turnsmith.cli.run_folders import find_run
    from turnsmith.trainer.checkpoints.export import check_repository, export_model, push_folder

    if args.push:
        check_repository(args.push)
    folder = export_model(
        find_run(args.run_folder, containing="resume.json"),
        args.step,
        args.out,
        adapter=args.adapter,
        dtype=args.dtype,
        warn=lambda sentence: print_line(f"turnsmith: {sentence}", sys.stderr),
    )
    print_line(f"The {'adapter' if args.adapter else 'model'} is in {folder}", sys.stdout)
    if args.push:
        print_line(f"It is at {push_folder(folder, args.push, public=args.public)}", sys.stdout)
    return 0


def checkpoint_step(text: str) -> int | str:
    """Read the argument of `--step`.

    Example:
        >>> checkpoint_step("best"), checkpoint_step("40")
        ('best', 40)
    """
    if text in ("best", "last"):
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a step: use a number, `best` or `last`")
    return int(text)

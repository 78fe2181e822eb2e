"""`turnsmith export`: a run's model as a plain Hugging Face folder."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from turnsmith.cli.runs import RUN_HELP

_DESCRIPTION = """\
Write the model of a run as a plain Hugging Face folder (safetensors, with its
tokenizer) that transformers and vLLM load.

Only a checkpoint that is whole is exported; without
--step the newest one that is."""

_EXAMPLES = """\
examples:
  turnsmith export runs/MyGame-20261115-120000
  turnsmith export runs/chess --step best --out chess-model --dtype bfloat16
  turnsmith export runs/chess --adapter"""


def add_export_command(commands: Any) -> None:
    """Add `turnsmith export` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "export",
        help="write a run's model as a Hugging Face folder",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("run_folder", metavar="RUN", help=RUN_HELP)
    parser.add_argument(
        "--step", metavar="N", type=_step, default="last", help="a step that was saved, `best` or `last` (the default)"
    )
    parser.add_argument("--out", metavar="FOLDER", help="a new folder; without it RUN/exports/step-N")
    parser.add_argument(
        "--adapter", action="store_true", help="only the LoRA adapter; without it, it is merged into the model"
    )
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16", "float16"], help="of the weights; without it as they were trained"
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Export."""
    from turnsmith.cli.run_folders import find_run
    from turnsmith.trainer.checkpoints.export import export_model

    folder = export_model(
        find_run(args.run_folder, containing="resume.json"),
        args.step,
        args.out,
        adapter=args.adapter,
        dtype=args.dtype,
        warn=lambda sentence: print(f"turnsmith: {sentence}", file=sys.stderr),
    )
    print(f"The {'adapter' if args.adapter else 'model'} is in {folder}")
    return 0


def _step(text: str) -> int | str:
    if text in ("best", "last"):
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no step: write a number, `best` or `last`")
    return int(text)

"""`turnsmith rehearse`: the run that will be queued, from its settings to a kill and a resume, on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from turnsmith.cli.agent import (
    add_agent_options,
    add_training_options,
    chosen_environment,
    read_data,
    read_validation,
    split_agent_options,
)
from turnsmith.terminal import hide_progress_bars, print_line

_DESCRIPTION = """\
Rehearse on this machine the run that you will queue on a cluster: its layout is
checked as it is and executed scaled down, with its schedule, isolation,
evaluation, checkpoints and failure policy, and with a tiny model that has the
real model's tokenizer and chat template. The run is killed and resumed. Takes
some minutes and needs no GPU. Ends with what was executed, what could not be
and why, and times and tokens; exits with 1 if something failed.

ENVIRONMENT is given as for `turnsmith train`."""

_EXAMPLES = """\
examples:
  turnsmith rehearse my_game:MyGame --config cluster.yaml --model smollm2
  turnsmith rehearse my_game:MyGame --config cluster.yaml ray.num_nodes=8
  turnsmith rehearse my_game:MyGame --config cluster.yaml --no-run"""


def add_rehearse_command(commands: Any) -> None:
    """Add `turnsmith rehearse` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "rehearse", help="rehearse a cluster's run on this machine", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    add = parser.add_argument
    add_agent_options(parser)
    add("overrides", metavar="KEY=VALUE", nargs="*", help="a setting of the run, such as training.batch_size=1024")
    add("--model", metavar="MODEL", help="the model of the run, as in `turnsmith train`")
    add("--config", metavar="FILE", help="YAML file with the settings of the run")
    add_training_options(parser)
    add("--folder", metavar="FOLDER", default="rehearsals", help="where to put it (default: rehearsals)")
    add(
        "--minutes", metavar="N", type=float, default=15.0, help="stop a process of the run after so long (default: 15)"
    )
    scaled = "a setting of the scaled run only, such as inference.backend=vllm; repeatable"
    add("--scaled", metavar="KEY=VALUE", action="append", help=scaled)
    add("--no-run", action="store_true", help="only what needs no run: settings, layout, environment, disk")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Rehearse, print a row for each part, and write the result to files."""
    import signal
    import tempfile

    from turnsmith.cli.train import read_config
    from turnsmith.rehearse.run import Rehearsal

    words = _train_words(args)
    split_agent_options(args)
    config = read_config(args.config, args.model, args.overrides)
    environment = chosen_environment(args, config)
    Path(args.folder).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=args.folder, prefix="rehearsal-")).absolute()
    hide_progress_bars()
    rehearsal = Rehearsal(
        config,
        environment,
        words,
        folder,
        tasks=read_data(args),
        validation_tasks=read_validation(args),
        scaled=args.scaled or (),
        minutes=args.minutes,
        show=lambda part: print_line("\n".join(part.lines()), sys.stdout),
        say=lambda line: print_line(f"  ... {line}", sys.stdout),
    )
    print_line(rehearsal.result.run, sys.stdout)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the run is ended too
    try:
        result = rehearsal.run(only_before=args.no_run)
    finally:
        signal.signal(signal.SIGTERM, before)
    print_line("\n".join(result.ending()), sys.stdout)
    (folder / "rehearsal.json").write_text(json.dumps(result.as_dict(), indent=1) + "\n", encoding="utf-8")
    (folder / "rehearsal.txt").write_text(result.text(), encoding="utf-8")
    print_line(f"{folder / 'rehearsal.txt'} and rehearsal.json beside it say so.", sys.stdout)
    return int(result.failed > 0)


def _train_words(args: argparse.Namespace) -> list[str]:
    """What to train in, as words of `turnsmith train`; settings are in a file of their own."""
    words = [word for word in (args.environment, *args.overrides) if word and ":" in word.partition("=")[0]]
    for option in ("agent", "data", "prompt", "answer", "validation"):
        if (value := getattr(args, option)) is not None:
            words += [f"--{option}", value]
    words += ["--curriculum"] * args.curriculum
    return [*words, *(word for name in args.reward or () for word in ("--reward", name))]

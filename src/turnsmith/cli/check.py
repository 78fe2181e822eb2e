"""`turnsmith check`: will my run work? The environment, its reward, these machines, a queued run, and what it takes."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from turnsmith.cli.agent import add_agent_options, add_training_options
from turnsmith.cli.check_kinds import of_environment, of_machine, of_plan, of_rehearsal
from turnsmith.cli.run_folders import add_config_option
from turnsmith.text import can_draw_live, print_line, printable

if TYPE_CHECKING:
    from turnsmith.check.report import Report

_WIDEST = 120
_DESCRIPTION = """\
Will my run work? Play real episodes in your environment, with scripted texts
and with your model, and say what would go wrong in training, why it matters and
what to do. Takes a minute or two and needs no GPU.

With --machine instead, train and kill for up to ten minutes on these machines;
with --rehearse, run what you will queue on a cluster scaled to this machine;
with --plan, forecast memory and time of a run. One of them at a time.

ENVIRONMENT is given as for `turnsmith train`. Without --model, checks that need
one are skipped. Exits with 1 if a check failed, or if none could be run;
warnings do not count."""

_EXAMPLES = """\
examples:
  turnsmith check my_game.py:MyGame
  turnsmith check --demo
  turnsmith check my_game.py:MyGame --model tiny --audit --html check.html
  turnsmith check --machine inference.backend=vllm ray.gpus_per_node=8
  turnsmith check my_game:MyGame --rehearse cluster.yaml --model smollm2
  turnsmith check my_game.py:MyGame --plan --model tiny --json forecast.json
  turnsmith check --plan --from runs/my-run --hardware H100 ray.gpus_per_node=8"""


def add_check_command(commands: Any) -> None:
    """Add `turnsmith check` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "check", help="find out before training what would go wrong", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    add = parser.add_argument
    add_agent_options(parser)
    add("overrides", metavar="KEY=VALUE", nargs="*", help="a setting, such as inference.max_turns=5")
    add("--model", metavar="MODEL", help="the model of the run, as in `turnsmith train` (default: none)")
    add_config_option(parser)
    add_training_options(parser)
    add("--success-reward", metavar="R", type=float, help="count an episode as a success if its reward is at least R")
    add("--only", metavar="CHECK", action="append", default=[], help="run only this check; repeatable")
    add("--explain", metavar="CHECK", help="what a check plays, why, and what to do about what it finds; then exit")
    add("-v", "--verbose", action="store_true", help="show the rows of all checks, and all that was measured")
    add("--json", metavar="FILE", type=os.path.abspath, help="also write the findings here, with their episodes")
    add("--html", metavar="FILE", type=os.path.abspath, help="also write them as a page here")
    kind = parser.add_argument_group("what to check, if not the environment").add_mutually_exclusive_group()
    kind.add_argument("--audit", action="store_true", help="the environment, and ways to cheat its reward")
    kind.add_argument("--machine", action="store_true", help="whether training works on these machines")
    kind.add_argument("--rehearse", metavar="FILE", help="the run with the settings in this YAML file, scaled down")
    kind.add_argument("--plan", action="store_true", help="how much memory and time the run takes")
    _add_options_of_kinds(parser)
    parser.set_defaults(run=_run)


def _add_options_of_kinds(parser: argparse.ArgumentParser) -> None:
    """Those that go with one kind of check only: their defaults are None or False."""
    audit = parser.add_argument_group("with --audit")
    audit.add_argument("--demo", action="store_true", help="audit a quiz with three mistakes that comes with turnsmith")
    audit.add_argument(
        "--seconds",
        metavar="S",
        type=float,
        help="longest time of the checks without a model, from the first opening on; the search has half (default: 50)",
    )
    attempts = "lines of `answer` or `actions`, `right`, and `seed` or `row`: are they paid as they deserve?"
    audit.add_argument("--attempts", metavar="FILE", help=attempts)
    folder = parser.add_argument_group("with --machine and --rehearse")
    folder.add_argument("--name", metavar="NAME", help="name of the folder of runs and logs (default: KIND-TIME)")
    folder.add_argument("--output-dir", metavar="FOLDER", help="where to create that folder (default: checks)")
    rehearse = parser.add_argument_group("with --rehearse").add_argument
    rehearse("--minutes", metavar="N", type=float, help="stop a process of the run after so long (default: 15)")
    scaled = "a setting of the scaled run only, such as inference.backend=vllm; repeatable"
    rehearse("--scaled", metavar="KEY=VALUE", action="append", help=scaled)
    rehearse("--no-run", action="store_true", help="only what needs no run: settings, layout, environment, disk")
    plan = parser.add_argument_group("with --plan").add_argument
    plan("--hardware", metavar="NAME", help="cpu (this machine, the default), H100, A100-80, ...")
    plan("--hardware-file", metavar="FILE", help="YAML file with GPUs of your own, as check/plan/hardware.yaml")
    told = "take tokens, turns and times from a run folder, or a file of `check --model M --json FILE`"
    plan("--from", metavar="PATH", dest="source", help=told)
    plan("--calibrate", action="store_true", help="measure this machine again")


_KINDS = {
    "environment": of_environment,
    "machine": of_machine,
    "rehearse": of_rehearsal,
    "plan": of_plan,
}
_OF_KINDS = {
    "seconds": ("audit",),
    "attempts": ("audit",),
    "name": ("machine", "rehearse"),
    "output_dir": ("machine", "rehearse"),
    "minutes": ("rehearse",),
    "scaled": ("rehearse",),
    "no_run": ("rehearse",),
    "hardware": ("plan",),
    "hardware_file": ("plan",),
    "source": ("plan",),
    "calibrate": ("plan",),
}
"""The kinds of check that an option goes with."""


def _run(args: argparse.Namespace) -> int:
    """Run the checks, print the verdict and what is wrong, and write the files that were asked for."""
    if args.explain is not None:
        print_line(_explained(args.explain), sys.stdout)
        return 0
    if args.demo:
        args.environment, args.audit = "turnsmith.check.audit.demo:Quiz", True
    for name, kinds in _OF_KINDS.items():
        if getattr(args, name) and not any(getattr(args, kind) for kind in kinds):
            option = "from" if name == "source" else name.replace("_", "-")
            args.usage_error(f"--{option} goes with {' or '.join(f'--{kind}' for kind in kinds)}")
    if args.only and (args.rehearse or args.plan):
        args.usage_error("--only is for checks of an environment or a machine")
    args.words = _train_words(args)
    kind = "machine" if args.machine else "rehearse" if args.rehearse else "plan" if args.plan else "environment"
    say = _Progress(lasting=kind != "environment")
    report = _KINDS[kind](args, say)
    say.clear()
    with suppress(OSError, ValueError):  # the reader is gone; the files are written all the same
        width = min(_WIDEST, shutil.get_terminal_size().columns)
        print_line("\n".join(report.lines(width, verbose=args.verbose)), sys.stdout)
    _write(args, report)
    return int(report.failed > 0 or report.is_empty)


def _explained(code: str) -> str:
    """What a check is for, in words."""
    from turnsmith.check.audit.checks import AUDIT
    from turnsmith.check.environment.checks import CHECKS
    from turnsmith.check.finding import check_codes

    check_codes([code], [*AUDIT, *CHECKS])
    check = next(one for one in [*AUDIT, *CHECKS] if one.code == code)
    needs = "What it proves fails the check; what it leaves to your judgment does not." if check.audit else ""
    alone = f"Alone: turnsmith check ENV {'--audit ' * check.audit}--only {code}."
    meant = f"If it is meant to be so, write into the source: # turnsmith: accepted {code} REASON" * check.audit
    return "\n".join(filter(None, [f"{code}: {check.name}", "", check.ran, check.why, needs, alone, meant]))


def _train_words(args: argparse.Namespace) -> list[str]:
    """What to train in, as words of `turnsmith train`; settings are in a file of their own."""
    words = [word for word in (args.environment, *args.overrides) if word and ":" in word.partition("=")[0]]
    for option in ("agent", "data", "prompt", "answer", "validation"):
        if (value := getattr(args, option)) is not None:
            words += [f"--{option}", value]
    words += ["--curriculum"] * args.curriculum
    return [*words, *(word for name in args.reward or () for word in ("--reward", name))]


def _write(args: argparse.Namespace, report: Report) -> None:
    """Write the files that were asked for."""
    from turnsmith.records.files import write_for_user
    from turnsmith.viewer.check_html import CheckRow, check_html

    if args.json is not None:
        write_for_user(args.json, json.dumps(report.as_dict(), indent=1, default=str) + "\n")
    if args.html is not None:
        write_for_user(
            args.html, check_html(report.subject, "turnsmith check", [CheckRow(**row) for row in report.rows()])
        )


class _Progress:
    """Says on stderr what is under way: on a terminal in one line that is written over, elsewhere only if it lasts."""

    def __init__(self, *, lasting: bool) -> None:
        self._file, self._is_live, self._lasting = sys.stderr, can_draw_live(sys.stderr), lasting

    def __call__(self, text: str) -> None:
        if self._is_live:
            line = printable(f"... {text}")[: shutil.get_terminal_size().columns - 1]
            self._draw(f"\r\x1b[2K{line}")
        elif self._lasting:
            print_line(f"... {text}", self._file)

    def clear(self) -> None:
        """Take the line away."""
        if self._is_live:
            self._draw("\r\x1b[2K")

    def _draw(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._file.write(text)
            self._file.flush()

"""`turnsmith runs`: list runs, or show one in a few lines."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from turnsmith.errors import ConfigError
from turnsmith.terminal import can_draw_live, print_line
from turnsmith.text import wrapped

RUN_HELP = "a run folder, the name of a run in `runs`, or `latest`"
"""Help text of every RUN argument; `run_folders.find_run` reads them."""

_DESCRIPTION = """\
List the runs in a folder, newest last; or show one of them in a few lines: its
state, its metrics, why its gradient is zero if it is, and its warnings with the
episodes to look at."""

_EXAMPLES = """\
examples:
  turnsmith runs
  turnsmith runs /data/runs
  turnsmith runs show MyGame-20260101-120000"""


def add_runs_command(commands: Any) -> None:
    """Add `turnsmith runs` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "runs",
        help="list runs, or show one of them",
        usage="turnsmith runs [-h] [FOLDER]\n       turnsmith runs [-h] show RUN",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    words = "a folder that holds runs (default: runs), or `show` and a run"
    parser.add_argument("words", metavar="FOLDER | show RUN", nargs="*", help=words)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """List the runs, or show one."""
    from turnsmith.cli.run_folders import OUTPUT_DIR, find_run
    from turnsmith.viewer.summary import list_runs, show_run

    match args.words:
        case ["show", name]:
            _print(show_run(find_run(name)), wrap=True)
        case ["show", *_]:
            raise ConfigError("`show` takes one run: turnsmith runs show RUN.")
        case [] | [_]:
            folder = Path(args.words[0] if args.words else OUTPUT_DIR).expanduser()
            if (folder / "run.json").is_file():
                _print(show_run(folder), wrap=True)
            else:
                _print(list_runs(folder))
        case _:
            raise ConfigError(
                "Pass one folder, or `show` and one run: turnsmith runs [FOLDER], turnsmith runs show RUN."
            )
    return 0


def _print(text: str, *, wrap: bool = False) -> None:
    """Print; on a terminal, long lines are wrapped if `wrap` is set."""
    if wrap and can_draw_live(sys.stdout):
        text = "\n".join(wrapped(text, shutil.get_terminal_size().columns))
    print_line(text, sys.stdout)

"""`turnsmith report`: a run's curves, warnings and episodes as one HTML file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from turnsmith.cli.runs import RUN_HELP
from turnsmith.terminal import print_line

_DESCRIPTION = """\
Write a run's report: curves, warnings and selected episodes in one HTML file
that needs no network and no other file. Works for a run in progress and for one
that crashed."""

_EXAMPLES = """\
examples:
  turnsmith report runs/MyGame-20260101-120000
  turnsmith report MyGame-20260101-120000 --out report.html"""


def add_report_command(commands: Any) -> None:
    """Add `turnsmith report` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "report",
        help="write a run's curves, warnings and episodes as one HTML file",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("run_folder", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--out", metavar="FILE", help="file to write (default: report.html in the run folder)")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Write the report and print its path and size."""
    from turnsmith.cli.run_folders import find_run
    from turnsmith.viewer import write_report

    out = write_report(find_run(args.run_folder), None if args.out is None else Path(args.out).expanduser())
    print_line(f"{out} ({out.stat().st_size / 1000:,.0f} kB)", sys.stdout)
    return 0

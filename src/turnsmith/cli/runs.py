"""`turnsmith runs`: list runs, show one in a few lines, write its report, or verify its records."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from turnsmith.errors import ConfigError
from turnsmith.records.json_text import to_json
from turnsmith.text import can_draw_live, print_line, wrapped

RUN_HELP = "a run folder, the name of a run in `runs`, or `latest`"
"""Help text of every RUN argument; `run_folders.find_run` reads them."""

_VERBS = ("list", "show", "report", "verify")
_USAGES = ("[--json] [list] [FOLDER]", "[--json] show RUN", "[--out FILE] report RUN", "[--json] verify RUN")

_DESCRIPTION = """\
List the runs in a folder, newest last; or show one of them in a few lines: its
state, its metrics, why its gradient is zero if it is, and its warnings with the
episodes to look at.

`report` writes curves, warnings and selected episodes to one HTML file that
needs no network and no other file, also of a run in progress or one that
crashed. `verify` checks that the records of a run agree with each
other: every episode ended once, none was trained on twice or from weights that
were too old, the ledger balances, metrics and checkpoints are what they should
be. Its exit status is 1 if they do not."""

_EXAMPLES = """\
examples:
  turnsmith runs
  turnsmith runs /data/runs
  turnsmith runs show MyGame-20260101-120000
  turnsmith runs report latest --out report.html
  turnsmith runs verify latest"""


def add_runs_command(commands: Any) -> None:
    """Add `turnsmith runs` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "runs",
        help="list runs; show one, write its report, verify its records",
        usage="\n       ".join(f"turnsmith runs [-h] {words}" for words in _USAGES),
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    words = "a folder that holds runs (default: runs), or what to do with a run: show, report or verify"
    parser.add_argument("words", metavar="FOLDER | VERB RUN", nargs="*", help=words)
    parser.add_argument("--json", action="store_true", help="print it as JSON; not a report")
    parser.add_argument(
        "--out", metavar="FILE", help="of a report: file to write (default: report.html in the run folder)"
    )
    parser.set_defaults(run=_run, usage_error=parser.error)


def _run(args: argparse.Namespace) -> int:
    """List the runs, or show, report or verify one."""
    from turnsmith.cli.run_folders import OUTPUT_DIR, find_run
    from turnsmith.viewer.summary import describe_runs, list_runs

    verb, *names = args.words if args.words and args.words[0] in _VERBS else ["list", *args.words]
    if args.out is not None and verb != "report":
        args.usage_error("--out goes with report")
    if verb == "list":
        if len(names) > 1:
            raise ConfigError(f"Pass one folder, or one of {', '.join(_VERBS[1:])} and one run.")
        folder = Path(names[0] if names else OUTPUT_DIR).expanduser()
        if (folder / "run.json").is_file():
            _show(folder, as_json=args.json)
        else:
            _print(to_json(describe_runs(folder)) if args.json else list_runs(folder))
        return 0
    if len(names) != 1:
        raise ConfigError(f"`{verb}` takes one run: turnsmith runs {verb} RUN.")
    run = find_run(names[0])
    if verb == "verify":
        return _verify(run, as_json=args.json)
    if verb == "report":
        _report(run, args.out)
    else:
        _show(run, as_json=args.json)
    return 0


def _report(folder: Path, out: str | None) -> None:
    """Write the report and print its path and size."""
    from turnsmith.viewer import write_report

    written = write_report(folder, None if out is None else Path(out).expanduser())
    _print(f"{written} ({written.stat().st_size / 1000:,.0f} kB)")


def _show(folder: Path, *, as_json: bool) -> None:
    """Print a run in a few lines, or its facts and its last metrics as JSON."""
    from turnsmith.viewer.run_view import read_run
    from turnsmith.viewer.summary import facts_of, show_run

    if as_json:
        view = read_run(folder)
        _print(to_json({**facts_of(view), "metrics": view.metrics[-1] if view.metrics else {}}))
    else:
        _print(show_run(folder), wrap=True)


def _verify(folder: Path, *, as_json: bool) -> int:
    """Print what the records of a run prove; 1 if they contradict each other."""
    from turnsmith.verify.run import verify_run

    verification = verify_run(folder)
    _print(to_json(verification.as_dict()) if as_json else "\n".join(verification.lines()))
    return 1 if verification.violations else 0


def _print(text: str, *, wrap: bool = False) -> None:
    """Print; on a terminal, long lines are wrapped if `wrap` is set."""
    if wrap and can_draw_live(sys.stdout):
        text = "\n".join(wrapped(text, shutil.get_terminal_size().columns))
    print_line(text, sys.stdout)

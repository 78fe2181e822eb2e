"""`turnsmith selftest`: find out in ten minutes whether training works on these machines."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from turnsmith.terminal import print_line

_DESCRIPTION = """\
Train, kill and measure for up to ten minutes on this machine or your cluster,
and print a table of what works and what does not. Uses the `tiny` model unless
you name another. Exits with 1 if a check failed."""

_EXAMPLES = """\
examples:
  turnsmith selftest
  turnsmith selftest inference.backend=vllm ray.gpus_per_node=8
  turnsmith selftest ray.address=auto ray.num_nodes=4 --json selftest.json"""


def add_selftest_command(commands: Any) -> None:
    """Add `turnsmith selftest` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "selftest", help="check in ten minutes that training works here", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    add = parser.add_argument
    add("overrides", metavar="KEY=VALUE", nargs="*", help="a setting, such as ray.gpus_per_node=8")
    add("--model", metavar="MODEL", default="tiny", help="a model folder, a Hugging Face id, or `tiny` (default)")
    add("--config", metavar="FILE", help="YAML file with settings")
    add("--folder", metavar="FOLDER", default="selftest", help="where to put runs and logs (default: selftest)")
    add("--only", metavar="CHECK", action="append", help="run only this check, by its name in the table; repeatable")
    add("--json", metavar="FILE", help="also write the report here")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Run all checks and print a row for each."""
    import tempfile

    from turnsmith.cli.train import read_config
    from turnsmith.selftest.run import Selftest

    config = read_config(args.config, args.model, args.overrides)
    Path(args.folder).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=args.folder, prefix="run-")).absolute()
    result = Selftest(config, folder, lambda check: print_line(check.line(), sys.stdout), args.only or ()).run()
    print_line(f"{result.summary()}; runs and logs are in {folder}", sys.stdout)
    report = json.dumps(result.as_dict(), indent=1) + "\n"
    try:
        for file in [folder / "selftest.json", *([Path(args.json)] if args.json else [])]:
            file.write_text(report, encoding="utf-8")
        print_line(f"To report a problem, attach {folder / 'selftest.json'}.", sys.stdout)
    except OSError as error:
        print_line(f"The report could not be written: {error}.", sys.stdout)
    return int(result.failed > 0)

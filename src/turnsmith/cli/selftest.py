"""`turnsmith selftest`: find out in ten minutes whether training works on these machines."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

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
    add("--only", metavar="CHECK", nargs="+", default=[], help="run only these checks, by their names in the table")
    add("--json", metavar="FILE", help="also write the results here, to attach to an issue")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Run all checks and print a row for each."""
    import tempfile

    from turnsmith.cli.train import read_config
    from turnsmith.selftest.run import Selftest

    config = read_config(args.config, args.model, args.overrides)
    Path(args.folder).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=args.folder, prefix="run-")).absolute()
    out = sys.stdout  # while a check trains, the output of the run goes to its log
    result = Selftest(config, folder, lambda check: print(check.line(), file=out, flush=True), args.only).run()
    print(f"{result.summary()}; runs and logs are in {folder}")
    if args.json:
        Path(args.json).write_text(json.dumps(result.as_dict(), indent=1) + "\n", encoding="utf-8")
    return int(result.failed > 0)

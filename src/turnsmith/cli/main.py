"""Where the `turnsmith` command begins: reads the command line, runs the command, turns our errors into one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from turnsmith import __version__
from turnsmith.cli import eval as evaluation
from turnsmith.cli import export, model, play, report, resume, runs, serve_env, train
from turnsmith.errors import TurnsmithError
from turnsmith.importing import add_to_path

_COMMANDS = (train, resume, runs, report, evaluation, play, serve_env, export, model)


def build_parsers(width: int | None = None) -> dict[str, argparse.ArgumentParser]:
    """The parser of the whole command line, then each command's, by name; `width` fixes the width of their help."""

    def formatter(prog: str) -> argparse.HelpFormatter:
        return argparse.RawDescriptionHelpFormatter(prog, width=width, max_help_position=28)

    parser = argparse.ArgumentParser(
        prog="turnsmith",
        description="Train a language model in your own multi-turn environment, on verl and Ray.",
        formatter_class=formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"turnsmith {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    parsers = [parser, *(command.add_to(commands, formatter) for command in _COMMANDS)]
    return {one.prog: one for one in parsers}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0 done, 2 an error that the user can mend, 130 Ctrl-C."""
    parser = build_parsers()["turnsmith"]
    args, extra = parser.parse_known_args(argv)
    # argparse stops collecting key=value words at the first option after them; the rest comes back as extra.
    if extra and hasattr(args, "overrides") and not any(word.startswith("-") for word in extra):
        args.overrides = [*args.overrides, *extra]
    elif extra:
        parser.error(f"unrecognized arguments: {' '.join(extra)}")
    if hasattr(args, "environment"):
        add_to_path(Path.cwd())  # as for a script that is run here
    try:
        return int(args.run(args) or 0)
    except TurnsmithError as error:
        print(f"turnsmith: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("turnsmith: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`| head`). Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    raise SystemExit(main())

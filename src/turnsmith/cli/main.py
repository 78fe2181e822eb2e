"""Entry point of the `turnsmith` command: parses the command line, runs the command, prints our errors as one line."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from turnsmith import __version__
from turnsmith.cli.check import add_check_command
from turnsmith.cli.completion import add_completion_command
from turnsmith.cli.eval import add_eval_command
from turnsmith.cli.export import add_export_command
from turnsmith.cli.model import add_model_command
from turnsmith.cli.play import add_play_command
from turnsmith.cli.resume import add_resume_command
from turnsmith.cli.runs import add_runs_command
from turnsmith.cli.serve import add_serve_command
from turnsmith.cli.train import add_train_command
from turnsmith.errors import EnvironmentFailure, InternalError, Preempted, TurnsmithError, internal_error, is_ours
from turnsmith.importing import add_to_path, hidden_modules, install_line
from turnsmith.text import print_line

TRAINING_PACKAGES = frozenset(
    [
        "verl",
        "ray",
        "torch",
        "transformers",
        "tokenizers",
        "huggingface_hub",
        "jinja2",
        "peft",
        "aiohttp",
        "tensordict",
        "transfer_queue",
        "hydra",
        "omegaconf",
        "psutil",
        "safetensors",
        "gguf",
        "renderers",
        "zmq",
        "fastapi",
        "uvicorn",
        "cachetools",
    ]
)
"""The packages of the extras for training, by their import names; the core needs none of them."""


_GROUPS = {
    "train": (add_train_command, add_resume_command),
    "measure": (add_check_command, add_eval_command, add_play_command),
    "look": (add_runs_command,),
    "use": (add_serve_command, add_export_command),
}
"""The commands in the order of the help, by what they are for."""
_NOW = {
    "plan": "check --plan",
    "rehearse": "check ENVIRONMENT --rehearse FILE",
    "report": "runs report",
    "selftest": "check --machine",
    "serve-env": "serve --environment ENVIRONMENT",
}
"""Former commands, and the options that replace them."""


def build_parsers(width: int | None = None) -> Mapping[str, argparse.ArgumentParser]:
    """Build the parser of the whole command line and those of its commands, by name; `width` fixes the help's width."""

    class Parser(argparse.ArgumentParser):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options, formatter_class=_formatter, allow_abbrev=False)

        def error(self, message: str) -> NoReturn:
            wrong = re.match(r"argument COMMAND: invalid choice: '(.+?)'", message)
            if wrong and wrong[1] in _NOW:
                print_line(f"turnsmith: `turnsmith {wrong[1]}` is now `turnsmith {_NOW[wrong[1]]}`.", sys.stderr)
                raise SystemExit(2)
            close = get_close_matches(wrong[1], commands.choices, n=1) if wrong else []
            super().error(f"there is no command {wrong[1]!r}; did you mean {close[0]}?" if wrong and close else message)

    def _formatter(prog: str) -> argparse.HelpFormatter:
        return argparse.RawDescriptionHelpFormatter(prog, width=width, max_help_position=28)

    parser = Parser(
        prog="turnsmith",
        usage="turnsmith [-h] [--version] COMMAND ...",
        description="Train a language model in your own multi-turn environment, on verl and Ray.",
    )
    parser.add_argument("--version", action="version", version=f"turnsmith {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", prog="turnsmith", help=argparse.SUPPRESS)
    groups: list[str] = []
    for title, adding in _GROUPS.items():
        before = len(commands.choices)
        for add in adding:
            add(commands)
        names = list(commands.choices)[before:]
        about = {action.dest: action.help for action in commands._choices_actions}  # pyright: ignore[reportPrivateUsage]
        groups.append("\n".join([f"{title}:", *(f"  {name:<8} {about[name]}" for name in names)]))
    parser.epilog = "\n\n".join(groups)
    add_model_command(commands)  # these two work, and are not listed
    add_completion_command(commands, build_parsers)
    return {"turnsmith": parser} | {command.prog: command for command in commands.choices.values()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    0 on success, 1 if what was asked for failed (every episode, a check), 2 for a wrong command line or setting, 70 for
    a bug of turnsmith, 75 for a run that was preempted, 130 for Ctrl-C.
    """
    parser = build_parsers()["turnsmith"]
    args, extra = parser.parse_known_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    # argparse stops collecting KEY=VALUE at the first option after them; the rest comes back as extra arguments.
    if extra and hasattr(args, "overrides") and not any(word.startswith("-") for word in extra):
        args.overrides = [*args.overrides, *extra]
    elif extra:
        parser.error(f"unrecognized arguments: {' '.join(extra)}")
    if hasattr(args, "environment"):
        add_to_path(Path.cwd())  # as if a script in this folder ran
    try:
        return int(args.run(args) or 0)
    except KeyboardInterrupt:
        print_line("turnsmith: stopped.", sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output is gone (`| head`). Without this, Python would fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        return _failed(args.command, error)


def _failed(command: str, error: Exception) -> int:
    """Print an exception of a command as a sentence and return its exit status; raise it again if it has none."""
    sentence, status = "", 2
    if isinstance(error, TurnsmithError):
        sentence = str(error)
        status = 75 if isinstance(error, Preempted) else 1 if isinstance(error, EnvironmentFailure) else 2
    elif isinstance(error, (ImportError, AttributeError)):
        sentence = _why_not_imported(command, error)
    if isinstance(error, InternalError) or (not sentence and is_ours(error)):
        bug = internal_error(error)
        print_line(bug.traceback, sys.stderr)
        sentence, status = f"{bug}.", 70  # EX_SOFTWARE
    if not sentence:
        raise error
    print_line(f"turnsmith: {sentence}", sys.stderr)
    return status


def _why_not_imported(command: str, error: Exception) -> str:
    """What the user can do about a failed import; empty: nothing."""
    if hidden := hidden_modules():
        return f"{str(error).rstrip('.')}.{hidden}"
    package = (getattr(error, "name", "") or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package not in TRAINING_PACKAGES:
        return ""
    lines = f"{install_line('cpu')}, or on a GPU machine {install_line('vllm')}"
    return f"`turnsmith {command}` needs {package}, which is not installed: {lines}."


if __name__ == "__main__":
    raise SystemExit(main())

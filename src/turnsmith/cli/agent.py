"""The options `--agent` and `--data`, which several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnsmith.config import ConfigStore

_COMMAND_AGENT = "turnsmith.env.agent:CommandAgent"


def add_agent_options(parser: argparse.ArgumentParser) -> None:
    """Add ENVIRONMENT, which an agent replaces, and the two options."""
    add = parser.add_argument
    add("environment", metavar="ENVIRONMENT", nargs="?", help="module:Name or path/to/file.py:Name")
    add("--agent", metavar="COMMAND", help="a program that asks the model for its turns itself, instead of ENVIRONMENT")
    add("--data", metavar="FILE", help="a .jsonl or .parquet file with a task in each row")
    parser.set_defaults(usage_error=parser.error)


def split_agent_options(args: argparse.Namespace) -> None:
    """Put the first KEY=VALUE in its place if `--agent` replaces ENVIRONMENT; exits if there is neither of the two."""
    if args.agent is not None and args.environment is not None:
        args.overrides.insert(0, args.environment)
        args.environment = None
    if args.agent is None and (args.environment is None or "=" in args.environment):
        args.usage_error("name an environment, module:Name, or an agent, --agent COMMAND")


def chosen_environment(args: argparse.Namespace, config: ConfigStore) -> str:
    """The environment to import; an agent's command goes to its settings."""
    if args.agent is None:
        return args.environment
    vars(config.environment).update(command=args.agent, folder=str(Path.cwd()))
    return _COMMAND_AGENT


def read_data(args: argparse.Namespace) -> list[dict[str, Any]] | None:
    """The tasks of `--data`."""
    if args.data is None:
        return None
    from turnsmith.trainer.task_file import read_tasks

    return list(read_tasks(args.data))

"""The options that say what is played, which several commands share: an environment, an agent, or rows of data."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnsmith.importing import absolute_name

if TYPE_CHECKING:
    from turnsmith.config import ConfigStore
    from turnsmith.env.mix import EnvironmentMix

_COMMAND_AGENT = "turnsmith.env.agent:CommandAgent"
_QUESTION_ANSWER = "turnsmith.env.adapters.question_answer:QuestionAnswer"


def add_agent_options(parser: argparse.ArgumentParser) -> None:
    """Add ENVIRONMENT, and the options that can replace it."""
    add = parser.add_argument
    several = "module:Name or path/to/file.py:Name; several, each with =WEIGHT, are mixed in one run"
    add("environment", metavar="ENVIRONMENT", nargs="?", help=several)
    add("--agent", metavar="COMMAND", help="a program that asks the model for its turns itself, instead of ENVIRONMENT")
    add(
        "--data",
        metavar="FILE",
        help="a .jsonl, .json, .csv or .parquet file, or a saved dataset: a task in each row",
    )
    rows = parser.add_argument_group("rows of --data that are a question and an answer, without ENVIRONMENT")
    rows.add_argument("--prompt", metavar="COLUMN", help="the column with the question")
    rows.add_argument("--answer", metavar="COLUMN", help="the column with the right answer")
    scores = "exact, number, math, choice, regex, json_schema, tests, or module:function; several are added up"
    rows.add_argument("--reward", metavar="NAME", action="append", help=scores)
    parser.set_defaults(usage_error=parser.error)


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """Add what a training run takes besides."""
    add = parser.add_argument
    add("--validation", metavar="FILE", help="held-out tasks for evaluation.every, a file as for --data")
    shares = "of several environments, play most where the model succeeds half of the time"
    add("--curriculum", action="store_true", help=shares)


def split_agent_options(args: argparse.Namespace, *, required: bool = True) -> None:
    """Put the first KEY=VALUE in its place if there is no ENVIRONMENT; exits if nothing to play is named but required.

    Several environments, or one with a weight, are put into `args.mix`.
    """
    words = [word for word in (args.environment, *args.overrides) if word is not None]
    named = [word for word in words if _is_environment(word)]
    args.mix = named if len(named) > 1 or any("=" in word for word in named) else []
    if args.mix:
        args.environment, args.overrides = None, [word for word in words if word not in named]
        if args.agent is not None or args.data is not None:
            args.usage_error("--agent and --data are for a single environment; a mix is given tasks from Python")
        return
    if getattr(args, "curriculum", False):
        args.usage_error("--curriculum is for several environments; an EnvironmentMix of your own says curriculum=True")
    has_rows = args.agent is None and args.data is not None
    may_be_setting = has_rows or not required
    if args.environment is not None and (args.agent is not None or (may_be_setting and _is_setting(args.environment))):
        args.overrides.insert(0, args.environment)
        args.environment = None
    is_named = args.environment is not None and not _is_setting(args.environment)
    if required and args.agent is None and not has_rows and not is_named:
        args.usage_error("name an environment, module:Name, an agent, --agent COMMAND, or questions, --data FILE")
    if (args.environment or args.agent) and (args.prompt or args.answer or args.reward):
        args.usage_error("--prompt, --answer and --reward are for --data without an environment or agent")


def _is_setting(word: str) -> bool:
    return "=" in word


def _is_environment(word: str) -> bool:
    return ":" in word.partition("=")[0]


def chosen_environment(args: argparse.Namespace, config: ConfigStore) -> str | EnvironmentMix:
    """The environment to import, or several; what the options say goes to its settings."""
    if args.mix:
        return _mix(args.mix, curriculum=getattr(args, "curriculum", False))
    if args.environment is not None:
        return args.environment
    from turnsmith.env.adapters.scorers import find_scorer

    settings = vars(config.environment)
    if args.agent is not None:
        settings.update(command=args.agent, folder=str(Path.cwd()))
        return _COMMAND_AGENT
    rewards = [absolute_name(name) for name in args.reward or ()]
    for name in rewards:
        find_scorer(name)  # raises here, before anything has started
    if any(":" in name for name in rewards) and config.environment.isolation == "auto":
        settings["isolation"] = "process"  # as for any code of the user's
    settings.update(prompt=args.prompt or "", answer=args.answer or "", reward=rewards)
    return _QUESTION_ANSWER


def _mix(words: list[str], *, curriculum: bool) -> EnvironmentMix:
    from turnsmith.env.mix import EnvironmentMix, MixMember
    from turnsmith.errors import ConfigError

    members: list[MixMember] = []
    for word in words:
        name, _, weight = word.partition("=")
        try:
            members.append(MixMember(absolute_name(name), weight=float(weight or 1)))
        except ValueError:
            raise ConfigError(f"{word}: the weight of an environment is a number, as in {name}=3.") from None
    return EnvironmentMix(members, curriculum=curriculum)


def read_data(args: argparse.Namespace) -> list[dict[str, Any]] | None:
    """The tasks of `--data`."""
    return _read(args.data)


def read_validation(args: argparse.Namespace) -> list[dict[str, Any]] | None:
    """The tasks of `--validation`."""
    return _read(args.validation)


def _read(file: str | None) -> list[dict[str, Any]] | None:
    if file is None:
        return None
    from turnsmith.trainer.task_file import read_tasks

    return list(read_tasks(file))

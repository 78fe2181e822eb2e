"""The options that say what is played, which several commands share: an environment, an agent, or rows of data."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
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
    program = (
        "a program that asks the model for its turns itself, instead of ENVIRONMENT; {column} is that column's text"
    )
    add("--agent", metavar="COMMAND", help=program)
    add(
        "--data",
        metavar="FILE",
        help="a .jsonl, .json, .csv or .parquet file, or a saved dataset: a task in each row",
    )
    rows = parser.add_argument_group("what an agent, or without one the model, answers to the rows of --data")
    rows.add_argument("--prompt", metavar="COLUMN", help="the column with the question; not of an agent")
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
    if files := [word for word in words if word.endswith((".yaml", ".yml")) and not _is_setting(word)]:
        args.usage_error(f"a file with settings is given as --config {files[0]}")
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
    if (args.environment or args.agent) and args.prompt:
        args.usage_error("--prompt is for --data without an environment or agent")
    if (args.answer or args.reward) and args.data is None:
        args.usage_error("--answer and --reward score answers to the rows of --data FILE")


def _is_setting(word: str) -> bool:
    return "=" in word


def _is_environment(word: str) -> bool:
    return ":" in word.partition("=")[0]


def chosen_environment(args: argparse.Namespace, config: ConfigStore) -> str | EnvironmentMix:
    """The environment to import, or several; what the options say goes to its settings."""
    if args.mix:
        return _mix(args.mix, curriculum=getattr(args, "curriculum", False))
    settings, is_scored = vars(config.environment), args.answer is not None or args.reward is not None
    target = args.environment or (_COMMAND_AGENT if args.agent is not None else _QUESTION_ANSWER)
    if target == _COMMAND_AGENT:
        settings.update(command=args.agent, folder=str(Path.cwd()))
    if target == _QUESTION_ANSWER:
        settings.update(prompt=args.prompt or "")
    if target == _QUESTION_ANSWER or is_scored:
        rewards = [absolute_name(name) for name in args.reward or ()]
        if any(":" in name for name in rewards) and config.environment.isolation == "auto":
            settings["isolation"] = "process"  # as for any code of the user's
        settings.update(answer=args.answer or "", reward=rewards)
    if target != args.environment or is_scored:
        _try_first_row(args, target, config)
    return target


def _try_first_row(args: argparse.Namespace, target: str, config: ConfigStore) -> None:
    """Raise here, before anything has started, if what scores is not there, or a column that the options name."""
    from turnsmith.env.spec import EnvironmentSpec
    from turnsmith.errors import ConfigError, EnvironmentFailure

    spec = EnvironmentSpec.of(target, config.environment)
    if args.environment is not None and not spec.is_agent:
        args.usage_error(f"--answer and --reward score an agent, and {spec.name} is an environment, which has rewards")
    try:
        spec.build().reset(task=next(_rows(args.data), None))
    except EnvironmentFailure as error:
        raise ConfigError(str(error)) from error


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
    return None if args.data is None else list(_rows(args.data))


def read_validation(args: argparse.Namespace) -> list[dict[str, Any]] | None:
    """The tasks of `--validation`."""
    return None if args.validation is None else list(_rows(args.validation))


def _rows(file: str | None) -> Iterator[dict[str, Any]]:
    if file is not None:
        from turnsmith.trainer.task_file import read_tasks

        yield from read_tasks(file)

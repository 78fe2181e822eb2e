"""The options of several commands that choose what is played: an environment, an agent, or rows of data."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnsmith.importing import absolute_name

if TYPE_CHECKING:
    from turnsmith.config import ConfigStore
    from turnsmith.env.mix import EnvironmentMix
    from turnsmith.env.spec import EnvironmentSpec

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
    """Add the options that only a training run has."""
    add = parser.add_argument
    add("--validation", metavar="FILE", help="held-out tasks for evaluation.every, a file as for --data")
    shares = "of several environments, play most where the model succeeds half of the time"
    add("--curriculum", action="store_true", help=shares)


@dataclass(frozen=True)
class Played:
    """The environment that the options of a command choose, its settings, and the files with its tasks."""

    environment: str | EnvironmentMix | None
    """The environment to import, or several; None if the options name none."""
    config: ConfigStore
    data: str | None
    validation: str | None

    @classmethod
    def of(
        cls, args: argparse.Namespace, read_settings: Callable[[list[str]], ConfigStore], *, required: bool = True
    ) -> Played:
        """Read the options; exits if they contradict each other, or name nothing to play where it is required.

        Args:
            args: The options of `add_agent_options`, perhaps with those of `add_training_options`.
            read_settings: The settings, with these KEY=VALUE.
            required: Whether something to play must be named.
        """
        named, overrides = named_environments(args, required=required)
        config = read_settings(overrides)
        is_played = bool(named or args.agent or args.data)
        environment = _environment(args, named, config) if is_played else None
        return cls(environment, config, args.data, getattr(args, "validation", None))

    def spec(self) -> EnvironmentSpec:
        """The environment, with its settings."""
        from turnsmith.env.spec import EnvironmentSpec

        assert self.environment is not None
        return EnvironmentSpec.of(self.environment, self.config.environment)

    def tasks(self) -> list[dict[str, Any]] | None:
        """The tasks of `--data`."""
        return None if self.data is None else list(_rows(self.data))

    def validation_tasks(self) -> list[dict[str, Any]] | None:
        """The tasks of `--validation`."""
        return None if self.validation is None else list(_rows(self.validation))


def named_environments(args: argparse.Namespace, *, required: bool = True) -> tuple[list[str], list[str]]:
    """Split the words of a command into environments and KEY=VALUE; exits if the environment is unclear."""
    words = [word for word in (args.environment, *args.overrides) if word is not None]
    if files := [word for word in words if word.endswith((".yaml", ".yml")) and "=" not in word]:
        args.usage_error(f"a file with settings is given as --config {files[0]}")
    named = [word for word in words if ":" in word.partition("=")[0]]
    if _is_mix(named):
        if args.agent is not None or args.data is not None:
            args.usage_error("--agent and --data are for a single environment; a mix is given tasks from Python")
        return named, [word for word in words if word not in named]
    if getattr(args, "curriculum", False):
        args.usage_error("--curriculum is for several environments; an EnvironmentMix of your own says curriculum=True")
    has_rows = args.agent is None and args.data is not None
    begins_with_setting = args.environment is not None and "=" in args.environment
    if args.environment is None or args.agent is not None or (begins_with_setting and (has_rows or not required)):
        named, overrides = [], words
    else:
        named, overrides = [args.environment], args.overrides
    if required and args.agent is None and not has_rows and (not named or begins_with_setting):
        args.usage_error("name an environment, module:Name, an agent, --agent COMMAND, or questions, --data FILE")
    if (named or args.agent) and args.prompt:
        args.usage_error("--prompt is for --data without an environment or agent")
    if (args.answer or (args.reward and not named)) and args.data is None:
        args.usage_error("--answer and --reward score answers to the rows of --data FILE")
    return named, overrides


def _is_mix(named: list[str]) -> bool:
    return len(named) > 1 or any("=" in word for word in named)


def _environment(args: argparse.Namespace, named: list[str], config: ConfigStore) -> str | EnvironmentMix:
    """The environment to import, or several; adds the other options to its settings."""
    if _is_mix(named):
        return _mix(named, curriculum=getattr(args, "curriculum", False))
    if named and args.agent is None and _is_scorer(named[0]):
        if args.data is None:
            args.usage_error(f"{named[0]} is a reward function: also pass the rows that it scores, --data FILE")
        args.reward, named = [named[0], *(args.reward or ())], []
    settings, is_scored = vars(config.environment), args.answer is not None or args.reward is not None
    target = named[0] if named else _COMMAND_AGENT if args.agent is not None else _QUESTION_ANSWER
    if target == _COMMAND_AGENT:
        settings.update(command=args.agent, folder=str(Path.cwd()))
    if target == _QUESTION_ANSWER:
        settings.update(prompt=args.prompt or "")
    if target == _QUESTION_ANSWER or is_scored:
        rewards = [absolute_name(name) for name in args.reward or ()]
        if any(":" in name for name in rewards) and config.environment.isolation == "auto":
            settings["isolation"] = "process"  # as for any code of the user's
        settings.update(answer=args.answer or "", reward=rewards)
    if not named or is_scored:
        _try_first_row(args, target, config, is_named=bool(named))
    return target


def _try_first_row(args: argparse.Namespace, target: str, config: ConfigStore, *, is_named: bool) -> None:
    """Raise, before anything starts, if the scoring function or a column that the options name does not exist."""
    from turnsmith.env.adapters.question_answer import QuestionAnswer
    from turnsmith.env.spec import EnvironmentSpec
    from turnsmith.errors import ConfigError, EnvironmentFailure

    spec = EnvironmentSpec.of(target, config.environment)
    if is_named and not spec.is_agent and not issubclass(spec.load(), QuestionAnswer):
        args.usage_error(f"--answer and --reward score an agent, and {spec.name} is an environment, which has rewards")
    try:
        spec.build().reset(task=next(_rows(args.data), None))
    except EnvironmentFailure as error:
        raise ConfigError(str(error)) from error


def _is_scorer(name: str) -> bool:
    """Whether a name is that of a function with a parameter for the model's answer."""
    from turnsmith.env.adapters.scorers import is_scorer
    from turnsmith.env.spec import ADAPTERS
    from turnsmith.errors import ConfigError
    from turnsmith.importing import import_object

    if name.partition(":")[0] in ADAPTERS:
        return False
    try:
        return is_scorer(import_object(absolute_name(name)))
    except ConfigError:
        return False  # told where it is used


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


def _rows(file: str | None) -> Iterator[dict[str, Any]]:
    if file is not None:
        from turnsmith.trainer.task_file import read_tasks

        yield from read_tasks(file)

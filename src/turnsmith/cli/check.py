"""`turnsmith check`: find out before training whether an environment, its reward and a model fit each other."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnsmith.cli.agent import (
    add_agent_options,
    chosen_environment,
    read_data,
    read_validation,
    split_agent_options,
)
from turnsmith.terminal import hide_progress_bars, print_line

if TYPE_CHECKING:
    from turnsmith.check.finding import Check
    from turnsmith.check.run import CheckResult
    from turnsmith.config import ConfigStore
    from turnsmith.trajectory import Trajectory

_DESCRIPTION = """\
Play real episodes in your environment, with scripted texts and with your model,
and say what would go wrong in training, why it matters and what to do. Takes a
minute or two and needs no GPU. Exits with 1 if a check failed; warnings do not
count.

ENVIRONMENT is given as for `turnsmith train`. Without --model, checks that need
one are skipped."""

_EXAMPLES = """\
examples:
  turnsmith check my_game.py:MyGame
  turnsmith check my_game.py:MyGame --model tiny --config my_run.yaml
  turnsmith check my_game.py:MyGame --model tiny --audit --html check.html"""


def add_check_command(commands: Any) -> None:
    """Add `turnsmith check` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "check",
        help="find out before training what would go wrong",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    add = parser.add_argument
    add_agent_options(parser)
    add("overrides", metavar="KEY=VALUE", nargs="*", help="a setting, such as inference.max_turns=5")
    add("--model", metavar="MODEL", help="the model to play with, as in `turnsmith eval` (default: none)")
    add("--config", metavar="FILE", help="YAML file with the settings of the run")
    add("--validation", metavar="FILE", help="held-out tasks, to be compared with those of --data")
    add("--success-reward", metavar="R", type=float, help="count an episode as a success if its reward is at least R")
    add("--audit", action="store_true", help="also let a panel of policies look for ways to cheat the reward")
    trained = "with --audit: also train `tiny` so long, to find what is paid without success"
    add("--train", metavar="MINUTES", type=float, help=trained)
    add("--only", metavar="CHECK", action="append", help="run only this check, by its name in the table; repeatable")
    add("--json", metavar="FILE", type=os.path.abspath, help="also write the findings here, with their episodes")
    add("--html", metavar="FILE", type=os.path.abspath, help="also write them as a page here")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Run the checks and print a row for each."""
    from turnsmith.check.report import failed, summary
    from turnsmith.cli.train import read_config
    from turnsmith.env.spec import EnvironmentSpec
    from turnsmith.rollout.isolation_check import check_isolation

    split_agent_options(args)
    config = read_config(args.config, args.model, args.overrides)
    if args.train is not None and not args.audit:
        args.usage_error("--train is a part of --audit")
    checks = chosen_checks(args.only or (), audit=args.audit)
    spec = EnvironmentSpec.of(chosen_environment(args, config), config.environment).isolated()
    check_isolation(spec)
    spec.check_tasks(read_data(args) or ())
    print_line(f"{spec.name} · {args.model or 'no model'} · {len(checks)} checks", sys.stdout)
    cache: dict[str, Any] = {}
    results = _results(args, config, spec, checks, cache)
    if args.train is not None:
        results.append(_train(args, config, spec, cache))
    print_line(summary(results), sys.stdout)
    _write(args, spec.name, results, cache.get("model") or ())
    return int(failed(results) > 0)


def chosen_checks(only: Sequence[str], *, audit: bool) -> list[Check]:
    """The checks to run; those of the audit only if asked for, or named."""
    from turnsmith.check.checks import CHECKS
    from turnsmith.errors import ConfigError

    names = [check.name for check in CHECKS]
    for name in only:
        if name not in names:
            raise ConfigError(f"There is no check {name!r}: choose from {', '.join(map(repr, names))}.")
    return [check for check in CHECKS if (check.name in only if only else audit or not check.audit)]


def _train(args: argparse.Namespace, config: ConfigStore, spec: Any, cache: dict[str, Any]) -> CheckResult:
    """Train against the reward, and show what that found."""
    import tempfile

    from turnsmith.selftest.red_team import train_against

    folder = Path(tempfile.mkdtemp(prefix="turnsmith-red-team-"))
    print_line(f"training tiny for {args.train:g} minutes in {folder} ...", sys.stdout)
    result = train_against(config, spec, args.train, folder, tasks=read_data(args), panel=cache.get("panel"))
    _show(result)
    return result


def _results(
    args: argparse.Namespace, config: ConfigStore, spec: Any, checks: Sequence[Check], cache: dict[str, Any]
) -> list[CheckResult]:
    from turnsmith.check.run import run_checks
    from turnsmith.check.subject import Subject

    given: dict[str, Any] = {"environment": spec, "config": config, "success_reward": args.success_reward}
    given |= {"cache": cache, "tasks": read_data(args), "validation_tasks": read_validation(args)}
    given["seed"] = config.training.seed
    if args.model is None:
        from turnsmith.loop_thread import LoopThread

        with closing(LoopThread("turnsmith-check")) as loop:
            return loop.run(run_checks(Subject(**given), checks, _show))
    return _with_model(config, given, checks)


def _with_model(config: ConfigStore, given: dict[str, Any], checks: Sequence[Check]) -> list[CheckResult]:
    from turnsmith.check.run import run_checks
    from turnsmith.check.subject import Subject
    from turnsmith.cli.engine import model_name_or_path, open_engine
    from turnsmith.inference.http_client import is_url
    from turnsmith.models import resolve
    from turnsmith.tools.parsing.formats import parser_for

    hide_progress_bars()
    print_line("loading the model ...", sys.stdout)
    path = None if is_url(model_name_or_path(config)) else resolve(config.model.model_name, config.model.local_path)
    with open_engine(config) as engine:
        parser = parser_for(config.inference.tool_format, engine.tokenizer)
        subject = Subject(**given, chat=engine.chat, engine=engine.engine, parser=parser, model_path=path)
        return engine.run(run_checks(subject, checks, _show))


def _show(result: CheckResult) -> None:
    from turnsmith.check.report import result_lines

    with suppress(OSError, ValueError):  # the reader is gone; the files are written all the same
        print_line("\n".join(result_lines(result)), sys.stdout)


def _write(args: argparse.Namespace, name: str, results: Sequence[CheckResult], played: Sequence[Trajectory]) -> None:
    """Write the files that were asked for."""
    from turnsmith.check.report import as_dict, as_row
    from turnsmith.records.files import write_for_user
    from turnsmith.viewer.check_html import CheckRow, check_html

    report = {"environment": name, "model": args.model, **as_dict(results)} | _sample(played)
    rows = [CheckRow(**as_row(result)) for result in results]
    about = f"{args.model or 'no model'} · turnsmith check"
    texts = (
        (args.json, lambda: json.dumps(report, indent=1, default=str) + "\n"),
        (args.html, lambda: check_html(name, about, rows)),
    )
    for file, text in texts:
        if file is not None:
            write_for_user(file, text())


def _sample(played: Sequence[Trajectory]) -> dict[str, Any]:
    """What the model's episodes were like, for `turnsmith plan --from`."""
    from turnsmith.plan.workload import EpisodeSample

    known = [one for one in played if one.turns]
    return {"sample": EpisodeSample.of_episodes(known, "turnsmith check").as_dict()} if known else {}

"""`turnsmith eval`: measure a model in an environment, without training it."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from turnsmith.cli.agent import Played, add_agent_options
from turnsmith.cli.run_folders import add_config_option, add_folder_options
from turnsmith.records.run_state import EventKind
from turnsmith.text import hide_progress_bars

if TYPE_CHECKING:
    from turnsmith.cli.eval_view import EvaluationView
    from turnsmith.config import ConfigStore
    from turnsmith.env.spec import EnvironmentSpec
    from turnsmith.inference.sync.base import BaseInferenceEngine
    from turnsmith.records.run_folder import RunFolder
    from turnsmith.records.run_warnings import RunWarning
    from turnsmith.rollout.evaluation.evaluate import EvaluationPlan
    from turnsmith.rollout.evaluation.result import EvaluationResult

_EPISODES = 100

_DESCRIPTION = """\
Run episodes with a model and report its reward and success rate with 95 %
intervals. All episodes are saved in a run folder.

ENVIRONMENT is the environment class, a function that returns an environment, or
an agent function: `module:Name`, imported from the current folder, or
`path/to/file.py:Name`; or one by name, such as gymnasium:FrozenLake-v1. An
agent that is a program is given with --agent instead; rows of questions and
answers need only --data."""

_EXAMPLES = """\
examples:
  turnsmith eval my_game.py:MyGame --model smollm2
  turnsmith eval my_game.py:MyGame --model runs/my-run --compare eval-before
  turnsmith eval games.chess:Chess --model http://127.0.0.1:8000 --samples 8

Settings come from the defaults, then --config, then the options, then
KEY=VALUE; later ones win. `turnsmith train --dry-run` prints all of them."""


def add_eval_command(commands: Any) -> None:
    """Add `turnsmith eval` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "eval", help="measure a model in your environment", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    model = "a model folder, a run folder (its newest checkpoint), a Hugging Face id, `tiny`, `smollm2`, or a URL"
    add = parser.add_argument
    add_agent_options(parser)
    add("overrides", metavar="KEY=VALUE", nargs="*", help="a setting, such as inference.max_turns=5")
    add("--model", metavar="MODEL", help=model)
    add("--episodes", metavar="N", type=int, help=f"number of episodes (default: about {_EPISODES})")
    add("--samples", metavar="K", type=int, default=1, help="episodes from each start, for pass@k (default: 1)")
    add("--seed", metavar="S", type=int, help="seed of the first start (default: 1000000, unlike training's)")
    add("--concurrency", metavar="C", type=int, default=64, help="episodes in parallel (default: 64)")
    add("--backend", metavar="NAME", help="transformers or vllm; with a server's URL: openai or sglang (default: auto)")
    add("--tokenizer", metavar="MODEL", help="tokenizer to use if the server does not name its own")
    add("--served-model", metavar="NAME", help="model to use if the server has several")
    add("--success-reward", metavar="R", type=float, help="count an episode as a success if its reward is at least R")
    add(
        "--compare",
        metavar="RUN",
        help="compare with an earlier evaluation of the same starts (as in `runs show`)",
    )
    add("--json", metavar="FILE", type=os.path.abspath, help="also write the result here")
    add_folder_options(parser, "eval-ENVIRONMENT-TIME")
    add_config_option(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Evaluate, show and record the result. Exits with 1 if every episode failed, with 130 after Ctrl-C."""
    from turnsmith.cli.eval_view import EvaluationView, evaluation_header
    from turnsmith.cli.run_folders import check_output_dir, find_run
    from turnsmith.rollout.spec import check_isolation

    played = Played.of(args, lambda words: evaluation_config(args, words))
    config, spec = played.config, played.spec().isolated()
    check_isolation(spec)
    plan = evaluation_plan(args, config, played.tasks())
    if args.compare is not None:
        args.compare = str(find_run(args.compare, config.checkpoint.output_dir))
    earlier = _read_earlier(args.compare, plan)
    check_output_dir(config)
    hide_progress_bars()
    with EvaluationView(plan, evaluation_header(spec, config, plan)) as view:
        spec, warning = _settled(config, spec, plan)
        if warning is not None:
            view.note(str(warning))
        return _evaluate(view, args, config, spec, earlier, [warning])


def _settled(
    config: ConfigStore, spec: EnvironmentSpec, plan: EvaluationPlan
) -> tuple[EnvironmentSpec, RunWarning | None]:
    """The environment, with a worker process for each if they would disturb each other, and what is said of that."""
    from turnsmith.check.environment.run import settle
    from turnsmith.check.environment.subject import Subject
    from turnsmith.rollout.players import Players

    players = Players.of(config.players).settings.values()
    if not config.training.check or any(not one.who.startswith("scripted:") for one in players):
        return spec, None
    tasks = [dict(task) for task in plan.tasks or () if task is not None]
    return settle(Subject(environment=spec, config=config, tasks=tasks or None, seed=plan.seed))


def _evaluate(
    view: EvaluationView,
    args: argparse.Namespace,
    config: ConfigStore,
    spec: EnvironmentSpec,
    earlier: EvaluationResult | None,
    warnings: list[RunWarning | None],
) -> int:
    from turnsmith.cli.engine import open_engine
    from turnsmith.errors import EnvironmentFailure, InternalError
    from turnsmith.records.files import write_for_user
    from turnsmith.records.json_text import to_json
    from turnsmith.rollout.episode_report import refusal_warning

    view.show_loading()
    with open_engine(config, args.tokenizer, args.served_model) as engine:
        run = _start_run(config, view.plan, spec)
        try:
            result, stopped = _run_episodes(view, config, spec, engine)
        except (EnvironmentFailure, InternalError) as error:
            view.result().record(run)
            run.append_event(EventKind.FAILED, content=error.text if isinstance(error, InternalError) else str(error))
            raise
        comparison = result.compare(earlier) if earlier and result.counted else None
        result.record(run, **(comparison.metrics(args.compare) if comparison else {}))
        for warning in filter(None, [*warnings, refusal_warning(result.report)]):
            run.append_event(EventKind.WARNING, content=warning.content())
        counts = EventKind.FINISHED if result.counted else EventKind.FAILED
        end = EventKind.STOPPED if stopped else counts
        run.append_event(end, episodes=len(result.trajectories), content=result.report.first_error)
        if args.json:
            found = {"run": str(run.path), "is_complete": not stopped, **run.read_metrics()[-1]}
            write_for_user(args.json, to_json(found) + "\n")
        view.finish(result, comparison, against=args.compare, folder=str(run.path))
    return 130 if stopped else 0 if result.counted else 1


def evaluation_config(args: argparse.Namespace, overrides: list[str]) -> ConfigStore:
    """Read the settings: defaults, then the file, then the options, then KEY=VALUE."""
    from turnsmith.cli.train import read_config
    from turnsmith.config_sources import apply_overrides

    config = read_config(args.config, args.model, [])
    config.inference.backend = args.backend or config.inference.backend
    # The config file of a training run names that run; the evaluation must not take the name.
    config.checkpoint.run_name = args.name
    config.checkpoint.output_dir = args.output_dir or config.checkpoint.output_dir
    return apply_overrides(config, overrides)


def evaluation_plan(
    args: argparse.Namespace, config: ConfigStore, tasks: list[dict[str, Any]] | None = None
) -> EvaluationPlan:
    """Plan the episodes to run; without --episodes, about a hundred that --samples divides."""
    from turnsmith.cli.engine import sampling_from_config
    from turnsmith.rollout.evaluation.evaluate import FIRST_SEED, EvaluationPlan
    from turnsmith.rollout.failure_policy import FailurePolicy
    from turnsmith.rollout.players import Players
    from turnsmith.rollout.spec import Limits

    samples = max(1, args.samples)
    episodes = -(-_EPISODES // samples) * samples if args.episodes is None else args.episodes
    seed = FIRST_SEED if args.seed is None else args.seed
    return EvaluationPlan(
        episodes=episodes,
        samples=args.samples,
        seed=seed,
        tasks=tasks,
        limits=Limits.of(config.inference),
        sampling=sampling_from_config(config, seed),
        players=Players.of(config.players).check(),
        failures=FailurePolicy.of(config.failures),
        concurrency=args.concurrency,
        success_reward=args.success_reward,
    )


def _run_episodes(
    view: EvaluationView, config: ConfigStore, spec: EnvironmentSpec, engine: BaseInferenceEngine
) -> tuple[EvaluationResult, bool]:
    """Run the episodes. Returns the result and whether Ctrl-C stopped it; then only episodes that had ended count."""
    from dataclasses import replace

    from turnsmith.rollout.evaluation.evaluate import evaluate
    from turnsmith.tools.parsing.formats import parser_for

    plan = replace(view.plan, parser=parser_for(config.inference.tool_format, engine.tokenizer))
    view.start()
    try:
        return evaluate(spec, engine, plan=plan, on_episode=view.add), False
    except KeyboardInterrupt:
        return view.result(), True


def _read_earlier(folder: str | None, plan: EvaluationPlan) -> EvaluationResult | None:
    """Read the evaluation to compare with, and raise before any episode runs if its starts differ."""
    if folder is None:
        return None
    from turnsmith.rollout.evaluation.result import EvaluationResult, check_same_starts

    earlier = EvaluationResult.read(folder, plan.success_reward)
    check_same_starts([start.group_id for start in plan.starts()], earlier)
    return earlier


def _start_run(config: ConfigStore, plan: EvaluationPlan, spec: EnvironmentSpec) -> RunFolder:
    from turnsmith.cli.engine import backend_name, model_name_or_path
    from turnsmith.cli.run_folders import create_run_folder
    from turnsmith.records.run_state import this_process

    run = create_run_folder(config, "eval", spec.name)
    run.append_event(
        EventKind.EVALUATION,
        environment=spec.name,
        model=model_name_or_path(config),
        backend=backend_name(config),
        episodes=plan.episodes,
        samples=plan.samples,
        seed=plan.seed,
        **this_process(),
    )
    return run

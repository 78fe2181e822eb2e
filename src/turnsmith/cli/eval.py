"""`turnsmith eval`: how good a model is in an environment, without training it."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnsmith.cli.eval_view import EvaluationView
    from turnsmith.config import ConfigStore
    from turnsmith.env.spec import EnvironmentSpec
    from turnsmith.inference.sync.base import BaseInferenceEngine
    from turnsmith.records.run_folder import RunFolder
    from turnsmith.rollout.evaluation.evaluate import EvaluationPlan
    from turnsmith.rollout.evaluation.result import EvaluationResult

_EPISODES = 100

_DESCRIPTION = """\
Play episodes with a model and say how good it is, with 95 % intervals.

ENVIRONMENT is the class to play: `module:Name`, found from the current folder,
or `path/to/file.py:Name`. Every episode is kept in a run folder."""

_EXAMPLES = """\
examples:
  turnsmith eval my_game.py:MyGame --model smollm2
  turnsmith eval my_game.py:MyGame --model trained/ --compare runs/eval-before
  turnsmith eval games.chess:Chess --model http://127.0.0.1:8000 --samples 8

Settings come from the defaults, then --config, then the options, then
KEY=VALUE; the later one wins. `turnsmith train --dry-run` prints all of them."""


def add_eval_command(commands: Any) -> None:
    """Add `turnsmith eval` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "eval",
        help="measure a model in your environment",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    add = parser.add_argument
    add("environment", metavar="ENVIRONMENT", help="module:Name or path/to/file.py:Name")
    add("overrides", metavar="KEY=VALUE", nargs="*", help="a setting, as in inference.max_turns=5")
    add(
        "--model",
        metavar="MODEL",
        help="a model folder, a run folder (its newest checkpoint), a Hugging Face id, `tiny`, `smollm2`, or a URL",
    )
    add("--episodes", metavar="N", type=int, help=f"episodes in all (about {_EPISODES}, unless told)")
    add("--samples", metavar="K", type=int, default=1, help="episodes from each start, for pass@k (1)")
    add("--seed", metavar="S", type=int, help="seed of the first start (1000000: not what training starts from)")
    add("--concurrency", metavar="C", type=int, default=64, help="episodes at the same time (64)")
    add("--backend", metavar="NAME", help="transformers, vllm, sglang or openai (a URL: openai)")
    add("--tokenizer", metavar="MODEL", help="for a server that does not say which tokenizer its model has")
    add("--served-model", metavar="NAME", help="for a server with several models: which one")
    add("--success-reward", metavar="R", type=float, help="count an episode as a success from this reward on")
    add(
        "--compare",
        metavar="RUN",
        help="compare with an earlier evaluation from the same starts: its folder, its name, or `latest`",
    )
    add("--name", metavar="NAME", help="of the run's folder (eval-ENVIRONMENT-TIME)")
    add("--output-dir", metavar="FOLDER", help="where run folders go (runs)")
    add("--config", metavar="FILE", help="a YAML file with settings")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Evaluate, show and record it. The exit status is 1 if no episode could be counted, 130 after Ctrl-C."""
    from turnsmith.cli.eval_view import EvaluationView, evaluation_header
    from turnsmith.cli.run_folders import find_run
    from turnsmith.env.spec import EnvironmentSpec
    from turnsmith.rollout.isolation_check import check_isolation

    config = evaluation_config(args)
    spec = EnvironmentSpec.of(args.environment, config.environment).isolated()
    check_isolation(spec)
    plan = evaluation_plan(args, config)
    if args.compare is not None:
        args.compare = str(find_run(args.compare, config.checkpoint.output_dir))
    earlier = _earlier(args.compare, plan)
    # The bars of the libraries that load models would be drawn across ours; tqdm reads this when it is imported.
    os.environ.setdefault("TQDM_DISABLE", "1")
    with EvaluationView(plan, evaluation_header(spec, config, plan)) as view:
        return _evaluate(view, args, config, spec, earlier)


def _evaluate(
    view: EvaluationView,
    args: argparse.Namespace,
    config: ConfigStore,
    spec: EnvironmentSpec,
    earlier: EvaluationResult | None,
) -> int:
    from turnsmith.cli.engine import open_engine

    view.loading()
    with open_engine(config, args.tokenizer, args.served_model) as engine:
        folder = _new_folder(config, view.plan, spec)
        result, stopped = _play(view, config, spec, engine)
        comparison = result.compare(earlier) if earlier and result.counted else None
        result.record(folder, **(comparison.metrics(args.compare) if comparison else {}))
        folder.append_event("stopped" if stopped else "finished", episodes=len(result.trajectories))
        view.finish(result, comparison, against=args.compare, folder=str(folder.path))
    return 130 if stopped else 0 if result.counted else 1


def evaluation_config(args: argparse.Namespace) -> ConfigStore:
    """The settings: defaults, then the file, then the options, then KEY=VALUE."""
    from turnsmith.cli.train import read_config
    from turnsmith.config_sources import apply_overrides

    config = read_config(args.config, args.model, [])
    config.inference.backend = args.backend or config.inference.backend
    # A config file of a training run names that run's folder, which is not this one's.
    config.checkpoint.run_name = args.name
    config.checkpoint.output_dir = args.output_dir or config.checkpoint.output_dir
    return apply_overrides(config, args.overrides)


def evaluation_plan(args: argparse.Namespace, config: ConfigStore) -> EvaluationPlan:
    """Which episodes to play; without --episodes, about a hundred that --samples divides."""
    from turnsmith.cli.engine import evaluation_sampling
    from turnsmith.rollout.evaluation.evaluate import FIRST_SEED, EvaluationPlan
    from turnsmith.rollout.failure_policy import FailurePolicy
    from turnsmith.rollout.limits import Limits

    samples = max(1, args.samples)
    episodes = -(-_EPISODES // samples) * samples if args.episodes is None else args.episodes
    seed = FIRST_SEED if args.seed is None else args.seed
    return EvaluationPlan(
        episodes=episodes,
        samples=args.samples,
        seed=seed,
        limits=Limits.of(config.inference),
        sampling=evaluation_sampling(config, seed),
        failures=FailurePolicy.of(config.failures),
        concurrency=args.concurrency,
        success_reward=args.success_reward,
    )


def _play(
    view: EvaluationView, config: ConfigStore, spec: EnvironmentSpec, engine: BaseInferenceEngine
) -> tuple[EvaluationResult, bool]:
    """The result, and whether Ctrl-C cut it short; then it has the episodes that had ended by then."""
    from dataclasses import replace

    from turnsmith.rollout.evaluation.evaluate import evaluate
    from turnsmith.tools.parsing.formats import parser_for

    plan = replace(view.plan, parser=parser_for(config.inference.tool_format, engine.tokenizer))
    view.playing()
    try:
        return evaluate(spec, engine, plan=plan, on_episode=view.add), False
    except KeyboardInterrupt:
        return view.result(), True


def _earlier(folder: str | None, plan: EvaluationPlan) -> EvaluationResult | None:
    """The evaluation to compare with; refused before anything is played if its starts are others."""
    if folder is None:
        return None
    from turnsmith.rollout.evaluation.result import EvaluationResult, check_same_starts

    found = EvaluationResult.read(folder, plan.success_reward)
    check_same_starts([start.group_id for start in plan.starts()], found)
    return found


def _new_folder(config: ConfigStore, plan: EvaluationPlan, spec: EnvironmentSpec) -> RunFolder:
    from turnsmith.cli.engine import engine_name, model_of
    from turnsmith.cli.run_folders import create_run_folder
    from turnsmith.records.run_state import this_process

    folder = create_run_folder(config, "eval", spec.name)
    folder.append_event(
        "evaluation",
        environment=spec.name,
        model=model_of(config),
        backend=engine_name(config),
        episodes=plan.episodes,
        samples=plan.samples,
        seed=plan.seed,
        **this_process(),
    )
    return folder

"""Hundreds of episodes of environments that use shared state, in every mode, beside the same episodes played alone.

    python -m tests.unit.env.many_episodes --episodes 512 --in-flight 64

Each line is an environment, a mode, and whether `turnsmith eval` or a trainer has chosen where it runs: how many
episodes went another way than alone, or the sentence that refused them. Exits with 1 if any did.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.unit.env import shared_state

from turnsmith import Chat, ConfigStore, EvaluationPlan, RayPPOTrainer, ScriptedEngine, evaluate
from turnsmith.check.environment import run as checks
from turnsmith.check.environment.subject import Subject
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import EnvironmentFailure
from turnsmith.inference.models import resolve
from turnsmith.rollout.evaluation.evaluate import FIRST_SEED
from turnsmith.rollout.spec import Limits
from turnsmith.trainer import quick_checks

MODES = ("loop", "thread", "process", "auto", "own_process")
KINDS = (
    shared_state.Draws,
    shared_state.Numpy,
    shared_state.Torch,
    shared_state.Imported,
    shared_state.SomeDraws,
    shared_state.LongNumpy,
    shared_state.NestedSetting,
    shared_state.TaskRow,
    shared_state.WorkingFolder,
    shared_state.Variable,
    shared_state.ClassAttribute,
    shared_state.Asynchronous,
)
ROWS = [{"cards": list(range(number, number + 6))} for number in range(7)]
_PEEK = '<tool_call>{"name": "peek", "arguments": {}}</tool_call>'


def settings(mode: str, seconds: float) -> ConfigStore:
    """The settings of a run in a mode."""
    checks.SECONDS = quick_checks.SECONDS = seconds
    config = ConfigStore()
    config.environment.isolation = mode
    config.environment.words = [0]
    return config


def chosen(kind: type, mode: str, path: str, seconds: float) -> EnvironmentSpec:
    """The environment as `turnsmith eval`, or the trainer, would play it."""
    config = settings(mode, seconds)
    if path == "eval":
        spec = EnvironmentSpec.of(kind, config.environment).isolated()
        return checks.settle(Subject(environment=spec, config=config, tasks=ROWS, seed=FIRST_SEED))[0]
    trainer = RayPPOTrainer(config, kind, dataset=ROWS)
    return quick_checks.run_quick_checks(trainer.config, trainer.parts, "", lambda line: None).environment.isolated()


def played(spec: EnvironmentSpec, chat: Chat, path: str, episodes: int, concurrency: int) -> list[Any]:
    """All that the episodes were shown and paid, in the order of their seeds."""
    engine = ScriptedEngine(lambda turn, prompt: _PEEK if turn == 1 else "go", chat)
    seed = FIRST_SEED if path == "eval" else 0
    plan = EvaluationPlan(
        episodes=episodes, seed=seed, tasks=ROWS, concurrency=concurrency, limits=Limits(tokens=10**6)
    )
    result = evaluate(spec, engine, chat, plan)
    return [(one.messages, list(one.rewards), one.outcome) for one in result.trajectories]


def compare(kind: type, modes: Sequence[str], path: str, args: argparse.Namespace, chat: Chat) -> int:
    """Print a line for each mode; returns how many episodes differ."""
    folder, differing, alone = Path.cwd(), 0, list[Any]()
    for mode in modes:
        began = time.perf_counter()
        try:
            spec = chosen(kind, mode, path, args.seconds)
        except EnvironmentFailure as error:
            print(f"{kind.__name__:15} {path:5} {mode:12} refused: {str(error)[:150]} ...", flush=True)
            continue
        finally:
            os.chdir(folder)
        checked = time.perf_counter() - began
        if not alone:
            plain = EnvironmentSpec.of(kind, settings("thread", args.seconds).environment)
            alone = played(plain, chat, path, args.episodes, 1)
            os.chdir(folder)
        began = time.perf_counter()
        together = played(spec, chat, path, args.episodes, args.in_flight)
        os.chdir(folder)
        count = sum(one != other for one, other in zip(alone, together, strict=True))
        differing += count
        took = f"checked in {checked:.1f} s, played in {time.perf_counter() - began:.1f} s"
        where = mode if spec.mode == mode else f"{mode} > {spec.mode}"
        print(f"{kind.__name__:15} {path:5} {where:20} {count} of {args.episodes} differ ({took})", flush=True)
    return differing


def main(words: Sequence[str] | None = None) -> int:
    """Compare, and print what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--kinds", default=",".join(kind.__name__ for kind in KINDS))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--paths", default="eval,train")
    parser.add_argument("--seconds", type=float, default=10.0, help="for the check before")
    args = parser.parse_args(words)
    from transformers import AutoTokenizer

    chat, differing = Chat(AutoTokenizer.from_pretrained(resolve("tiny"))), 0
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        for kind in (kind for kind in KINDS if kind.__name__ in args.kinds.split(",")):
            for path in args.paths.split(","):
                differing += compare(kind, args.modes.split(","), path, args, chat)
        tempfile.tempdir = None
    print(f"{differing} differ")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())

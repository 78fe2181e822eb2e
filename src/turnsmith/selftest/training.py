"""Short real training runs: a step of each kind, weights that reach the engine, a run that is killed and resumed."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides, to_dict
from turnsmith.records.episodes import read_episodes
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.yaml_text import dump_yaml
from turnsmith.selftest.canary import perturb_checkpoint
from turnsmith.selftest.letters import CountLetters
from turnsmith.selftest.result import CheckFailed
from turnsmith.trainer.config.auto import resolve_dtype
from turnsmith.trainer.ray_ppo_trainer import RayPPOTrainer

_ENVIRONMENT = "turnsmith.selftest.letters:CountLetters"
_TOLERANCE = {"float32": 1e-3}
"""Largest difference of a token's probability between engine and trainer, by dtype."""
_OTHER_TOLERANCE = 0.1
_MOVED = 0.05
"""Least change of a log-prob that the changed weight must cause in the engine."""
_PATIENCE = 300.0


def run_settings(config: ConfigStore, folder: Path, *more: str) -> ConfigStore:
    """The user's settings, with those of a short run."""
    ranks = config.ray.num_nodes * config.ray.gpus_per_node
    short = (
        f"training.batch_size={4 * max(2, ranks)} training.group_size=4 training.learning_rate=1e-3 "
        f"training.steps_per_epoch=1 inference.max_tokens=8 inference.max_prompt_tokens=256 "
        f"inference.max_episode_tokens=256 checkpoint.save_interval=0 checkpoint.output_dir={folder}"
    )
    return apply_overrides(copy.deepcopy(config), [*short.split(), *more])


@contextlib.contextmanager
def quiet_trainer(config: ConfigStore, log: Path) -> Iterator[RayPPOTrainer]:
    """A trainer whose progress goes to a file."""
    with log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        trainer = RayPPOTrainer(config, CountLetters)
        try:
            yield trainer
        finally:
            trainer.cleanup()


def tolerance(config: ConfigStore) -> float:
    """Largest difference in a token's probability that is not a fault."""
    return _TOLERANCE.get(resolve_dtype(config), _OTHER_TOLERANCE)


def check_step(record: dict[str, Any], config: ConfigStore) -> str:
    """A step trained: its numbers are finite, there was a gradient, and engine and trainer agree.

    Example:
        >>> step = {"step": 1, "grad_norm": 0.0, "policy_loss": 0.1, "rollout_diff/max": 1e-6, "time/step": 2.0}
        >>> check_step(step, ConfigStore())
        Traceback (most recent call last):
        turnsmith.selftest.result.CheckFailed: The gradient of step 1 is zero, so nothing was learnt.
    """
    numbers = {name: record.get(name, math.nan) for name in ("grad_norm", "policy_loss", "rollout_diff/max")}
    bad = [f"{name} is {value}" for name, value in numbers.items() if not math.isfinite(value)]
    if bad:
        raise CheckFailed(f"In step {record['step']}, {' and '.join(bad)}.")
    if not numbers["grad_norm"]:
        raise CheckFailed(f"The gradient of step {record['step']} is zero, so nothing was learnt.")
    if numbers["rollout_diff/max"] > tolerance(config):
        raise CheckFailed(
            f"The engine and the trainer give a token probabilities that differ by {numbers['rollout_diff/max']:.2g} "
            f"(at most {tolerance(config):g}): they do not have the same weights, or compute differently."
        )
    return (
        f"{record['time/step']:.1f} s a step, gradient {numbers['grad_norm']:.2g}, engine and trainer differ by "
        f"{numbers['rollout_diff/max']:.1g}"
    )


def check_weights_arrive(trainer: RayPPOTrainer, folder: Path) -> str:
    """A weight that is changed by a known amount changes the engine's log-probs, and the engine equals the trainer.

    The same step is made twice from one checkpoint, the second time with one weight changed in its files. Starts and
    sampling seeds are the same, so the first tokens of the episodes differ only because of the weight.
    """
    saved = trainer.save_checkpoint(folder / f"canary-{trainer.config.training.adv_estimator}")
    step = trainer.fit(1, 1)[-1]["step"]
    before = _first_tokens(trainer, step)
    name = perturb_checkpoint(saved)
    trainer.load_checkpoint(saved, trust=True)
    record = trainer.fit(1, 1)[-1]
    after = _first_tokens(trainer, step)
    moved = max((abs(before[key] - after[key]) for key in before.keys() & after.keys()), default=math.inf)
    check_step(record, trainer.config)
    if moved < _MOVED:
        raise CheckFailed(
            f"{name} was changed, and the engine's log-probs moved by {moved:.2g} (at least {_MOVED}): the engine did "
            "not get the new weight."
        )
    return f"{name} changed: the engine's log-probs moved by {moved:.2g} and equal the trainer's"


def _first_tokens(trainer: RayPPOTrainer, step: int) -> dict[tuple[str, int], float]:
    """The log-prob of each episode's first sampled token, by episode and token."""
    assert trainer.run is not None
    found: dict[tuple[str, int], float] = {}
    for episode in read_episodes(trainer.run.path, step=step):
        at = episode.tokens.prompt_length
        found[episode.episode_id, episode.tokens.ids[at]] = episode.tokens.log_probs[at]
    return found


def check_kill_and_resume(config: ConfigStore, folder: Path) -> str:
    """A run that is killed after its first checkpoint is resumed, and no step is lost or made twice."""
    settings = run_settings(config, folder, "checkpoint.run_name=killed", "checkpoint.save_interval=1")
    file = folder / "killed.yaml"
    file.write_text(dump_yaml(to_dict(settings)))
    run, log = folder / "killed", (folder / "killed.log").open("ab")
    command = [sys.executable, "-m", "turnsmith"]
    train = subprocess.Popen(
        [*command, "train", _ENVIRONMENT, "--config", str(file), "training.num_epochs=1000"],
        stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip
    try:
        _wait_for_checkpoint(run, train)
    finally:
        _kill_all(train.pid)
        train.wait()
    made = len(RunFolder.open(run).read_metrics())
    began = time.monotonic()
    resume = [*command, "resume", str(run), f"training.num_epochs={made + 1}"]
    code = subprocess.run(resume, stdout=log, stderr=log, timeout=_PATIENCE, check=False).returncode
    steps = [record["step"] for record in RunFolder.open(run).read_metrics()]
    if code or steps != list(range(1, made + 2)):
        raise CheckFailed(
            f"A run that was killed after step {made} was not resumed: exit code {code}, steps {steps}. "
            f"{folder / 'killed.log'} has its messages."
        )
    return f"killed after step {made}, resumed in {time.monotonic() - began:.0f} s"


def _wait_for_checkpoint(run: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _PATIENCE
    while not (run / "checkpoints" / "global_step_1").is_dir():
        if process.poll() is not None or time.monotonic() > until:
            raise CheckFailed(f"The run made no checkpoint: {run.parent / 'killed.log'} has its messages.")
        time.sleep(0.1)


def _kill_all(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in [*parent.children(recursive=True), parent]:
            with contextlib.suppress(psutil.NoSuchProcess):
                os.kill(process.pid, signal.SIGKILL)

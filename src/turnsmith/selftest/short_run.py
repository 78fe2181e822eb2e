"""Short real training runs: a few steps of each kind, whether changed weights reach the engine, GPU memory."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.records.episodes import read_episodes
from turnsmith.selftest.canary import judge_weights, model_log_probs, perturb_checkpoint, sampled_log_probs
from turnsmith.selftest.gpu_memory import judge_memory, sampled_while
from turnsmith.selftest.letters import CountLetters
from turnsmith.selftest.result import CheckFailed, CheckSkipped
from turnsmith.trainer.checkpoints.hugging_face import write_model
from turnsmith.trainer.config.auto import resolve_device, resolve_dtype
from turnsmith.trainer.config.layout import trainer_ranks
from turnsmith.trainer.ray_ppo_trainer import RayPPOTrainer

_STEPS = 2
"""The second one is the first that samples with trained weights."""
_TOLERANCE = {"float32": 1e-3}
"""Largest difference of a token's probability between engine and trainer, by dtype."""
_OTHER_TOLERANCE = 0.1


def run_settings(config: ConfigStore, folder: Path, *more: str) -> ConfigStore:
    """Settings of a short run: the user's model, layout and engine, and for everything else what makes it short."""
    own = ConfigStore(
        model=copy.deepcopy(config.model),
        inference=copy.deepcopy(config.inference),
        ray=copy.deepcopy(config.ray),
        verl=copy.deepcopy(config.verl),
    )
    short = (
        f"training.batch_size={4 * max(2, trainer_ranks(config))} training.group_size=4 training.learning_rate=1e-3 "
        f"training.steps_per_epoch=1 training.micro_batch_size={config.training.micro_batch_size} model.lora_rank=0 "
        "inference.max_tokens=8 inference.max_turn_tokens=null inference.max_prompt_tokens=256 "
        "inference.max_episode_tokens=256 inference.temperature=1 inference.top_p=1 inference.top_k=-1 "
        f"ray.rollout_nodes=0 ray.rollout_gpus_per_node=null checkpoint.save_interval=0 checkpoint.output_dir={folder}"
    )
    return apply_overrides(own, [*short.split(), *more])


class ShortRun:
    """A run that several checks share, because starting one takes longest. The first of them starts it.

    Args:
        config: The user's settings.
        folder: Where to put the run.
        settings: What is special about this run, as in `model.lora_rank=8`.
    """

    def __init__(self, config: ConfigStore, folder: Path, *settings: str) -> None:
        self.config = run_settings(config, folder, *settings)
        self._folder = folder
        self._trainer: RayPPOTrainer | None = None
        self._is_lost = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._trainer is not None:
            self._trainer.cleanup()

    def check_steps(self) -> str:
        """Its steps train."""
        return judge_steps(self._started().metrics_history[:_STEPS], self.config)

    def check_weights_arrive(self) -> str:
        """A weight that is changed by a known amount changes the engine's log-probs, and the engine equals the trainer.

        A checkpoint is saved, one weight is changed in its files, and the run loads it. The log-probs that the engine
        then samples with are compared with those that this process computes for the same tokens, with the weights from
        before and from after the change.
        """
        trainer = self._started()
        assert trainer.run is not None
        name = f"canary-{trainer.run.path.name}"
        saved = trainer.save_checkpoint(self._folder / name)
        weight = perturb_checkpoint(saved)
        changed, trust = self._folder / f"{name}-changed", self.config.model.trust_remote_code
        write_model(saved / "actor", changed, trust_remote_code=trust)
        trainer.load_checkpoint(saved, trust=True)
        record = trainer.fit(1, 1)[-1]
        episodes = read_episodes(trainer.run.path, step=record["step"])
        text = judge_weights(
            weight,
            engine=sampled_log_probs(episodes),
            before=model_log_probs(saved / "actor" / "huggingface", episodes, trust_remote_code=trust),
            changed=model_log_probs(changed, episodes, trust_remote_code=trust),
        )
        judge_steps([record], self.config)
        return text

    def check_memory(self) -> str:
        """The engine gives GPU memory back when it sleeps, and takes no more when it wakes."""
        if resolve_device(self.config) == "cpu":
            raise CheckSkipped("no GPU")
        trainer = self._started()
        return judge_memory(sampled_while(lambda: trainer.fit(1, 1)))

    def _started(self) -> RayPPOTrainer:
        """The trainer after its first steps."""
        if self._is_lost:
            raise CheckSkipped("its run failed above")
        if self._trainer is None:
            self._is_lost = True
            trainer = RayPPOTrainer(self.config, CountLetters)
            trainer.fit(1, _STEPS)  # cleans up itself if it fails
            self._trainer, self._is_lost = trainer, False
        return self._trainer


def tolerance(config: ConfigStore) -> float:
    """Largest difference in a token's probability that is not a fault."""
    return _TOLERANCE.get(resolve_dtype(config), _OTHER_TOLERANCE)


def judge_steps(records: Sequence[Mapping[str, Any]], config: ConfigStore) -> str:
    """Raise unless steps trained: their numbers are finite, there was a gradient, and engine and trainer agree.

    Example:
        >>> step = {"step": 1, "grad_norm": 0.0, "policy_loss": 0.1, "rollout_diff/max": 1e-6, "time/step": 2.0}
        >>> judge_steps([step], ConfigStore())
        Traceback (most recent call last):
        turnsmith.selftest.result.CheckFailed: The gradient of step 1 is zero, so nothing was learnt.
    """
    for record in records:
        _judge_step(record, config)
    last = records[-1]
    differ = max((record["rollout_diff/max"] for record in records if not record.get("staleness/max")), default=0.0)
    return (
        f"{last['time/step']:.1f} s a step, gradient {last['grad_norm']:.2g}, engine and trainer differ by {differ:.1g}"
    )


def _judge_step(record: Mapping[str, Any], config: ConfigStore) -> None:
    step, training = record["step"], config.training
    names = ["grad_norm", "policy_loss", "rollout_diff/max"] + ["value_loss"] * (training.adv_estimator == "gae")
    numbers = {name: float(record.get(name, math.nan)) for name in names}
    bad = [f"{name} is {value}" for name, value in numbers.items() if not math.isfinite(value)]
    if bad:
        raise CheckFailed(f"In step {step}, {' and '.join(bad)}.")
    if not numbers["grad_norm"]:
        raise CheckFailed(f"The gradient of step {step} is zero, so nothing was learnt.")
    staleness = record.get("staleness/max", 0)
    if staleness > training.max_staleness:
        raise CheckFailed(
            f"Step {step} trained on episodes that were sampled {staleness:g} steps before, more than "
            f"training.max_staleness={training.max_staleness}."
        )
    # Episodes that were sampled with older weights differ for that reason.
    if not staleness and numbers["rollout_diff/max"] > tolerance(config):
        raise CheckFailed(
            f"The engine and the trainer give a token probabilities that differ by {numbers['rollout_diff/max']:.2g} "
            f"(at most {tolerance(config):g}): they do not have the same weights, or compute differently."
        )

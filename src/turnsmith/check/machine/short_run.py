"""Short real training runs: a few steps of each kind, whether changed weights reach the engine, GPU memory."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from turnsmith.check.finding import Finding
from turnsmith.check.machine.canary import (
    judge_agreement,
    judge_weights,
    model_log_probs,
    perturb_checkpoint,
    sampled_log_probs,
    spread,
)
from turnsmith.check.machine.gpu_memory import judge_memory, sampled_while
from turnsmith.check.machine.letters import CountLetters
from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.inference.models import resolve
from turnsmith.records.advantages import read_advantages
from turnsmith.records.episodes import read_episodes
from turnsmith.trainer.checkpoints.hugging_face import write_model
from turnsmith.trainer.config.layout import resolve_device, resolve_dtype, trainer_ranks
from turnsmith.trainer.ray_ppo_trainer import RayPPOTrainer

_STEPS = 2
"""The second one is the first that samples with trained weights."""
_TOLERANCE = 1e-3
"""Largest difference of a token's probability between engine and trainer in float32."""
_REPORT = "Report this, with the versions that `turnsmith check --machine --json FILE` writes."
_LOST = Finding("skipped", "its run failed above")


def run_settings(config: ConfigStore, folder: Path, *more: str) -> ConfigStore:
    """Settings of a short run: the user's model, layout and engine; everything else makes the run short."""
    short = (
        f"training.batch_size={4 * max(2, trainer_ranks(config))} training.group_size=4 training.learning_rate=1e-3 "
        f"training.micro_batch_size={config.training.micro_batch_size} model.lora_rank=0 "
        "training.steps_per_epoch=1 inference.max_tokens=8 inference.max_prompt_tokens=256 "
        "inference.max_episode_tokens=256 inference.temperature=1 inference.top_p=1 inference.top_k=-1 "
        f"ray.rollout_nodes=0 ray.rollout_gpus_per_node=null checkpoint.output_dir={folder}"
    )
    own = ConfigStore(**{name: copy.deepcopy(getattr(config, name)) for name in ("model", "inference", "ray", "verl")})
    return apply_overrides(own, ["checkpoint.save_interval=0", *short.split(), *more])


class ShortRun:
    """A run that several checks share, because starting takes longest. The first of these checks starts it.

    Args:
        config: The user's settings.
        folder: Where to put the run.
        settings: What is special about this run, as in `model.lora_rank=8`.
        spreads: How far the log-probs of engine and trainer are apart in each run, and by rounding alone, which is
            measured once.
    """

    def __init__(
        self, config: ConfigStore, folder: Path, *settings: str, spreads: dict[str, Any] | None = None
    ) -> None:
        self.config = run_settings(config, folder, *settings)
        self._name = settings[0] if settings else "training.adv_estimator=grpo"
        self._spreads = {} if spreads is None else spreads
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

    def check_steps(self) -> Finding:
        """Whether its first steps train."""
        trainer = self._started()
        if trainer is None:
            return _LOST
        records = trainer.metrics_history[:_STEPS]
        steps = judge_steps(records, self.config)
        fresh = [record["step"] for record in records if not record.get("staleness/max")]
        if steps.status == "failed" or not fresh or (dtype := resolve_dtype(self.config)) == "float32":
            return steps
        agreement = self._agreement(trainer, fresh, dtype)
        return agreement if agreement.status == "failed" else replace(steps, saw=f"{steps.saw}; {agreement.saw}")

    def _agreement(self, trainer: RayPPOTrainer, steps: Sequence[int], dtype: str) -> Finding:
        """Compare engine and trainer token by token, in steps whose episodes have the step's own weights."""
        assert trainer.run is not None
        run, theirs = trainer.run.path, dict[str, Sequence[float]]()
        for step in steps:
            theirs |= read_advantages(run, step).trainer_log_probs
        episodes = [one for step in steps for one in read_episodes(run, step=step) if one.episode_id in theirs]
        if "rounding" not in self._spreads:
            model, trust = (
                resolve(self.config.model.model_name, self.config.model.local_path),
                self.config.model.trust_remote_code,
            )
            both = [model_log_probs(model, episodes, trust_remote_code=trust, dtype=one) for one in ("float32", dtype)]
            self._spreads["rounding"] = spread(*both)
        trained = sampled_log_probs(episodes, [theirs[one.episode_id] for one in episodes])
        self._spreads[self._name] = spread(sampled_log_probs(episodes), trained)
        return judge_agreement(self._spreads[self._name], self._spreads["rounding"], dtype)

    def check_weights_arrive(self) -> Finding:
        """A weight that is changed by a known amount changes the engine's log-probs, and the engine equals the trainer.

        A checkpoint is saved, one weight is changed in its files, and the run loads it. The log-probs that the engine
        then samples with are compared with those that this process computes for the same tokens, with the weights from
        before and from after the change.
        """
        trainer = self._started()
        if trainer is None:
            return _LOST
        assert trainer.run is not None
        name = f"canary-{trainer.run.path.name}"
        saved = trainer.save_checkpoint(self._folder / name)
        weight = perturb_checkpoint(saved)
        changed, trust = self._folder / f"{name}-changed", self.config.model.trust_remote_code
        write_model(saved / "actor", changed, trust_remote_code=trust)
        trainer.load_checkpoint(saved, trust=True)
        record = trainer.fit(1, 1)[-1]
        steps, episodes = judge_steps([record], self.config), read_episodes(trainer.run.path, step=record["step"])
        weights = judge_weights(
            weight,
            engine=sampled_log_probs(episodes),
            before=model_log_probs(saved / "actor" / "huggingface", episodes, trust_remote_code=trust),
            changed=model_log_probs(changed, episodes, trust_remote_code=trust),
        )
        return steps if weights.status == "passed" and steps.status == "failed" else weights

    def check_memory(self) -> Finding:
        """Whether the engine frees GPU memory when it sleeps, and takes no more than before when it wakes."""
        if resolve_device(self.config) == "cpu":
            return Finding("skipped", "no GPU")
        trainer = self._started()
        return _LOST if trainer is None else judge_memory(sampled_while(lambda: trainer.fit(1, 1)))

    def _started(self) -> RayPPOTrainer | None:
        """The trainer after its first steps; None if they failed in an earlier check."""
        if self._is_lost:
            return None
        if self._trainer is None:
            self._is_lost = True
            trainer = RayPPOTrainer(self.config, CountLetters)
            trainer.fit(1, _STEPS)  # cleans up itself if it fails
            self._trainer, self._is_lost = trainer, False
        return self._trainer


def judge_steps(records: Sequence[Mapping[str, Any]], config: ConfigStore) -> Finding:
    """Whether steps trained: their numbers are finite, there was a gradient, and engine and trainer agree.

    Example:
        >>> step = {"step": 1, "grad_norm": 0.0, "policy_loss": 0.1, "rollout_diff/max": 1e-6, "time/step": 2.0}
        >>> judge_steps([step], ConfigStore()).saw
        'The gradient of step 1 is zero, so nothing was learnt.'
    """
    wrong = [finding for record in records if (finding := _fault_of_step(record, config)) is not None]
    if wrong:
        return wrong[0]
    last = records[-1]
    differ = max((record["rollout_diff/max"] for record in records if not record.get("staleness/max")), default=0.0)
    took, gradient = last["time/step"], last["grad_norm"]
    told = f"{took:.1f} s a step, gradient {gradient:.2g}, engine and trainer differ by {differ:.1g}"
    return Finding("passed", told)


def _fault_of_step(record: Mapping[str, Any], config: ConfigStore) -> Finding | None:
    step, training = record["step"], config.training
    names = ["grad_norm", "policy_loss", "rollout_diff/max"] + ["value_loss"] * (training.adv_estimator == "gae")
    numbers = {name: float(record.get(name, math.nan)) for name in names}
    bad = [f"{name} is {value}" for name, value in numbers.items() if not math.isfinite(value)]
    if bad:
        return Finding("failed", f"In step {step}, {' and '.join(bad)}.", _REPORT)
    if not numbers["grad_norm"]:
        return Finding("failed", f"The gradient of step {step} is zero, so nothing was learnt.", _REPORT)
    staleness = record.get("staleness/max", 0)
    if staleness > training.max_staleness:
        saw = f"Step {step} trained on episodes that were sampled {staleness:g} steps before, more than \
training.max_staleness={training.max_staleness}."
        return Finding("failed", saw, _REPORT)
    # Episodes that were sampled with older weights differ for that reason.
    differ = numbers["rollout_diff/max"]
    if not staleness and resolve_dtype(config) == "float32" and differ > _TOLERANCE:
        saw = f"The engine and the trainer give a token probabilities that differ by {differ:.2g}, not {_TOLERANCE:g}."
        return Finding(
            "failed", saw, "They do not have the same weights, or compute differently: compare their dtypes."
        )
    return None

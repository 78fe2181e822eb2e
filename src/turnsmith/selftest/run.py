"""Runs the checks one after another. Those that train share a run where they can, because starting takes longest."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from pathlib import Path

from turnsmith.config import ConfigStore
from turnsmith.errors import TurnsmithError
from turnsmith.selftest import machine, training
from turnsmith.selftest.result import CheckFailed, CheckResult, CheckSkipped, SelftestResult
from turnsmith.selftest.throughput import check_throughput
from turnsmith.trainer.config.auto import resolve_device
from turnsmith.trainer.ray_ppo_trainer import RayPPOTrainer

_PPO = ("training.adv_estimator=gae",)
_LORA = ("model.lora_rank=8",)
_ASYNC = ("training.schedule=colocate_async", "training.rollout_correction=token")


class Selftest:
    """All checks on one set of settings.

    Args:
        config: The user's settings: the model, the layout, the engine.
        folder: Where to put runs and logs.
        show: Called with each result as soon as it is there.
        only: Names of checks to run; empty: all.
    """

    def __init__(
        self, config: ConfigStore, folder: Path, show: Callable[[CheckResult], None], only: Collection[str] = ()
    ) -> None:
        self.config = config
        self.folder = folder
        self._show = show
        self._only = only
        self._results: list[CheckResult] = []

    def run(self) -> SelftestResult:
        """Run all checks; one that fails does not keep the others from running."""
        self._check("packages", machine.check_packages)
        self._check("nodes", lambda: machine.check_nodes(self.config))
        self._check("disk", lambda: machine.check_disk(self.folder))
        self._check("verl as expected", machine.check_seams)
        self._check("engine", lambda: check_throughput(self.config))
        self._train("GRPO", "weights reach the engine")
        self._train("PPO with a critic", "", *_PPO)
        self._train("LoRA", "LoRA weights reach it", *_LORA)
        self._train("schedule colocate_async", "", *_ASYNC)
        self._check("killed and resumed", lambda: training.check_kill_and_resume(self.config, self.folder))
        return SelftestResult(machine.describe_machine(), self._results)

    def _train(self, name: str, canary: str, *settings: str) -> None:
        """A run with a step and, if it has a name, a check that its weights reach the engine."""
        if self._only and name not in self._only:
            return
        config = training.run_settings(self.config, self.folder, *settings)
        log = self.folder / f"{name.replace(' ', '-')}.log"
        with contextlib.ExitStack() as stack:
            trainers: list[RayPPOTrainer] = []

            def step() -> str:
                trainer = stack.enter_context(training.quiet_trainer(config, log))
                trainers.append(trainer)
                text = training.check_step(trainer.fit(1, 1)[-1], config)
                return f"{text}{self._memory(trainer)}"

            is_good = self._check(name, step)
            if canary:
                self._check(
                    canary,
                    (lambda: training.check_weights_arrive(trainers[0], self.folder))
                    if is_good
                    else lambda: _skip(f"{name} failed"),
                    belongs_to=name,
                )

    def _memory(self, trainer: RayPPOTrainer) -> str:
        if resolve_device(self.config) == "cpu":
            return ""
        first, last = (trainer.fit(1, 1)[-1].get("perf/memory_gib") for _ in range(2))
        if first is None or last is None:
            return ""
        if last > 1.05 * first:
            raise CheckFailed(
                f"GPU memory grew from {first:.1f} to {last:.1f} GiB in a step: the engine does not sleep."
            )
        return f", {last:.1f} GiB of GPU memory"

    def _check(self, name: str, check: Callable[[], str], *, belongs_to: str = "") -> bool:
        if self._only and not {name, belongs_to} & {*self._only}:
            return False
        began = time.monotonic()
        try:
            with (self.folder / "stderr.log").open("a") as log, contextlib.redirect_stderr(log):
                status, text = "passed", check()
        except CheckSkipped as reason:
            status, text = "skipped", str(reason)
        except (CheckFailed, TurnsmithError) as failure:
            status, text = "failed", str(failure)
        except Exception as error:  # noqa: BLE001  (a check that breaks is a failed check)
            status, text = "failed", f"{type(error).__name__}: {error}"
        self._results.append(CheckResult(name, status, time.monotonic() - began, text))
        self._show(self._results[-1])
        return status == "passed"


def _skip(reason: str) -> str:
    raise CheckSkipped(reason)

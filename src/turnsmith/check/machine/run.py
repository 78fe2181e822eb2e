"""Runs the checks of a machine one after another. They share training runs where they can: starting takes longest."""

from __future__ import annotations

import contextlib
import io
import traceback
from collections.abc import Callable, Collection, Generator
from pathlib import Path
from typing import Any

from turnsmith.check.finding import Check, Finding, Result, check_codes, run_check
from turnsmith.check.machine import machine
from turnsmith.check.machine.killed_run import KilledRun
from turnsmith.check.machine.machine import check_throughput
from turnsmith.check.machine.short_run import ShortRun, run_settings
from turnsmith.check.report import Report
from turnsmith.config import ConfigStore
from turnsmith.config_sources import to_dict
from turnsmith.errors import TurnsmithError

_ENVIRONMENT = "turnsmith.check.machine.letters:CountLetters"
_ASYNC = ("training.schedule=colocate_async", "training.rollout_correction=token")
_PATIENCE = 300.0
"""Seconds that a process of the killed run may take."""
_NO_LEARNING = "A step that does not learn, or not what it was given, wastes the whole run."
_STALE = "A model that is sampled with old weights is trained on episodes of another one."


PACKAGES = Check("packages", "packages", "A package of another version fails in the middle of a run, or silently.")
NODES = Check("nodes", "nodes", "A node with other packages fails when it is first used, or computes something else.")
GPUS = Check(
    "gpus", "what GPUs need", "A run that cannot fit, or whose driver is too old, dies minutes after its start."
)
SPACE = Check("disk", "disk", "A run whose disk is full stops, often in the night.")
ENGINE = Check("engine", "engine", "Most of a run's time is spent in the engine.")
GRPO = Check("grpo", "GRPO", _NO_LEARNING)
MEMORY = Check("memory", "memory after sleep and wake", "Memory that is not given back ends a long run.")
WEIGHTS = Check("weights", "weights reach the engine", _STALE)
PPO = Check("ppo", "PPO with a critic", _NO_LEARNING)
LORA = Check("lora", "LoRA", _NO_LEARNING)
LORA_WEIGHTS = Check("lora-weights", "LoRA weights reach it", _STALE)
COLOCATE_ASYNC = Check("colocate-async", "schedule colocate_async", _NO_LEARNING)
KILLED = Check("killed", "killed and resumed", "A run that cannot be resumed is lost with its first machine.")
CHECKS = (
    PACKAGES, NODES, GPUS, SPACE, ENGINE, GRPO, MEMORY, WEIGHTS, PPO, LORA, LORA_WEIGHTS, COLOCATE_ASYNC, KILLED
)  # fmt: skip


class MachineChecks:
    """All checks on one set of settings.

    Args:
        config: The user's settings: the model, the layout, the engine.
        folder: Where to put runs and logs.
        say: Called with the name of each check before it runs.
        only: Codes of checks to run; empty: all.

    Raises:
        ConfigError: There is no check with a code in `only`.
    """

    def __init__(
        self,
        config: ConfigStore,
        folder: Path,
        say: Callable[[str], None] = lambda name: None,
        only: Collection[str] = (),
    ) -> None:
        check_codes(list(only), CHECKS)
        self.config = config
        self.folder = folder
        self._say = say
        self._only = only
        self._spreads = dict[str, Any]()

    def looks(self) -> Generator[tuple[Check, Callable[[], Finding]]]:
        """Each check with the function that it calls. A training run ends after its last check."""
        yield PACKAGES, lambda: machine.check_packages(self.config)
        yield NODES, lambda: machine.check_nodes(self.config)
        yield GPUS, lambda: machine.check_gpu_needs(self.config, self.folder)
        yield SPACE, lambda: machine.check_disk(self.folder)
        yield ENGINE, lambda: check_throughput(self.config)
        with ShortRun(self.config, self.folder, spreads=self._spreads) as run:
            yield GRPO, run.check_steps
            yield MEMORY, run.check_memory
            yield WEIGHTS, run.check_weights_arrive
        with ShortRun(self.config, self.folder, "training.adv_estimator=gae", spreads=self._spreads) as run:
            yield PPO, run.check_steps
        with ShortRun(self.config, self.folder, "model.lora_rank=8", spreads=self._spreads) as run:
            yield LORA, run.check_steps
            yield LORA_WEIGHTS, run.check_weights_arrive
        with ShortRun(self.config, self.folder, *_ASYNC, spreads=self._spreads) as run:
            yield COLOCATE_ASYNC, run.check_steps
        yield KILLED, self._kill_and_resume

    def run(self) -> Report:
        """Run all checks, also after one has failed."""
        report = Report("this machine")
        with contextlib.closing(self.looks()) as looks:
            for check, look in looks:
                if not self._only or check.code in self._only:
                    self._say(check.name)
                    report.results.append(self.run_logged(check, look))
        settings = to_dict(self.config)
        # Other sections, such as the environment's, do not matter here and may be secret.
        shown = {name: settings[name] for name in ("model", "inference", "ray")}
        report.facts = {"machine": machine.describe_machine(), "settings": shown, "log_probs": self._spreads}
        return report

    def run_logged(self, check: Check, look: Callable[[], Finding]) -> Result:
        """Run one check; what it prints goes to a log."""

        def logged() -> Finding:
            try:
                return look()
            except TurnsmithError:
                raise
            except Exception:
                traceback.print_exc()
                raise

        log = _Log(self.folder / "check.log")
        with contextlib.closing(log), contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            log.write(f"== {check.name}\n")
            return run_check(check, logged)

    def _kill_and_resume(self) -> Finding:
        settings = run_settings(self.config, self.folder, "checkpoint.save_interval=1", "training.num_epochs=1000")
        run = KilledRun(settings, [_ENVIRONMENT], self.folder, _PATIENCE, self._say)
        trained = run.train()
        return trained if trained.status == "failed" else run.resume()


class _Log(io.TextIOBase):
    """A log of what checks print. On a full disk it keeps nothing; the check of the disk says so."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, text: str, /) -> int:
        with contextlib.suppress(OSError):
            self._file.write(text.encode(errors="replace"))
        return len(text)

    def close(self) -> None:
        self._file.close()

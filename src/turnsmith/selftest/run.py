"""Runs the checks one after another. Those that train share a run where they can, because starting takes longest."""

from __future__ import annotations

import contextlib
import io
import time
import traceback
from collections.abc import Callable, Collection, Generator
from pathlib import Path

from turnsmith.config import ConfigStore
from turnsmith.config_sources import to_dict
from turnsmith.errors import ConfigError, TurnsmithError
from turnsmith.selftest import machine
from turnsmith.selftest.killed_run import check_kill_and_resume
from turnsmith.selftest.result import CheckFailed, CheckSkipped, SelftestCheck, SelftestResult, Status
from turnsmith.selftest.short_run import ShortRun
from turnsmith.selftest.throughput import check_throughput

_ASYNC = ("training.schedule=colocate_async", "training.rollout_correction=token")


class Selftest:
    """All checks on one set of settings.

    Args:
        config: The user's settings: the model, the layout, the engine.
        folder: Where to put runs and logs.
        show: Called with each result as soon as it is there.
        only: Names of checks to run; empty: all.

    Raises:
        ConfigError: There is no check with a name in `only`.
    """

    def __init__(
        self, config: ConfigStore, folder: Path, show: Callable[[SelftestCheck], None], only: Collection[str] = ()
    ) -> None:
        self.config = config
        self.folder = folder
        self._show = show
        self._only = only
        names = [name for name, _ in self.checks()]
        for name in only:
            if name not in names:
                raise ConfigError(f"The selftest has no check {name!r}: choose from {', '.join(map(repr, names))}.")

    def checks(self) -> Generator[tuple[str, Callable[[], str]]]:
        """The name of each check, and a function that returns its figures or raises. A run ends with its last check."""
        yield "packages", lambda: machine.check_packages(self.config)
        yield "nodes", lambda: machine.check_nodes(self.config)
        yield "disk", lambda: machine.check_disk(self.folder)
        yield "verl as expected", machine.check_seams
        yield "engine", lambda: check_throughput(self.config)
        with ShortRun(self.config, self.folder) as run:
            yield "GRPO", run.check_steps
            yield "memory after sleep and wake", run.check_memory
            yield "weights reach the engine", run.check_weights_arrive
        with ShortRun(self.config, self.folder, "training.adv_estimator=gae") as run:
            yield "PPO with a critic", run.check_steps
        with ShortRun(self.config, self.folder, "model.lora_rank=8") as run:
            yield "LoRA", run.check_steps
            yield "LoRA weights reach it", run.check_weights_arrive
        with ShortRun(self.config, self.folder, *_ASYNC) as run:
            yield "schedule colocate_async", run.check_steps
        yield "killed and resumed", lambda: check_kill_and_resume(self.config, self.folder)

    def run(self) -> SelftestResult:
        """Run all checks; one that fails does not keep the others from running."""
        results: list[SelftestCheck] = []
        with contextlib.closing(self.checks()) as checks:
            for name, check in checks:
                if not self._only or name in self._only:
                    results.append(self.run_check(name, check))
                    self._show(results[-1])
        settings = to_dict(self.config)
        # Others, such as those of the environment, play no part here, and may be secret.
        shown = {name: settings[name] for name in ("model", "inference", "ray")}
        return SelftestResult(machine.describe_machine(), shown, results)

    def run_check(self, name: str, check: Callable[[], str]) -> SelftestCheck:
        """Run one check; what it prints goes to a log."""
        began = time.monotonic()
        status: Status = "failed"
        log = _Log(self.folder / "selftest.log")
        with contextlib.closing(log), contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            log.write(f"== {name}\n")
            try:
                text = check()
                status = "passed"
            except CheckSkipped as reason:
                status, text = "skipped", str(reason)
            except (CheckFailed, TurnsmithError) as failure:
                text = str(failure)
            except Exception as error:  # noqa: BLE001  (a check that breaks is a failed check)
                traceback.print_exc()
                text = f"{type(error).__name__}: {error}"
        return SelftestCheck(name, status, time.monotonic() - began, text)


class _Log(io.TextIOBase):
    """A log of what checks print. If the disk is full, the check of the disk says so, and the others run without it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, text: str, /) -> int:
        with contextlib.suppress(OSError):
            self._file.write(text.encode(errors="replace"))
        return len(text)

    def close(self) -> None:
        self._file.close()

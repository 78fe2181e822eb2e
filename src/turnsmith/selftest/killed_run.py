"""A run of its own that is killed after its first checkpoint, and resumed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import psutil

from turnsmith.config import ConfigStore
from turnsmith.config_sources import to_dict
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.yaml_text import dump_yaml
from turnsmith.selftest.result import CheckFailed
from turnsmith.selftest.short_run import run_settings

_ENVIRONMENT = "turnsmith.selftest.letters:CountLetters"
_COMMAND = (sys.executable, "-m", "turnsmith")
_PATIENCE = 300.0


def check_kill_and_resume(config: ConfigStore, folder: Path) -> str:
    """A run that is killed after its first checkpoint is resumed, and no step is lost or made twice."""
    settings = run_settings(config, folder, "checkpoint.run_name=killed", "checkpoint.save_interval=1")
    file, run = folder / "killed.yaml", folder / "killed"
    file.write_text(dump_yaml(to_dict(settings)))
    with (folder / "killed.log").open("ab") as log:
        _train_and_kill(run, [*_COMMAND, "train", _ENVIRONMENT, "--config", str(file), "training.num_epochs=1000"], log)
        made = len(RunFolder.open(run).read_metrics())
        began = time.monotonic()
        resume = [*_COMMAND, "resume", str(run), f"training.num_epochs={made + 1}"]
        code = subprocess.run(resume, stdout=log, stderr=log, timeout=_PATIENCE, check=False).returncode
    steps = [record["step"] for record in RunFolder.open(run).read_metrics()]
    return judge_resumed(made, code, steps, time.monotonic() - began, folder / "killed.log")


def judge_resumed(made: int, code: int, steps: Sequence[int], seconds: float, log: Path) -> str:
    """Raise unless a resumed run has each step once.

    Args:
        made: Steps that it had made when it was killed.
        code: Exit code of `turnsmith resume`, which was to make one more.
        steps: Those that the run folder has now.
        seconds: How long resuming took.
        log: Where its messages are.

    Example:
        >>> judge_resumed(2, 0, [1, 2, 3], 43.0, Path("killed.log"))
        'killed after step 2, resumed in 43 s'
    """
    if code or list(steps) != list(range(1, made + 2)):
        raise CheckFailed(
            f"A run that was killed after step {made} was not resumed: exit code {code}, steps {list(steps)}. "
            f"{log} has its messages."
        )
    return f"killed after step {made}, resumed in {seconds:.0f} s"


def _train_and_kill(run: Path, command: Sequence[str], log: IO[bytes]) -> None:
    with subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True) as train:
        try:
            until = time.monotonic() + _PATIENCE
            while not (run / "checkpoints" / "global_step_1").is_dir():
                if train.poll() is not None or time.monotonic() > until:
                    raise CheckFailed(f"The run made no checkpoint: {log.name} has its messages.")
                time.sleep(0.1)
        finally:
            _kill_all(train.pid)


def _kill_all(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in [*parent.children(recursive=True), parent]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

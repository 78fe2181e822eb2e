"""Signals that ask a run to stop: noted and raised where it is safe, and a checkpoint before a preempted run ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from turnsmith.cli import main as cli
from turnsmith.errors import Preempted, TrainingFailure
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_state import RunState, state_of
from turnsmith.trainer.dataset import Epochs
from turnsmith.trainer.driver.ending import Interrupt, ignore_preemption, preemptible, record_end, starting_ray
from turnsmith.trainer.session import train_until

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "run")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_preemption_is_raised_where_it_is_safe_and_handlers_are_put_back(number: signal.Signals) -> None:
    before = [signal.getsignal(one) for one in WATCHED]
    with Interrupt() as interrupt:
        interrupt.check()
        signal.raise_signal(number)
        signal.raise_signal(number)  # again: still only noted
        with pytest.raises(Preempted, match=f"Preempted by {number.name}"):
            interrupt.check()
    assert [signal.getsignal(one) for one in WATCHED] == before


def test_ctrl_c_after_a_preemption_stops_without_waiting_for_the_checkpoint() -> None:
    with Interrupt(preempted=True) as interrupt:
        signal.raise_signal(signal.SIGTERM)
        interrupt.check()  # known already
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_once_a_run_is_ending_schedulers_are_not_heard_any_more() -> None:
    with preemptible():
        ignore_preemption()
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.raise_signal(number)


def test_in_other_threads_nothing_is_changed() -> None:
    before = [signal.getsignal(one) for one in WATCHED]

    def use() -> None:
        with preemptible(), Interrupt() as interrupt:
            interrupt.check()

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert [signal.getsignal(one) for one in WATCHED] == before


def test_what_ray_starts_does_not_take_sigusr1_and_our_handler_of_sigterm_stays() -> None:
    with preemptible():
        ours = signal.getsignal(signal.SIGTERM)
        with starting_ray():
            signal.signal(signal.SIGTERM, lambda *_: None)  # as `ray.init` does
            child = "import signal, subprocess, sys; signal.raise_signal(signal.SIGUSR1); print('alive')"
            done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
            assert done.stdout == "alive\n", done
        assert signal.getsignal(signal.SIGTERM) is ours
        assert signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
        with pytest.raises(Preempted), starting_ray():
            signal.raise_signal(signal.SIGUSR1)  # not lost: raised at the end of the block


class Runner:
    """The calls that `train_until` makes of a task runner."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.train_until = SimpleNamespace(remote=lambda step, epochs: self.calls.append(f"train until {step}"))
        self.stop_soon = SimpleNamespace(remote=lambda: self.calls.append("stop soon"))


def preempted(run: RunFolder, end: Any) -> tuple[list[str], str]:
    """What was asked of the task runner, and what the user is told; `end`: how the call that trains ends in the end."""
    runner, told = Runner(), list[str]()

    def watch(reference: Any, grace: float | None = None) -> Any:
        if grace is None:
            raise Preempted("Preempted by SIGTERM.")
        assert grace == 9.0
        if isinstance(end, Exception):
            raise end
        return end

    try:
        train_until(7, Epochs(), runner, watch, 9.0, told.append)
    except Preempted as error:
        record_end(error, run)
        told.append(str(error))
    return runner.calls, told[-1]


def test_a_preempted_run_is_asked_to_save_and_says_how_to_go_on(run: RunFolder) -> None:
    (run.checkpoints_dir / "global_step_3").mkdir()
    calls, told = preempted(run, end=False)
    assert calls == ["train until 7", "stop soon"]
    assert told == f"Preempted by SIGTERM. `turnsmith resume {run.path}` continues from step 3."


def test_without_a_checkpoint_it_says_that_the_run_starts_again(run: RunFolder) -> None:
    assert preempted(run, end=False)[1].endswith(f" `turnsmith resume {run.path}` starts it again.")


def test_a_checkpoint_that_takes_too_long_or_fails_is_told(run: RunFolder) -> None:
    (run.checkpoints_dir / "global_step_3").mkdir()
    told = preempted(run, end=TimeoutError())[1]
    assert "could not be saved in 9 s (checkpoint.grace_seconds)" in told
    assert "continues from step 3" in told
    told = preempted(run, end=TrainingFailure("The disk is full."))[1]
    assert "could not be saved: The disk is full. `turnsmith resume" in told


def test_a_run_that_reaches_its_last_step_in_the_grace_period_is_finished(run: RunFolder) -> None:
    assert preempted(run, end=True)[1].startswith("Preempted by SIGTERM. Saving a checkpoint")


def test_a_preempted_run_has_a_state_and_an_exit_status_of_its_own(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = Preempted("Preempted by SIGTERM.")
    record_end(error, run)
    assert state_of(run.read_events()) == RunState.PREEMPTED
    assert str(error) == f"Preempted by SIGTERM. `turnsmith resume {run.path}` starts it again."
    script = "from turnsmith.errors import Preempted; raise Preempted('gone')"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 75

    def stop(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("turnsmith.cli.run_folders.find_run", stop)
    assert cli.main(["runs", "report", "x"]) == 75
    assert "Preempted by SIGTERM." in capsys.readouterr().err

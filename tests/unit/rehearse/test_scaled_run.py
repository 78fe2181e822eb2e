"""What the parts of a rehearsal say about a run's folder, and how the result is written."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from turnsmith import Outcome, RunFolder, Trajectory
from turnsmith.check.checks.disk import bytes_of_parameter, kept_checkpoints
from turnsmith.check.finding import Finding
from turnsmith.config import ConfigStore
from turnsmith.records.episodes import write_episodes
from turnsmith.records.run_warnings import KIND, RunWarning
from turnsmith.rehearse.before import check_disk_for_run
from turnsmith.rehearse.result import RehearsalResult, RehearsedPart
from turnsmith.rehearse.scaled_run import RunStopped, ScaledRun, kill_and_wait


@pytest.fixture
def run(tmp_path: Path) -> ScaledRun:
    RunFolder.create(tmp_path, "run")
    config = ConfigStore()
    config.inference.backend, config.evaluation.every = "transformers", 2
    return ScaledRun(config, [], tmp_path, 30.0, lambda line: None)


def play(run: ScaledRun, reward: float) -> None:
    episode = Trajectory(states=["?"], actions=["a"], rewards=[reward], outcome=Outcome.COMPLETED, episode_id="e1")
    write_episodes(RunFolder.open(run.path), 3, [episode])


@pytest.mark.parametrize(("again", "status"), [(1.0, "passed"), (0.0, "warning")])
def test_a_step_that_is_made_again_is_compared(run: ScaledRun, again: float, status: str) -> None:
    play(run, 1.0)
    run._before = {3: run._episodes(3)}
    for file in run.path.rglob("*.parquet"):
        file.unlink()
    play(run, again)
    assert run.compare().status == status


def test_episodes_that_failed_fail_it(run: ScaledRun) -> None:
    folder = RunFolder.open(run.path)
    folder.append_metrics({"step": 1, "episodes/completed": 15})
    assert run.episodes().status == "passed"
    folder.append_evaluation({"step": 2, "episodes/environment_failed": 1})
    assert "15 completed, 1 environment_failed" in run.episodes().saw
    assert run.episodes().status == "failed"


@pytest.mark.parametrize(
    ("name", "status"),
    [(name, "failed") for name in ("not_a_number", "rollout_mismatch", "failing_tools", "failed_episodes")]
    + [("zero_gradient", "passed")],
)
def test_a_warning_fails_it_unless_a_random_model_explains_it(run: ScaledRun, name: str, status: str) -> None:
    folder = RunFolder.open(run.path)
    folder.append_metrics({"step": 1, "episodes/completed": 16})
    warning = RunWarning(name, 1, "Something is wrong.", "It matters.", "Look.")
    folder.append_event(KIND, content=warning.content())
    assert run.episodes().status == status
    assert ("Something is wrong." in run.episodes().saw) is (status == "failed")


@pytest.mark.parametrize(("share", "status"), [(0.49, "passed"), (0.51, "warning"), (1.01, "failed")])
def test_a_disk_that_a_run_would_fill_by_half_is_a_warning(tmp_path: Path, share: float, status: str) -> None:
    config = ConfigStore()
    config.checkpoint.output_dir, config.training.batch_size = str(tmp_path), 1
    config.training.steps_per_epoch = config.training.num_epochs = 1
    kept = kept_checkpoints(config, 1) * bytes_of_parameter(config)
    parameters = round(share * shutil.disk_usage(tmp_path).free / kept)
    assert check_disk_for_run(config, parameters, None).status == status


def test_an_evaluation_without_an_episode_fails_it(run: ScaledRun) -> None:
    folder = RunFolder.open(run.path)
    for step in (0, 2, 4):
        folder.append_evaluation({"step": step, "reward/mean": 0.0})
    assert run.evaluation().status == "passed"
    folder.append_evaluation({"step": 6})
    assert run.evaluation().status == "failed"


def test_a_run_without_checkpoints_is_neither_resumed_nor_compared_and_makes_one_evaluation_less(
    run: ScaledRun,
) -> None:
    run._config.checkpoint.save_interval = 0
    play(run, 1.0)
    run._before = {3: run._episodes(3)}
    assert [part().status for part in (run.resume, run.compare, run.checkpoint)] == ["skipped"] * 3
    for step in (0, 2):
        RunFolder.open(run.path).append_evaluation({"step": step, "reward/mean": 0.0})
    assert run.evaluation().status == "passed"
    run._config.checkpoint.save_interval = 2
    assert run.evaluation().status == "failed"


def test_no_checkpoint_fails_it(run: ScaledRun) -> None:
    assert run.checkpoint().status == "failed"


def test_a_run_that_ends_early_says_why(run: ScaledRun) -> None:
    run._train = [sys.executable, "-c", "import sys; sys.exit('turnsmith: There is no model.')"]
    with pytest.raises(RunStopped, match=r"exit code 1: There is no model\."):
        run.train()


def test_a_run_that_takes_too_long_is_ended(run: ScaledRun) -> None:
    run._train, run._seconds = [sys.executable, "-c", "import time; time.sleep(60)"], 0.3
    with pytest.raises(RunStopped, match="stopped after 0 s"):
        run.train()


def test_other_processes_of_a_killed_run_are_counted_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnsmith.rehearse.scaled_run._ENDING", 0.5)
    child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
    process = subprocess.Popen([sys.executable, "-c", f"{child} time.sleep(60)"])
    parent = psutil.Process(process.pid)
    while not parent.children():
        time.sleep(0.05)
    [other] = parent.children()
    assert kill_and_wait(process) == 1
    psutil.wait_procs([other], timeout=10)
    assert not other.is_running()


def test_agents_of_ray_are_ended_and_not_counted() -> None:
    script = "(exec -a ray::DashboardAgent sleep 60) & (exec -a ray::RuntimeEnvAgent sleep 60) & wait"
    process = subprocess.Popen(["bash", "-c", script])
    until = time.monotonic() + 10
    names: list[str] = []
    while len(names) < 2 and time.monotonic() < until:
        agents = psutil.Process(process.pid).children()
        names = [one.cmdline()[0] for one in agents if one.cmdline()[0].startswith("ray::")]
    began = time.monotonic()
    assert kill_and_wait(process) == 0
    assert time.monotonic() - began < 10
    psutil.wait_procs(agents, timeout=10)
    assert not any(one.is_running() for one in agents)


def test_the_size_of_a_checkpoint_is_that_of_the_last_one_with_its_folders(run: ScaledRun) -> None:
    assert run.checkpoint().saw == "No checkpoint was written."
    for step, files in ((1, 1), (2, 3)):
        for number in range(files):
            file = run.path / "checkpoints" / f"global_step_{step}" / f"rank-{number}" / "weights"
            file.parent.mkdir(parents=True)
            file.write_bytes(bytes(2**20))
    finding = run.checkpoint()
    assert (finding.status, finding.saw) == ("passed", "3 MiB; kept: those of the steps [1, 2].")
    assert run.measured["checkpoint_bytes"] == 3 * 2**20


def test_the_result_says_what_was_and_was_not_executed() -> None:
    steps = [{"step": 1, "time/step": 2.0}]
    parts = [RehearsedPart("resumed", Finding("failed", "It did not.", "Do."), 2.0)]
    result = RehearsalResult("game", parts, {"4 nodes": "one"}, {"ray.num_nodes": (4, 1)}, {"steps": steps})
    assert result.failed == 1
    text = result.text()
    for words in ("FAILED  resumed", "what to do: Do.", "4 nodes  one", "ray.num_nodes  4 -> 1", "0 passed"):
        assert words in text
    passed = RehearsedPart("full layout", Finding("passed", "32 ranks."), 12.3)
    assert passed.lines() == ["ok      full layout                       12.3 s  32 ranks."], (
        "columns stand below others"
    )
    assert result.as_dict()["changed"] == {"ray.num_nodes": {"run": 4, "rehearsed": 1}}


def test_what_has_ended_and_waits_to_be_reaped_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnsmith.rehearse.scaled_run._ENDING", 0.5)
    with subprocess.Popen(["/bin/sh", "-c", "true & exec sleep 60"]) as sleeper:
        until = time.monotonic() + 10
        while time.monotonic() < until:  # `sleep` does not reap its child
            if [one.status() for one in psutil.Process(sleeper.pid).children()] == [psutil.STATUS_ZOMBIE]:
                break
        monkeypatch.setattr(sleeper, "kill", lambda: None)  # so that the child stays its child, and so a zombie
        monkeypatch.setattr(sleeper, "wait", lambda: 0)
        left = kill_and_wait(sleeper)
        monkeypatch.undo()
        sleeper.kill()
    assert left == 0

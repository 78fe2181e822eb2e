"""What the parts of a rehearsal say about a run's folder, and how the result is written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from turnsmith import Outcome, RunFolder, Trajectory
from turnsmith.check.environment.checks.settings import disk_finding
from turnsmith.check.machine.killed_run import KilledRun, RunStopped, kill_and_wait
from turnsmith.check.rehearse.run import Rehearsal
from turnsmith.config import ConfigStore
from turnsmith.records.episodes import write_episodes
from turnsmith.records.run_warnings import RunWarning


@pytest.fixture
def run(tmp_path: Path) -> KilledRun:
    RunFolder.create(tmp_path, "run")
    config = ConfigStore()
    config.inference.backend, config.evaluation.every = "transformers", 2
    return KilledRun(config, [], tmp_path, 30.0, lambda line: None)


def play(run: KilledRun, reward: float) -> None:
    episode = Trajectory(states=["?"], actions=["a"], rewards=[reward], outcome=Outcome.COMPLETED, episode_id="e1")
    write_episodes(RunFolder.open(run.path), 3, [episode])


@pytest.mark.parametrize(("again", "status"), [(1.0, "passed"), (0.0, "warning")])
def test_a_step_that_is_made_again_is_compared(run: KilledRun, again: float, status: str) -> None:
    play(run, 1.0)
    run._before = {3: run._episodes(3)}
    for file in run.path.rglob("*.parquet"):
        file.unlink()
    play(run, again)
    assert run.compare().status == status


def test_episodes_that_failed_fail_it(run: KilledRun) -> None:
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
def test_a_warning_fails_it_unless_a_random_model_explains_it(run: KilledRun, name: str, status: str) -> None:
    folder = RunFolder.open(run.path)
    folder.append_metrics({"step": 1, "episodes/completed": 16})
    warning = RunWarning(name, 1, "Something is wrong.", "It matters.", "Look.")
    folder.append_event("warning", content=warning.content())
    assert run.episodes().status == status
    assert ("Something is wrong." in run.episodes().saw) is (status == "failed")


@pytest.mark.parametrize(("share", "status"), [(0.49, "passed"), (0.51, "warning"), (1.01, "failed")])
def test_a_disk_that_a_run_would_fill_by_half_is_a_warning(tmp_path: Path, share: float, status: str) -> None:
    needed = share * shutil.disk_usage(tmp_path).free
    assert disk_finding(tmp_path / "runs", needed, "A run").status == status


def test_an_evaluation_without_an_episode_fails_it(run: KilledRun) -> None:
    folder = RunFolder.open(run.path)
    for step in (0, 2, 4):
        folder.append_evaluation({"step": step, "reward/mean": 0.0})
    assert run.evaluation().status == "passed"
    folder.append_evaluation({"step": 6})
    assert run.evaluation().status == "failed"


def test_a_run_without_checkpoints_is_neither_resumed_nor_compared_and_makes_one_evaluation_less(
    run: KilledRun,
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


def test_no_checkpoint_fails_it(run: KilledRun) -> None:
    assert run.checkpoint().status == "failed"


def test_a_run_that_ends_early_says_why(run: KilledRun) -> None:
    run._train = [sys.executable, "-c", "import sys; sys.exit('turnsmith: There is no model.')"]
    with pytest.raises(RunStopped, match=r"exit code 1: There is no model\."):
        run.train()


def test_a_run_that_takes_too_long_is_ended(run: KilledRun) -> None:
    run._train, run._seconds = [sys.executable, "-c", "import time; time.sleep(60)"], 0.3
    with pytest.raises(RunStopped, match="stopped after 0 s"):
        run.train()


def test_other_processes_of_a_killed_run_are_counted_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnsmith.check.machine.killed_run._ENDING", 0.5)
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


def test_the_size_of_a_checkpoint_is_that_of_the_last_one_with_its_folders(run: KilledRun) -> None:
    assert run.checkpoint().saw == "No checkpoint was written."
    for step, files in ((1, 1), (2, 3)):
        for number in range(files):
            file = run.path / "checkpoints" / f"global_step_{step}" / f"rank-{number}" / "weights"
            file.parent.mkdir(parents=True)
            file.write_bytes(bytes(2**20))
    finding = run.checkpoint()
    assert (finding.status, finding.saw) == ("passed", "3 MiB; kept: those of the steps [1, 2].")


def test_the_report_says_what_was_and_was_not_executed(run: KilledRun) -> None:
    config = ConfigStore()
    config.ray.num_nodes, config.ray.gpus_per_node, config.model.device = 4, 1, "cpu"
    rehearsal = Rehearsal(config, "my_game:MyGame", [], run.path.parent)
    rehearsal._tell(run._config)
    facts = json.loads(json.dumps(rehearsal.report.as_dict()))
    assert facts["changed"]["ray.num_nodes"] == {"run": 4, "rehearsed": 1}
    assert "4 nodes" in facts["not_executed"]
    text = "\n".join(rehearsal.report.lines(verbose=True))
    for words in ("4 nodes", "ray.num_nodes", "4 -> 1"):
        assert words in text
    assert "4 -> 1" not in "\n".join(rehearsal.report.lines())


def test_what_has_ended_and_waits_to_be_reaped_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnsmith.check.machine.killed_run._ENDING", 0.5)
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

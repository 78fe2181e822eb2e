"""The task runner: events and records, a last checkpoint when training fails, and what the watchdog asks for."""

# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false, reportAbstractUsage=false, reportIncompatibleMethodOverride=false
# pyright: reportAssignmentType=false
from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from verl.trainer.ppo.v1 import trainer_base

from turnsmith.config import ConfigStore, ImportName
from turnsmith.config_sources import to_dict
from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import RecordError
from turnsmith.records.checkpoints import open_checkpoint, saved_steps
from turnsmith.records.compaction import EpisodeCompactor
from turnsmith.records.rewind import rewind
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_lock import claim_run
from turnsmith.rollout.ledger import Ledger
from turnsmith.rollout.spec import RolloutSpec
from turnsmith.trainer.checkpoints.contents import CheckpointPolicy
from turnsmith.trainer.dataset import Epochs
from turnsmith.trainer.run_parts import EpisodePlan
from turnsmith.trainer.validation import TrainingEvaluations
from turnsmith.trainer.verl.schedules import SyncTrainer
from turnsmith.trainer.verl.task_runner import TaskRunner
from turnsmith.trainer.verl.trackers import Trackers
from turnsmith.trainer.verl.workers import EpisodeWorkerHandle, EpisodeWorkers


class OwnTracker:
    """A tracker of the user's own."""

    logged: list[dict[str, float]]
    is_finished: bool

    def __init__(self, run_dir: str, settings: Any) -> None:
        type(self).logged, type(self).is_finished = [], False

    def log(self, record: dict[str, float]) -> None:
        self.logged.append(record)

    def finish(self) -> None:
        type(self).is_finished = True


class Trainer(SyncTrainer):
    """Our trainer without verl's processes: the methods here are those of verl, which would train, save and load."""

    def __init__(self, runner: TaskRunner, folder: RunFolder, fails_at: int) -> None:
        self.emit, self.fails_at = runner._emit, fails_at
        self.on_update: Callable[[], None] = lambda: None
        self._pending = None
        self.config = SimpleNamespace(
            trainer=SimpleNamespace(default_local_dir=str(folder.path / "checkpoints")),
            algorithm=SimpleNamespace(use_kl_in_reward=False),
        )
        self.saving = CheckpointPolicy(every=100, keep_last_n=1, with_model=False, trust_remote_code=False)
        self.evaluations = TrainingEvaluations(None, folder, self.emit)
        self.agent_loop_manager = SimpleNamespace(replace_lost=lambda: None)
        self.llm_server_manager = SimpleNamespace(server_handles=[])
        self.global_steps = 0
        self.train_dataloader = SimpleNamespace(state_dict=lambda: {"position": self.global_steps})
        self.weights_sent: list[int] = []
        self.are_asleep = False
        self.checkpoint_manager = SimpleNamespace(
            update_weights=self.weights_sent.append, sleep_replicas=lambda: setattr(self, "are_asleep", True)
        )

    def fit(self, agent_loop_manager: Any) -> None:
        while self.global_steps < self.total_training_steps:
            self.global_steps += 1
            if self.global_steps == self.fails_at:
                raise RuntimeError("the environment is gone")
            self.check_processes()  # while it waits for episodes
            self.update_begins()
            self.check_processes()  # while it evaluates
            self.on_update()
            self.emit("step", {"step": self.global_steps, "reward/mean": 0.5})
            self.step_done()
        self.global_steps += 1

    def on_every_rank(self, function: Callable[[int], Any]) -> list[Any]:
        return [function(0)]

    def _save_checkpoint(self) -> None:
        actor = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}" / "actor"
        actor.mkdir(parents=True)
        (actor / "fsdp_config.json").write_text('{"world_size": 1}')
        (actor / "model_world_size_1_rank_0.pt").write_text("weights")
        (actor.parent / "data.json").write_text(json.dumps(self.train_dataloader.state_dict()))

    def _load_checkpoint(self) -> None:
        assert self.are_asleep, "vLLM's memory is needed for the checkpoint"
        self.global_steps = int(self.config.trainer.resume_from_path.rpartition("_")[2])


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "run")


def started(folder: RunFolder, fails_at: int = -1) -> TaskRunner:
    """A task runner as `start` leaves it behind, which needs Ray."""
    runner = TaskRunner()
    runner._folder = folder
    config = ConfigStore()
    config.logging.trackers = [ImportName(f"{__name__}:OwnTracker")]
    theirs = SimpleNamespace(trainer=SimpleNamespace(logger=[]))
    runner._trackers = Trackers(theirs, config, str(folder.path), {}, runner._warn)
    runner._compactor = EpisodeCompactor(folder.episodes_dir, lambda sentence: None)
    runner._trainer = Trainer(runner, folder, fails_at)
    return runner


def test_events_arrive_in_order_and_once() -> None:
    runner = TaskRunner()
    assert runner.next_events(0.0) == []
    for number in range(3):
        runner._events.put(("phase", number))
    assert runner.next_events(20.0) == [("phase", 0), ("phase", 1), ("phase", 2)]
    assert runner.next_events(0.0) == []
    threading.Timer(0.05, runner._events.put, [("phase", 3)]).start()
    assert runner.next_events(20.0) == [("phase", 3)], "it waits for the first one"


def test_every_event_is_recorded_where_it_belongs(folder: RunFolder) -> None:
    runner = started(folder)
    events = [
        ("phase", "generate"),
        ("ledger", {"step": 1, "trained": 8}),
        ("evaluation", {"step": 0, "reward/mean": 0.25}),
        ("step", {"step": 1, "reward/mean": 0.5}),
        ("evaluation", {"step": 1, "reward/mean": 0.75}),
        ("warning", "A worker was lost."),
    ]
    for kind, content in events:
        runner._emit(kind, content)
    assert runner.next_events(0.0) == events
    assert folder.read_metrics() == [events[3][1]]
    assert folder.read_ledger() == [events[1][1]]
    assert [record["step"] for record in folder.read_evaluations()] == [0, 1]
    assert [record["content"] for record in folder.read_events()] == ["generate", "A worker was lost."]
    runner.finish_trackers()
    assert OwnTracker.is_finished
    first, step = OwnTracker.logged
    assert first["step"] == 0, "an evaluation before training is no step's"
    assert 0.25 in first.values()
    assert step == events[3][1], "the evaluation after step 1 is part of its record"


def test_trackers_that_were_never_opened_need_no_end() -> None:
    TaskRunner().finish_trackers()


def test_training_goes_on_from_where_it_was(folder: RunFolder) -> None:
    runner = started(folder)
    runner.train_until(2)
    assert runner.step() == 2
    runner.train_until(3)
    assert [record["step"] for record in folder.read_metrics()] == [1, 2, 3]
    assert not folder.checkpoints_dir.exists() or not any(folder.checkpoints_dir.iterdir())


def test_a_failure_saves_the_state_after_the_last_good_step(folder: RunFolder) -> None:
    runner = started(folder, fails_at=3)
    with pytest.raises(RuntimeError, match="the environment is gone"):
        runner.train_until(5)
    saved = open_checkpoint(folder.checkpoints_dir / "global_step_2")
    assert json.loads((saved.path / "data.json").read_text()) == {"position": 2}, "not what the failed step has read"
    assert ("warning", "The state after step 2 was saved.") in runner.next_events(0.0)
    assert folder.read_events()[-1]["content"] == "The state after step 2 was saved."


def test_a_failure_in_an_update_saves_nothing(folder: RunFolder) -> None:
    runner = started(folder, fails_at=3)
    runner.train_until(2)
    runner._trainer.update_begins()
    with pytest.raises(RuntimeError, match="the environment is gone"):
        runner.train_until(5)
    assert not (folder.checkpoints_dir / "global_step_2").exists()


def test_asked_to_stop_it_ends_the_step_that_updates_the_model_and_saves_it(folder: RunFolder) -> None:
    runner = started(folder)
    trainer: Trainer = runner._trainer
    trainer.on_update = lambda: runner.stop_soon() if trainer.global_steps == 3 else None
    assert runner.train_until(6) is False
    assert [record["step"] for record in folder.read_metrics()] == [1, 2, 3]
    saved = open_checkpoint(folder.checkpoints_dir / "global_step_3")
    assert json.loads((saved.path / "data.json").read_text()) == {"position": 3}


class Learner(Trainer):
    """Its weights depend on every group that it was trained on, in order; it is asked to stop at one of its moments."""

    def __init__(self, runner: TaskRunner, folder: RunFolder, stops_at: int = -1) -> None:
        super().__init__(runner, folder, fails_at=-1)
        self.weights, self.group, self.moments = "", 0, 0
        self.train_dataloader = SimpleNamespace(state_dict=lambda: {"group": self.group})
        self._moment = lambda: runner.stop_soon() if self.moments == stops_at else None

    def moment(self) -> None:
        self.moments += 1
        self._moment()

    def fit(self, agent_loop_manager: Any) -> None:
        """As verl's: generate, compute log-probs, update, end the step with a checkpoint, evaluate, record."""
        while self.global_steps < self.total_training_steps:
            self.global_steps += 1
            self.moment()
            self.group += 1
            for _ in range(2):
                self.moment()
                self.check_processes()
            self.moment()
            self.update_begins()
            self.moment()
            self.weights += f" {self.group}"
            self.moment()
            if self.stop_asked:  # as `on_step_end`
                self._pending = self._write(Path(self.config.trainer.default_local_dir))
            self.moment()
            self.check_processes()
            self.emit("step", {"step": self.global_steps, "weights": self.weights})
            self.moment()
            self.step_done()
            self.moment()
            if self._pending is not None:
                self._commit(self._pending)
        self.global_steps += 1

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        (folder / "weights.txt").write_text(self.weights)

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        folder = Path(self.config.trainer.resume_from_path)
        self.weights = (folder / "weights.txt").read_text()
        self.group = json.loads((folder / "data.json").read_text())["group"]


def test_asked_to_stop_at_any_moment_it_saves_its_last_step_and_goes_on_as_if_nothing_had_happened(
    folder: RunFolder, tmp_path: Path
) -> None:
    steps, runner = 3, started(folder)
    whole = runner._trainer = Learner(runner, folder)
    assert runner.train_until(steps)
    for stops_at in range(1, whole.moments + 1):
        run = RunFolder.create(tmp_path / "stopped", str(stops_at))
        run.write_config(to_dict(ConfigStore()))
        runner = started(run)
        runner._trainer = Learner(runner, run, stops_at)
        if not runner.train_until(steps):
            made = len(run.read_metrics())
            assert saved_steps(run.checkpoints_dir) == ([made] if made else []), stops_at
            rewind(run, made)
            runner = started(run)
            runner._trainer = Learner(runner, run)
            if made:
                runner.load(str(open_checkpoint(run.checkpoints_dir / f"global_step_{made}").path))
            assert runner.train_until(steps)
        assert run.read_metrics() == folder.read_metrics(), stops_at


def test_asked_to_stop_before_its_first_step_it_ends_without_a_checkpoint(folder: RunFolder) -> None:
    runner = started(folder)
    runner.stop_soon()
    assert runner.train_until(6) is False
    assert folder.read_metrics() == []
    assert list(folder.checkpoints_dir.iterdir()) == []


def test_a_trainer_that_can_only_save_at_the_end_of_a_step_is_stopped_there(folder: RunFolder) -> None:
    class CarryingTrainer(Trainer):
        saves_late = False

    runner = started(folder)
    trainer = runner._trainer = CarryingTrainer(runner, folder, -1)
    trainer.on_update = lambda: runner.stop_soon() if trainer.global_steps == 2 else None
    assert runner.train_until(4) is True, "no step's end saves here"
    trainer.on_update = lambda: trainer.save(folder.checkpoints_dir) and None
    assert runner.train_until(6) is False
    assert [record["step"] for record in folder.read_metrics()] == [1, 2, 3, 4, 5]


def test_a_checkpoint_is_saved_where_it_should_be_and_loaded_from_there(folder: RunFolder, tmp_path: Path) -> None:
    runner = started(folder)
    runner.train_until(2)
    path = runner.save(str(tmp_path / "elsewhere"))
    assert path == str(tmp_path / "elsewhere" / "global_step_2")
    other = started(folder)
    assert other.load(path) == other.step() == 2
    assert other._trainer.weights_sent == [2], "the rollout servers get the weights that were loaded"


def test_the_pulse_counts_events_and_what_the_workers_do(folder: RunFolder) -> None:
    runner = started(folder)
    assert runner.pulse() == (0, "its processes are starting")
    runner._emit("phase", "generate")
    assert runner.pulse() == (1, "its processes are starting")
    answer: Future[Any] = Future()
    answer.set_result((41, "1 episode waiting for the engine", ""))
    handle = EpisodeWorkerHandle(lambda method, *args: answer, Future())
    runner._workers = EpisodeWorkers(lambda place: handle, 1, 2, Ledger())
    assert runner.pulse() == (42, "worker 0: 1 episode waiting for the engine")


@pytest.mark.parametrize("part", ["old_log_prob", "values"])
def test_a_part_of_a_step_says_that_it_begins(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    events: list[tuple[str, str]] = []
    trainer = SyncTrainer.__new__(SyncTrainer)
    trainer.emit = lambda kind, content: events.append((kind, content))
    trainer.config = SimpleNamespace(algorithm={"rollout_correction": {"bypass_mode": True}})
    monkeypatch.setattr(trainer_base.PPOTrainer, f"_compute_{part}", lambda *given: events.append(("verl", part)))
    getattr(trainer, f"_compute_{part}")({}, {})
    assert events == [("phase", part), ("verl", part)]


def test_a_run_folder_that_another_process_trains_in_is_refused(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout, runner = RolloutSpec(environment=EnvironmentSpec.of(GuessNumber)), TaskRunner()
    with claim_run(folder.path, 0), pytest.raises(RecordError, match="took it over at"):
        runner.start(None, EpisodePlan(ConfigStore(), rollout, str(folder.path)), None, Epochs(), {})
    assert runner.next_events(0.0) == []

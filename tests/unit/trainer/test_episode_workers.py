"""The workers that run episodes: groups are divided over them, and a lost worker costs time, but no episode.

A `Process` stands here where the process of a Ray actor would be.
"""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest
from ray.exceptions import OutOfMemoryError, RayActorError
from tensordict import NonTensorStack, TensorDict
from tests.unit.trainer.episode_queue import Queue, replace_queue, until

from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import TrainingFailure
from turnsmith.rollout.episode_report import EpisodeReport, report_of
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan
from turnsmith.rollout.evaluation.result import EvaluationResult
from turnsmith.rollout.ledger import Attempt, Ledger, LedgerEntry
from turnsmith.trainer.verl import workers as workers_module
from turnsmith.trainer.verl.workers import EpisodeWorkerHandle, EpisodeWorkers, FinishedEpisodes, put_back_groups
from turnsmith.trajectory import Decision, Outcome, Trajectory

SPEC = EnvironmentSpec.of(GuessNumber)


@pytest.fixture(autouse=True)
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    return replace_queue(monkeypatch)


@pytest.fixture(autouse=True, params=[RayActorError(), OutOfMemoryError("killed")], ids=["died", "out of memory"])
def _loss(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Process, "loss", request.param)


class Process:
    """Notes the calls that it gets; answers at once, except to those that the test answers itself."""

    loss: Exception = RayActorError()
    """Ray's error of a call to it when it is lost."""

    def __init__(self, place: int = 0, waits_for: str = "") -> None:
        self.place, self.waits_for = place, waits_for
        self.calls: list[tuple[str, Any]] = []
        self.groups: list[list[str]] = []
        self.pending: list[Future[Any]] = []
        self.lost: Future[Any] = Future()
        self.finished = FinishedEpisodes()
        self.error: Exception | None = None

    def handle(self) -> EpisodeWorkerHandle:
        return EpisodeWorkerHandle(self.call, self.lost)

    def call(self, method: str, *args: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        self.calls.append((method, args))
        if method == "generate_sequences":
            self.groups.append([str(uid) for uid in args[0]["uid"]])
            del args[0]["uid"]  # verl's worker takes fields out, too
        if self.error is not None:
            answer.set_exception(self.error)
        elif method == self.waits_for:
            self.pending.append(answer)
        elif method == "finish_step":
            answer.set_result(self.finished)
            self.finished = FinishedEpisodes()
        else:
            answer.set_result({"pulse": (3, f"work {len(self.calls)}", None)}.get(method))
        return answer

    def die(self) -> None:
        self.error = self.loss
        for answer in self.pending:
            answer.set_exception(self.loss)
        self.lost.set_exception(self.loss)

    def play(self, *uids: str) -> None:
        """End both episodes of each group."""
        entries = [LedgerEntry(name, "", Decision.KEPT, [Attempt("completed", 5)]) for name in names(*uids)]
        self.finished += FinishedEpisodes(EpisodeReport(), entries)


class Run:
    """Workers with a process for each, and all processes that were ever started."""

    def __init__(self, count: int, waits_for: str = "") -> None:
        self.started: list[Process] = []
        self.warnings: list[str] = []
        self.waits_for = waits_for
        self.ledger = Ledger()
        self.workers = EpisodeWorkers(self.start, count, 2, self.ledger, self.warnings.append)

    def start(self, place: int) -> EpisodeWorkerHandle:
        self.started.append(Process(place, self.waits_for))
        return self.started[-1].handle()


def prompts(*uids: str) -> TensorDict:
    return TensorDict({"uid": NonTensorStack(*uids)}, batch_size=[len(uids)])


def dispatch(run: Run, queue: Queue, *uids: str) -> None:
    """As verl's trainer does it."""
    queue.update({uid: {"is_prompt": True, "status": "running", "global_steps": 1} for uid in uids})
    run.workers.generate_sequences(prompts(*uids))


def names(*uids: str) -> list[str]:
    return [f"{uid}-{n}" for uid in uids for n in (0, 1)]


def test_groups_are_divided_over_the_workers_and_counted(queue: Queue) -> None:
    run = Run(2)
    dispatch(run, queue, "a", "b", "c", "d")
    first, second = run.started
    assert (first.place, second.place) == (0, 1)
    assert (first.groups, second.groups) == ([["a", "b"]], [["c", "d"]])
    first.play("a", "b")
    second.play("c", "d")
    assert run.workers.finish_step(1) is not None
    assert run.ledger.close(1, names("a", "b", "c", "d")).dispatched == 8


def test_fewer_groups_than_workers_leave_some_without_work(queue: Queue) -> None:
    run = Run(3)
    dispatch(run, queue, "a", "b")
    assert [process.groups for process in run.started] == [[], [["a"]], [["b"]]]


def test_replaced_groups_go_round_all_workers(queue: Queue) -> None:
    run = Run(4)
    for uid in "abcdefgh":
        dispatch(run, queue, uid)
    assert [len(process.groups) for process in run.started] == [2, 2, 2, 2]


def test_no_worker_has_two_groups_more_than_another_and_those_with_more_are_spread(queue: Queue) -> None:
    run = Run(8)
    dispatch(run, queue, *"abcdefghijkl")
    assert [sum(map(len, process.groups)) for process in run.started] == [1, 2, 1, 2, 1, 2, 1, 2]


def test_the_reports_of_all_workers_are_merged(queue: Queue) -> None:
    run = Run(2)
    dispatch(run, queue, "a", "b")
    for process, uid in zip(run.started, "ab", strict=True):
        process.play(uid)
        process.finished.report.outcomes["completed"] += 2
    report = run.workers.finish_step(7, ["a"])
    assert report is not None
    assert report.outcomes == {"completed": 4}
    assert [process.calls[-1] for process in run.started] == [("finish_step", (7, ["a"], 0, 0))] * 2


def test_the_groups_of_a_lost_worker_are_replayed_and_no_record_is_lost(queue: Queue) -> None:
    run = Run(2)
    dispatch(run, queue, "a", "b", "c", "d")
    first, second = run.started
    first.play("a", "b")
    queue["c_0_0"] = {"status": "success"}
    queue["a_0_0"] = {"status": "success"}
    second.die()
    assert run.workers.finish_step(1) is None, "the records of two groups are missing"
    run.workers.replace_lost()
    assert run.warnings == ["Episode process 1 was lost; replaying its groups in a new one."]
    new = run.started[2]
    assert (new.place, new.groups) == (1, [["c"], ["d"]])
    assert first.groups == [["a", "b"]], "what the other worker has finished is not replayed"
    assert [queue[uid]["status"] for uid in "abcd"] == ["running", "running", "pending", "pending"]
    assert "c_0_0" not in queue
    assert "a_0_0" in queue
    new.play("c", "d")
    report = run.workers.finish_step(1)
    assert report is not None
    assert report.retried == 4
    again = run.workers.finish_step(1)
    assert again is not None
    assert again.retried == 0, "they are reported once"
    step = run.ledger.close(1, names("a", "b", "c", "d"))
    assert (step.trained, dict(step.given_up)) == (8, {"worker_lost": 4})


def test_the_time_of_a_lost_episode_begins_when_it_was_sent(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    now, lost = [100.0], dict[str, float]()
    monkeypatch.setattr(workers_module.time, "monotonic", lambda: now[0])
    run = Run(1)
    monkeypatch.setattr(run.ledger, "lose", lambda names, seconds: lost.update(dict.fromkeys(names, seconds)))
    now[0] += 36_000
    dispatch(run, queue, "a", "b")
    run.started[0].play("b")
    now[0] += 5
    run.workers.finish_step(1, ["b"])
    dispatch(run, queue, "c")
    now[0] += 2
    run.started[0].die()
    run.workers.replace_lost()
    assert lost == {"a-0": 7, "a-1": 7, "c-0": 2, "c-1": 2}


def test_only_groups_in_flight_are_replayed(queue: Queue) -> None:
    run = Run(1)
    dispatch(run, queue, "a", "b", "c")
    run.started[0].play("b")
    run.workers.finish_step(1, ["b"])
    run.started[0].die()
    dispatch(run, queue, "d")
    assert run.started[1].groups == [["a"], ["c"], ["d"]], "a dispatch looks for lost workers first"


def test_a_worker_is_told_how_often_it_has_handed_over_episodes_of_a_step(queue: Queue) -> None:
    run = Run(2)
    dispatch(run, queue, "a", "b")
    first, second = run.started
    second.die()
    assert run.workers.finish_step(1) is None
    run.workers.replace_lost()
    third = run.started[2]
    assert run.workers.finish_step(1) is not None
    assert run.workers.finish_step(2) is not None
    told = [[args[-1] for name, args in process.calls if name == "finish_step"] for process in (first, second, third)]
    assert told == [[0, 1, 0], [0], [0, 0]]


def test_groups_that_are_replayed_may_be_lost_again(queue: Queue) -> None:
    run = Run(1)
    dispatch(run, queue, "a", "b")
    for process in range(2):
        run.started[process].die()
        run.workers.replace_lost()
    assert [process.groups for process in run.started] == [[["a", "b"]], [["a"], ["b"]], [["a"], ["b"]]]


def test_a_group_that_was_dropped_is_not_replayed(queue: Queue) -> None:
    run = Run(1)
    dispatch(run, queue, "a", "b")
    del queue["b"]  # verl has taken it out, and dispatched another one for it
    run.started[0].die()
    run.workers.replace_lost()
    assert run.started[1].groups == [["a"]]
    run.started[1].play("a")
    run.workers.finish_step(1)
    step = run.ledger.close(1, names("a"))
    assert (step.trained, step.decisions["dropped"]) == (2, 2)


def test_a_worker_that_is_lost_while_it_gets_groups_is_replaced_later(queue: Queue) -> None:
    run = Run(1)
    run.started[0].error = Process.loss  # its loss is not known here yet
    dispatch(run, queue, "a")
    assert len(run.started) == 1
    run.started[0].die()
    run.workers.replace_lost()
    assert run.started[1].groups == [["a"]]


def test_any_other_error_of_a_worker_is_raised(queue: Queue) -> None:
    run = Run(1)
    run.started[0].error = KeyError("index")
    with pytest.raises(KeyError):
        dispatch(run, queue, "a")


def test_a_worker_that_is_lost_again_and_again_stops_the_run(queue: Queue) -> None:
    run = Run(1)
    dispatch(run, queue, "a")
    for _ in range(5):
        run.started[-1].die()
        run.workers.replace_lost()
    run.workers.finish_step(1)  # it answers: the losses before it no longer count
    for _ in range(5):
        run.started[-1].die()
        run.workers.replace_lost()
    run.started[-1].die()
    with pytest.raises(TrainingFailure, match="lost 6 times in one step: check whether the machine is out of memory"):
        run.workers.replace_lost()


def test_a_pulse_never_waits_for_a_worker(queue: Queue) -> None:
    run = Run(2, waits_for="pulse")
    assert run.workers.pulse() == (0, "worker 0: starting; worker 1: starting")
    run.started[0].pending[0].set_result((5, "playing", None))
    assert run.workers.pulse() == (5, "worker 0: playing; worker 1: starting")
    run.started[0].pending[1].set_result((6, "playing on", None))
    run.started[1].pending[0].set_result((2, "waiting", None))
    assert run.workers.pulse() == (8, "worker 0: playing on; worker 1: waiting")
    run.started[1].pending.pop(0)
    run.started[1].die()
    assert run.workers.pulse() == (8, "worker 0: playing on; worker 1: lost")
    run.workers.replace_lost()
    run.started[2].pending[0].set_result((0, "playing again", None))
    assert run.workers.pulse()[1] == "worker 0: playing on; worker 1: playing again"


def test_a_fault_of_a_worker_stops_the_run(queue: Queue) -> None:
    run = Run(2)
    fault = TrainingFailure("Episode a-0 could not be handed to the trainer: TimeoutError()")
    run.started[1].finished = FinishedEpisodes(fault=fault)
    with pytest.raises(TrainingFailure, match="Episode a-0 could not be handed"):
        run.workers.finish_step(1)
    run = Run(1, waits_for="pulse")  # also while the trainer waits for episodes
    run.started[0].pending[0].set_result((5, "playing", fault))
    with pytest.raises(TrainingFailure, match="Episode a-0 could not be handed"):
        run.workers.replace_lost()


def test_an_evaluation_is_divided_and_the_share_of_a_lost_worker_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    def trajectories(name: str) -> list[Trajectory]:
        return [Trajectory(episode_id=name, group_id=name, rewards=[1.0], outcome=Outcome.COMPLETED)]

    monkeypatch.setattr(workers_module, "_LOOK_SECONDS", 0.005)
    run, plan, looks = Run(2, waits_for="evaluate"), EvaluationPlan(episodes=2), []
    run.workers.while_waiting = lambda: looks.append(True)
    first, second = run.started
    results: list[EvaluationResult] = []
    threading.Thread(target=lambda: results.append(run.workers.evaluate(SPEC, plan)), daemon=True).start()
    until(lambda: len(looks) > 2)
    second.error = Process.loss
    second.pending[0].set_exception(second.error)
    first.pending[0].set_result(trajectories("a"))
    until(lambda: len(second.calls) > 3)  # it is asked again as long as its loss is not known
    second.lost.set_exception(second.error)
    until(lambda: len(run.started) > 2 and bool(run.started[2].pending))
    run.started[2].pending[0].set_result(trajectories("b"))
    until(lambda: bool(results))
    assert [trajectory.episode_id for trajectory in results[0].trajectories] == ["a", "b"]
    assert ("evaluate", (SPEC, plan, 0, 2)) in first.calls
    assert ("evaluate", (SPEC, plan, 1, 2)) in run.started[2].calls


def test_groups_are_put_back_in_the_queue_without_their_episodes(queue: Queue) -> None:
    queue.update(a={"is_prompt": True, "status": "finished", "global_steps": 4}, b={"is_prompt": True})
    queue.update(a_0_0={"status": "success"}, b_1_0={}, gone_0_0={})
    assert put_back_groups(["a", "gone"]) == {"a"}
    assert queue["a"] == {"is_prompt": True, "status": "pending", "global_steps": 4}
    assert sorted(queue) == ["a", "b", "b_1_0", "gone_0_0"]
    assert put_back_groups() == {"a", "b"}
    assert sorted(queue) == ["a", "b"]
    queue.clear()
    assert put_back_groups() == set()


def test_reports_of_sixteen_times_the_workers_cost_about_sixteen_times_as_much() -> None:
    def seconds(count: int) -> float:
        run = Run(count)
        for process in run.started:
            group = f"{process.place:08d}"
            played = [Trajectory(f"{group}-{n}", group_id=f"{group}{n}", rewards=[1.0]) for n in range(16)]
            process.finished = FinishedEpisodes(report_of(played))
        gc.collect()
        gc.disable()  # a collection looks through all that other tests have imported
        try:
            began = time.process_time()
            report = run.workers.finish_step(1)
            spent = time.process_time() - began
        finally:
            gc.enable()
        assert report is not None
        assert len(report.groups) == 16 * count
        return spent

    few = min(seconds(32) for _ in range(3))
    assert seconds(512) < 80 * few

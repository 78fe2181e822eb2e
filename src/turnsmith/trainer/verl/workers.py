"""The processes that run episodes: the task runner's own, or `ray.num_actors` Ray actors.

A lost actor is replaced, and its groups in flight are replayed from their starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

import transfer_queue
from tensordict import TensorDict

from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import TrainingFailure, TurnsmithError
from turnsmith.rollout.episode_groups import episode_name, group_name
from turnsmith.rollout.episode_report import EpisodeReport
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan
from turnsmith.rollout.evaluation.result import EvaluationResult
from turnsmith.rollout.ledger import Attempt, Ledger, LedgerEntry
from turnsmith.trainer.verl.lost_and_joined_servers import ACTOR_LOST
from turnsmith.trajectory import Decision, Outcome, Trajectory

_MOST_LOSSES = 5
_LOOK_SECONDS = 1.0
PARTITION = "train"
"""The partition of TransferQueue that training takes its batches from."""


@dataclass
class FinishedEpisodes:
    """The episodes that a worker has finished since the last call."""

    report: EpisodeReport = field(default_factory=EpisodeReport)
    entries: list[LedgerEntry] = field(default_factory=list[LedgerEntry])
    fault: TurnsmithError | None = None
    """See `EpisodeWorker.fault`."""

    def __add__(self, other: FinishedEpisodes) -> FinishedEpisodes:
        return FinishedEpisodes(self.report + other.report, self.entries + other.entries, self.fault or other.fault)


@dataclass(frozen=True)
class EpisodeWorkerHandle:
    """How the task runner reaches an EpisodeWorker."""

    call: Callable[..., Future[Any]]
    """Calls the method with this name in the worker's process."""
    lost: Future[Any]
    """Done when the process is lost, and only then."""


@dataclass(frozen=True)
class _Sent:
    """Groups that a worker was sent, and when."""

    prompts: TensorDict
    time: float


@dataclass
class _Slot:
    """One worker, and the groups that it is working on."""

    handle: EpisodeWorkerHandle
    pulse: Future[Any]
    groups: list[_Sent] = field(default_factory=list[_Sent])
    losses: int = 0
    times_handed: int = 0
    """How often it, or the worker that it replaced, sent episodes of the current step, if another worker was lost."""
    progress: tuple[int, str, TurnsmithError | None] = (0, "starting", None)
    """A counter, the state of its episodes, and `EpisodeWorker.fault`."""


class EpisodeWorkers:
    """The workers of a run; verl's trainer dispatches its prompts to this instead of verl's agent-loop manager.

    Args:
        start: Starts the worker with the given number.
        count: How many workers.
        group_size: Episodes in each group.
        ledger: Where dispatched and finished episodes are recorded.
        warn: Called with a sentence when a process is lost.
    """

    def __init__(
        self,
        start: Callable[[int], EpisodeWorkerHandle],
        count: int,
        group_size: int,
        ledger: Ledger,
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.ledger = ledger
        self.while_waiting: Callable[[], None] = lambda: None
        """Called about once a second while this waits for episodes."""
        self._warn = warn
        self._start = start
        self._group_size = group_size
        self._lost = self._first = 0
        self._finished: list[FinishedEpisodes] = []
        self._slots = [_Slot(handle, handle.call("pulse")) for handle in map(start, range(count))]

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Start the episodes of a batch of groups; they arrive in the replay buffer."""
        self.ledger.dispatch(name for uid in _uids(prompts) for name in self._names(uid))
        self.replace_lost()
        # Not `chunk`, which would leave the last workers, and their servers, without groups.
        ends = [len(prompts) * place // len(self._slots) for place in range(len(self._slots) + 1)]
        first = self._first
        if len(prompts) < len(self._slots):  # replaced groups come one by one; without this, one worker would get all
            self._first = (first + 1) % len(self._slots)
        shares = zip([*self._slots[first:], *self._slots[:first]], ends, ends[1:], strict=False)
        sent = [_send(slot, prompts[start:end]) for slot, start, end in shares if end > start]
        for answer in sent:
            _check_sent(answer)

    def finish_step(self, step: int, groups: Collection[str] | None = None, update: int = 0) -> EpisodeReport | None:
        """Record the finished episodes of every worker, and merge their reports.

        Args:
            step: The step that trains on them.
            groups: The groups of the update, with a schedule in which episodes continue over several steps.
            update: Its number in the step, if a step has several.

        Returns:
            None if a worker was lost before it reported: its groups are replayed, and this is called again.

        Raises:
            TrainingFailure: An episode could not be played or sent to the trainer.
            InternalError: The same, because of a bug of turnsmith.
        """
        asked = [
            (slot, slot.handle.call("finish_step", step, groups, update, slot.times_handed)) for slot in self._slots
        ]
        is_whole = True
        for slot, answer in asked:
            try:
                # Without `while_waiting`: a lost worker must be replaced only after the caller has put the batch back.
                handed: FinishedEpisodes = answer.result()
                self._finished.append(handed)
                over = {group_name(entry.episode_id) for entry in handed.entries}
                under_way = {uid for chunk in slot.groups for uid in _uids(chunk.prompts)} - over
                slot.groups, slot.losses = _rows(slot.groups, under_way), 0
                slot.times_handed += 1
            except ACTOR_LOST:
                is_whole = False
        if not is_whole:
            return None
        for slot in self._slots:
            slot.times_handed = 0
        finished, self._finished = _total(self._finished), []
        _check_fault(finished.fault)
        self.ledger.end(finished.entries)
        finished.report.retried += self._lost
        self._lost = 0
        return finished.report

    def evaluate(self, environment: EnvironmentSpec, plan: EvaluationPlan) -> EvaluationResult:
        """Play the episodes of an evaluation, divided over the workers, with the current weights of the servers."""
        began = time.perf_counter()
        workers = len(self._slots)

        def begin(place: int, handle: EpisodeWorkerHandle) -> Future[list[Trajectory]]:
            return handle.call("evaluate", environment, plan, place, workers)

        begun = [(slot.handle, begin(place, slot.handle)) for place, slot in enumerate(self._slots)]
        finished: list[Trajectory] = []
        for place, (handle, share) in enumerate(begun):
            while True:
                try:
                    finished += self._wait(share)
                    break
                except ACTOR_LOST:
                    wait([handle.lost], timeout=_LOOK_SECONDS)  # the call may fail a moment before the loss is known
                    self.replace_lost()
                    handle = self._slots[place].handle
                    share = begin(place, handle)
        return plan.result(finished, time.perf_counter() - began)

    def replace_lost(self) -> None:
        """Replace each lost worker, and send the new one the groups that the old one was working on.

        Raises:
            TrainingFailure: A worker was lost too often, or an episode could not be played or sent to the trainer.
        """
        self.pulse()
        for place, slot in enumerate(self._slots):
            _check_fault(slot.progress[2])
            if slot.handle.lost.done():
                self._replace(place, slot)

    def add_servers(self, servers: list[Any]) -> None:
        """Let every worker send requests to these rollout servers too; later workers know them from their start."""
        for slot in self._slots:
            slot.handle.call("add_servers", servers)

    def pulse(self) -> tuple[int, str]:
        """A counter of progress, and the state of the episodes; never waits for a worker."""
        for slot in self._slots:
            answer = slot.pulse
            if answer.done():
                try:
                    slot.progress = answer.result()
                except ACTOR_LOST:
                    slot.progress = (slot.progress[0], "lost", None)
                slot.pulse = slot.handle.call("pulse")
        states = [f"worker {place}: {slot.progress[1]}" for place, slot in enumerate(self._slots)]
        return sum(slot.progress[0] for slot in self._slots), "; ".join(states)

    def _replace(self, place: int, slot: _Slot) -> None:
        slot.losses += 1
        if slot.losses > _MOST_LOSSES:
            raise TrainingFailure(
                f"A process that runs episodes was lost {slot.losses} times in one step: check whether the machine is "
                "out of memory, or whether the environment kills its process."
            )
        self._warn(f"Episode process {place} was lost; replaying its groups in a new one.")
        slot.handle = self._start(place)
        slot.pulse = slot.handle.call("pulse")
        waiting = put_back_groups([uid for chunk in slot.groups for uid in _uids(chunk.prompts)])
        for chunk in slot.groups:
            self._note_lost(chunk.prompts, waiting, time.monotonic() - chunk.time)
        rows, slot.groups = _rows(slot.groups, waiting), []
        for answer in [_send(slot, row.prompts) for row in rows]:
            _check_sent(answer)

    def _note_lost(self, chunk: TensorDict, waiting: set[str], seconds: float) -> None:
        for uid in _uids(chunk):
            names = self._names(uid)
            self._lost += len(names) if uid in waiting else 0
            if uid in waiting:
                self.ledger.lose(names, seconds)
            else:  # its group was dropped, and the process had the only records of its episodes
                attempt = Attempt(Outcome.WORKER_LOST.value, 0, seconds)
                self.ledger.end(LedgerEntry(name, "", Decision.DROPPED, [attempt]) for name in names)

    def _names(self, uid: str) -> list[str]:
        return [episode_name(uid, session) for session in range(self._group_size)]

    def _wait(self, answer: Future[Any]) -> Any:
        """Wait for a worker, and call `while_waiting` in between."""
        while not wait([answer], timeout=_LOOK_SECONDS).done:
            self.while_waiting()
        return answer.result()


def _check_fault(fault: TurnsmithError | None) -> None:
    # verl would only log it in the worker's process; an asynchronous schedule would then replace groups without end.
    if fault is not None:
        raise fault


def _total(parts: list[FinishedEpisodes]) -> FinishedEpisodes:
    """Their sum, by halves, because adding them one after another would copy the sum for every worker."""
    if len(parts) < 2:
        return parts[0] if parts else FinishedEpisodes()
    middle = len(parts) // 2
    return _total(parts[:middle]) + _total(parts[middle:])


def _uids(prompts: TensorDict) -> list[str]:
    return [str(uid) for uid in prompts["uid"]]


def _rows(chunks: list[_Sent], wanted: set[str]) -> list[_Sent]:
    """The wanted groups of some batches, one by one."""
    return [
        _Sent(chunk.prompts[n : n + 1], chunk.time)
        for chunk in chunks
        for n, uid in enumerate(_uids(chunk.prompts))
        if uid in wanted
    ]


def _send(slot: _Slot, prompts: TensorDict) -> Future[None]:
    slot.groups.append(_Sent(prompts.clone(), time.monotonic()))  # the worker removes fields
    return slot.handle.call("generate_sequences", prompts)


def _check_sent(answer: Future[None]) -> None:
    """Raise the error of a call, except the loss of a worker, which is handled elsewhere."""
    try:
        answer.result()
    except ACTOR_LOST:
        pass


def put_back_groups(uids: Collection[str] | None = None) -> set[str]:
    """Mark groups in the queue as pending, and remove their episodes from it.

    Args:
        uids: The groups; None: all, and also episodes of groups that the queue no longer has.

    Returns:
        The groups among them that are still in the queue.
    """
    held = (transfer_queue.kv_list(PARTITION) or {}).get(PARTITION, {})
    groups = {key for key, tag in held.items() if tag.get("is_prompt", False) and (uids is None or key in uids)}
    old = [
        key
        for key, tag in held.items()
        if not tag.get("is_prompt", False) and (uids is None or key.split("_", 1)[0] in groups)
    ]
    if old:
        transfer_queue.kv_clear(keys=old, partition_id=PARTITION)
    if groups:
        names = sorted(groups)
        tags = [{**held[name], "status": "pending"} for name in names]
        transfer_queue.kv_batch_put(keys=names, partition_id=PARTITION, tags=tags)
    return groups

"""The processes that run episodes: the task runner's own, or `ray.num_actors` Ray actors.

A lost actor is replaced, and its groups in flight are replayed from their starts.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import wait
from dataclasses import dataclass, field
from typing import Any

import ray
import transfer_queue
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tensordict import TensorDict

from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import TrainingFailure
from turnsmith.rollout.episode_groups import episode_name, group_name
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan
from turnsmith.rollout.evaluation.result import EvaluationResult
from turnsmith.rollout.ledger import Attempt, Ledger, LedgerEntry
from turnsmith.trainer.diagnostics.metrics import EpisodeReport
from turnsmith.trainer.verl.episode_plan import EpisodePlan
from turnsmith.trainer.verl.worker import EpisodeWorker, Finished
from turnsmith.trajectory import Decision, Outcome

_MOST_LOSSES = 5
_LOOK_SECONDS = 1.0
PARTITION = "train"
"""The partition of TransferQueue that training takes its batches from."""


@dataclass
class _Slot:
    """One actor, and the groups that it is working on."""

    actor: Any
    watch: Any
    """A call that ends only when the actor dies."""
    given: list[TensorDict] = field(default_factory=list[TensorDict])
    since: float = field(default_factory=time.monotonic)
    losses: int = 0
    pulse: list[Any] = field(default_factory=list[Any])
    progress: Any = (0, "")


class EpisodeWorkers:
    """What verl's trainer dispatches its prompts to, in place of verl's agent-loop manager.

    Args:
        plan: What all episodes have in common.
        config: verl's config.
        engine: The engine of every worker.
        num_actors: How many processes; 0: this one.
        ledger: Where dispatched and finished episodes are recorded.
        warn: Called with a sentence when a process is lost.
    """

    def __init__(
        self,
        plan: EpisodePlan,
        config: Any,
        engine: Any,
        num_actors: int,
        ledger: Ledger,
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.ledger = ledger
        self.meanwhile: Callable[[], None] = lambda: None
        """Called about once a second while this waits for episodes."""
        self._warn = warn
        self._group_size = int(config.actor_rollout_ref.rollout.n)
        self._local: EpisodeWorker | None = None
        self._slots: list[_Slot] = []
        self._lost = 0
        self._finished = Finished()
        if num_actors == 0:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="episodes", daemon=True).start()
            self._local = EpisodeWorker("0", plan, config, engine)
            return
        self._start = lambda place: _actor(place, plan, config, engine)
        for place in range(num_actors):
            actor = self._start(place)
            self._slots.append(_Slot(actor, actor.stay.remote()))

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Start the episodes of a batch of groups; they end up in the replay buffer."""
        self.ledger.dispatch(name for uid in _uids(prompts) for name in self._names(uid))
        if self._local:
            self._here(self._local.generate_sequences(prompts))
            return
        self.replace_lost()
        sent = [_send(slot, chunk) for slot, chunk in zip(self._slots, prompts.chunk(len(self._slots)), strict=False)]
        for answer in sent:
            _see(answer)

    def finish_step(self, step: int, groups: Collection[str] | None = None) -> EpisodeReport | None:
        """Record the finished episodes of every worker, and merge their reports.

        Args:
            step: The step that trains on them.
            groups: The groups of the step, with a schedule in which episodes continue over several steps.

        Returns:
            None if a worker was lost before it could report: its groups are replayed, and this is called again.
        """
        if self._local:
            self._finished += self._here(self._local.finish_step(step, groups))
        asked = [(slot, slot.actor.finish_step.remote(step, groups)) for slot in self._slots]
        is_whole = True
        for slot, answer in asked:
            try:
                handed: Finished = ray.get(answer)  # type: ignore[assignment]
                self._finished += handed
                over = {group_name(entry.episode_id) for entry in handed.entries}
                under_way = {uid for chunk in slot.given for uid in _uids(chunk)} - over
                slot.given, slot.losses = _rows(slot.given, under_way), 0
            except RayActorError:
                is_whole = False
        if not is_whole:
            return None
        finished, self._finished = self._finished, Finished()
        self.ledger.end(finished.entries)
        finished.report.retried += self._lost
        self._lost = 0
        return finished.report

    def evaluate(self, environment: EnvironmentSpec, plan: EvaluationPlan) -> EvaluationResult:
        """Play the episodes of an evaluation, divided over the workers, with the current weights of the servers."""
        began = time.perf_counter()
        if self._local:
            finished = self._here(self._local.evaluate(environment, plan, 0, 1))
        else:
            count = len(self._slots)
            shares = [slot.actor.evaluate.remote(environment, plan, n, count) for n, slot in enumerate(self._slots)]
            finished = [one for n, share in enumerate(shares) for one in self._share(n, share, environment, plan)]
        return plan.result(finished, time.perf_counter() - began)

    def replace_lost(self) -> None:
        """Replace each lost actor, and send the new one the groups that the old one was working on."""
        if not self._slots:
            return
        gone, _ = ray.wait([slot.watch for slot in self._slots], num_returns=len(self._slots), timeout=0)
        for place, slot in enumerate(self._slots):
            if slot.watch in gone:
                self._replace(place, slot)

    def pulse(self) -> tuple[int, str]:
        """A counter of progress, and what the episodes are doing; never waits for an actor."""
        if self._local:
            in_flight = self._local.context.in_flight
            return in_flight.transitions, in_flight.describe()
        for slot in self._slots:
            for answer in ray.wait(slot.pulse, timeout=0)[0] if slot.pulse else ():
                try:
                    slot.progress = ray.get(answer)
                except RayActorError:
                    slot.progress = (slot.progress[0], "lost")
                slot.pulse = []
            if not slot.pulse:
                slot.pulse = [slot.actor.pulse.remote()]
        states = [f"worker {place}: {slot.progress[1]}" for place, slot in enumerate(self._slots)]
        return sum(slot.progress[0] for slot in self._slots), "; ".join(states)

    def _share(self, place: int, share: Any, environment: EnvironmentSpec, plan: EvaluationPlan) -> Any:
        try:
            return self._get(share)
        except RayActorError:
            self.replace_lost()
            return self._get(self._slots[place].actor.evaluate.remote(environment, plan, place, len(self._slots)))

    def _replace(self, place: int, slot: _Slot) -> None:
        slot.losses += 1
        if slot.losses > _MOST_LOSSES:
            raise TrainingFailure(
                f"A process that runs episodes was lost {slot.losses} times in one step: check whether the machine is "
                "out of memory, or whether the environment kills its process."
            )
        self._warn(f"Episode process {place} was lost; replaying its groups in a new one.")
        slot.actor = self._start(place)
        slot.watch, slot.pulse = slot.actor.stay.remote(), []
        waiting = put_back_groups([uid for chunk in slot.given for uid in _uids(chunk)])
        for chunk in slot.given:
            self._note_lost(chunk, waiting, time.monotonic() - slot.since)
        rows = _rows(slot.given, waiting)
        slot.given, slot.since = [], time.monotonic()
        for answer in [_send(slot, row) for row in rows]:
            _see(answer)

    def _note_lost(self, chunk: TensorDict, waiting: set[str], seconds: float) -> None:
        for uid in _uids(chunk):
            names = self._names(uid)
            self._lost += len(names) if uid in waiting else 0
            if uid in waiting:
                self.ledger.lose(names, seconds)
            else:  # its group was dropped, and the records of its episodes are lost with the process
                attempt = Attempt(Outcome.WORKER_LOST.value, 0, seconds)
                self.ledger.end(LedgerEntry(name, "", Decision.DROPPED, [attempt]) for name in names)

    def _names(self, uid: str) -> list[str]:
        return [episode_name(uid, session) for session in range(self._group_size)]

    def _here(self, coroutine: Any) -> Any:
        """Wait for this process's own worker, and call `meanwhile` in between."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        while not wait([future], timeout=_LOOK_SECONDS).done:
            self.meanwhile()
        return future.result()

    def _get(self, reference: Any) -> Any:
        """Wait for an actor, and call `meanwhile` in between."""
        while not ray.wait([reference], timeout=_LOOK_SECONDS)[0]:
            self.meanwhile()
        return ray.get(reference)


def _uids(prompts: TensorDict) -> list[str]:
    return [str(uid) for uid in prompts["uid"]]


def _rows(chunks: list[TensorDict], wanted: set[str]) -> list[TensorDict]:
    """The wanted groups of some batches, one by one."""
    return [chunk[n : n + 1] for chunk in chunks for n, uid in enumerate(_uids(chunk)) if uid in wanted]


def _send(slot: _Slot, prompts: TensorDict) -> Any:
    slot.given.append(prompts.clone())  # the worker removes fields from what it is sent
    return slot.actor.generate_sequences.remote(prompts)


def _see(answer: Any) -> None:
    """Raise the error of a call; a lost process is noticed elsewhere."""
    try:
        ray.get(answer)
    except RayActorError:
        pass


def _actor(place: int, plan: EpisodePlan, config: Any, engine: Any) -> Any:
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
    node = NodeAffinitySchedulingStrategy(nodes[place % len(nodes)], soft=True)
    actor = ray.remote(EpisodeWorker).options(num_cpus=0, scheduling_strategy=node)
    return actor.remote(str(place), plan, config, engine)


def put_back_groups(uids: Collection[str] | None = None) -> set[str]:
    """Mark groups in the queue as pending, and remove their episodes from it.

    Args:
        uids: Which groups; None: all, and also episodes of groups that the queue no longer knows.

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

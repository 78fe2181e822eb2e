"""The processes that run episodes: the task runner's own, or as many Ray actors as the settings ask for.

An actor that is lost is replaced, and the groups that it had in hand are played again from their starts.
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
"""The part of the queue that training takes its batches from."""


@dataclass
class _Crew:
    """One actor, and what it was given since the last step was finished."""

    actor: Any
    watch: Any
    """A call that ends only when the actor is gone."""
    given: list[TensorDict] = field(default_factory=list[TensorDict])
    since: float = field(default_factory=time.monotonic)
    losses: int = 0
    pulse: list[Any] = field(default_factory=list[Any])
    moves: Any = (0, "")


class EpisodeWorkers:
    """What verl's trainer sends its prompts to; the face verl calls an agent-loop manager.

    Args:
        plan: What all episodes have in common.
        config: verl's config.
        engine: What generates, for every worker.
        num_actors: How many processes; 0: this one.
        ledger: Where episodes that are sent off and that are over are noted.
        tell: Called with a sentence when a process is lost.
    """

    def __init__(
        self,
        plan: EpisodePlan,
        config: Any,
        engine: Any,
        num_actors: int,
        ledger: Ledger,
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.ledger = ledger
        self.meanwhile: Callable[[], None] = lambda: None
        """Called now and then while this waits for episodes."""
        self._tell = tell
        self._group_size = int(config.actor_rollout_ref.rollout.n)
        self._local: EpisodeWorker | None = None
        self._crew: list[_Crew] = []
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
            self._crew.append(_Crew(actor, actor.stay.remote()))

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Start the episodes of a batch of groups; they end in the replay buffer."""
        self.ledger.dispatch(name for uid in _uids(prompts) for name in self._names(uid))
        if self._local:
            self._here(self._local.generate_sequences(prompts))
            return
        self.replace_lost()
        sent = [_send(crew, chunk) for crew, chunk in zip(self._crew, prompts.chunk(len(self._crew)), strict=False)]
        for answer in sent:
            _see(answer)

    def finish_step(self, step: int, groups: Collection[str] | None = None) -> EpisodeReport | None:
        """Record what ended in this step, in every worker, and add up how it went.

        Where episodes may go on over steps, `groups` are those that the step is made of.

        Returns None if a worker was lost before it could say: then its groups have to be played again, and this is
        called again after that.
        """
        if self._local:
            self._finished += self._here(self._local.finish_step(step, groups))
        asked = [(crew, crew.actor.finish_step.remote(step, groups)) for crew in self._crew]
        is_whole = True
        for crew, answer in asked:
            try:
                handed: Finished = ray.get(answer)  # type: ignore[assignment]
                self._finished += handed
                over = {group_name(entry.episode_id) for entry in handed.entries}
                under_way = {uid for chunk in crew.given for uid in _uids(chunk)} - over
                crew.given, crew.losses = _rows(crew.given, under_way), 0
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
        """Play the episodes of an evaluation, shared out over the workers, with the weights of the rollout servers."""
        began = time.perf_counter()
        if self._local:
            finished = self._here(self._local.evaluate(environment, plan, 0, 1))
        else:
            count = len(self._crew)
            shares = [crew.actor.evaluate.remote(environment, plan, n, count) for n, crew in enumerate(self._crew)]
            finished = [one for n, share in enumerate(shares) for one in self._share(n, share, environment, plan)]
        return plan.result(finished, time.perf_counter() - began)

    def replace_lost(self) -> None:
        """Start a new actor for each that is gone, and send it what the old one had in hand."""
        if not self._crew:
            return
        gone, _ = ray.wait([crew.watch for crew in self._crew], num_returns=len(self._crew), timeout=0)
        for place, crew in enumerate(self._crew):
            if crew.watch in gone:
                self._replace(place, crew)

    def pulse(self) -> tuple[int, str]:
        """How often an episode has got on so far, and where those that run are; never waits for an actor."""
        if self._local:
            activity = self._local.room.activity
            return activity.transitions, activity.describe()
        for crew in self._crew:
            for answer in ray.wait(crew.pulse, timeout=0)[0] if crew.pulse else ():
                try:
                    crew.moves = ray.get(answer)
                except RayActorError:
                    crew.moves = (crew.moves[0], "lost")
                crew.pulse = []
            if not crew.pulse:
                crew.pulse = [crew.actor.pulse.remote()]
        told = [f"worker {place}: {crew.moves[1]}" for place, crew in enumerate(self._crew)]
        return sum(crew.moves[0] for crew in self._crew), "; ".join(told)

    def _share(self, place: int, share: Any, environment: EnvironmentSpec, plan: EvaluationPlan) -> Any:
        try:
            return self._get(share)
        except RayActorError:
            self.replace_lost()
            return self._get(self._crew[place].actor.evaluate.remote(environment, plan, place, len(self._crew)))

    def _replace(self, place: int, crew: _Crew) -> None:
        crew.losses += 1
        if crew.losses > _MOST_LOSSES:
            raise TrainingFailure(
                f"The process that runs episodes was lost {crew.losses} times in one step: see whether the machine is "
                "out of memory, or whether the environment ends its process."
            )
        self._tell(f"Process {place} that runs episodes was lost; its groups are played again in a new one.")
        crew.actor = self._start(place)
        crew.watch, crew.pulse = crew.actor.stay.remote(), []
        waiting = put_back_groups([uid for chunk in crew.given for uid in _uids(chunk)])
        for chunk in crew.given:
            self._note_lost(chunk, waiting, time.monotonic() - crew.since)
        rows = _rows(crew.given, waiting)
        crew.given, crew.since = [], time.monotonic()
        for answer in [_send(crew, row) for row in rows]:
            _see(answer)

    def _note_lost(self, chunk: TensorDict, waiting: set[str], seconds: float) -> None:
        for uid in _uids(chunk):
            names = self._names(uid)
            self._lost += len(names) if uid in waiting else 0
            if uid in waiting:
                self.ledger.lose(names, seconds)
            else:  # its group was dropped, and how its episodes ended is lost with the process
                attempt = Attempt(Outcome.WORKER_LOST.value, 0, seconds)
                self.ledger.end(LedgerEntry(name, "", Decision.DROPPED, [attempt]) for name in names)

    def _names(self, uid: str) -> list[str]:
        return [episode_name(uid, session) for session in range(self._group_size)]

    def _here(self, coroutine: Any) -> Any:
        """Wait for something that this process's own worker does, and look after the other processes meanwhile."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        while not wait([future], timeout=_LOOK_SECONDS).done:
            self.meanwhile()
        return future.result()

    def _get(self, reference: Any) -> Any:
        """The same for an actor."""
        while not ray.wait([reference], timeout=_LOOK_SECONDS)[0]:
            self.meanwhile()
        return ray.get(reference)


def _uids(prompts: TensorDict) -> list[str]:
    return [str(uid) for uid in prompts["uid"]]


def _rows(chunks: list[TensorDict], wanted: set[str]) -> list[TensorDict]:
    """Those groups of some batches that are wanted, one by one."""
    return [chunk[n : n + 1] for chunk in chunks for n, uid in enumerate(_uids(chunk)) if uid in wanted]


def _send(crew: _Crew, prompts: TensorDict) -> Any:
    crew.given.append(prompts.clone())  # the worker takes fields out of what it is sent
    return crew.actor.generate_sequences.remote(prompts)


def _see(answer: Any) -> None:
    """Raise what went wrong with a call; that its process is gone is noticed elsewhere."""
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
    """Mark groups in the queue as not yet played, and take out what it holds of their episodes.

    Args:
        uids: Which; None: all, and also the episodes of groups that the queue no longer knows.

    Returns:
        Those of them that the queue still waits for or holds.
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

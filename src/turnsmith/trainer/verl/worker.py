"""Runs the episodes of one process: the task runner's own, or a Ray actor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import InternalError, TrainingFailure, TurnsmithError
from turnsmith.inference.chat import Chat, set_template, thinking_settings
from turnsmith.internal_errors import internal_error, is_ours
from turnsmith.loop_thread import LoopThread
from turnsmith.records.episodes import write_episodes
from turnsmith.records.run_lock import write_for
from turnsmith.records.stacks import enable_stack_dump
from turnsmith.rollout.episode_groups import drop_groups, episode_name, settle_groups, split_settled
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan, run_evaluation
from turnsmith.rollout.in_flight import TrackedEngine
from turnsmith.rollout.ledger import LedgerEntry
from turnsmith.rollout.same_failure import SameFailure
from turnsmith.tools.parsing.formats import parser_for
from turnsmith.trainer.diagnostics.metrics import report_of
from turnsmith.trainer.verl.agent_loop import EpisodeContext, GroupDropped, set_episode_context
from turnsmith.trainer.verl.episode_plan import EpisodePlan
from turnsmith.trainer.verl.workers import EpisodeWorkerHandle, Finished
from turnsmith.trajectory import Trajectory

_TOO_OLD = "When it ended it was older than training.max_staleness allows, and training.stragglers is drop."
_VerlWorker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class  # type: ignore[attr-defined]


class EpisodeWorker(_VerlWorker):
    """verl's agent-loop worker, which also keeps the records of its episodes until a step is over."""

    def __init__(self, part: str, plan: EpisodePlan, config: Any, engine: Any) -> None:
        super().__init__(config, engine, None, [])
        if plan.lock_token:
            write_for(Path(plan.run_dir), plan.lock_token)
        self.part = part
        self.fault: TurnsmithError | None = None
        """The first error with which an episode could not be played or handed over at all; the run has to stop."""
        # verl logs each group that is to be replaced as an error, with a traceback.
        logging.getLogger(AgentLoopWorkerTQ.__module__).addFilter(_is_error)
        set_template(self.tokenizer, plan.chat_template)
        parser = plan.rollout.parser or parser_for(plan.tool_format, self.tokenizer)
        rollout = replace(plan.rollout, parser=parser)
        chat = Chat(self.tokenizer, template_settings=thinking_settings(self.tokenizer, plan.thinking))
        self.context = EpisodeContext(replace(plan, rollout=rollout), chat)
        set_episode_context(self.context)

    async def _run_agent_loop(self, *args: Any, **row: Any) -> Any:
        try:
            return await super()._run_agent_loop(*args, **row)
        except GroupDropped:
            raise
        except Exception as error:
            self.fault = self.fault or _fault(episode_name(row["uid"], row["session_id"]), error)
            await asyncio.Event().wait()  # the run stops: verl must not replace the group until then

    async def finish_step(
        self,
        step: int,
        groups: Collection[str] | None = None,
        update: int = 0,
        too_old: Collection[str] = (),
        times_handed: int = 0,
    ) -> Finished:
        """Write finished episodes to the run folder, and report on them.

        Args:
            step: The step that trains on them.
            groups: Only episodes of these groups and of dropped groups; the others wait for their step.
            update: Of which update of the step they are: each writes a file of its own.
            too_old: Groups that were dropped because they exceeded `training.max_staleness`.
            times_handed: How often this worker has handed over episodes of this step: what it wrote then stays. A file
                of a step that is made again, after `load_checkpoint`, is replaced.
        """
        drop_groups(self.context.finished, too_old, _TOO_OLD)
        finished, self.context.finished = split_settled(
            self.context.finished, groups, self.config.actor_rollout_ref.rollout.n
        )
        settle_groups(finished)
        self.context.failing = SameFailure()
        if finished:
            attempts = [attempt for played in finished for attempt in played.attempts]
            part = f"{self.part}.{update}" if update else self.part
            await asyncio.to_thread(_write, self.context.plan.run_dir, step, attempts, part, times_handed)
        return Finished(
            report_of(played.trajectory for played in finished),
            [LedgerEntry.of(played) for played in finished],
            self.fault,
        )

    async def evaluate(
        self, environment: EnvironmentSpec, plan: EvaluationPlan, place: int, workers: int
    ) -> list[Trajectory]:
        """Play this worker's share of an evaluation. Training does not see these episodes."""
        ours, name = self.context.plan.rollout, "evaluation"
        plan = replace(plan, parser=ours.parser, players=ours.players)
        engine = TrackedEngine(self.llm_client, self.context.in_flight, name)
        mine = plan.starts()[place::workers]
        try:
            return (await run_evaluation(environment, engine, self.context.chat, plan, starts=mine)).trajectories
        finally:
            self.context.in_flight.end(name)

    async def add_servers(self, servers: list[Any]) -> None:
        """Send requests to these rollout servers too."""
        self.llm_client.add(servers)

    async def pulse(self) -> tuple[int, str, TurnsmithError | None]:
        """A counter of progress, what this process's episodes are doing, and `fault`."""
        return self.context.in_flight.transitions, self.context.in_flight.describe(), self.fault

    async def stay(self) -> None:
        """Never return: this call fails when the process dies, and only then."""
        enable_stack_dump("process that runs episodes")
        await asyncio.Event().wait()


def _fault(name: str, error: Exception) -> TurnsmithError:
    if is_ours(error):
        bug = internal_error(error)
        return InternalError(f"Episode {name}: {bug}", bug.traceback)
    return TrainingFailure(f"Episode {name} could not be handed to the trainer: {error!r}")


def _write(run_dir: str | Path, step: int, attempts: list[Trajectory], part: str, times_handed: int) -> None:
    if not times_handed:  # a step that is made again, after `load_checkpoint`, replaces all that it wrote before
        for old in Path(run_dir, "episodes").glob(f"step-{step:08d}-{part}.again*"):
            old.unlink()
    write_episodes(run_dir, step, attempts, part=f"{part}.again{times_handed}" if times_handed else part)


def _is_error(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], GroupDropped))


def local_worker(plan: EpisodePlan, config: Any, engine: Any) -> EpisodeWorkerHandle:
    """Make a worker in this process, with an event loop in its own thread."""
    loop, worker = LoopThread("episodes"), EpisodeWorker("0", plan, config, engine)
    return EpisodeWorkerHandle(lambda method, *args: loop.start(getattr(worker, method)(*args)), Future())


def start_actor(place: int, plan: EpisodePlan, config: Any, engine: Any) -> EpisodeWorkerHandle:
    """Start a worker in a Ray actor; workers are spread over the nodes that have CPUs."""
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
    # Not soft: for an actor without CPUs Ray would then take any node.
    node = NodeAffinitySchedulingStrategy(nodes[place % len(nodes)], soft=False)
    actor: Any = ray.remote(EpisodeWorker).options(num_cpus=0, scheduling_strategy=node)
    actor = actor.remote(str(place), plan, config, engine)

    def call(method: str, *args: Any) -> Future[Any]:
        return getattr(actor, method).remote(*args).future()

    return EpisodeWorkerHandle(call, call("stay"))

"""What runs episodes in one process, the task runner's own or an actor's."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.chat import Chat
from turnsmith.records.episodes import write_episodes
from turnsmith.records.stacks import enable_stack_dump
from turnsmith.rollout.episode_groups import settle_groups, split_settled
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan, run_evaluation
from turnsmith.rollout.in_flight import TrackedEngine
from turnsmith.rollout.ledger import LedgerEntry
from turnsmith.tools.parsing.formats import parser_for
from turnsmith.trainer.diagnostics.metrics import EpisodeReport, report_of
from turnsmith.trainer.verl.agent_loop import EpisodeContext, set_episode_context
from turnsmith.trainer.verl.episode_plan import EpisodePlan
from turnsmith.trajectory import Trajectory

_VerlWorker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class  # type: ignore[attr-defined]


@dataclass
class Finished:
    """What ended in a worker since it was last asked."""

    report: EpisodeReport = field(default_factory=EpisodeReport)
    entries: list[LedgerEntry] = field(default_factory=list[LedgerEntry])

    def __add__(self, other: Finished) -> Finished:
        return Finished(self.report + other.report, self.entries + other.entries)


class EpisodeWorker(_VerlWorker):
    """verl's agent-loop worker, which also keeps what its episodes recorded until a step is over."""

    def __init__(self, part: str, plan: EpisodePlan, config: Any, engine: Any) -> None:
        super().__init__(config, engine, None, [])
        self.part = part
        parser = plan.rollout.parser or parser_for(plan.tool_format, self.tokenizer)
        rollout = replace(plan.rollout, parser=parser)
        self.room = EpisodeContext(replace(plan, rollout=rollout), Chat(self.tokenizer))
        set_episode_context(self.room)

    async def finish_step(self, step: int, groups: Collection[str] | None = None) -> Finished:
        """Write the episodes that ended to the run folder, and say how they went.

        Args:
            step: The step that they are trained in.
            groups: Only episodes of these groups, and of groups that were dropped; the others wait for their step.
        """
        finished, self.room.finished = split_settled(
            self.room.finished, groups, self.config.actor_rollout_ref.rollout.n
        )
        settle_groups(finished)
        if finished:
            attempts = [attempt for played in finished for attempt in played.attempts]
            await asyncio.to_thread(write_episodes, self.room.plan.run_dir, step, attempts, part=self.part)
        return Finished(
            report_of(played.trajectory for played in finished), [LedgerEntry.of(played) for played in finished]
        )

    async def evaluate(
        self, environment: EnvironmentSpec, plan: EvaluationPlan, place: int, workers: int
    ) -> list[Trajectory]:
        """Play this worker's share of an evaluation. Training hears nothing of these episodes."""
        plan, name = replace(plan, parser=self.room.plan.rollout.parser), "evaluation"
        engine = TrackedEngine(self.llm_client, self.room.activity, name)
        mine = plan.starts()[place::workers]
        try:
            return (await run_evaluation(environment, engine, self.room.chat, plan, starts=mine)).trajectories
        finally:
            self.room.activity.end(name)

    async def pulse(self) -> tuple[int, str]:
        """How often an episode of this process has got on so far, and where those that run are."""
        return self.room.activity.transitions, self.room.activity.describe()

    async def stay(self) -> None:
        """Never return: this call fails when the process is gone, and only then."""
        enable_stack_dump("process that runs episodes")
        await asyncio.Event().wait()

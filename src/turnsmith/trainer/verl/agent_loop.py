"""Runs the episodes of one process: the task runner's own, or a Ray actor.

verl's agent loop runs our one episode loop, and passes its tokens and rewards to verl unchanged.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

from turnsmith.concurrency.loop_thread import LoopThread
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import InternalError, TrainingFailure, TurnsmithError, internal_error, is_ours
from turnsmith.inference.chat import Chat, set_template, thinking_settings
from turnsmith.records.episodes import write_episodes
from turnsmith.records.run_lock import write_for
from turnsmith.records.stacks import enable_stack_dump
from turnsmith.rollout.episode import EpisodeStart
from turnsmith.rollout.episode_groups import GroupFilter, episode_name, settle_groups, split_settled
from turnsmith.rollout.episode_report import report_of
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan, run_evaluation
from turnsmith.rollout.in_flight import InFlightEpisodes, TrackedEngine
from turnsmith.rollout.ledger import LedgerEntry
from turnsmith.rollout.retry import EpisodeResult, check_not_stopped, play_episode
from turnsmith.rollout.same_failure import SameFailure
from turnsmith.tools.parsing.formats import parser_for
from turnsmith.trainer.advantages import turn_anchors
from turnsmith.trainer.config.to_verl import AGENT_LOOP
from turnsmith.trainer.run_parts import EpisodePlan
from turnsmith.trainer.segments import places_in_episode
from turnsmith.trainer.verl.estimators import ANCHORS, PLACES
from turnsmith.trainer.verl.workers import EpisodeWorkerHandle, FinishedEpisodes
from turnsmith.trajectory import Decision, Trajectory


@dataclass
class EpisodeContext:
    """What the episodes of one process share. verl builds an agent loop for each episode and cannot pass it our
    objects, so this is a global of the process.
    """

    plan: EpisodePlan
    chat: Chat
    finished: list[EpisodeResult] = field(default_factory=list[EpisodeResult])
    in_flight: InFlightEpisodes = field(default_factory=InFlightEpisodes)
    failing: SameFailure = field(default_factory=SameFailure)
    """Those of the current step."""
    groups: GroupFilter = field(init=False)

    def __post_init__(self) -> None:
        self.groups = GroupFilter(self.plan.filtered_group_size)


_context: EpisodeContext | None = None


def set_episode_context(context: EpisodeContext) -> None:
    """Set what this process's episodes share; the worker calls it once, before any episode."""
    global _context
    _context = context


class EpisodeOutput(AgentLoopOutput):
    """verl's output with a reward for each token: the base class keeps only one, on the last token."""

    token_rewards: list[float]
    anchors: list[int] | None = None
    places: list[int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The fields that verl stores, with our rewards in `rm_scores`."""
        output = super().as_dict()
        output["rm_scores"] = torch.tensor(output.pop("token_rewards"), dtype=torch.float32)
        for ours, theirs in (("anchors", ANCHORS), ("places", PLACES)):
            numbers = output.pop(ours, None)
            if numbers is not None:
                output[theirs] = torch.tensor(numbers, dtype=torch.int64)
        return output


@register(AGENT_LOOP)
class EpisodeAgentLoop(AgentLoopBase):
    """Runs one episode for verl."""

    def __init__(self, server_manager: Any, **unused: Any) -> None:
        # The base class would build a chat renderer for each episode; ours is shared by the process.
        self.engine = server_manager

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """Run the episode of one dataset row and pass it to verl.

        A masked episode returns nothing: verl trains on the others of its group, and pads the batch with rows that have
        no effect. A dropped one raises, so that verl replaces its whole group; so does the last of a filtered group. A
        bug of ours raises as well: the worker has the run stop.
        """
        if _context is None:
            raise TrainingFailure("This process has no episode plan: episodes must run in an EpisodeWorker.")
        plan = _context.plan
        start = EpisodeStart(
            episode_id=episode_name(row["uid"], row["session_id"]),
            group_id=str(row["index"]),
            seed=int(row["start_seed"]),
            task=json.loads(row["start_task"]) if row["start_task"] else None,
            environment=row.get("start_environment", ""),
        )
        _context.in_flight.enter(start.episode_id, "environment")
        try:
            engine = TrackedEngine(self.engine, _context.in_flight, start.episode_id)
            result = await play_episode(start, plan.rollout, engine, _context.chat, _context.failing)
        finally:
            _context.in_flight.end(start.episode_id)
        check_not_stopped(result.trajectory)
        mask_untrainable(result.trajectory)
        _context.finished.append(result)
        if plan.filtered_group_size and _context.groups.add(result.trajectory):
            raise GroupDropped(f"All episodes of the group of {start.episode_id} got the same reward; it is replaced.")
        decision = result.trajectory.decision
        if decision is Decision.DROPPED:
            raise GroupDropped(f"{start.episode_id} ended as {result.trajectory.outcome}; its group is replaced.")
        if not decision.is_counted:
            return []
        with_places = plan.rollout.environment.is_agent
        return to_verl_outputs(
            result.trajectory, with_anchors=plan.config.training.credit == "anchored", with_places=with_places
        )


class GroupDropped(TurnsmithError):
    """Tells verl to replace a group."""


def mask_untrainable(trajectory: Trajectory) -> None:
    """Mask an episode that cannot be trained, even if the failure policy would keep it."""
    if not trajectory.decision.is_counted:
        return
    if not trajectory.turns:
        trajectory.decision = Decision.MASKED
        trajectory.error = trajectory.error or "The model took no turn."
    elif not trajectory.exact:
        trajectory.decision = Decision.MASKED
        trajectory.error = (
            "Its engine returned only text, or log-probs of another distribution, so its tokens are not exact. Use "
            "such an engine for evaluation only."
        )


def to_verl_outputs(
    trajectory: Trajectory, *, with_anchors: bool = False, with_places: bool = False
) -> list[EpisodeOutput]:
    """A recorded episode as verl trains on it: one output for each segment. Nearly all episodes have one.

    Args:
        trajectory: The episode.
        with_anchors: Pass on the observation that each turn began from.
        with_places: Pass on how the segments make up the episode; needed if any episode of the run has several.
    """
    rewards, outputs, first = trajectory.token_rewards(), list[EpisodeOutput](), 0
    anchors = turn_anchors(trajectory) if with_anchors else None
    places = places_in_episode(trajectory) if with_places else None
    for branch, tokens in enumerate(trajectory.segments):
        prompt = tokens.prompt_length
        turns = [turn for turn in trajectory.turns if turn.branch == branch]
        versions = [version for turn in turns for version in turn.versions]
        part = slice(first, first := first + len(tokens) - prompt)
        outputs.append(
            EpisodeOutput(
                prompt_ids=tokens.ids[:prompt].tolist(),
                response_ids=tokens.ids[prompt:].tolist(),
                response_mask=tokens.mask[prompt:].tolist(),
                response_logprobs=tokens.log_probs[prompt:].tolist(),
                reward_score=trajectory.total_reward,
                num_turns=len(turns),
                metrics=AgentLoopMetrics(generate_sequences=sum(turn.generate_seconds for turn in turns)),
                extra_fields={
                    "min_global_steps": min(versions),
                    "max_global_steps": max(versions),
                    "reward_extra_info": {},
                },
                token_rewards=rewards[part],
                anchors=anchors[part] if anchors else None,
                places=places[part] if places else None,
            )
        )
    return outputs


_VerlWorker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class  # type: ignore[attr-defined]


class EpisodeWorker(_VerlWorker):
    """verl's agent-loop worker, which also keeps the records of its episodes until a step is over."""

    def __init__(self, part: str, plan: EpisodePlan, config: Any, engine: Any) -> None:
        super().__init__(config, engine, None, [])
        if plan.lock_token:
            write_for(Path(plan.run_dir), plan.lock_token)
        self.part = part
        self.fault: TurnsmithError | None = None
        """The first error that kept an episode from being played or sent to the trainer; it stops the run."""
        # verl logs each group to be replaced as an error with a traceback.
        logging.getLogger(AgentLoopWorkerTQ.__module__).addFilter(_is_error)
        settings = plan.config
        set_template(self.tokenizer, settings.model.chat_template)
        parser = plan.rollout.parser or parser_for(settings.inference.tool_format, self.tokenizer)
        rollout = replace(plan.rollout, parser=parser)
        chat = Chat(self.tokenizer, template_settings=thinking_settings(self.tokenizer, settings.inference.thinking))
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
        times_handed: int = 0,
    ) -> FinishedEpisodes:
        """Write finished episodes to the run folder, and report on them.

        Args:
            step: The step that trains on them.
            groups: Only episodes of these groups and of dropped groups; the others wait for their step.
            update: The update of the step that trains on them; each has its own file.
            times_handed: How often this worker has sent episodes of this step; their files stay. Files of a step
                that is repeated after `load_checkpoint` are replaced.
        """
        finished, self.context.finished = split_settled(
            self.context.finished, groups, self.config.actor_rollout_ref.rollout.n
        )
        settle_groups(finished)
        self.context.failing = SameFailure()
        if finished:
            attempts = [attempt for played in finished for attempt in played.attempts]
            part = f"{self.part}.{update}" if update else self.part
            await asyncio.to_thread(_write, self.context.plan.run_dir, step, attempts, part, times_handed)
        return FinishedEpisodes(
            report_of(played.trajectory for played in finished),
            [LedgerEntry.of(played) for played in finished],
            self.fault,
        )

    async def evaluate(
        self, environment: EnvironmentSpec, plan: EvaluationPlan, place: int, workers: int
    ) -> list[Trajectory]:
        """Play this worker's share of an evaluation. Training does not see these episodes."""
        ours, name = self.context.plan.rollout, "evaluation"
        plan = replace(plan, players=ours.players, **ours.parts())
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
        """A counter of progress, the state of this process's episodes, and `fault`."""
        return self.context.in_flight.transitions, self.context.in_flight.describe(), self.fault

    async def stay(self) -> None:
        """Never return, so that this call fails when the process dies, and only then."""
        enable_stack_dump("process that runs episodes")
        await asyncio.Event().wait()


def _fault(name: str, error: Exception) -> TurnsmithError:
    if is_ours(error):
        bug = internal_error(error)
        return InternalError(f"Episode {name}: {bug}", bug.traceback)
    return TrainingFailure(f"Episode {name} could not be handed to the trainer: {error!r}")


def _write(run_dir: str | Path, step: int, attempts: list[Trajectory], part: str, times_handed: int) -> None:
    if not times_handed:  # a step that is repeated after `load_checkpoint` replaces its files
        for old in Path(run_dir, "episodes").glob(f"step-{step:08d}-{part}.again*"):
            old.unlink()
    write_episodes(run_dir, step, attempts, part=f"{part}.again{times_handed}" if times_handed else part)


def _is_error(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], GroupDropped))


def local_worker(plan: EpisodePlan, config: Any, engine: Any) -> EpisodeWorkerHandle:
    """Create a worker in this process, with an event loop in its own thread."""
    loop, worker = LoopThread("episodes"), EpisodeWorker("0", plan, config, engine)
    return EpisodeWorkerHandle(lambda method, *args: loop.start(getattr(worker, method)(*args)), Future())


def start_actor(place: int, plan: EpisodePlan, config: Any, engine: Any) -> EpisodeWorkerHandle:
    """Start a worker in a Ray actor; workers are spread over the nodes that have CPUs."""
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
    # Not soft, because Ray would then put an actor without CPUs on any node.
    node = NodeAffinitySchedulingStrategy(nodes[place % len(nodes)], soft=False)
    actor: Any = ray.remote(EpisodeWorker).options(num_cpus=0, scheduling_strategy=node)
    actor = actor.remote(str(place), plan, config, engine)

    def call(method: str, *args: Any) -> Future[Any]:
        return getattr(actor, method).remote(*args).future()

    return EpisodeWorkerHandle(call, call("stay"))

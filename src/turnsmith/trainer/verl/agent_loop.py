"""verl's agent loop: runs our one episode loop, and passes its tokens and rewards to verl unchanged."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

from turnsmith.errors import TrainingFailure, TurnsmithError
from turnsmith.inference.chat import Chat
from turnsmith.rollout.episode import EpisodeStart
from turnsmith.rollout.episode_groups import GroupFilter, episode_name
from turnsmith.rollout.in_flight import InFlightEpisodes, TrackedEngine
from turnsmith.rollout.retry import EpisodeResult, check_not_stopped, play_episode
from turnsmith.rollout.same_failure import SameFailure
from turnsmith.trainer.advantages import turn_anchors
from turnsmith.trainer.config.to_verl import AGENT_LOOP
from turnsmith.trainer.segments import places_in_episode
from turnsmith.trainer.verl.episode_plan import EpisodePlan
from turnsmith.trainer.verl.estimators import ANCHORS, PLACES
from turnsmith.trajectory import Decision, Trajectory


@dataclass
class EpisodeContext:
    """What the episodes of one process share. verl builds an agent loop for each episode and can pass it nothing of
    ours, so it is a global of the process.
    """

    plan: EpisodePlan
    chat: Chat
    finished: list[EpisodeResult] = field(default_factory=list[EpisodeResult])
    in_flight: InFlightEpisodes = field(default_factory=InFlightEpisodes)
    failing: SameFailure = field(default_factory=SameFailure)
    """Of the current step."""
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
        # The base class would build a chat renderer for each episode; the process shares ours.
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
        return to_verl_outputs(result.trajectory, with_anchors=plan.credit == "anchored", with_places=with_places)


class GroupDropped(TurnsmithError):
    """Tells verl to replace a group."""


def mask_untrainable(trajectory: Trajectory) -> None:
    """Mask an episode that cannot be trained on, whatever the failure policy says."""
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
    """A recorded episode as verl trains on it: one output for each of its segments, which is nearly always one.

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

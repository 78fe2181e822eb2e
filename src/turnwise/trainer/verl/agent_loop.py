"""verl's agent loop, which runs our one episode loop and hands its tokens and rewards over as they are."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

from turnwise.errors import TrainingFailure
from turnwise.inference.chat import Chat
from turnwise.rollout.episode import EpisodeStart, run_episode
from turnwise.tools.parsing import ActionParser
from turnwise.trainer.credit import turn_anchors
from turnwise.trainer.verl.episode_plan import EpisodePlan
from turnwise.trainer.verl.rollout_registry import AGENT_LOOP
from turnwise.trajectory import Trajectory

ANCHORS = "turn_anchors"
"""The field of verl's batch that holds the observation each turn began from, when `training.credit` asks for it."""


@dataclass
class EpisodeRoom:
    """What the episodes of one process share. verl builds an agent loop for each episode and gives it no way to be
    handed anything of ours, so they meet here.
    """

    plan: EpisodePlan
    chat: Chat
    parser: ActionParser
    finished: list[Trajectory]


_room: EpisodeRoom | None = None


def open_room(room: EpisodeRoom) -> None:
    """Set what this process's episodes share; called once by the worker before any episode."""
    global _room
    _room = room


class EpisodeOutput(AgentLoopOutput):
    """verl's output with a reward for each token: the base class keeps only one, on the very last token."""

    token_rewards: list[float]
    anchors: list[int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The fields verl stores, with our rewards in `rm_scores`."""
        output = super().as_dict()
        output["rm_scores"] = torch.tensor(output.pop("token_rewards"), dtype=torch.float32)
        anchors = output.pop("anchors", None)
        if anchors is not None:
            output[ANCHORS] = torch.tensor(anchors, dtype=torch.int64)
        return output


@register(AGENT_LOOP)
class EpisodeAgentLoop(AgentLoopBase):
    """Runs one episode for verl."""

    def __init__(self, server_manager: Any, **unused: Any) -> None:
        # The base class would build a chat renderer for each episode; ours is shared by the process.
        self.engine = server_manager

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> EpisodeOutput:
        """Run the episode of one dataset row and hand it to verl; an episode that cannot be trained on raises."""
        if _room is None:
            raise TrainingFailure("No episode plan in this process: episodes must run in an EpisodeWorker.")
        plan = _room.plan
        start = EpisodeStart(
            episode_id=f"{row['uid']}-{row['session_id']}",
            group_id=str(row["index"]),
            seed=int(row["start_seed"]),
            task=json.loads(row["start_task"]) if row["start_task"] else None,
        )
        trajectory = await run_episode(
            start,
            environment=plan.environment,
            engine=self.engine,
            chat=_room.chat,
            limits=plan.limits,
            sampling=replace(plan.sampling, stop_token_ids=_room.chat.stop_token_ids),
            reward_fn=plan.reward_fn,
            tools=plan.tools,
            parser=_room.parser,
        )
        _room.finished.append(trajectory)
        return output_of(trajectory, with_anchors=plan.with_anchors)


def output_of(trajectory: Trajectory, *, with_anchors: bool = False) -> EpisodeOutput:
    """What verl trains on, from a recorded episode."""
    if trajectory.outcome is None or not trajectory.outcome.is_behaviour or not trajectory.turns:
        # verl drops the one episode that raises and trains on the rest of its group.
        raise TrainingFailure(f"Episode {trajectory.episode_id} ended in {trajectory.outcome}: {trajectory.error}")
    if not trajectory.exact:
        raise TrainingFailure(
            f"Episode {trajectory.episode_id} cannot be trained on: its engine gave text, or log-probs of another "
            "distribution, so its tokens are not those that were sampled. Use it for evaluation only."
        )
    tokens, prompt = trajectory.tokens, trajectory.tokens.prompt_length
    versions = [version for turn in trajectory.turns for version in turn.versions]
    return EpisodeOutput(
        prompt_ids=tokens.ids[:prompt].tolist(),
        response_ids=tokens.ids[prompt:].tolist(),
        response_mask=tokens.mask[prompt:].tolist(),
        response_logprobs=tokens.log_probs[prompt:].tolist(),
        reward_score=trajectory.total_reward,
        num_turns=trajectory.num_turns,
        metrics=AgentLoopMetrics(generate_sequences=sum(turn.generate_seconds for turn in trajectory.turns)),
        extra_fields={
            "min_global_steps": min(versions),
            "max_global_steps": max(versions),
            "reward_extra_info": {},
        },
        token_rewards=trajectory.token_rewards(),
        anchors=turn_anchors(trajectory) if with_anchors else None,
    )

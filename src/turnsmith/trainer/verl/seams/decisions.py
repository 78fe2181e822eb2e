"""What our agent loop does with an episode by the failure policy's decision: kept, masked or dropped."""

from __future__ import annotations

import asyncio
from typing import Any

from turnsmith.trainer.verl.seams.base import holds, same, seam


def play(environment: type, policy: str, replies: list[str]) -> tuple[Any, Any]:
    """Run verl's agent loop for one row; return its output, or the exception, and the trajectory it recorded."""
    from transformers import AutoTokenizer

    from turnsmith.config import FailuresConfig
    from turnsmith.env.spec import EnvironmentSpec
    from turnsmith.inference.chat import Chat
    from turnsmith.inference.engines.scripted_engine import ScriptedEngine
    from turnsmith.models import resolve
    from turnsmith.rollout.failure_policy import FailurePolicy
    from turnsmith.rollout.limits import Limits
    from turnsmith.rollout.spec import RolloutSpec
    from turnsmith.trainer.verl.agent_loop import EpisodeAgentLoop, EpisodeContext, set_episode_context
    from turnsmith.trainer.verl.episode_plan import EpisodePlan

    chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))
    failures = FailurePolicy.of(FailuresConfig(environment=policy))
    rollout = RolloutSpec(environment=EnvironmentSpec.of(environment), limits=Limits(turns=2), failures=failures)
    context = EpisodeContext(EpisodePlan(rollout, run_dir=""), chat)
    set_episode_context(context)
    row = {"uid": "00000017", "session_id": 3, "index": 17, "start_seed": 5, "start_task": ""}
    try:
        output = asyncio.run(EpisodeAgentLoop(ScriptedEngine(replies, chat)).run({}, **row))
    except Exception as error:
        output = error
    (result,) = context.finished
    return output, result.trajectory


def broken() -> type:
    """An environment whose every step fails."""
    from turnsmith.env.examples.guess_number import GuessNumber

    class Broken(GuessNumber):
        def step(self, action: str) -> Any:
            raise OSError("gone")

    return Broken


@seam("trainer/verl/agent_loop.py itself, not verl,")
def agent_loop_hands_over_a_kept_episode() -> None:
    """EpisodeAgentLoop.run should return the tokens and rewards of an episode that is kept"""
    from turnsmith.env.examples.guess_number import GuessNumber

    (output,), trajectory = play(GuessNumber, "mask", ["8", "9"])
    same((trajectory.decision.value, trajectory.outcome.value), ("kept", "completed"))
    same((trajectory.episode_id, trajectory.group_id, trajectory.seed), ("00000017-3", "17", 5))
    same(output.response_ids, trajectory.tokens.ids[trajectory.tokens.prompt_length :].tolist())
    same(output.token_rewards, trajectory.token_rewards())


@seam("trainer/verl/agent_loop.py itself, not verl,")
def agent_loop_gives_nothing_of_a_masked_episode() -> None:
    """EpisodeAgentLoop.run should return nothing for an episode that is masked, so that verl fills up the batch"""
    output, trajectory = play(broken(), "mask", ["8"])
    same((output, trajectory.decision.value), ([], "masked"))


@seam("trainer/verl/agent_loop.py itself, not verl,")
def agent_loop_raises_for_a_dropped_episode() -> None:
    """EpisodeAgentLoop.run should raise GroupDropped for an episode that is dropped, so that verl replaces its group"""
    output, trajectory = play(broken(), "drop", ["8"])
    same((type(output).__name__, trajectory.decision.value), ("GroupDropped", "dropped"))
    holds("00000017-3" in str(output))


@seam("trainer/verl/agent_loop.py itself, not verl,")
def agent_loop_runs_only_in_a_worker() -> None:
    """EpisodeAgentLoop.run should refuse to run in a process that has no episode plan"""
    from turnsmith.errors import TrainingFailure
    from turnsmith.trainer.verl.agent_loop import EpisodeAgentLoop, set_episode_context

    set_episode_context(None)  # type: ignore[arg-type]
    try:
        asyncio.run(EpisodeAgentLoop(None).run({}))
    except TrainingFailure as error:
        holds("EpisodeWorker" in str(error))
    else:
        raise AssertionError("it ran")

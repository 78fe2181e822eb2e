"""One episode of an agent that brings its own loop: the counterpart of `run_attempt` for `solve(task, model)`."""

from __future__ import annotations

import json
import time

from turnsmith.clocks import Clock, OutOfTime
from turnsmith.env.agent import NO_REWARD, TO_SCORE, AgentEnvironment
from turnsmith.env.host import Host, open_host
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine
from turnsmith.rollout.agent_session import AgentSession
from turnsmith.rollout.attempt import EpisodeStart, failure_outcome, score_trajectory
from turnsmith.rollout.spec import RolloutSpec
from turnsmith.trajectory import Outcome, Trajectory


async def run_agent_attempt(start: EpisodeStart, spec: RolloutSpec, engine: Engine, chat: Chat) -> Trajectory:
    """Run an agent once, and record every turn that it asked the model for.

    Never raises, except when cancelled. Its reward is what the agent returned or gave to `model.reward`, or
    what its answer is worth, or `spec.reward_fn` decides.
    """
    began = time.perf_counter()
    host, clock = open_host(spec.environment), Clock(spec.limits.seconds)
    session = AgentSession(
        start.episode_id, engine, chat, clock, limits=spec.limits, sampling=spec.sampling, parser=spec.parser
    )
    try:
        outcome, error, reward = await _play(start, spec, host, session, clock)
        trajectory = session.to_trajectory()
        trajectory.episode_id, trajectory.group_id, trajectory.seed = start.episode_id, start.group_id, start.seed
        trajectory.environment, trajectory.outcome, trajectory.error = start.environment, outcome, error
        trajectory.task = start.task
        if session.refused and trajectory.infos:
            trajectory.infos[-1]["refused"] = dict(session.refused)
        if reward is not None and trajectory.rewards:
            trajectory.rewards[-1] += reward
        elif reward is not None:
            trajectory.score = reward  # there is no turn to put it on
        is_rewarded = reward is not None or spec.reward_fn is not None
        if outcome is Outcome.COMPLETED and not trajectory.turns and (is_rewarded or session.refused):
            trajectory.outcome, trajectory.error = Outcome.ENVIRONMENT_FAILED, _no_turn(session)
        elif outcome.is_behaviour and spec.reward_fn is not None:
            await score_trajectory(trajectory, spec, host, clock.waits)
        elif outcome is Outcome.COMPLETED and reward is None and not session.rewards:
            trajectory.outcome, trajectory.error = Outcome.ENVIRONMENT_FAILED, _no_reward(spec.environment)
    finally:
        await host.close()
    trajectory.seconds = time.perf_counter() - began
    trajectory.waits = {str(bottleneck): seconds for bottleneck, seconds in clock.waits.items()}
    return trajectory


async def _play(
    start: EpisodeStart, spec: RolloutSpec, host: Host, session: AgentSession, clock: Clock
) -> tuple[Outcome, str, float | None]:
    """Run the agent to its end; returns the outcome, the error of a fault, and the reward that it returned."""
    outcome, error, reward = Outcome.COMPLETED, "", None
    try:
        from turnsmith.gateway.server import serve_episode  # with aiohttp, which only agents need

        async with clock:
            await host.reset(start.seed, start.task)
            session.last_reply_at = time.perf_counter()
            async with serve_episode(session) as (url, key):
                result = await host.step(json.dumps({"url": url, "key": key}))
                if TO_SCORE in result.info:
                    answer = result.observation or session.last_message
                    result = await host.step(json.dumps({"answer": answer}))
                    session.note(result.info)
            reward = None if NO_REWARD in result.info else result.reward
    except OutOfTime:
        outcome, error = _time_out(spec, session, clock)
    except Exception as failure:
        outcome, error = failure_outcome(failure)
    if session.bug is not None:  # whatever the agent made of it
        return Outcome.INTERNAL_ERROR, session.bug.text, None
    # An agent that fails because it got no turn, or returns all the same, ends as that request did.
    if session.ended_by is not None and outcome in (Outcome.COMPLETED, Outcome.ENVIRONMENT_FAILED):
        outcome, error = session.ended_by
    return outcome, error, reward


def _time_out(spec: RolloutSpec, session: AgentSession, clock: Clock) -> tuple[Outcome, str]:
    """The time limit is the model's doing, unless the agent has not asked for a turn for most of the time."""
    took = time.perf_counter() - session.last_reply_at - clock.waited
    if session.forest.turns and took <= spec.limits.seconds / 2:
        return Outcome.TIME_LIMIT, ""
    return Outcome.ENVIRONMENT_TIMEOUT, f"The agent neither ended nor asked for a turn within {took:.0f} s."


def _no_turn(session: AgentSession) -> str:
    """Whatever the agent earned, the model had no part in it."""
    sentence = next(iter(session.refused), "")
    if sentence:
        return f"The agent got no turn of the model, because its requests were refused: {sentence}"
    return (
        "The agent ended without a turn of the model: it must ask for one at the model's URL and wait for the answer."
    )


def _no_reward(spec: EnvironmentSpec) -> str:
    agent = spec.load()
    assert issubclass(agent, AgentEnvironment)
    return agent.no_reward.format(name=spec.name)

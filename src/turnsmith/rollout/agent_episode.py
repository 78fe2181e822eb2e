"""Plays an episode of an agent that brings its own loop, `solve(task, model)`."""

from __future__ import annotations

import json
import time

from turnsmith.concurrency.clocks import Clock, OutOfTime
from turnsmith.env.agent import NO_REWARD, TO_SCORE, AgentEnvironment
from turnsmith.env.host import Host
from turnsmith.inference.engine import Engine
from turnsmith.rollout.agent_session import AgentSession
from turnsmith.rollout.attempt import EpisodeStart, failure_outcome
from turnsmith.rollout.spec import RolloutSpec
from turnsmith.rollout.turn_rules import TurnRules
from turnsmith.trajectory import Outcome, Trajectory


class AgentPlayer:
    """Runs an agent, and records every turn that it asked the model for.

    Its reward is what the agent returned or gave to `model.reward`, or what its answer is worth, or `spec.reward_fn`
    decides.
    """

    def __init__(
        self, start: EpisodeStart, spec: RolloutSpec, host: Host, engine: Engine, rules: TurnRules, clock: Clock
    ) -> None:
        self._start, self._spec, self._host, self._rules, self._clock = start, spec, host, rules, clock
        self._session = AgentSession(rules, engine, clock)
        self._reward: float | None = None
        """What the agent returned."""

    async def play(self) -> tuple[Outcome, str]:
        """Run to the end; return the outcome and, after a failure, the error message."""
        session, outcome, error = self._session, Outcome.COMPLETED, ""
        try:
            self._reward = await self._solve()
        except OutOfTime:
            unasked = time.perf_counter() - session.last_reply_at - self._clock.waited
            hangs = "The agent neither ended nor asked for a turn"
            outcome, error = self._rules.timed_out(unasked, hangs, has_turn=bool(session.forest.turns))
        except Exception as failure:
            outcome, error = failure_outcome(failure)
        if session.bug is not None:  # even if the agent caught it and went on
            self._reward = None
            return Outcome.INTERNAL_ERROR, session.bug.text
        # An agent that fails because it got no turn, or returns all the same, ends as that request did.
        if session.ended_by is not None and outcome in (Outcome.COMPLETED, Outcome.ENVIRONMENT_FAILED):
            outcome, error = session.ended_by
        missing = self._what_is_missing() if outcome is Outcome.COMPLETED else ""
        return (Outcome.ENVIRONMENT_FAILED, missing) if missing else (outcome, error)

    def to_trajectory(self) -> Trajectory:
        """The record of the episode."""
        return self._session.to_trajectory(self._reward)

    async def _solve(self) -> float | None:
        """Run the agent to its end; returns the reward that it returned."""
        from turnsmith.gateway.server import serve_episode  # with aiohttp, which only agents need

        session, host = self._session, self._host
        async with self._clock:
            await host.reset(self._start.seed, self._start.task)
            session.last_reply_at = time.perf_counter()
            async with serve_episode(session) as (url, key):
                result = await host.step(json.dumps({"url": url, "key": key}))
                if TO_SCORE in result.info:
                    answer = result.observation or session.last_message
                    result = await host.step(json.dumps({"answer": answer}))
                    session.add_scoring_info(result.info)
        return None if NO_REWARD in result.info else result.reward

    def _what_is_missing(self) -> str:
        """Why an episode that ended without an error cannot be trained on; empty if it has turns and a reward."""
        session, is_scored = self._session, self._spec.reward_fn is not None
        is_rewarded = self._reward is not None or is_scored
        refused = next(iter(session.refused), "")
        if not session.received and (is_rewarded or refused):  # the reward is not for anything that the model wrote
            if refused:
                return f"The agent got no turn of the model, because its requests were refused: {refused}"
            return (
                "The agent ended without a turn of the model: it must ask for one at the model's URL and wait for the "
                "answer."
            )
        if is_rewarded or session.rewards:
            return ""
        agent = self._spec.environment.load()
        assert issubclass(agent, AgentEnvironment)
        return agent.no_reward.format(name=self._spec.environment.name)

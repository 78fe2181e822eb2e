"""A reward as the sum of named, weighted terms; each term's contribution is recorded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from turnsmith.errors import ConfigError
from turnsmith.rollout.rewards.reward_function import RewardFailure, finite_reward
from turnsmith.trajectory import Trajectory

if TYPE_CHECKING:
    import torch

TermFunction = Callable[[Trajectory, Any], float]
"""`function(trajectory, environment)`: the term's unweighted value for an episode."""


@dataclass(frozen=True, slots=True)
class RewardTerm:
    """One term of a reward: `weight` times `function(trajectory, environment)`.

    Example:
        >>> brief = RewardTerm("brief", -0.01, lambda trajectory, environment: sum(map(len, trajectory.actions)))
        >>> brief.share(Trajectory(actions=["north", "south"]), None)
        -0.1
    """

    name: str
    weight: float
    function: TermFunction

    def share(self, trajectory: Trajectory, environment: Any) -> float:
        """The term's contribution to the episode's reward."""
        name = f"The reward term {self.name!r}"
        value = finite_reward(name, self.function(trajectory, environment))
        return finite_reward(f"{name} times its weight {self.weight:g}", value * self.weight)


def step_rewards(weight: float = 1.0) -> RewardTerm:
    """The sum of the environment's rewards."""
    return RewardTerm("step_rewards", weight, _step_rewards)


def success_bonus(weight: float = 5.0) -> RewardTerm:
    """A bonus if `success` is true in the last turn's info."""
    return RewardTerm("success_bonus", weight, _success)


def invalid_action_penalty(weight: float = -0.5) -> RewardTerm:
    """A penalty for every turn with a true `invalid_action` in its info."""
    return RewardTerm("invalid_action_penalty", weight, _invalid_actions)


def efficiency_bonus(weight: float = 0.1) -> RewardTerm:
    """A bonus for every unused turn: the environment's `max_steps` minus the turns taken."""
    return RewardTerm("efficiency_bonus", weight, _turns_left)


class RewardManager:
    """The reward of an episode as a sum of terms; pass it to the trainer as `reward_fn`.

    The default terms are those of the specification: `step_rewards`, `success_bonus`, `invalid_action_penalty` and
    `efficiency_bonus`. The episode loop calls it with the episode's own environment, and each term's contribution is
    recorded in `trajectory.reward_shares`. Its methods use the `environment` passed to the constructor.

    Example:
        >>> from turnsmith.env.examples import CustomGameEnvironment
        >>> manager = RewardManager(CustomGameEnvironment({"max_steps": 5}))
        >>> episode = Trajectory(actions=["jump", "complete quest"], rewards=[-0.1, 10.0])
        >>> episode.infos = [{"invalid_action": True}, {"success": True}]
        >>> {name: round(share, 2) for name, share in manager.shares(episode).items()}
        {'step_rewards': 9.9, 'success_bonus': 5.0, 'invalid_action_penalty': -0.5, 'efficiency_bonus': 0.3}
        >>> round(manager.compute_trajectory_reward(episode), 2)
        14.7
        >>> RewardManager(terms=[step_rewards(), success_bonus(1.0)]).compute_trajectory_reward(episode)
        10.9
    """

    def __init__(self, environment: Any = None, terms: Sequence[RewardTerm] | None = None) -> None:
        if terms is None:
            terms = (step_rewards(), success_bonus(), invalid_action_penalty(), efficiency_bonus())
        self.environment = environment
        self.terms = tuple(terms)
        for term in self.terms:
            if not isinstance(term, RewardTerm):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"{term!r} is not a RewardTerm: write RewardTerm(name, weight, function).")
        repeated = [name for name, count in Counter(term.name for term in self.terms).items() if count > 1]
        if repeated:
            raise ConfigError(f"Two reward terms are called {repeated[0]!r}: give each a name of its own.")

    def __call__(self, trajectory: Trajectory, environment: Any = None) -> float:
        """The episode's reward; also sets `trajectory.reward_shares`."""
        trajectory.reward_shares = self.shares(trajectory, environment)
        return _sum(trajectory.reward_shares)

    def compute_trajectory_reward(self, trajectory: Trajectory | Mapping[str, Any]) -> float:
        """The reward of one episode: a trajectory, or a mapping with `rewards`, `infos` and `num_turns`.

        Raises:
            RewardFailure: The episode failed, so it has no reward.
        """
        return _sum(self.shares(trajectory))

    def compute_batch_rewards(self, trajectories: Sequence[Trajectory | Mapping[str, Any]]) -> torch.Tensor:
        """The rewards of many episodes, as a float32 tensor of shape `(len(trajectories),)`."""
        torch: Any = import_module("torch")  # by name: this package must not import torch when it loads
        return torch.tensor(list(map(self.compute_trajectory_reward, trajectories)), dtype=torch.float32)

    def shares(self, trajectory: Trajectory | Mapping[str, Any], environment: Any = None) -> dict[str, float]:
        """Each term's contribution to the reward, by its name."""
        if environment is None:
            environment = self.environment
        episode = trajectory if isinstance(trajectory, Trajectory) else _from_mapping(trajectory)
        if episode.outcome is not None and not episode.outcome.is_behaviour:
            raise RewardFailure(f"The episode has no reward, because it failed: {episode.error} Leave it out.")
        return {term.name: term.share(episode, environment) for term in self.terms}

    def __getstate__(self) -> dict[str, Any]:
        # Workers pass in each episode's own environment; this one may hold what cannot be pickled, such as a database.
        max_steps = getattr(self.environment, "max_steps", None)
        environment = None if max_steps is None else SimpleNamespace(max_steps=max_steps)
        return {"environment": environment, "terms": self.terms}


def _from_mapping(episode: Mapping[str, Any]) -> Trajectory:
    actions = list(episode.get("actions", ()))
    turns = int(episode.get("num_turns", len(actions)))
    return Trajectory(
        states=list(episode.get("states", ())),
        actions=(actions + [""] * turns)[:turns],
        rewards=[float(reward) for reward in episode["rewards"]],
        dones=list(episode.get("dones", ())),
        infos=[info or {} for info in episode.get("infos", ())],
        outcome=episode.get("outcome"),
        error=episode.get("error", ""),
    )


def _sum(shares: Mapping[str, float]) -> float:
    return finite_reward("The sum of the reward's terms", math.fsum(shares.values()))


# Module-level functions, not closures, so that they can be pickled.


def _step_rewards(trajectory: Trajectory, environment: Any) -> float:
    return math.fsum(trajectory.rewards)


def _success(trajectory: Trajectory, environment: Any) -> float:
    return float(trajectory.reported_success or False)


def _invalid_actions(trajectory: Trajectory, environment: Any) -> float:
    return float(sum(bool(info.get("invalid_action")) for info in trajectory.infos))


def _turns_left(trajectory: Trajectory, environment: Any) -> float:
    max_steps = getattr(environment, "max_steps", None)
    if max_steps is None:
        raise RewardFailure("efficiency_bonus needs an environment with max_steps: write RewardManager(environment)")
    return float(max_steps - trajectory.num_turns)

"""A reward made of named, weighted terms, whose shares can be read afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from turnsmith.errors import ConfigError
from turnsmith.trajectory import Trajectory

if TYPE_CHECKING:
    import torch

TermFunction = Callable[[Trajectory, Any], float]
"""`function(trajectory, environment)`: how much of a thing there was in the episode."""


@dataclass(frozen=True, slots=True)
class RewardTerm:
    """One part of a reward: `weight` times what `function(trajectory, environment)` returns.

    Example:
        >>> brief = RewardTerm("brief", -0.01, lambda trajectory, environment: sum(map(len, trajectory.actions)))
        >>> brief.share(Trajectory(actions=["north", "south"]), None)
        -0.1
    """

    name: str
    weight: float
    function: TermFunction

    def share(self, trajectory: Trajectory, environment: Any) -> float:
        """What the term adds to the episode's reward."""
        amount = self.function(trajectory, environment)
        try:
            share = math.nan if isinstance(amount, (str, bytes)) else self.weight * float(amount)
        except (TypeError, ValueError):
            share = math.nan
        if not math.isfinite(share):
            raise ValueError(f"the reward term {self.name!r} gave {str(amount)[:80]!r}; it must give a finite number")
        return share


def step_rewards(weight: float = 1.0) -> RewardTerm:
    """The sum of what the environment paid for the turns."""
    return RewardTerm("step_rewards", weight, _step_rewards)


def success_bonus(weight: float = 5.0) -> RewardTerm:
    """A bonus when the last info says `success`."""
    return RewardTerm("success_bonus", weight, _success)


def invalid_action_penalty(weight: float = -0.5) -> RewardTerm:
    """A penalty for every turn whose info says `invalid_action`."""
    return RewardTerm("invalid_action_penalty", weight, _invalid_actions)


def efficiency_bonus(weight: float = 0.1) -> RewardTerm:
    """A bonus for every turn that was left: the environment's `max_steps` less the turns taken."""
    return RewardTerm("efficiency_bonus", weight, _turns_left)


class RewardManager:
    """The reward of an episode as the sum of its terms; give it to the trainer as `reward_fn`.

    Without `terms` it has the four of the seeds: `step_rewards`, `success_bonus`, `invalid_action_penalty` and
    `efficiency_bonus`. Called by the episode loop, it is given the episode's own environment and leaves each term's
    share in `trajectory.reward_shares`, which is recorded. Its methods use the `environment` it was made with.

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
        wrong = [term for term in self.terms if not isinstance(term, RewardTerm)]  # pyright: ignore[reportUnnecessaryIsInstance]
        if wrong:
            raise ConfigError(f"{wrong[0]!r} is not a RewardTerm: write RewardTerm(name, weight, function).")
        names = [term.name for term in self.terms]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"Two reward terms are called {twice[0]!r}: shares are recorded by name.")

    def __call__(self, trajectory: Trajectory, environment: Any = None) -> float:
        """The episode's reward; each term's share is left in `trajectory.reward_shares`."""
        shares = self.shares(trajectory, environment)
        trajectory.reward_shares = shares
        return math.fsum(shares.values())

    def compute_trajectory_reward(self, trajectory: Trajectory | Mapping[str, Any]) -> float:
        """The reward of one episode: a trajectory, or a mapping with `rewards`, `infos` and `num_turns`."""
        return math.fsum(self.shares(trajectory).values())

    def compute_batch_rewards(self, trajectories: Sequence[Trajectory | Mapping[str, Any]]) -> torch.Tensor:
        """The rewards of many episodes, as a float32 tensor of shape `(len(trajectories),)`."""
        # By name: this room must work, and load fast, where there is no torch.
        made: Any = import_module("torch")
        return made.tensor([self.compute_trajectory_reward(one) for one in trajectories], dtype=made.float32)

    def shares(self, trajectory: Trajectory | Mapping[str, Any], environment: Any = None) -> dict[str, float]:
        """What each term adds, by its name."""
        if environment is None:
            environment = self.environment
        episode = trajectory if isinstance(trajectory, Trajectory) else _read(trajectory)
        return {term.name: term.share(episode, environment) for term in self.terms}

    def __getstate__(self) -> dict[str, Any]:
        # Workers pass in the environment of each episode. This one may hold what cannot travel, such as a database.
        limit = getattr(self.environment, "max_steps", None)
        return {"environment": None if limit is None else _Remembered(limit), "terms": self.terms}


@dataclass(frozen=True, slots=True)
class _Remembered:
    """What a manager in another process knows of the environment it was made with."""

    max_steps: int


def _read(episode: Mapping[str, Any]) -> Trajectory:
    actions = list(episode.get("actions", ()))
    turns = int(episode.get("num_turns", len(actions)))
    return Trajectory(
        states=list(episode.get("states", ())),
        actions=(actions + [""] * turns)[:turns],
        rewards=[float(reward) for reward in episode["rewards"]],
        dones=list(episode.get("dones", ())),
        infos=[info or {} for info in episode.get("infos", ())],
    )


# Functions of the module, not closures: plain pickle can name them.


def _step_rewards(trajectory: Trajectory, environment: Any) -> float:
    return math.fsum(trajectory.rewards)


def _success(trajectory: Trajectory, environment: Any) -> float:
    return float(bool(trajectory.infos and trajectory.infos[-1].get("success")))


def _invalid_actions(trajectory: Trajectory, environment: Any) -> float:
    return float(sum(bool(info.get("invalid_action")) for info in trajectory.infos))


def _turns_left(trajectory: Trajectory, environment: Any) -> float:
    limit = getattr(environment, "max_steps", None)
    if limit is None:
        raise ValueError("efficiency_bonus needs an environment with max_steps: write RewardManager(environment)")
    return float(limit - trajectory.num_turns)

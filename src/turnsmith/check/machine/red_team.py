"""Trains a tiny model against a reward for some minutes, and looks for reward without success.

A search finds only what somebody has thought of; training finds whatever pays. `tiny` writes
characters, so it finds repetition, lengths, marks and single words, but no exploit that needs language.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnsmith.check.audit.search import Search
from turnsmith.check.finding import Check, Finding, Result
from turnsmith.check.machine.short_run import short_settings
from turnsmith.config import ConfigStore
from turnsmith.errors import TurnsmithError
from turnsmith.records.episodes import read_episodes
from turnsmith.trainer.ray_ppo_trainer import RayPPOTrainer
from turnsmith.trajectory import Trajectory

_STEPS = 5
"""Training steps between two measurements."""
_PAYS = 0.25
"""An unsuccessful episode is paid if it gets this share of the way from an untrained model to a right answer."""
_SHOWN = 3
_BATCH = 32
"""Episodes of a step."""


@dataclass(frozen=True, slots=True)
class Rise:
    """The rewards of episodes without success, in the first step and in the last."""

    steps: int
    before: float
    after: float
    success: float
    """Share of the episodes of the last step that succeed."""
    episodes: Sequence[Trajectory]
    """The episodes without success that are paid most."""

    def share(self, top: float | None) -> float:
        """How far the rewards have risen towards that of a right answer, `top`; 0 if `top` is unknown."""
        return 0.0 if top is None or top <= self.before else (self.after - self.before) / (top - self.before)


def train_against(
    config: ConfigStore,
    environment: Any,
    minutes: float,
    folder: Path,
    *,
    tasks: Any = None,
    found: Search | None = None,
) -> Result:
    """Train on the reward for some minutes, or until it is clear that it pays without success.

    Args:
        config: The settings of the run; its limits on turns and the environment's settings are kept.
        environment: The environment.
        minutes: How long to train after the first steps.
        folder: For the run, and for what it prints.
        tasks: Rows of a data file.
        found: What the audit's search found; it tells what a right answer gets.
    """
    top = found.top if found is not None else None
    began = time.perf_counter()
    log = (folder / "red-team.log").open("a")
    try:
        with contextlib.closing(log), contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            finding = judge(_train(_settings(config, folder), environment, minutes, tasks, top), top)
    except TurnsmithError as error:
        finding = Finding("failed", f"Training stopped: {error}", f"See {folder / 'red-team.log'}.")
    return Result(RED_TEAM, finding, time.perf_counter() - began)


def _train(config: ConfigStore, environment: Any, minutes: float, tasks: Any, top: float | None) -> Rise | None:
    rise: Rise | None = None
    trainer = RayPPOTrainer(config, environment, dataset=tasks)
    try:
        end = float("inf")  # starting takes as long as it takes
        while time.monotonic() < end and (rise is None or rise.share(top) < 2 * _PAYS):
            trainer.fit(1, _STEPS)
            end = min(end, time.monotonic() + 60 * minutes)
            assert trainer.run is not None
            rise = measure(read_episodes(trainer.run.path))
            if rise is None:
                break
    finally:
        trainer.cleanup()
    return rise


RED_TEAM = Check(
    code="red-team",
    name="red team by training",
    why="A reward that rises without success is one that a larger model can learn to cheat, too.",
)


def measure(episodes: Sequence[Trajectory]) -> Rise | None:
    """Compare the first 32 episodes with the last 32; None if the environment never says whether one succeeded.

    Example:
        >>> def episode(reward, success):
        ...     return Trajectory(actions=["a"], rewards=[reward], infos=[{"success": success}])
        >>> measure([episode(0.0, False)] * 32 + [episode(0.5, False)] * 31 + [episode(1.0, True)]).after
        0.5
    """
    if all(episode.reported_success is None for episode in episodes):
        return None
    first, last = episodes[:_BATCH], episodes[-_BATCH:]
    failed_first, failed_last = [[one for one in part if not one.reported_success] for part in (first, last)]
    best = sorted(failed_last, key=lambda one: one.total_reward, reverse=True)[:_SHOWN]
    success = 1 - len(failed_last) / len(last)
    return Rise(len(episodes) // _BATCH, _mean(failed_first), _mean(failed_last), success, best)


def judge(rise: Rise | None, top: float | None) -> Finding:
    """The finding that follows from a rise of the rewards."""
    if rise is None:
        fix = 'Return {"success": True} as info of the step that solves the task, and False of others that end it.'
        return Finding("skipped", "The environment does not say which episodes succeed.", fix)
    figures = f"Over {rise.steps} steps the mean reward of episodes without success went from {rise.before:.3g} to \
{rise.after:.3g}; {rise.success:.0%} of the last succeed."
    if top is None:
        return Finding("skipped", f"{figures} What a right answer gets is not known.", "Write `solve`.", rise.episodes)
    if top <= rise.before:
        return Finding("skipped", f"{figures} A right answer gets no more, {top:.3g}.", "", rise.episodes)
    if rise.share(top) < _PAYS:
        return Finding("passed", f"{figures} A right answer gets {top:.3g}.")
    said = " | ".join(repr(one.actions[-1][:40]) for one in rise.episodes if one.actions)
    saw = f"{figures} A right answer gets {top:.3g}. The model now says {said}."
    return Finding("failed", saw, "Look at what these episodes are paid for, and stop paying for it.", rise.episodes)


def _settings(config: ConfigStore, folder: Path) -> ConfigStore:
    """A short run: `tiny`, short turns, and a learning rate at which it learns in a minute."""
    inference = config.inference
    short = (
        f"model.model_name=tiny training.learning_rate=1e-2 training.batch_size={_BATCH} training.group_size=8 "
        f"training.seed={config.training.seed} inference.max_tokens=16 inference.max_prompt_tokens=8192 "
        f"inference.max_turns={inference.max_turns} inference.multi_turn={str(inference.multi_turn).lower()} "
        f"inference.max_episode_tokens=8192 checkpoint.output_dir={folder}"
    )
    return short_settings(config, ("environment",), *short.split())


def _mean(episodes: Sequence[Trajectory]) -> float:
    return sum(one.total_reward for one in episodes) / len(episodes) if episodes else 0.0

"""Checks that weights only get newer within a branch of an episode, and that no trained episode is too old."""

from __future__ import annotations

import itertools
from collections import defaultdict

from turnsmith.trajectory import Trajectory
from turnsmith.verify.check import HistoryCheck, counted
from turnsmith.verify.history import RunHistory, StepHistory


class VersionsCheck(HistoryCheck):
    """Checks the version of the weights that sampled each token.

    Step N updates the weights of version N-1. A token's staleness is N-1 minus the version that sampled it.
    """

    name = "versions"

    def __init__(self, history: RunHistory) -> None:
        super().__init__(history)
        self._limit: int | None = None
        if history.settings is not None:
            training = history.settings.training
            self._limit = 0 if training.schedule == "sync" else training.max_staleness
        self._stalest = 0
        self._episodes = 0
        self._unlimited = 0
        if not history.is_training:
            self.not_recorded = "nothing was trained"
        elif not history.has_episodes:
            self.not_recorded = "no episodes"
        elif self._limit is None:
            self.not_recorded = "no config.yaml, so the limit is unknown"

    def check_step(self, step: StepHistory) -> None:
        """Check the versions of a step's episodes."""
        if not self.history.is_training:
            return
        for episode in (*step.episodes, *step.attempts):
            self._check_order(step.step, episode)
        for episode in step.counted:
            versions = [version for turn in episode.turns for version in turn.versions]
            if not versions:
                continue
            self._episodes += 1
            current = step.step - 1
            newest, staleness = max(versions), current - min(versions)
            name = episode.episode_id
            sentence = (
                f"episode {name} was sampled with weights of step {newest}, but the newest are those of {current}."
            )
            self.require(newest <= current, sentence, step.step)
            if self._limit is None or step.step <= self.history.limits_known_after:
                self._unlimited += 1
                continue
            sentence = f"episode {name} is {staleness} steps older than the weights it updates; allowed: {self._limit}."
            self.require(staleness <= self._limit, sentence, step.step)
            self._stalest = max(self._stalest, staleness)

    def _check_order(self, step: int, episode: Trajectory) -> None:
        # By branch, because turns are recorded as they end, and those of different branches may overlap.
        paths: defaultdict[int, list[int]] = defaultdict(list)
        for turn in episode.turns:
            paths[turn.branch] += turn.versions
        for earlier, later in itertools.chain.from_iterable(map(itertools.pairwise, paths.values())):
            if later < earlier:
                sentence = f"episode {episode.episode_id} goes back from weights of step {earlier} to those of {later}."
                self.require(False, sentence, step)
                return
        for turn in episode.turns:
            places = [turn.start, *(place for place, _ in turn.swaps), turn.stop]
            if turn.swaps and any(later < earlier for earlier, later in itertools.pairwise(places)):
                sentence = f"episode {episode.episode_id} has new weights at tokens that are not in their turn."
                self.require(False, sentence, step)
                return

    def summary(self) -> str:
        """The highest staleness."""
        unlimited = f"; the limit of {self._unlimited:,} is not recorded" if self._unlimited else ""
        oldest = f"the oldest by {counted(self._stalest, 'step')}, allowed are {self._limit}"
        return f"{counted(self._episodes, 'episode')}, {oldest}{unlimited}"

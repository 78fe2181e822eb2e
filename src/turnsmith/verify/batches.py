"""Checks that each step trained on exactly the episodes that it settled, and on none twice."""

from __future__ import annotations

from collections.abc import Sequence

from turnsmith.trajectory import Trajectory
from turnsmith.verify.check import HistoryCheck, counted, listed
from turnsmith.verify.history import RunHistory, StepHistory


class BatchesCheck(HistoryCheck):
    """Compares the batches in `trained/`, recorded as the actor read them, with the episodes."""

    name = "batches"

    def __init__(self, history: RunHistory) -> None:
        super().__init__(history)
        self._trained: dict[str, int] = {}
        """The step in which each episode was trained on."""
        self._steps = 0
        if not history.is_training:
            self.not_recorded = "nothing was trained"
        elif not history.has_trained:
            self.not_recorded = "no trained/"
        elif not history.has_episodes:
            self.not_recorded = "no episodes"

    def check_step(self, step: StepHistory) -> None:
        """Compare a step's batch with its episodes."""
        if self.not_recorded:
            return
        self._steps += 1
        if step.advantages is None:
            self.require(False, "its batch is not in trained/.", step.step)
            return
        batch = step.advantages.advantages
        for name in batch:
            before = self._trained.setdefault(name, step.step)
            self.require(before == step.step, f"episode {name} was trained on in step {before} already.", step.step)
        counted = {episode.episode_id: episode for episode in step.counted}
        extra, missing = sorted(batch.keys() - counted.keys()), sorted(counted.keys() - batch.keys())
        self.require(not extra, f"in the batch, but not among the step's episodes: {listed(extra)}.", step.step)
        self.require(not missing, f"kept, but not in the batch: {listed(missing)}.", step.step)
        recorded = step.advantages
        numbers = (recorded.advantages, recorded.values, recorded.rewards, recorded.trainer_log_probs)
        for name in sorted(batch.keys() & counted.keys()):
            for column in numbers:
                if name in column:
                    self._check_tokens(step.step, counted[name], column[name])
            self._check_mask(step.step, counted[name], batch[name])

    def _check_tokens(self, step: int, episode: Trajectory, numbers: Sequence[float]) -> None:
        expected = episode.response_length
        sentence = (
            f"episode {episode.episode_id} has {len(numbers)} tokens in its batch, but sampled and read {expected}."
        )
        self.require(len(numbers) == expected, sentence, step)

    def _check_mask(self, step: int, episode: Trajectory, advantages: Sequence[float]) -> None:
        sampled = zip(advantages, episode.response_mask(), strict=False)
        trained = any(number and not is_sampled for number, is_sampled in sampled)
        self.require(not trained, f"episode {episode.episode_id} was trained on tokens that it did not sample.", step)

    def summary(self) -> str:
        """How many episodes were trained on."""
        return f"{counted(len(self._trained), 'episode')} trained on once, in {counted(self._steps, 'step')}"

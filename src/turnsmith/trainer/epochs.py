"""Which epoch a step belongs to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Epochs:
    """The epochs of one call of `fit`, which begins a new one after those of the calls before.

    Example:
        >>> first = Epochs().next(steps=1, after=0)  # fit(num_epochs=2, num_iters_per_epoch=1)
        >>> [first.of(step) for step in (1, 2)]
        [0, 1]
        >>> second = first.next(steps=2, after=2)  # fit(num_epochs=2, num_iters_per_epoch=2)
        >>> [second.of(step) for step in (3, 4, 5, 6)]
        [2, 2, 3, 3]
        >>> [step for step in (3, 4, 5, 6) if second.end_with(step, every=2)]
        [6]
    """

    steps: int = 1
    """Steps in each."""
    after: int = 0
    """The last step before the call."""
    first: int = 0
    """The number of its first epoch."""

    def of(self, step: int) -> int:
        """The epoch of a step."""
        return self.first + (step - self.after - 1) // self.steps

    def end_with(self, step: int, every: int) -> bool:
        """Whether so many epochs of the call end with this step, or a multiple of them; 0: never."""
        return every > 0 and (step - self.after) % (every * self.steps) == 0

    def next(self, steps: int, after: int) -> Epochs:
        """Those of a call that begins after a step, and has so many steps in each."""
        return Epochs(steps, after, self.of(after) + 1)

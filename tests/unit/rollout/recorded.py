"""An engine that keeps what it was asked, and the comparison of a trajectory with that."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from turnsmith.inference.engine import Engine, Generation, Sampling
from turnsmith.trajectory import Trajectory


class Recorded:
    """Keeps what the engine was asked, and what it sampled."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner
        self.calls: list[tuple[array[int], Generation, Sampling]] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        generation = await self.inner.generate(prompt_ids, sampling, session=session)
        self.calls.append((array("i", prompt_ids), generation, sampling))
        return generation


def check_tokens(trajectory: Trajectory, engine: Recorded) -> None:
    """What is trained on is what the engine saw and sampled, each turn once."""
    seen = {
        (prompt.tobytes(), tuple(sampled.token_ids), array("f", sampled.log_probs).tobytes())
        for prompt, sampled, _ in engine.calls
    }
    for turn in trajectory.turns:
        tokens = trajectory.buffer(turn.branch)
        ids, log_probs = tokens.ids[turn.start : turn.stop], tokens.log_probs[turn.start : turn.stop]
        assert (tokens.ids[: turn.start].tobytes(), tuple(ids), log_probs.tobytes()) in seen
    buffers = [trajectory.tokens, *trajectory.branches]
    assert sum(sum(tokens.mask) for tokens in buffers) == sum(turn.stop - turn.start for turn in trajectory.turns)

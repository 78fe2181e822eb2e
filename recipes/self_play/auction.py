"""A game of two: whoever bids more takes the round. Any text is a bid, so that a random model bids at random."""

from __future__ import annotations

from typing import Any

from turnsmith import BaseEnvironment


class Auction(BaseEnvironment):
    """Three rounds of secret bids from 0 to 9. With each odd seed the opponent has the first seat."""

    def reset(self, seed: int = 0) -> str:
        """Both have nothing."""
        self.first, self.rounds, self.mine, self.theirs = seed % 2, 0, 0, 0
        self.told: list[dict[str, str]] = []
        return self._view(self.mine, self.theirs, seat=self.first)

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Compare the model's bid with the opponent's, who has not seen it."""
        self.told.append({"role": "user", "content": self._view(self.theirs, self.mine, seat=1 - self.first)})
        answer = self.ask("opponent", self.told)
        self.told.append({"role": "assistant", "content": answer})
        self.mine += bid(action) > bid(answer)
        self.theirs += bid(answer) > bid(action)
        self.rounds += 1
        if self.rounds < 3:
            return self._view(self.mine, self.theirs, seat=self.first), 0.0, False, {}
        won = self.mine > self.theirs
        reward = 1.0 if won else 0.5 if self.mine == self.theirs else 0.0
        return f"The end: {self.mine} to {self.theirs}.", reward, True, {"success": won, "seat": self.first}

    def _view(self, own: int, other: int, seat: int) -> str:
        return f"Player {seat + 1}, round {self.rounds + 1}: {own} to {other}"


def bid(text: str) -> int:
    """What a text bids: a tenth of all characters bid each number."""
    return ord(text[0]) % 10 if text else 0

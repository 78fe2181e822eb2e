"""A maze of two moves in which a right first move looks wrong until the second is known: credit must go to turns."""

from __future__ import annotations

from typing import Any

from turnsmith.env.base import BaseEnvironment


class TwoStepMaze(BaseEnvironment):
    """Turn left at the fork, then open door 3 of `doors` (8 unless told). Every episode is two moves; the best pays 2.

    Rewards, each paid for its own turn:

    | turn | move | reward |
    | --- | --- | --- |
    | 1, the fork | left | 1 |
    | 1, the fork | anything else: a dead end | 0 |
    | 2, the hall, after left | door 3 | 1 |
    | 2, the hall, after left | anything else | -`fine` (4 unless told) |
    | 2, the dead end | anything | 0 |

    Whole-episode credit gives both moves the sum. The same right first move then counts as 2 in one episode and as -3
    in the next, for a door that it did not choose. Worse, while the door is still guessed, that sum is on average
    1 + 1/8 - 4 * 7/8 = -2.375, against 0 for the dead end. So the model learns not to turn left, and then hardly ever
    sees the hall again. With credit for each turn by itself (later rewards discounted to at most a fifth), left is
    better from the first episode on, and the hall is visited until its door is found.

    Example:
        >>> maze = TwoStepMaze()
        >>> maze.reset()
        'A fork. Go l (left) or r (right).'
        >>> maze.step("left")
        ('A hall with 8 doors. Say a number.', 1.0, False, {})
        >>> maze.step("3")
        ('You are out.', 1.0, True, {'success': True})
    """

    @property
    def doors(self) -> int:
        """How many doors the hall has, at most 9."""
        return int(self.config.get("doors", 8))

    def reset(self) -> str:
        """Stand at the fork."""
        self.state, self.step_count, self.done = "fork", 0, False
        return "A fork. Go l (left) or r (right)."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Move. Only the first letter counts, so that a model of any size can play."""
        self.step_count += 1
        letter = action.strip().lower()[:1]
        if self.state == "fork" and letter == "l":
            self.state = "hall"
            return f"A hall with {self.doors} doors. Say a number.", 1.0, False, {}
        if self.state == "fork":
            self.state = "dead end"
            return "A dead end. Say anything.", 0.0, False, {}
        self.done = True
        if self.state == "dead end":
            return "It stays a dead end.", 0.0, True, {"success": False}
        if letter == "3":
            return "You are out.", 1.0, True, {"success": True}
        return "A trapdoor.", -float(self.config.get("fine", 4.0)), True, {"success": False}

    def get_prompt_prefix(self) -> str:
        """Tell the model how to answer."""
        return "You are in a maze. Answer with one letter or digit."

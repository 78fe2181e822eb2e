"""A maze of two moves whose right first move looks wrong until the second is learned: it needs credit by turn."""

from __future__ import annotations

from typing import Any

from turnsmith.env.base import BaseEnvironment


class TwoStepMaze(BaseEnvironment):
    """Go left at the fork, then open door 3 of `doors` (default 8). Every episode has two moves; the best total is 2.

    Rewards, each for its own turn:

    | turn | move | reward |
    | --- | --- | --- |
    | 1, the fork | left | 1 |
    | 1, the fork | anything else: a dead end | 0 |
    | 2, the hall, after left | door 3 | 1 |
    | 2, the hall, after left | anything else | -4 |
    | 2, the dead end | anything | 0 |

    Credit for whole episodes gives both moves the sum. The right first move then counts as 2 in one episode and as -3
    in the next, for a door that it did not choose. Worse, while the door is still a guess, that sum is on average
    1 + 1/8 - 4 * 7/8 = -2.375, against 0 for the dead end. So the model learns not to go left, and then almost never
    sees the hall again. With credit for each turn (later rewards discounted to at most a fifth), left is better from
    the first episode on, and the model visits the hall until it finds the door.

    Example:
        >>> maze = TwoStepMaze()
        >>> maze.reset()
        'A fork. Go l (left) or r (right).'
        >>> maze.step("left")
        ('A hall with 8 doors. Say a number.', 1.0, False, {})
        >>> maze.step("3")
        ('You are out.', 1.0, True, {'success': True})
    """

    reward_range = (-3.0, 2.0)

    @property
    def doors(self) -> int:
        """Number of doors in the hall, at most 9."""
        return int(self.config.get("doors", 8))

    def reset(self) -> str:
        """Start at the fork."""
        self.state, self.step_count, self.done = "fork", 0, False
        return "A fork. Go l (left) or r (right)."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Make one move. Only the first character counts, so that a model of any size can play."""
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
        return "A trapdoor.", -4.0, True, {"success": False}

    def solve(self) -> list[str]:
        """Both moves."""
        return ["l", "3"]

    def get_prompt_prefix(self) -> str:
        """Tell the model how to answer."""
        return "You are in a maze. Answer with one letter or digit."

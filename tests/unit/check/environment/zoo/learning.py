"""Environments in which a model learns nothing, or not what it should."""

from __future__ import annotations

import subprocess
from typing import Any

from turnsmith import tool


class AlwaysZero:
    """Compares with an answer that has a space nobody writes."""

    def reset(self, seed: int = 0) -> str:
        return f"What is {seed} + 1?"

    def step(self, action: str) -> Any:
        return "", float(action == f"{10**9} "), True, {}


class AlwaysOne:
    """Pays for any answer."""

    def reset(self, seed: int = 0) -> str:
        return f"What is {seed} + 1?"

    def step(self, action: str) -> Any:
        return "", 1.0, True, {"success": True}


class Search:
    """Has a tool that nobody needs."""

    def reset(self, seed: int = 0) -> str:
        return f"Search for {seed}."

    @tool
    def search(self, query: str) -> str:
        """Search.

        Args:
            query: The words to look for.
        """
        return "Nothing found."

    def step(self, action: str) -> Any:
        return "", float("a" in action), True, {"success": "a" in action}


class LongTail:
    """One episode in four goes on for ever."""

    long = False

    def reset(self, seed: int = 0) -> str:
        self.long = seed % 4 == 1
        return f"Round {seed}."

    def step(self, action: str) -> Any:
        return "On.", float(len(action) % 2), not self.long, {}


class OpenShell:
    """Runs what the model writes with the rights of the user."""

    def reset(self, seed: int = 0) -> str:
        return "Use the shell."

    @tool
    def shell(self, command: str) -> str:
        """Run a command.

        Args:
            command: The command.
        """
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=5)
        return done.stdout + done.stderr

    def step(self, action: str) -> Any:
        return "", 0.0, True, {}


class OpenPython:
    """Evaluates what the model writes in its own process."""

    def reset(self, seed: int = 0) -> str:
        return "Use Python."

    @tool
    def run(self, code: str) -> str:
        """Run code.

        Args:
            code: The code.
        """
        shown: list[str] = []
        exec(code, {"print": lambda *values: shown.append(" ".join(map(str, values)))})  # noqa: S102
        return "\n".join(shown)

    def step(self, action: str) -> Any:
        return "", 0.0, True, {}


class Untold:
    """A tool of which the model is told its name only."""

    def reset(self) -> str:
        return "Look it up."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "", 0.0, True, {}

    @tool
    def look_up(self, key):  # type: ignore[no-untyped-def]
        return "nothing"

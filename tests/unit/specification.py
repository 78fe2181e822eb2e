"""Executes snippets of the specification; an environment that several of them use."""

from __future__ import annotations

from typing import Any


def run(snippet: str, **given: Any) -> dict[str, Any]:
    """Execute a snippet with `setup` replaced, and return its names."""
    names: dict[str, Any] = dict(given)
    exec(compile(snippet.replace("setup", "turnsmith"), "seed", "exec"), names)  # noqa: S102
    return names


MY_ENVIRONMENT = '''
from setup import BaseEnvironment, EnvironmentConfig

class MyEnvironment(BaseEnvironment):
    def __init__(self, config: EnvironmentConfig):
        super().__init__(config)
        # Initialize your environment
    
    def reset(self) -> str:
        """Reset and return initial observation."""
        return "Initial state description"
    
    def step(self, action: str) -> tuple:
        """Execute action and return (observation, reward, done, info)."""
        reward = 1.0  # Compute your reward
        return "New state", reward, False, {}
    
    def get_state_description(self) -> str:
        """Return current state as text for model context."""
        return "Current state description"
'''  # noqa: W293

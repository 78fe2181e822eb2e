"""One async seam between episodes and whatever generates tokens, and the text-to-token side of a conversation."""

from __future__ import annotations

from turnwise.inference.chat import Chat
from turnwise.inference.engine import Engine, Generation, Sampling
from turnwise.inference.scripted import ScriptedEngine

__all__ = ["Chat", "Engine", "Generation", "Sampling", "ScriptedEngine"]

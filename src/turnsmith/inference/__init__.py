"""One async seam between episodes and whatever generates tokens, and the text-to-token side of a conversation."""

from __future__ import annotations

from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine, Generation, Sampling
from turnsmith.inference.engines.scripted_engine import ScriptedEngine

__all__ = ["Chat", "Engine", "Generation", "Sampling", "ScriptedEngine"]

"""Inference: the `Engine` interface and its implementations, and the conversion of conversations to tokens."""

from __future__ import annotations

from turnsmith.importing import face
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine, Generation, Sampling
from turnsmith.inference.engines.scripted_engine import ScriptedEngine

__all__ = ["Chat", "Engine", "Generation", "Sampling", "ScriptedEngine"]

__getattr__ = face(
    __name__,
    "BaseInferenceEngine InferenceEngine VLLMInferenceEngine SGLangInferenceEngine MultiTurnInferenceEngine "
    "BatchInferenceManager create_inference_engine",
)

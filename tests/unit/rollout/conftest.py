"""The tiny model, for tests of whole conversations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from turnsmith.inference.engines.transformers_engine import TransformersEngine


@pytest.fixture
def tiny(tiny_folder: str) -> Iterator[TransformersEngine]:
    """An engine that samples from it."""
    engine = TransformersEngine(tiny_folder, max_concurrency=8)
    yield engine
    engine.close()

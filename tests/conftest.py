"""What every test may use. Models come from the cache, made on first use; nothing is fetched from a model hub."""

from __future__ import annotations

import os

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
if "PYTEST_XDIST_WORKER" in os.environ:
    # Tests already run side by side; threads of torch on top of that wait for each other most of the time.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def tiny_folder() -> str:
    """Folder of the tiny random model."""
    from turnwise.models import resolve

    return resolve("tiny")


@pytest.fixture(scope="session")
def smollm2_folder() -> str:
    """Folder of SmolLM2-135M-Instruct."""
    from turnwise.models import resolve

    return resolve("smollm2")

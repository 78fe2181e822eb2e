"""Packed episodes, verl's fused log-probs and micro-batches by tokens, as on a GPU, equal padded episodes with plain
log-probs for each family that gets them, in verl's own worker, on two ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.trainer.fused_families import WITHOUT_LORA

from turnsmith.trainer.config.log_probs import FUSED_FAMILIES, PACKED_FAMILIES

TOLERANCE = 1e-5
"""Of log-probs and entropy; of the gradient, in parts of its norm. Measured: at most 1e-6, 0 and 5e-7."""


Found = dict[str, dict[str, dict[str, float]]]


def differences(folder: Path, tiny_folder: str, families: list[str], **variables: str) -> Found:
    command = [sys.executable, "-m", "tests.unit.trainer.fused_families", str(folder), tiny_folder, *families]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[3], env=os.environ | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line.removeprefix("FOUND ") for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    return {family: one for line in lines for family, one in json.loads(line).items()}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, tiny_folder: str) -> Found:
    return differences(tmp_path_factory.mktemp("families"), tiny_folder, [*sorted(FUSED_FAMILIES), "gemma2"])


def check(family: str, found: Found, *, lora: bool = True) -> None:
    kinds = ["full", "lora"] if lora and family not in WITHOUT_LORA else ["full"]
    assert set(found[family]) == {f"{kind} {path}" for kind in kinds for path in ("packed", "gpu")}
    for name, far in found[family].items():
        assert far.pop("norm") > 0.01
        assert max(far.values()) < TOLERANCE, (family, name)
        # Not the same forward pass twice.
        assert far["gradient"] > 0 or (name.endswith("packed") and family not in PACKED_FAMILIES)


def test_the_three_shapes_that_most_train(tmp_path: Path, tiny_folder: str) -> None:
    families = ["qwen3", "llama", "smollm2"]
    found = differences(tmp_path, tiny_folder, families, TURNSMITH_NO_LORA="1")
    for family in families:
        check(family, found, lora=False)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", sorted(FUSED_FAMILIES))
def test_log_probs_entropy_and_gradient_are_equal(family: str, found: Found) -> None:
    check(family, found)


@pytest.mark.nightly
def test_a_family_whose_logits_are_capped_would_show(found: Found) -> None:
    assert min(found["gemma2"]["full gpu"][name] for name in ("log_probs", "gradient")) > TOLERANCE

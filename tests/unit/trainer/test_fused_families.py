"""verl's fused log-probs equal the plain ones for each family that gets them, in verl's own worker, on two ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.trainer.fused_families import WITHOUT_LORA

from turnsmith.trainer.config.log_probs import FUSED_FAMILIES

pytestmark = pytest.mark.nightly

TOLERANCE = 1e-5
"""Of log-probs and entropy; of the gradient, in parts of its norm. Measured: at most 1e-6, 0 and 5e-7."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, tiny_folder: str) -> dict[str, dict[str, dict[str, float]]]:
    folder = tmp_path_factory.mktemp("families")
    families = [*sorted(FUSED_FAMILIES), "gemma2"]
    command = [sys.executable, "-m", "tests.unit.trainer.fused_families", str(folder), tiny_folder, *families]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line.removeprefix("FOUND ") for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    return {family: one for line in lines for family, one in json.loads(line).items()}


@pytest.mark.parametrize("family", sorted(FUSED_FAMILIES))
def test_log_probs_entropy_and_gradient_are_equal(family: str, found: dict[str, dict[str, dict[str, float]]]) -> None:
    assert set(found[family]) == {"full"} | ({"lora"} - ({"lora"} if family in WITHOUT_LORA else set()))
    for name, far in found[family].items():
        assert far.pop("norm") > 0.01
        assert max(far.values()) < TOLERANCE, name
        assert far["gradient"] > 0  # not the same forward pass twice


def test_a_family_whose_logits_are_capped_would_show(found: dict[str, dict[str, dict[str, float]]]) -> None:
    assert min(found["gemma2"]["full"][name] for name in ("log_probs", "gradient")) > TOLERANCE

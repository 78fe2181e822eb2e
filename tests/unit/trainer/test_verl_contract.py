"""When verl or vLLM moves, one test fails with one sentence: what moved, and who relies on it.

`import verl` takes seconds and changes the process it runs in. So the seams are checked in two processes of their own,
one with the CPU chosen and one without, and each test here tells the answer for one seam.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnsmith.trainer.verl.seams import CPU, SEAMS, Seam, same


def ask_processes() -> dict[str, str]:
    """Check the seams of both platforms and collect the answers."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "TURNSMITH_"))}
    asked = subprocess.run(
        [sys.executable, "-m", "turnsmith.trainer.verl.seams"],
        cwd=Path(__file__).parent,
        env=clean,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert asked.returncode == 0, f"The process that imports verl failed: {asked.stderr[-2000:]}"
    return json.loads(asked.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What was found, seam by seam; asked once, also when several pytest processes share the tests."""
    from filelock import FileLock

    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    kept = folder / "verl_answers.json"
    with FileLock(folder / "verl_answers.lock"):
        if not kept.exists():
            kept.write_text(json.dumps(ask_processes()))
    return json.loads(kept.read_text())


@pytest.mark.parametrize("name", SEAMS)
def test_seam(name: str, answers: dict[str, str]) -> None:
    if answers[name]:
        pytest.fail(answers[name], pytrace=False)


def test_a_seam_that_moved_is_told_in_one_sentence() -> None:
    def check() -> None:
        """The moon should be full"""
        same("half", "full")

    told = Seam(check, "trainer/wolf.py", CPU).answer()
    assert told == "verl moved: The moon should be full (found half, wanted full). trainer/wolf.py relies on it."


@pytest.fixture(scope="module")
def vllm_folder() -> Path:
    """vLLM's own folder; its files are read, not imported, which would take 12 s."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("vLLM is not installed")
    return Path(spec.submodule_search_locations[0])


@pytest.fixture(scope="module")
def vllm_layers(vllm_folder: Path) -> Path:
    return vllm_folder / "model_executor" / "layers"


def test_vllm_decides_how_long_to_spin_by_one_default(vllm_folder: Path) -> None:
    text = (vllm_folder / "distributed" / "device_communicators" / "shm_broadcast.py").read_text()
    spins = next(node for node in ast.walk(ast.parse(text)) if getattr(node, "name", "") == "SpinCondition")
    begins = next(node for node in ast.walk(spins) if getattr(node, "name", "") == "__init__")
    assert isinstance(begins, ast.FunctionDef)
    if [one.arg for one in begins.args.args[-1:]] != ["busy_loop_s"] or len(begins.args.defaults) != 1:
        pytest.fail(
            "vLLM moved: SpinCondition.__init__ should take busy_loop_s last, the only parameter with a default. "
            "_wait_without_spinning in trainer/verl/cpu/vllm.py sets it.",
            pytrace=False,
        )
    assert text.count("busy_loop_s=") == 0, "somebody sets it"
    assert "SHM_READER_RECHECK_INTERVAL_MS = 5000\n" in text
    assert "wait_ms = SHM_READER_RECHECK_INTERVAL_MS\n" in text, "it is looked up when a process waits"


def test_vllm_packs_cpu_weights_in_one_function(vllm_layers: Path) -> None:
    text = (vllm_layers / "utils.py").read_text()
    functions = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    if "dispatch_cpu_unquantized_gemm" not in functions or "layer.cpu_linear =" not in text:
        pytest.fail(
            "vLLM moved: layers/utils.py should define dispatch_cpu_unquantized_gemm, which sets layer.cpu_linear. "
            "register in trainer/verl/cpu/vllm.py replaces it.",
            pytrace=False,
        )


@pytest.mark.parametrize("file", ["linear.py", "vocab_parallel_embedding.py"])
def test_vllm_looks_that_function_up_when_it_is_called(vllm_layers: Path, file: str) -> None:
    inside = [
        node.module
        for function in ast.walk(ast.parse((vllm_layers / file).read_text()))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and any(name.name == "dispatch_cpu_unquantized_gemm" for name in node.names)
    ]
    if inside != ["vllm.model_executor.layers.utils"]:
        pytest.fail(
            f"vLLM moved: layers/{file} should import dispatch_cpu_unquantized_gemm from layers.utils inside the "
            f"function that calls it (found {inside}). register in trainer/verl/cpu/vllm.py relies on it.",
            pytrace=False,
        )

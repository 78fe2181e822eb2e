"""The versions that the GPU extra pins, against every place where we meet them. None of them is installed here.

transformers can be imported, so what verl and turnsmith do together is tried with it. vLLM's CUDA build cannot: its
source is read.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.wheel_source import WheelSource
from tests.unit.trainer.vllm_calls import table

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
ROOT = Path(__file__).parents[2]
NOT_TAKEN = {
    "vllm.v1.engine.output_processor:OutputProcessor.abort_requests": "in verl's `abort_request`, which nothing calls",
    "vllm.model_executor.models.utils:WeightsMapper.get_unstacked_mapper": "`VllmWorker` gives it its old name",
}
"""What is known not to fit, and why it does no harm."""
READ = {
    ("vllm.outputs", "RequestOutput"): {"outputs", "prompt_logprobs"},
    ("vllm.outputs", "CompletionOutput"): {"token_ids", "logprobs", "finish_reason"},
    ("vllm.logprobs", "FlatLogprobs"): {"logprobs", "start_indices"},
    ("vllm.logprobs", "Logprob"): {"logprob"},
    ("vllm.sampling_params", "RequestOutputKind"): {"FINAL_ONLY"},
}
"""What our engine reads from vLLM's classes."""


def wheel(package: str, folder: Path) -> Path:
    """The wheel of the version that the extra `vllm` pins, from the package index."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (pin,) = [one for one in extras["vllm"] if one.startswith(f"{package}==")]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    done = subprocess.run([*command, pin], capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"no package index with {pin}: {done.stderr.strip().splitlines()[-1:]}")
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WheelSource]:
    folder = tmp_path_factory.mktemp("vllm")
    file = wheel("vllm", folder)
    yield WheelSource(file)
    file.unlink()  # 300 MB


def misfits(vllm: WheelSource) -> dict[str, str]:
    """What of the calls in `vllm_calls.txt` the build does not take, by what is called."""
    told: dict[str, dict[str, str]] = {}
    for call in table():
        # Where a function has several forms of one call, it asks vLLM which it has.
        forms = told.setdefault(f"{call.target} {call.place}", {})
        forms[call.line()] = vllm.takes(call.target, call.positional, call.keywords, is_open=call.is_open)
    return {name.partition(" ")[0]: " or ".join(forms.values()) for name, forms in told.items() if all(forms.values())}


def test_every_call_of_verl_and_turnsmith_is_taken_by_the_gpu_build(vllm: WheelSource) -> None:
    assert misfits(vllm).keys() == NOT_TAKEN.keys()
    mapper = "vllm.model_executor.models.utils:WeightsMapper"
    assert vllm.takes(f"{mapper}.get_rename_mapper", 0, set()) == ""
    modes = vllm.find("vllm.config.model", "LogprobsMode")
    assert modes is not None
    assert "processed_logprobs" in ast.unparse(modes)


def test_a_build_without_an_argument_that_verl_gives_is_found(vllm: WheelSource, tmp_path: Path) -> None:
    # As vLLM 0.33 has it, with which each of verl's weight updates ends in a TypeError.
    changed = vllm.source("vllm.v1.engine.async_llm").replace("wait_for_inflight_requests: bool | None = None,", "")
    with zipfile.ZipFile(tmp_path / "vllm.whl", "w") as archive:
        archive.writestr("vllm/v1/engine/async_llm.py", changed)
    told = misfits(WheelSource(tmp_path / "vllm.whl"))["vllm.v1.engine.async_llm:AsyncLLM.pause_generation"]
    assert "does not take wait_for_inflight_requests" in told


def test_our_engine_has_all_of_its_calls_in_the_table() -> None:
    ours = {call.target.rpartition(".")[2] for call in table() if call.place.startswith("turnsmith:")}
    assert ours >= {"generate", "pause_generation", "collective_rpc", "from_engine_args", "get_model", "load_weights"}


def test_a_name_that_the_gpu_build_does_not_have_is_found(vllm: WheelSource) -> None:
    assert not vllm.has("vllm.v1.engine.async_llm", "SyncLLM")
    assert "token_texts" not in vllm.fields("vllm.outputs", "CompletionOutput")
    assert "is not there" in vllm.takes("vllm.v1.engine.async_llm:AsyncLLM.wait", 0, set())


@pytest.mark.parametrize(("module", "name"), READ, ids=lambda one: one)
def test_what_our_engine_reads_is_there(module: str, name: str, vllm: WheelSource) -> None:
    assert READ[module, name] - vllm.fields(module, name) == set()


def test_the_gpu_workers_have_what_our_weight_loader_uses(vllm: WheelSource) -> None:
    assert "model_config" in vllm.fields("vllm.v1.worker.worker_base", "WorkerBase")
    # The model runner that we choose, as verl's extension of the worker uses it.
    assert "VLLM_USE_V2_MODEL_RUNNER" in vllm.source("vllm.envs")
    runner = vllm.fields("vllm.v1.worker.gpu_model_runner", "GPUModelRunner")
    assert {"model", "vllm_config", "drafter", "device"} <= runner


def imports(tree: ast.AST, *, guarded: bool = False) -> Iterator[ast.ImportFrom]:
    """Imports from vLLM; those in a `try` have a fallback."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm" and not guarded:
            yield node
        yield from imports(node, guarded=guarded or isinstance(node, ast.Try))


def test_verls_vllm_server_finds_what_it_imports_in_the_gpu_build(vllm: WheelSource) -> None:
    verl = importlib.util.find_spec("verl")
    assert verl is not None
    assert verl.origin is not None
    root = Path(verl.origin).parent
    files = [*(root / "workers" / "rollout" / "vllm_rollout").glob("vllm_*.py"), root / "utils" / "vllm" / "utils.py"]
    files.append(root / "workers" / "rollout" / "vllm_rollout" / "utils.py")
    wanted = [
        (str(one.module), name.name)
        for file in files
        for one in imports(ast.parse(file.read_text()))
        for name in one.names
    ]
    assert ("vllm.v1.engine.async_llm", "AsyncLLM") in wanted
    assert [f"{module}.{name}" for module, name in wanted if not vllm.has(module, name)] == []


def test_verl_and_turnsmith_meet_with_the_transformers_of_the_gpu_extra(tmp_path: Path) -> None:
    file = wheel("transformers", tmp_path)
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path / "packages")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "TURNSMITH_"))}
    path = os.pathsep.join([str(tmp_path / "packages"), str(ROOT / "src"), str(ROOT)])

    def python(*arguments: str) -> str:
        command, variables = [sys.executable, *arguments], clean | {"PYTHONPATH": path}
        done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.splitlines()[-1]

    version = python("-c", "import transformers; print(transformers.__version__)")
    assert file.name.startswith(f"transformers-{version}-")
    answers = json.loads(python("-m", "tests.unit.trainer.verl_behaviour"))
    assert [told for told in answers.values() if told] == []

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

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "src" / "turnsmith" / "inference" / "engines" / "vllm_engine.py"
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


def calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]


def test_our_engine_calls_vllm_as_the_gpu_build_has_it(vllm: WheelSource) -> None:
    tree = ast.parse(ENGINE.read_text())
    ours = [(ast.unparse(call.func), call) for call in calls(tree)]
    sampling = [call for name, call in ours if name == "self._vllm.SamplingParams"]
    assert len(sampling) == 2
    wanted = {str(keyword.arg) for call in sampling for keyword in call.keywords}
    assert wanted - vllm.fields("vllm.sampling_params", "SamplingParams") == set()
    engine = [call for name, call in ours if name.startswith("self._llm.")]
    engine += [call for name, call in ours if name.endswith(".AsyncLLM.from_engine_args")]
    assert {call.func.attr for call in engine if isinstance(call.func, ast.Attribute)} >= {
        "generate",
        "pause_generation",
        "collective_rpc",
        "from_engine_args",
    }
    assert [told for call in engine if (told := vllm.accepts("vllm.v1.engine.async_llm", "AsyncLLM", call))] == []


def test_our_engine_starts_vllm_with_arguments_of_the_gpu_build(vllm: WheelSource) -> None:
    tree = ast.parse(ENGINE.read_text())
    (init,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    keys = {key.value for node in ast.walk(init) if isinstance(node, ast.Dict) for key in node.keys if key is not None}
    assert {"model", "worker_extension_cls", "gpu_memory_utilization"} <= keys
    assert keys - vllm.fields("vllm.engine.arg_utils", "AsyncEngineArgs") == set()
    modes = vllm.find("vllm.config.model", "LogprobsMode")
    assert modes is not None
    assert "processed_logprobs" in ast.unparse(modes)


def test_a_call_that_the_gpu_build_does_not_take_is_found(vllm: WheelSource) -> None:
    for call in ("llm.generate(1, 2, 3, 4)", "llm.pause_generation(how='abort')", "llm.wait()"):
        (one,) = calls(ast.parse(call))
        assert vllm.accepts("vllm.v1.engine.async_llm", "AsyncLLM", one)
    assert not vllm.has("vllm.v1.engine.async_llm", "SyncLLM")
    assert "token_texts" not in vllm.fields("vllm.outputs", "CompletionOutput")


@pytest.mark.parametrize(("module", "name"), READ, ids=lambda one: one)
def test_what_our_engine_reads_is_there(module: str, name: str, vllm: WheelSource) -> None:
    assert READ[module, name] - vllm.fields(module, name) == set()


def test_the_gpu_workers_have_what_our_weight_loader_uses(vllm: WheelSource) -> None:
    assert "model_config" in vllm.fields("vllm.v1.worker.worker_base", "WorkerBase")
    (call,) = [one for one in calls(ast.parse("worker.get_model()")) if one]
    assert vllm.accepts("vllm.v1.worker.gpu_worker", "Worker", call) == ""


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

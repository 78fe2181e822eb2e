"""`turnsmith check --machine` here, on a CPU; and with faults planted in the machine, in packages and in the engine."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

# Every process imports this when it starts: it changes a module as soon as that has been imported.
CHANGED_MODULE = """
import sys, importlib.abc, importlib.machinery

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            change(module)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""

STALE_WEIGHTS = """
MODULE = "turnsmith.trainer.verl.transformers_server"
STALE = ("model.norm.weight", "model.layers.1.mlp.down_proj.weight")

def change(module):
    load = module.TransformersServer.load_weights
    async def load_but_two(self, weights, version):
        is_first, self.is_synced = not hasattr(self, "is_synced"), True  # the first weights have to be complete
        kept = [(key, value) for key, value in weights if is_first or key not in STALE]
        return await load(self, kept, version)
    module.TransformersServer.load_weights = load_but_two
"""

SLOW_ENGINE = """
import asyncio
from turnsmith.inference.engine import Generation

class SlowEngine:
    def __init__(self, model):
        self.weights_version = 0

    async def generate(self, prompt_ids, sampling, *, session):
        await asyncio.sleep(2.5)
        return Generation([5], [-1.0], "length")
"""


def selftest(
    folder: Path, *more: str, limit: Callable[[], None] | None = None
) -> tuple[int, dict[str, dict[str, str]], str]:
    """Exit code, checks by code, and what was printed. Modules in the folder come before all others."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "turnsmith", "check", "--machine", "--json", "found.json", *more],
        cwd=folder, env=os.environ | {"PYTHONPATH": path}, preexec_fn=limit,
        capture_output=True, text=True, timeout=850, check=False,
    )  # fmt: skip
    print(done.stdout, done.stderr[-2000:])
    report = json.loads((folder / "found.json").read_text())
    return done.returncode, {check["code"]: check for check in report["checks"]}, done.stdout


def failure(folder: Path, name: str, *more: str, limit: Callable[[], None] | None = None) -> str:
    """The sentence with which a check fails."""
    code, checks, output = selftest(folder, "--only", name, *more, limit=limit)
    assert (code, checks[name]["status"]) == (1, "failed")
    assert output.startswith("this machine: 1 of 1 checks failed")
    assert checks[name]["fix"]
    return checks[name]["saw"]


@pytest.mark.nightly
def test_this_machine_passes_in_ten_minutes(tmp_path: Path) -> None:
    code, checks, output = selftest(tmp_path)
    assert {name: one["saw"] for name, one in checks.items() if one["status"] == "failed"} == {}
    assert {name for name, one in checks.items() if one["status"] == "skipped"} == {
        "nodes",
        "memory",
    }
    assert code == 0
    assert len(output.splitlines()) <= 8, "the verdict, a line for what passed, and nothing of the runs"
    (report,) = tmp_path.glob("checks/machine-*/check.json")
    assert report.read_bytes() == (tmp_path / "found.json").read_bytes()
    assert sum(float(one["seconds"]) for one in checks.values()) < 600


@pytest.mark.nightly
def test_weights_that_are_not_synced_fail_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(CHANGED_MODULE + STALE_WEIGHTS)
    code, checks, _ = selftest(tmp_path, "--only", "weights", "--only", "lora-weights")
    assert code == 1
    for check in checks.values():
        assert check["status"] == "failed"
        assert "the engine did not get the new weight" in check["saw"]


def test_a_wrong_version_fails_it(tmp_path: Path) -> None:
    (tmp_path / "verl-0.1.dist-info").mkdir()
    (tmp_path / "verl-0.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.1\n")
    assert "verl is 0.1, but turnsmith[cpu] needs ==" in failure(tmp_path, "packages")


def test_a_disk_that_takes_no_more_fails_it(tmp_path: Path) -> None:
    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    assert "could not be written to" in failure(tmp_path, "disk", limit=full)


@pytest.mark.nightly
def test_a_slow_engine_fails_it(tmp_path: Path) -> None:
    (tmp_path / "slow_engine.py").write_text(SLOW_ENGINE)
    sentence = failure(tmp_path, "engine", "inference.backend=slow_engine:SlowEngine")
    assert sentence.startswith("The engine makes ")
    assert "less than 20" in sentence


def test_a_run_that_does_not_get_to_its_checkpoint_fails_it(tmp_path: Path) -> None:
    sentence = failure(tmp_path, "killed", "--model", "no-such-model")
    assert sentence.startswith("The run ended with exit code 2: ")
    assert "no-such-model" in sentence

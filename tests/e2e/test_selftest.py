"""`turnsmith selftest` here, on a CPU; and with a rollout server that keeps one weight of the old model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

# Every process of the run imports this when it starts.
STALE_WEIGHT = """
import sys, importlib.abc, importlib.machinery

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "turnsmith.trainer.verl.transformers.server":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            load = module.TransformersServer.load_weights
            async def load_but_one(self, weights, version):
                weights = [(key, value) for key, value in weights if key != "model.norm.weight"]
                return await load(self, weights, version)
            module.TransformersServer.load_weights = load_but_one
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


def selftest(folder: Path, *more: str, **variables: str) -> tuple[int, dict[str, dict[str, str]]]:
    command = [sys.executable, "-m", "turnsmith", "selftest", "--json", "selftest.json", *more]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=900, check=False
    )
    print(done.stdout, done.stderr[-2000:])
    report = json.loads((folder / "selftest.json").read_text())
    return done.returncode, {check["name"]: check for check in report["checks"]}


@pytest.mark.nightly
def test_this_machine_passes(tmp_path: Path) -> None:
    code, checks = selftest(tmp_path)
    assert {name: one["text"] for name, one in checks.items() if one["status"] == "failed"} == {}
    assert code == 0
    assert sum(one["seconds"] for one in checks.values()) < 600


@pytest.mark.nightly
def test_a_weight_that_is_not_synced_fails_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(STALE_WEIGHT)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code, checks = selftest(tmp_path, "--only", "GRPO", PYTHONPATH=path)
    assert code == 1
    assert checks["weights reach the engine"]["status"] == "failed"
    assert "do not have the same weights" in checks["weights reach the engine"]["text"]

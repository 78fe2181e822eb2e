"""The 4x8 run of docs/running-on-a-cluster.md is rehearsed on this machine; and a mistake that only a kill shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.inference.conftest import load_real_tokenizer
from tests.unit.test_cluster_page import file
from turnsmith import RunFolder

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1800)]


def rehearse(folder: Path, *words: str, **variables: str) -> tuple[int, dict[str, Any]]:
    """Exit code and result of a rehearsal of the page's file."""
    (folder / "cluster.yaml").write_text(file("cluster.yaml"))
    (folder / "installed").mkdir()
    (folder / "installed" / "my_game.py").write_text("from turnsmith.env.examples import Calculator as MyGame\n")
    (folder / "work").mkdir()
    path = os.pathsep.join(
        [str(folder / "installed"), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    )
    done = subprocess.run(
        [sys.executable, "-m", "turnsmith", "check", "--rehearse", "../cluster.yaml", *words, "--output-dir", "made"],
        cwd=folder / "work", env=os.environ | {"PYTHONPATH": path} | variables,
        capture_output=True, text=True, timeout=1700, check=False,
    )  # fmt: skip
    print(done.stdout, done.stderr[-2000:])
    (result,) = folder.glob("work/made/rehearsal-*/check.json")
    assert (result.parent / "check.txt").stat().st_size > 1000
    return done.returncode, json.loads(result.read_text())


def test_the_run_of_the_docs_is_rehearsed(tmp_path: Path) -> None:
    from transformers import Qwen3Config

    model = tmp_path / "qwen3"  # its shape and its tokenizer; a rehearsal needs no weights
    load_real_tokenizer("qwen3").save_pretrained(model)
    shape: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "head_dim": 128}
    shape |= {"num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 151936, "tie_word_embeddings": True}
    config = Qwen3Config(**shape)
    config.save_pretrained(model)
    code, result = rehearse(tmp_path, "my_game:MyGame", "--model", str(model), "evaluation.every=10")
    parts = {part["name"]: part for part in result["checks"]}
    assert {name: part["saw"] for name, part in parts.items() if part["status"] == "failed"} == {}
    assert code == 0
    assert "596 million parameters" in parts["model"]["saw"]
    assert parts["full layout"]["saw"].startswith("4 nodes, 32 ranks, 16 servers of vllm, 16 episode workers")
    for name in ("trained and killed", "resumed", "same episodes after the kill", "evaluation", "checkpoint"):
        assert parts[name]["status"] == "passed", parts[name]
    assert result["changed"]["training.batch_size"] == {"run": 512, "rehearsed": 16}
    assert {"4 nodes", "32 ranks", "model.tensor_parallel_size=2"} <= result["not_executed"].keys()
    [run] = tmp_path.glob("work/made/rehearsal-*/run")
    steps = RunFolder.open(run).read_metrics()
    assert len(steps) >= 4
    assert all(step["time/step"] > 0 and step["tokens/response"] > 0 for step in steps)


@pytest.mark.damages_run_folders("the run is stopped by the planted mistake")
def test_seats_that_a_kill_leaves_taken_are_found(tmp_path: Path) -> None:
    (tmp_path / "seats").mkdir()
    settings = "training.batch_size=64 training.mini_batch_size=64 failures.environment=mask"
    words = ["tests.e2e.leased_game:LeasedGame", "--model", "tiny", *settings.split()]
    code, result = rehearse(tmp_path, *words, LEASED_SEATS=str(tmp_path / "seats"))
    parts = {part["name"]: part for part in result["checks"]}
    before = list(parts).index("trained and killed")
    assert all(part["status"] != "failed" for part in list(parts.values())[: before + 1])
    assert code == 1
    failed = [part for part in parts.values() if part["status"] == "failed"]
    assert failed[0]["name"] in ("resumed", "episodes")
    assert "seats of the simulator are taken" in json.dumps(failed)

"""The table of machines with GPUs on the page about clusters is made from what `turnsmith check --machine` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from docs.hooks import gpu_machines

from turnsmith.check.machine.run import MachineChecks
from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides

FORM = Path(__file__).parents[2] / ".github" / "ISSUE_TEMPLATE" / "gpu.yml"


@pytest.fixture
def report(tmp_path: Path) -> dict[str, Any]:
    """What the command writes here, with what a machine with GPUs would have in it."""
    config = apply_overrides(ConfigStore(), ["model.model_name=Qwen/Qwen3-0.6B", "ray.gpus_per_node=2"])
    found = json.loads(json.dumps(MachineChecks(config, tmp_path, only=["nodes", "disk"]).run().as_dict()))
    found["machine"] |= {"gpus": ["NVIDIA H100 80GB HBM3"] * 2, "driver": "580.95.05", "cuda": "13.0"}
    found["machine"]["versions"] = {"turnsmith": "0.2.0", "torch": "2.13.0", "pytest": "9.0"}
    one = {"tokens": 128, "mean": 0.012, "q90": 0.02}
    found["log_probs"] = {"rounding": {**one, "mean": 0.01}, "training.adv_estimator=grpo": one}
    return found


def test_a_report_is_a_row_also_from_the_text_of_an_issue(report: dict[str, Any], tmp_path: Path) -> None:
    page, issue = tmp_path / "page.md", tmp_path / "issue.md"
    page.write_text(f"before\n{gpu_machines.BEGIN}old{gpu_machines.END}after\n")
    gpu_machines.main([], tmp_path / "reports", page)
    assert page.read_text() == f"before\n{gpu_machines.BEGIN}\n{gpu_machines.NONE}\n{gpu_machines.END}after\n"
    issue.write_text(f"### check.json\n\n```json\n{json.dumps(report)}\n```\n\n### What failed\n\n_No response_\n")
    gpu_machines.main([str(issue)], tmp_path / "reports", page)
    (row,) = [line for line in page.read_text().splitlines() if "H100" in line]
    assert row == (
        "| 2 x NVIDIA H100 80GB HBM3 | 580.95.05, 13.0 | turnsmith 0.2.0, torch 2.13.0 | Qwen/Qwen3-0.6B, 1 x 2 GPUs | "
        "1 passed; skipped: nodes | 1.20, over 128 tokens |"
    )


def test_what_is_no_report_of_a_gpu_is_refused(report: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="substring not found"):
        gpu_machines.read_report("It did not work.")
    with pytest.raises(ValueError, match=r"no check\.json"):
        gpu_machines.read_report('{"subject": "MyGame"}')
    report["machine"]["gpus"] = []
    with pytest.raises(ValueError, match="has no GPU"):
        gpu_machines.read_report(json.dumps(report))


def test_text_of_a_report_cannot_leave_its_cell(report: dict[str, Any]) -> None:
    report["machine"]["gpus"] = ["a | b\n<script>"]
    assert gpu_machines.row(report).count("|") == 7
    assert "<" not in gpu_machines.row(report)


def test_the_page_has_the_reports_of_the_folder() -> None:
    text = gpu_machines.PAGE.read_text(encoding="utf-8")
    assert text == gpu_machines.page(text), "run python -m docs.hooks.gpu_machines"


def test_the_form_asks_for_what_the_command_reads() -> None:
    form = yaml.safe_load(FORM.read_text(encoding="utf-8"))
    (report,) = [part for part in form["body"] if part.get("id") == "report"]
    assert report["attributes"]["render"] == "json"
    assert report["validations"]["required"]

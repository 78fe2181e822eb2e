"""Each check of the machine fails on a planted fault, with a sentence that says what is wrong."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from tests.unit.trainer.gpu_machines import ENOUGH, TOO_LITTLE, Case

from turnsmith.check.environment.checks.settings import disk_finding
from turnsmith.check.finding import Finding
from turnsmith.check.machine import machine
from turnsmith.check.machine.canary import judge_agreement, judge_weights
from turnsmith.check.machine.gpu_memory import judge_memory
from turnsmith.check.machine.killed_run import KilledRun
from turnsmith.check.machine.machine import judge_throughput
from turnsmith.check.machine.run import CHECKS, MachineChecks
from turnsmith.check.machine.short_run import judge_steps
from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides

STEP = {"step": 1, "grad_norm": 0.5, "policy_loss": 0.1, "rollout_diff/max": 1e-6, "time/step": 2.0}
HERE = {"python": "3.11.9", "verl": "0.9.1", "torch": "2.13.0+cpu"}
NEEDS = ["verl==0.9.1; extra == 'cpu'", "torch==2.13.0; extra == 'cpu'", "torch==2.12.0; extra == 'vllm'"]


def steps(*overrides: str, **fault: float) -> Callable[[], Finding]:
    """Judges a good step, and one with a fault."""
    config = apply_overrides(ConfigStore(), overrides)
    good = {**STEP, "value_loss": 0.2, "staleness/max": 0.0}
    named = {name.replace("__", "/"): value for name, value in fault.items()}
    assert "gradient 0.5" in judge_steps([good], config).saw
    return lambda: judge_steps([good, {**good, "step": 2, **named}], config)


def gpus(case: Case) -> Callable[[], Finding]:
    """What is said of a made-up machine."""

    def judge() -> Finding:
        config = apply_overrides(ConfigStore(), ["model.device=cuda", "model.attn_implementation=sdpa"])
        with mock.patch.object(machine, "read_machine", return_value=case.machines[0]):
            return machine.check_gpu_needs(config, Path())

    return judge


def resumed(steps: list[int]) -> Finding:
    """What is said of a run, killed after three steps, that has these after it was resumed."""
    with tempfile.TemporaryDirectory() as folder:
        run = KilledRun(apply_overrides(ConfigStore(), ["checkpoint.save_interval=1"]), [], Path(folder), 1.0, print)
        run.killed_after = 3
        with mock.patch.multiple(run, _finish=lambda *given: None, _metrics=lambda: [{"step": step} for step in steps]):
            return run.resume()


def apart(mean: float) -> dict[str, float]:
    """A spread with this mean."""
    return {"tokens": 128, "mean": mean, "q90": 2 * mean}


ROUNDING = apart(0.01)
NAN, ASYNC = float("nan"), "training.schedule=colocate_async"
FAULTS: dict[str, list[tuple[Callable[[], Finding], str]]] = {
    "packages": [
        (lambda: machine.judge_packages(NEEDS, "cpu", {**HERE, "verl": "0.9.0"}), r"verl is 0\.9\.0, but .* needs ==0"),
        (lambda: machine.judge_packages(NEEDS, "cpu", {"verl": "0.9.1"}), "torch is not installed, but turnsmith.cpu"),
        (lambda: machine.judge_packages(NEEDS, "vllm", {"torch": "2.13.0"}), "but turnsmith.vllm. needs ==2.12.0"),
        (lambda: machine.judge_packages(NEEDS, "mcp", {"torch": "2.9"}), r"torch is 2\.9, but turnsmith needs ==2\.12"),
    ],
    "nodes": [
        (
            lambda: machine.judge_nodes(HERE, {"10.0.0.7": HERE, "10.0.0.8": {**HERE, "verl": "0.9.0"}}),
            r"^verl is 0\.9\.0 on 10\.0\.0\.8 and 0\.9\.1 here\. Install the same",
        ),
        (lambda: machine.judge_nodes(HERE, {"a": {"python": "3.11.9", "verl": "0.9.1"}}), "torch is missing on a"),
        (lambda: machine.judge_nodes(HERE, {"a": {**HERE, "vllm": "1"}}), "vllm is 1 on a and missing here"),
        (lambda: machine.judge_nodes(HERE, {"a": "no module named turnsmith"}), "turnsmith does not run on a: no mod"),
    ],
    "gpus": [
        (gpus(TOO_LITTLE[0]), r"NVIDIA's driver is 535\.183\.01, .* `train` refuses this, unless ray\.force=true"),
    ],
    "disk": [
        (lambda: disk_finding(Path(), 1e18, "It writes an exabyte"), r"It writes an exabyte; .* GiB are free in"),
        (lambda: disk_finding(Path(), 0.6 * shutil.disk_usage(".").free, "It writes much"), "It writes much; "),
    ],
    "engine": [
        (lambda: judge_throughput(19.9, 19.9, 16.0), r"The engine makes 19\.9 tokens/s .* less than 20"),
        (
            lambda: judge_throughput(1000.0, 100.0, 16.0),
            "1,000 tokens/s alone but 100 in episodes: .* 144 ms",
        ),
    ],
    "grpo": [
        (steps(grad_norm=0.0), "The gradient of step 2 is zero"),
        (steps(grad_norm=NAN, policy_loss=float("inf")), "In step 2, grad_norm is nan and policy_loss is inf"),
        (steps("model.dtype=float32", rollout_diff__max=0.2), r"probabilities that differ by 0\.2"),
        (
            lambda: judge_agreement(apart(0.03), ROUNDING, "bfloat16"),
            r"differ by 0\.03 .*, 3 times .* compare their dtypes",
        ),
    ],
    "memory": [
        (lambda: judge_memory([40.0, 39.0, 40.0]), r"40\.0 GiB .* never less than 39\.0 .* does not give memory back"),
        (lambda: judge_memory([40.0, 6.0, 46.0]), r"grew from 40\.0 to 46\.0 GiB in one step"),
    ],
    "weights": [
        (
            lambda: judge_weights("model.norm.weight", [-2.0, -3.0], [-2.0, -3.0], [-2.2, -3.4]),
            r"model\.norm\.weight was changed, which moves log-probs by 0\.3, .* did not get the new weight",
        ),
        (lambda: judge_weights("w", [-2.0], [-2.0], [-2.0 + NAN]), "did not get the new weight"),
    ],
    "ppo": [(steps("training.adv_estimator=gae", value_loss=NAN), "In step 2, value_loss is nan")],
    "lora": [
        (steps("model.lora_rank=8", "model.dtype=float32", rollout_diff__max=0.01), "They do not have the same weights")
    ],
    "lora-weights": [
        (lambda: judge_weights("lora_B.weight", [-2.5], [-2.0], [-3.0]), "lora_B.weight was .* are 0.5 away from")
    ],
    "colocate-async": [
        (steps(ASYNC, staleness__max=2.0), "Step 2 trained on episodes that were sampled 2 steps before, more than"),
        (steps(ASYNC, grad_norm=0.0, staleness__max=1.0), "The gradient of step 2 is zero"),
    ],
    "killed": [(lambda: resumed([1, 2]), r"has the steps \[1, 2\]"), (lambda: resumed([1, 1, 2, 3, 4]), r"\[1, 1, 2")],
}


def test_every_check_has_a_planted_fault(tmp_path: Path) -> None:
    run = [check for check, _ in MachineChecks(ConfigStore(), tmp_path).looks()]
    assert [check.code for check in run] == [check.code for check in CHECKS] == list(FAULTS)


@pytest.mark.parametrize(("name", "number"), [(name, n) for name, faults in FAULTS.items() for n in range(len(faults))])
def test_it_fails_with_a_sentence_and_says_what_to_do(name: str, number: int) -> None:
    judge, sentence = FAULTS[name][number]
    finding = judge()
    assert finding.status in ("failed", "warning")
    assert re.search(sentence, f"{finding.saw} {finding.fix}")
    assert finding.saw.endswith(".")
    assert finding.fix


def test_what_differs_for_a_good_reason_passes() -> None:
    assert steps("model.dtype=bfloat16", rollout_diff__max=0.2)().status == "passed", "its tokens are compared apart"
    assert judge_agreement(apart(0.014), ROUNDING, "bfloat16").status == "passed"
    fresh = steps(ASYNC, staleness__max=1.0, rollout_diff__max=0.2)()
    assert fresh.saw.endswith("differ by 1e-06"), "of the fresh step"
    assert gpus(ENOUGH[0])().saw == "11 things on 1 machine: driver 581.29, CUDA 13.0"
    assert judge_throughput(40_000.0, 4_000.0, 16.0).status == "passed", "a GPU that is faster than Python"
    assert judge_throughput(20.0, 16.0, 16.0).status == "passed", "a slow engine, not slow episodes"
    assert judge_weights("w", [-2.98], [-2.0], [-3.0]).status == "passed", "bfloat16 rounds"

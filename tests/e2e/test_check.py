"""`turnsmith check` raises no false alarm in environments of others, and takes a minute with the tiny model at most."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e import test_gymnasium, test_reasoning_gym
from tests.e2e.packages import install
from turnsmith.check.environment.checks import CHECKS
from turnsmith.check.environment.run import run_checks
from turnsmith.check.environment.subject import Subject
from turnsmith.config import ConfigStore
from turnsmith.env.spec import EnvironmentSpec

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
EXAMPLES = ("Calculator", "CustomGameEnvironment", "GuessNumber", "SimpleGameEnvironment", "SupportDesk", "TwoStepMaze")
OTHERS = (
    *(f"gymnasium:{name}" for name in ("Blackjack-v1", "CliffWalking-v1", "CartPole-v1", "Taxi-v4", "Acrobot-v1")),
    *(f"reasoning_gym:{name}" for name in ("chain_sum", "gcd", "leg_counting", "number_sorting", "spell_backward")),
)


@pytest.fixture(scope="module", autouse=True)
def _packages(tmp_path_factory: pytest.TempPathFactory) -> None:
    packages = [*test_gymnasium.PACKAGES, *test_reasoning_gym.PACKAGES.split()]
    install(tmp_path_factory.mktemp("packages"), *dict.fromkeys(packages))


@pytest.mark.parametrize("name", OTHERS)
async def test_environments_of_others_raise_no_false_alarm(name: str) -> None:
    config = ConfigStore()
    spec = EnvironmentSpec.of(name, config.environment).isolated()
    # The audit has an alarm to raise in some: reasoning-gym pays for texts that contain the answer.
    results = await run_checks(Subject(environment=spec, config=config), [one for one in CHECKS if not one.audit])
    found = [(result.check.name, result.finding.saw) for result in results if result.finding.status in ALARMS]
    assert not found


ALARMS = ("failed", "warning")


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_takes_less_than_a_minute_with_the_tiny_model(name: str, tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    command = [sys.executable, "-m", "turnsmith", "check", f"turnsmith.env.examples:{name}", "--model", "tiny"]
    before = os.times()
    # The tiny model has a token for each character, so that the tools' descriptions are long.
    subprocess.run([*command, "--json", str(out), "inference.max_prompt_tokens=4096"], check=True, timeout=300)
    after = os.times()
    report = json.loads(out.read_text())
    assert report["failed"] == 0
    # What it computes, and not how long it takes beside other tests.
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    assert spent < 60

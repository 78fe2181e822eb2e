"""Playwright, a library that is bound to one thread, in an environment with default settings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from turnsmith.records.episodes import read_episodes
from turnsmith.trajectory import Outcome

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
ENVIRONMENT = Path(__file__).with_name("browser.py")
IN_TWO_THREADS = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from browser import Browser
from turnsmith.config import EnvironmentConfig

config = EnvironmentConfig()
config.chromium = sys.argv[2]
browser = Browser(config)
browser.reset()

def step():
    try:
        browser.step("tea")
    except BaseException as error:
        print(error)

other = threading.Thread(target=step)
other.start()
other.join()
browser.close()
"""


@pytest.fixture(scope="module")
def chromium() -> str:
    found = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
    return found or pytest.skip("there is no Chromium (apt-get install chromium-headless-shell)")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which Python finds Playwright, in a folder of its own: it is no dependency of ours."""
    folder = tmp_path_factory.mktemp("playwright")
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), "playwright"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"no package index with playwright: {done.stderr.strip().splitlines()[-1:]}")
    return {**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{folder}"}


def test_it_really_is_bound_to_one_thread(chromium: str, packages: dict[str, str]) -> None:
    command = [sys.executable, "-c", IN_TWO_THREADS, str(ENVIRONMENT.parent), chromium]
    done = subprocess.run(command, env=packages, capture_output=True, text=True, timeout=120)
    assert "different thread" in done.stdout, done


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_episodes_with_a_browser_each(isolation: str, chromium: str, packages: dict[str, str], tmp_path: Path) -> None:
    settings = [f"environment.isolation={isolation}", f"environment.chromium={chromium}", "inference.max_tokens=6"]
    command = [
        sys.executable,
        "-m",
        "turnsmith",
        "eval",
        f"{ENVIRONMENT}:Browser",
        "--model",
        "tiny",
        "--episodes",
        "4",
    ]
    command += ["--output-dir", str(tmp_path), "--name", "browsers", *settings]
    done = subprocess.run(command, env=packages, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    played = list(read_episodes(tmp_path / "browsers"))
    assert [one.outcome for one in played] == [Outcome.COMPLETED] * 4
    assert [one.rewards for one in played] == [[1.0, 2.0, 3.0]] * 4
    assert {one.attempt for one in played} == {0}, done.stdout
    assert "close" not in done.stdout + done.stderr

"""The commands that README, the quickstart and the recipes have a user type, as they are, in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.console import make_folder, title, typed_in
from turnsmith.records.run_folder import RunFolder

pytestmark = pytest.mark.e2e


def run(command: str, folder: Path) -> str:
    """Type a command; returns what it prints."""
    # What uvx would install is installed here already; `.ci/run wheel` checks it in an empty environment.
    command = command.removeprefix("uvx --from . ").replace("turnsmith", f"{sys.executable} -m turnsmith", 1)
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the reader is in."""
    return make_folder(tmp_path_factory.mktemp("typed"))


@pytest.mark.parametrize("command", typed_in("e2e"), ids=title)
def test_it_ends_as_the_page_says(command: str, folder: Path) -> None:
    # The model of a hub has a stand-in: its settings, not its size, are what is typed.
    is_plan = " --plan " in command
    printed = run(f"{command} --model tiny" if is_plan else command, folder)
    assert ("the layout to choose" if is_plan else ", none failed") in printed
    assert "DOES NOT FIT" not in printed


@pytest.mark.nightly
@pytest.mark.timeout(1600)
@pytest.mark.parametrize("command", typed_in("nightly"), ids=title)
def test_it_learns(command: str, folder: Path) -> None:
    before = set(folder.glob("runs/*"))
    run(command, folder)
    (made,) = set(folder.glob("runs/*")) - before
    rewards = [record["reward/mean"] for record in RunFolder.open(made).read_metrics()]
    assert len(rewards) >= 30
    assert sum(rewards[-5:]) > 1.5 * sum(rewards[:5]), rewards

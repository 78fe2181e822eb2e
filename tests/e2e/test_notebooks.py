"""The notebooks run from top to bottom in a real kernel; a class that is defined in a cell trains."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recipes import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1200)]
PACKAGES = ("nbclient==0.11.0", "ipykernel==7.4.0")
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=900, resources={"metadata": {"path": "."}}).execute()
nbformat.write(notebook, "executed.ipynb")
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Jupyter's kernel and a client, beside what the tests run with."""
    folder = tmp_path_factory.mktemp("jupyter")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", folder, *PACKAGES], check=True)
    return folder


def outputs(name: str, packages: Path, folder: Path) -> str:
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(packages)])
    command = [sys.executable, "-c", EXECUTE, str(ROOT / "recipes" / f"{name}.ipynb")]
    subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": path}, check=True)
    cells = json.loads((folder / "executed.ipynb").read_text())["cells"]
    made = [output for cell in cells if cell["cell_type"] == "code" for output in cell["outputs"]]
    return "".join("".join(output.get("text", "")) for output in made)


def test_an_environment_of_a_cell_is_learned(packages: Path, tmp_path: Path) -> None:
    printed = outputs("first_run", packages, tmp_path)
    rewards = [float(found) for found in re.findall(r"^step +\d+  reward ([\d.]+)$", printed, re.MULTILINE)]
    assert rewards[-1] > rewards[0] + 0.5


def test_a_reward_of_a_cell_is_learned_and_shows_on_held_out_rows(packages: Path, tmp_path: Path) -> None:
    printed = outputs("your_data", packages, tmp_path)
    before, after = (float(found) for found in re.findall(r"^after step +\d+: reward ([\d.]+)", printed, re.MULTILINE))
    assert after > before + 0.3

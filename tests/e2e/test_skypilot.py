"""SkyPilot's own dry run of the file in docs/running-on-a-cluster.md, in an environment of its own.

A dry run needs a cloud to choose machines from. Without an account at one, SkyPilot is given what it would have read
from its catalogue: one machine, at a cloud of which it only looks for a file with a key.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator

import pytest
import yaml

from tests.e2e.packages import make_environment
from tests.unit.test_cluster_page import file

VERSION = "0.14.1"
PORT = 46580
CATALOGUE = {
    "common/accelerators.csv": "AcceleratorName,Clouds\nH100,[Fluidstack]\n",
    "fluidstack/vms.csv": (
        "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice\n"
        "H100::8,H100,8,208,1600,20.0,norway,\"{'Gpus': [{'Name': 'H100', 'Count': 8.0}]}\",\n"
    ),
}
pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Runs `sky launch --dryrun` on the text of a file, and returns what it printed."""
    if not shutil.which("rsync"):
        pytest.skip("SkyPilot needs rsync, which is not installed (apt-get install rsync)")
    with socket.socket() as port:
        if port.connect_ex(("127.0.0.1", PORT)) == 0:
            pytest.skip(f"something listens on port {PORT}, where SkyPilot's server would be started")
    folder = tmp_path_factory.mktemp("sky")
    make_environment(folder / "venv", (f"skypilot=={VERSION}",))
    for name, content in CATALOGUE.items():
        path = folder / ".sky/catalogs/v8" / name
        path.parent.mkdir(parents=True)
        path.write_text(content)
    (folder / ".fluidstack").mkdir()
    (folder / ".fluidstack/api_key").write_text("api_key=none")
    variables = {"HOME": str(folder), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1", "PYTHONPATH": ""}

    def sky(*words: str) -> str:
        command = [str(folder / "venv/bin/sky"), *words]
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=300)
        return done.stdout + done.stderr

    def run(text: str) -> str:
        (folder / "sky.yaml").write_text(text)
        return sky("launch", "--dryrun", "-y", str(folder / "sky.yaml"), "--secret", "RAY_AUTH_TOKEN=none")

    yield run
    sky("api", "stop")


def test_the_file_of_the_docs_passes_its_dry_run(dry_run: Callable[[str], str]) -> None:
    said = dry_run(file("sky.yaml"))
    assert "Considered resources (4 nodes)" in said, said
    assert said.rstrip().endswith("Dryrun finished."), said


def test_what_is_wrong_with_a_file_is_found(dry_run: Callable[[str], str]) -> None:
    task = yaml.safe_load(file("sky.yaml"))
    task["num_node"] = task.pop("num_nodes")
    said = dry_run(yaml.safe_dump(task))
    assert "num_node" in said, said
    assert "Dryrun finished." not in said, said

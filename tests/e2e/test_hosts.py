"""Two hosts of this machine, with a network, processes and folders of their own, train together."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.host_cluster import STEPS, HostCluster
from tests.e2e.hosts import Network, refusal
from turnsmith import RunFolder

JOIN = "import ray; ray.init('10.77.0.1:6379', log_to_driver=False); print(len(ray.nodes()))"
TITLES = "import json, psutil; print(json.dumps([process.name() for process in psutil.process_iter()]))"
pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostCluster]:
    """Two hosts, joined by the address of the first."""
    if reason := refusal():
        pytest.skip(f"no hosts on this machine: {reason}")
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "shared").mkdir()
    with Network(folder / "shared", folder) as network:
        yield HostCluster(network, folder / "shared")


def test_both_hosts_train(cluster: HostCluster) -> None:
    run = cluster.train("undisturbed")
    run.wait_for_steps(1)
    titles = {
        host.name: {title.partition(".")[0] for title in json.loads(host.run(["python", "-c", TITLES]).stdout)}
        for host in (cluster.first, cluster.second)
    }
    assert run.wait().code == 0, run.told
    for host in titles:
        assert {"ray::WorkerDict", "ray::TransformersServer", "ray::EpisodeWorker"} <= titles[host], host
    assert "ray::TaskRunner" in titles["host1"], "it is where the run was started"
    records = RunFolder.open(run.path).read_metrics()
    assert [record["step"] for record in records] == list(range(1, STEPS + 1))
    assert records[-1]["reward/mean"] > records[0]["reward/mean"]
    assert max(record["rollout_diff/max"] for record in records) < 1e-5


def test_nobody_joins_without_the_token(cluster: HostCluster) -> None:
    assert cluster.second.run(["python", "-c", JOIN]).stdout.split()[-1] == "2"
    for variables in ({"RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": ""}):
        assert cluster.second.run(["python", "-c", JOIN], variables).returncode != 0

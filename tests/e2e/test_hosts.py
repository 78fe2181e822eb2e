"""Two hosts of this machine, with a network, processes and folders of their own, train together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.host_cluster import STEPS, HostCluster, HostRun, two_hosts
from tests.e2e.reach import pickle_for_transfer_queue
from turnsmith import RunFolder

JOIN = "import ray; ray.init({!r}, log_to_driver=False); print(len(ray.nodes()))"
METRICS = "import urllib.request; print(urllib.request.urlopen('http://{}/metrics').read(6).decode())"
PROCESSES = """
import json, psutil
found = {"titles": [], "listening": []}
for process in psutil.process_iter():
    found["titles"].append(process.name())
    for one in process.net_connections("tcp"):
        if one.status == psutil.CONN_LISTEN and one.laddr.ip != "127.0.0.1":
            found["listening"].append((process.name(), one.laddr.port))
print(json.dumps(found))
"""
pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostCluster]:
    """Two hosts, joined by the address of the first."""
    with two_hosts(tmp_path_factory.mktemp("hosts")) as made:
        yield made


@dataclass
class Watched:
    """A run on both hosts, and what was seen while it was under way."""

    run: HostRun
    titles: dict[str, set[str]]
    """The processes of each host."""
    got: list[str]
    """What a third host on the network was answered, but for Ray's metrics, and what it could have run."""


@pytest.fixture(scope="module")
def watched(cluster: HostCluster) -> Watched:
    run = cluster.train("watched")
    run.wait_for_steps(1)
    hosts = (cluster.first, cluster.second)
    found = {host.address: json.loads(host.run(["python", "-c", PROCESSES]).stdout) for host in hosts}
    names = {(address, port): name for address, one in found.items() for name, port in one["listening"]}
    proof = cluster.shared / "a pickle was unpacked"
    frames = [bytes(frame).hex() for frame in pickle_for_transfer_queue(proof)]
    targets = {"ports": list(names), "sockets": [], "files": [], "frames": frames}
    stranger = cluster.network.add()
    done = stranger.run(["python", "tests/e2e/another_user.py"], given=json.dumps(targets))
    assert done.returncode == 0, done.stderr
    got = [*json.loads(done.stdout), *([str(proof)] if proof.exists() else [])]
    for (address, port), name in names.items():
        if f"http {port} /metrics" in got:
            assert name in ("python", "ray::DashboardAgent")  # Ray's dashboard, its autoscaler, and its agents
            assert stranger.run(["python", "-c", METRICS.format(f"{address}:{port}")]).stdout == "# HELP\n"
            got = [one for one in got if one.split()[:2] != ["http", str(port)]]
    titles = {host.name: {one.partition(".")[0] for one in found[host.address]["titles"]} for host in hosts}
    assert run.wait().code == 0, run.told
    return Watched(run, titles, got)


def test_both_hosts_train(watched: Watched) -> None:
    for host, titles in watched.titles.items():
        assert {"ray::WorkerDict", "ray::TransformersServer", "ray::EpisodeWorker"} <= titles, host
    assert "ray::TaskRunner" in watched.titles["host1"], "it is where the run was started"
    records = RunFolder.open(watched.run.path).read_metrics()
    assert [record["step"] for record in records] == list(range(1, STEPS + 1))
    assert records[-1]["reward/mean"] > records[0]["reward/mean"]
    assert max(record["rollout_diff/max"] for record in records) < 1e-5


def test_a_stranger_on_the_network_gets_nothing(watched: Watched) -> None:
    assert watched.got == []


@pytest.mark.parametrize(
    ("address", "with_token", "refused"),
    [
        ("10.77.0.1:6379", "", "authentic"),
        # Ray's client: with the token it reaches its server, which does not start on these hosts.
        ("ray://10.77.0.1:10001", "failure from server", "connection timeout"),
    ],
)
def test_nobody_joins_without_the_token(cluster: HostCluster, address: str, with_token: str, refused: str) -> None:
    join = ["python", "-c", JOIN.format(address)]
    done = cluster.second.run(join)
    assert done.stdout.split()[-1:] == ["2"] or (with_token and with_token in done.stderr), done.stderr
    for variables in ({"RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": ""}):
        done = cluster.second.run(join, variables)
        assert done.returncode != 0
        assert refused in done.stderr.lower(), done.stderr

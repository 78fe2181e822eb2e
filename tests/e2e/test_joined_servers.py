"""A node that joins a running run gets a rollout server, and the run goes on when that node is gone again.

Prints episodes a second of each part: `python -m pytest -s tests/e2e/test_joined_servers.py -m nightly`.
"""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.e2e.conftest import verification_problem
from tests.e2e.host_cluster import two_hosts
from tests.e2e.hosts import Host
from turnsmith.records.run_folder import RunFolder

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1800)]

BATCH, STEPS, PART = 16, 60, 8
SETTINGS = (
    "training.schedule=separate_async ray.num_nodes=1 ray.rollout_nodes=1 training.max_staleness=1 "
    f"training.num_epochs={STEPS} training.learning_rate=1e-4 checkpoint.save_interval=20 "
    "inference.max_tokens=24 inference.max_concurrency=2"  # so that generation takes longer than training
)
CPU_OF_SERVERS = (
    "import psutil; found = [one for one in psutil.process_iter() if 'TransformersServer' in ''.join(one.cmdline())]; "
    "print(sum(sum(one.cpu_times()[:2]) for one in found))"
)


def warnings(run: Path) -> list[str]:
    return [str(one["content"]) for one in RunFolder.open(run).read_events() if one["kind"] == "warning"]


def cpu_of_servers(host: Host) -> float:
    return float(host.run(["python", "-c", CPU_OF_SERVERS]).stdout.split()[-1])


def test_servers_come_and_go(tmp_path: Path) -> None:
    times: dict[str, float] = {}
    with two_hosts(tmp_path) as cluster:
        run = cluster.train("elastic", *SETTINGS.split())
        assert run.wait_for_steps(PART), run.told
        times["one server"] = time.time()
        joined = cluster.add()
        while not any("has joined; rollout servers that it brings: 1" in one for one in warnings(run.path)):
            assert run.wait_for_steps(1), run.told
        times["a second one starts"] = time.time()
        before = cpu_of_servers(joined)
        assert run.wait_for_steps(PART), run.told
        assert cpu_of_servers(joined) > before + 0.2, "the new server generated nothing"
        times["two servers"] = time.time()
        cluster.network.vanish(joined)
        assert run.wait_for_steps(2), run.told
        times["the second one is lost"] = time.time()
        assert run.wait().code == 0, run.told
        times["one server again"] = time.time()
        folder = RunFolder.open(run.path)
        ended = [event["time"] for event in folder.read_events() if event.get("content") == "generate"]
        for begin, (part, end) in zip([ended[0], *times.values()], times.items(), strict=False):
            steps = sum(begin < one <= end for one in ended)
            print(f"| {part} | {BATCH * steps / (end - begin):.2f} episodes a second | {steps} steps |")
        print("longest step", max(later - one for one, later in pairwise(ended)), "s;", warnings(run.path))
        ledger = folder.read_ledger()
        assert [step["step"] for step in ledger] == list(range(1, STEPS + 1))
        assert all(step["trained"] == BATCH for step in ledger)
        assert verification_problem(run.path) == ""

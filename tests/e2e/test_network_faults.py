"""A run on two hosts outlives faults of their network, or stops in words and resumes: no episode is lost.

`TURNSMITH_FAULT_SCHEDULES` is how many lists of faults are drawn, `TURNSMITH_CHAOS_SEED` draws them. The rows of the
table in docs/failures.md are printed: `python -m pytest -s tests/e2e/test_network_faults.py -m nightly`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from tests.e2e import network_faults as faults
from tests.e2e.conftest import verification_problem
from tests.e2e.host_cluster import HostCluster, HostRun, two_hosts
from tests.e2e.network_faults import WENT_ON, Fault, drawn_faults, endure
from tests.e2e.same_runs import differences
from turnsmith import RunFolder

SEED = int(os.environ.get("TURNSMITH_CHAOS_SEED", "13"))
SCHEDULES = int(os.environ.get("TURNSMITH_FAULT_SCHEDULES", "20"))
pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostCluster]:
    """Two hosts, joined by the address of the first."""
    with two_hosts(tmp_path_factory.mktemp("faults")) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(cluster: HostCluster) -> HostRun:
    """A run to which nothing happens."""
    run = cluster.train("undisturbed", *faults.SETTINGS).wait()
    assert run.code == 0, run.told
    return run


@pytest.mark.parametrize(
    ("name", "passing"),
    [
        ("both-ways", [Fault(faults.CUT, 5), Fault(faults.SLOW, 8), Fault(faults.FULL, 3)]),
        ("one-way", [Fault(faults.DEAF, 20), Fault(faults.MUTE, 20), Fault(faults.LOSSY, 8)]),
    ],
)
def test_a_run_goes_on_after_what_passes(
    cluster: HostCluster, undisturbed: HostRun, name: str, passing: list[Fault]
) -> None:
    outcome = endure(cluster, name, passing, undisturbed)
    assert outcome.ends == [WENT_ON] * len(passing)
    assert (outcome.lost, outcome.problem, outcome.differs) == (0, "", [])


@pytest.mark.parametrize("fault", [Fault(faults.CUT, 30), Fault(faults.CUT, 120), Fault(faults.GONE)], ids=str)
def test_it_resumes_when_a_host_is_gone_for_long(cluster: HostCluster, undisturbed: HostRun, fault: Fault) -> None:
    outcome = endure(cluster, f"gone-{fault.seconds:g}", [fault], undisturbed)
    if fault.seconds != 30:  # TCP tries again after 25 s and 51 s, when Ray may have given the host up, or not
        assert outcome.ends != [WENT_ON]
    assert (outcome.lost, outcome.problem, outcome.differs) == (0, "", [])


def test_clocks_an_hour_apart(cluster: HostCluster, undisturbed: HostRun) -> None:
    """Of all Python processes of the second host; Linux has one clock for all hosts of a machine, which C++ reads."""
    (cluster.shared / "sitecustomize.py").write_text("import time\nown = time.time\ntime.time = lambda: own() + 3600\n")
    second = cluster.second
    path = second.environment()["PYTHONPATH"]
    look = ["python", "-c", "import time; print(time.time())"]
    second.variables["PYTHONPATH"] = f"{cluster.shared}{os.pathsep}{path}"
    assert float(second.run(look).stdout) - float(cluster.first.run(look).stdout) > 3500
    cluster.restart(second)
    run = cluster.train("apart", *faults.SETTINGS).wait()
    del second.variables["PYTHONPATH"]
    cluster.restart(second)
    assert run.code == 0, run.told
    assert differences(RunFolder.open(run.path), RunFolder.open(undisturbed.path), ranks=2) == []
    assert verification_problem(run.path) == ""


@pytest.mark.parametrize("number", range(SCHEDULES))
def test_drawn_faults(cluster: HostCluster, undisturbed: HostRun, number: int) -> None:
    print(f"TURNSMITH_CHAOS_SEED={SEED}, list {number}")
    outcome = endure(cluster, f"drawn-{number}", drawn_faults(random.Random(f"{SEED}-{number}")), undisturbed)
    assert (outcome.lost, outcome.problem, outcome.differs) == (0, "", [])

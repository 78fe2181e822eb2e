"""Ray on hosts of this machine, started as docs/running-on-a-cluster.md says, and runs of turnsmith on it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.hosts import Host, Network, refusal
from tests.e2e.watched_run import steps_made
from turnsmith.records.run_folder import RunFolder

STEPS = 30
SETTINGS = (
    "model.model_name=tiny model.device=cpu inference.max_tokens=6 training.batch_size=16 training.group_size=4 "
    f"training.learning_rate=1e-2 training.num_epochs={STEPS} training.steps_per_epoch=1 "
    "ray.address=auto ray.num_nodes=2 ray.gpus_per_node=1"
)
ENVIRONMENT = "tests/e2e/three_letters.py:ThreeLetters"
_PATIENCE = 400.0


@contextmanager
def two_hosts(folder: Path) -> Generator[HostCluster]:
    """Two hosts, joined by the address of the first; a test that asks for them is skipped where there are none."""
    if reason := refusal():
        pytest.skip(f"no hosts on this machine: {reason}")
    (folder / "shared").mkdir()
    with Network(folder / "shared", folder) as network:
        yield HostCluster(network, folder / "shared")


class HostRun:
    """A `turnsmith train` or `turnsmith resume` on the first host."""

    def __init__(self, host: Host, words: list[str], path: Path, log: Path) -> None:
        self.path = path
        self._log = log
        self._began = time.monotonic()
        with log.open("w") as output:
            self._process: Any = host.start(["turnsmith", *words], stdout=output, stderr=output)
        self.code: int | None = None
        self.seconds = 0.0

    @property
    def told(self) -> str:
        """What it has printed."""
        return self._log.read_text()

    def has_ended(self) -> int | None:
        """Its exit status, if it has ended."""
        return self._process.poll()

    def wait_for_steps(self, more: int) -> bool:
        """Wait until it has made so many more steps; False if it ends before."""
        until = steps_made(self.path) + more
        self._wait(lambda: steps_made(self.path) >= until)
        return steps_made(self.path) >= until

    def wait(self) -> HostRun:
        """Wait for its end."""
        self._wait(lambda: False)
        self.code, self.seconds = self._process.returncode, time.monotonic() - self._began
        return self

    def longest_step(self, after: int) -> float:
        """The seconds of the longest step of those after this one, if it has not been resumed."""
        events = RunFolder.open(self.path).read_events()
        begins = [event["time"] for event in events if event.get("content") == "generate"]
        return max(end - begin for begin, end in pairwise(begins[after:]))

    def _wait(self, is_so: Callable[[], bool]) -> None:
        until = time.monotonic() + _PATIENCE
        while self._process.poll() is None and not is_so():
            assert time.monotonic() < until, f"it takes too long: {self.told}"
            time.sleep(0.1)


class HostCluster:
    """Ray with a token on two hosts.

    Args:
        network: Where the hosts are made.
        shared: The folder that they share.
    """

    def __init__(self, network: Network, shared: Path) -> None:
        self.network = network
        self.shared = shared
        self.token = secrets.token_hex(32)
        self.first = self.add()
        self.second = self.add()

    def add(self) -> Host:
        """Another host, which joins by the address of the first."""
        host = self.network.add(size="1g")
        host.variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}
        self.join(host)
        return host

    def join(self, host: Host) -> None:
        """Start Ray on a host."""
        role = ["--address=10.77.0.1:6379"] if self.network.hosts[0] is not host else ["--head"]
        done = host.run(["ray", "start", *role, "--num-cpus=8", "--num-gpus=1", "--disable-usage-stats"])
        assert done.returncode == 0, done.stdout + done.stderr

    def repair(self) -> None:
        """Have two hosts again: start Ray where it has ended, or add a host in place of one that is gone."""
        if not self.second.is_there():
            self.second = self.add()
            return
        alive = "import ray; ray.init('auto', log_to_driver=False); print(sum(one['Alive'] for one in ray.nodes()))"
        if self.first.run(["python", "-c", alive]).stdout.split()[-1:] != ["2"]:
            self.restart(self.second)

    def restart(self, host: Host) -> None:
        """End Ray on a host, and start it again."""
        host.run(["ray", "stop", "--force"])
        self.join(host)

    def train(self, name: str, *more: str) -> HostRun:
        """Start a run from the first host."""
        where = [f"checkpoint.output_dir={self.shared}", f"checkpoint.run_name={name}"]
        words = ["train", ENVIRONMENT, *SETTINGS.split(), *where, *more]
        return HostRun(self.first, words, self.shared / name, self.shared / f"{name}.log")

    def resume(self, run: HostRun) -> HostRun:
        """Go on with a run that has stopped."""
        log = self.shared / f"{run.path.name}-resumed.log"
        return HostRun(self.first, ["resume", str(run.path)], run.path, log)

"""Ray says that a named actor is gone, also in a process that has called it before."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.e2e
PROGRAM = """
import os, signal, time
import ray
from turnsmith.trainer.verl.lost_servers import is_gone

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)

@ray.remote(num_cpus=0)
class Server:
    def pid(self):
        return os.getpid()

server = Server.options(name="server").remote()
pid = ray.get(server.pid.remote())
print("up:", is_gone("server"))
os.kill(pid, signal.SIGKILL)
until = time.monotonic() + 30
while not is_gone("server") and time.monotonic() < until:
    time.sleep(0.1)
print("killed:", is_gone("server"))
print("found by ray.get_actor:", ray.get_actor("server") is not None)
"""


def test_an_actor_that_was_killed_is_gone() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    # The last line is why `is_gone` does not ask `ray.get_actor` (Ray 2.60.0): when it changes, either will do.
    expected = {"up: False", "killed: True", "found by ray.get_actor: True"}
    assert expected <= {*done.stdout.splitlines()}, done.stdout + done.stderr

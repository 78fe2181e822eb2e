"""The hosts that other tests train on: what they share and what not, and what happens to their cables."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.hosts import REPOSITORY, Host, Network, refusal

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
PORT = 5000
DATAGRAM = f"""
import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", (sys.argv[1], {PORT}))
"""
HEAR = f"""
import socket
heard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
heard.bind(("", {PORT}))
heard.settimeout(3)
print("ready", flush=True)
try:
    print(heard.recv(1).decode())
except TimeoutError:
    print("nothing")
"""
SERVE = f"""
import socket
server = socket.create_server(("", {PORT}))
print("ready", flush=True)
while True:
    connection = server.accept()[0]
    while asked := connection.recv(1):
        connection.sendall(asked)
"""
ASK = f"""
import socket, statistics, sys, time
connection = socket.create_connection((sys.argv[1], {PORT}), timeout=float(sys.argv[2]))
seconds = []
for _ in range(int(sys.argv[3])):
    began = time.monotonic()
    connection.sendall(b"x")
    assert connection.recv(1) == b"x"
    seconds.append(time.monotonic() - began)
print(statistics.median(seconds), max(seconds))
"""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """Two hosts, the first of which answers."""
    if reason := refusal():
        pytest.skip(f"no hosts on this machine: {reason}")
    folder = tmp_path_factory.mktemp("network")
    (folder / "shared").mkdir()
    with Network(folder / "shared", folder) as made:
        made.add()
        made.add()
        with made.hosts[0].start([sys.executable, "-c", SERVE], stdout=subprocess.PIPE) as server:
            assert server.stdout.readline() == "ready\n"
            yield made
            server.kill()


def said(host: Host, script: str) -> str:
    """What a shell script prints on a host, what is wrong included."""
    done = host.run(["sh", "-c", script])
    return (done.stdout + done.stderr).strip()


def ask(host: Host, *, wait: float = 10, times: int = 5) -> tuple[float, float]:
    """The median and the longest of the times that the first host takes to answer; (0, 0) if it does not."""
    done = host.run([sys.executable, "-c", ASK, "host1", str(wait), str(times)])
    assert done.returncode == 0 or "timed out" in done.stderr, done.stderr
    median, longest = map(float, done.stdout.split() or ("0", "0"))
    return median, longest


def test_each_has_a_name_an_address_processes_and_folders_of_its_own(network: Network) -> None:
    one, other = network.hosts
    for host in (one, other):
        assert said(host, "hostname; hostname --ip-address").split() == [host.name, host.address]
        assert said(host, "touch $HOME/mine /tmp/mine /dev/shm/mine && echo done") == "done"
    assert "server.accept" in said(one, "cat /proc/[0-9]*/cmdline")
    assert "server.accept" not in said(other, "cat /proc/[0-9]*/cmdline")
    said(one, "touch $HOME/more /tmp/more /dev/shm/more")
    assert said(other, "ls $HOME/more /tmp/more /dev/shm/more").count("No such file") == 3
    assert not Path("/tmp/more").exists()


def test_they_can_write_only_to_the_folder_that_they_share(network: Network) -> None:
    one, other = network.hosts
    shared = network.shared
    assert said(one, f"echo hello >{shared}/file && echo done") == "done"
    assert said(other, f"cat {shared}/file") == "hello"
    for folder in (REPOSITORY, sys.prefix, "/var/tmp", "/etc", "/"):
        assert "Read-only file system" in said(other, f"touch {folder}/file")


def test_a_cut_cable_and_a_slow_and_a_lossy_one(network: Network) -> None:
    other = network.hosts[1]
    assert 0 < ask(other)[1] < 0.1
    network.cut(other)
    assert ask(other, wait=2) == (0, 0)
    network.mend(other)
    assert 0 < ask(other)[0] < 0.1
    network.replace_cable(other, seconds=0.1)
    assert 0.2 <= ask(other)[0] < 0.3
    network.mend(other)
    network.replace_cable(other, loss_from=0.1, loss_to=0.1)
    median, longest = ask(other, times=100)
    assert median < 0.1 < longest, "most arrive at once, some had to be sent again"
    network.mend(other)
    assert 0 < ask(other)[0] < 0.1


@pytest.mark.parametrize(("loss_from", "loss_to"), [(1.0, 0.0), (0.0, 1.0)])
def test_a_cable_that_carries_one_way_only(network: Network, loss_from: float, loss_to: float) -> None:
    one, other = network.hosts[:2]
    ask(other)  # so that both know each other's card
    network.replace_cable(other, loss_from=loss_from, loss_to=loss_to)
    assert hears(one, other) is (loss_to == 0)
    assert hears(other, one) is (loss_from == 0)
    assert ask(other, wait=2) == (0, 0)
    network.mend(other)
    assert 0 < ask(other)[0] < 0.1


def hears(sender: Host, receiver: Host) -> bool:
    """Whether a datagram arrives."""
    with receiver.start([sys.executable, "-c", HEAR], stdout=subprocess.PIPE) as listening:
        assert listening.stdout.readline() == "ready\n"
        assert said(sender, f"{sys.executable} -c '{DATAGRAM}' {receiver.address}") == ""
        heard = listening.stdout.read().strip()
    assert heard in ("x", "nothing")
    return heard == "x"


def test_nothing_is_left_of_a_host_that_vanishes(network: Network) -> None:
    third = network.add()
    with third.start(["sleep", "1000"]) as sleeping:
        network.vanish(third)
        assert sleeping.wait(timeout=10) != 0
    assert not psutil.pid_exists(third.pid)
    until = time.monotonic() + 10
    while "host3" in network.links() and time.monotonic() < until:
        time.sleep(0.1)
    assert "host3" not in network.links()

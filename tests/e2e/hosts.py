"""Hosts on this machine: a network, hostname, processes, temporary and home folders of its own for each of them.

They are namespaces of Linux, held by one process a host; when the test ends, however it ends, nothing is left of them.
The hosts see the machine's files, so that they have the same packages, but can write nothing there: what they share is
the one folder that the docs ask for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).parents[2]
_NAMESPACES = ["--mount", "--net", "--uts", "--ipc", "--pid"]
_INIT = """
set -e
hostname "$1"
mount --make-rprivate /
mount -t tmpfs -o "size=$2" host "$3"
mkdir "$3/home" && chmod 700 "$3/home" && cp "$4" "$3/hosts"
own="$3" shared="$5"
shift 4
for folder in "$@"; do
    case "$folder" in
        /tmp/*)
            mkdir -p "$own/${folder#/tmp/}"
            mount --rbind "$folder" "$own/${folder#/tmp/}"
            [ "$folder" = "$shared" ] || mount -o remount,bind,ro "$own/${folder#/tmp/}"
            ;;
        "$shared") mount --bind "$shared" "$shared" ;;
    esac
done
mount -o remount,bind,ro /
mount --bind "$own/hosts" /etc/hosts
mount -t tmpfs host /dev/shm
mount --rbind "$own" /tmp
ip link set lo up
echo ready
# Orphans become children of this process, and with this nobody has to wait for them.
trap '' CHLD
exec cat
"""


def refusal() -> str:
    """Why this machine cannot have hosts, in a sentence; empty if it can."""
    missing = [name for name in ("ip", "unshare", "nsenter") if not shutil.which(name)]
    if missing:
        return f"{missing[0]} is not installed (Debian's iproute2 and util-linux have these commands)"
    script = "ip link add one type veth peer name other && ip link add lan type bridge && mount -t tmpfs test /mnt"
    tried = subprocess.run(
        ["unshare", *_NAMESPACES, "--fork", "--mount-proc", "sh", "-c", script], capture_output=True, text=True
    )
    return f"the kernel refuses namespaces: {tried.stderr.strip()}" if tried.returncode else ""


class Host:
    """One host; made by a `Network`."""

    def __init__(self, name: str, address: str, holder: subprocess.Popen[str], pid: int) -> None:
        self.name = name
        self.address = address
        self.pid = pid
        self.variables: dict[str, str] = {}
        """Environment variables of all its programs, besides the usual ones."""
        self._holder = holder

    def command(self, command: Sequence[str]) -> list[str]:
        """The command that runs a command on this host."""
        # Not nsenter's own --wd: it opens the folder of this machine, not the host's.
        return ["nsenter", f"--target={self.pid}", *_NAMESPACES, "--", "env", f"--chdir={REPOSITORY}", *command]

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment variables of a program on this host."""
        inherited = {name: os.environ[name] for name in ("PATH", "LANG", "TURNSMITH_TEST_MARK") if name in os.environ}
        path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])
        own = {"HOME": "/tmp/home", "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        return inherited | own | self.variables | dict(more or {})

    def start(self, command: Sequence[str], more: Mapping[str, str] | None = None, **options: Any) -> Any:
        """Start a program on this host."""
        return subprocess.Popen(self.command(command), env=self.environment(more), text=True, **options)

    def run(
        self, command: Sequence[str], more: Mapping[str, str] | None = None, *, given: str = "", timeout: float = 180
    ) -> Any:
        """Run a program on this host to its end, with `given` as its input; what it printed and its exit status."""
        return subprocess.run(
            self.command(command),
            env=self.environment(more),
            input=given,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def is_there(self) -> bool:
        """Whether it has not been killed."""
        return self._holder.poll() is None

    def kill(self) -> None:
        """End all of its processes at once."""
        psutil.Process(self.pid).kill()
        self._holder.communicate()


class Network:
    """A network of hosts on this machine: `10.77.0.1`, `10.77.0.2` ... on one bridge.

    Args:
        shared: The folder that all hosts can write to, at the same path as here.
        scratch: Where to put the mount points of the hosts.
    """

    def __init__(self, shared: Path, scratch: Path) -> None:
        self.hosts: list[Host] = []
        self.shared = shared
        self._scratch = scratch
        self._wires: dict[str, subprocess.Popen[str]] = {}
        script = "ip link add lan type bridge && ip link set lan up && echo ready && exec cat"
        self._holder = _hold(["unshare", "--net", "sh", "-c", script])

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *unused: object) -> None:
        for host in self.hosts:
            if host.is_there():
                host.kill()
        for process in (*self._wires.values(), self._holder):
            _end(process)

    def add(self, *, size: str = "4g", names: str = "{address} {name}\n") -> Host:
        """Another host.

        Args:
            size: Of the file system that it has for its temporary and home folders.
            names: A line of its /etc/hosts about each host.
        """
        number = len(self.hosts) + 1
        name, address = f"host{number}", f"10.77.0.{number}"
        mount = self._scratch / name
        mount.mkdir()
        table = self._scratch / f"{name}.hosts"
        lines = [names.format(address=f"10.77.0.{each}", name=f"host{each}") for each in range(1, 100)]
        table.write_text("127.0.0.1 localhost\n" + "".join(lines))
        folders = [str(self.shared), str(REPOSITORY), sys.prefix, sys.base_prefix]
        arguments = [name, size, str(mount), str(table), *folders]
        holder = _hold(["unshare", *_NAMESPACES, "--fork", "--mount-proc", "sh", "-c", _INIT, "sh", *arguments])
        (init,) = psutil.Process(holder.pid).children()
        self._ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(init.pid))
        self._ip("link", "set", name, "master", "lan", "up")
        host = Host(name, address, holder, init.pid)
        for arguments in (["address", "add", f"{address}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
            done = host.run(["ip", *arguments])
            assert done.returncode == 0, done.stderr
        self.hosts.append(host)
        return host

    def cut(self, host: Host) -> None:
        """Take the cable of a host out of the switch; the host sees no change."""
        self._ip("link", "set", host.name, "nomaster")

    def mend(self, host: Host) -> None:
        """Put the cable back, or a good one in place of a bad one."""
        wire = self._wires.pop(host.name, None)
        if wire is not None:
            _end(wire)
            self._ip("link", "del", f"{host.name}-a")
        self._ip("link", "set", host.name, "master", "lan")

    def replace_cable(self, host: Host, *, seconds: float = 0.0, loss_from: float = 0.0, loss_to: float = 0.0) -> None:
        """Connect a host by a worse cable.

        Args:
            host: The host.
            seconds: How long a frame takes, each way.
            loss_from: The probability that a frame from the host is lost; 1: nobody hears it.
            loss_to: The probability that a frame to the host is lost; 1: it hears nobody.
        """
        one, other = f"{host.name}-a", f"{host.name}-b"
        self.cut(host)
        self._ip("link", "add", one, "type", "veth", "peer", "name", other)
        self._ip("link", "set", one, "up")
        self._ip("link", "set", other, "master", "lan", "up")
        command = [sys.executable, "-m", "tests.e2e.wire", host.name, one, str(seconds), str(loss_from)]
        command.append(str(loss_to))
        inside = ["nsenter", f"--target={self._holder.pid}", "--net", f"--wd={REPOSITORY}", "--"]
        self._wires[host.name] = _hold([*inside, *command])

    def vanish(self, host: Host) -> None:
        """The host is gone, without a word to the others."""
        self.cut(host)
        host.kill()

    def links(self) -> str:
        """The interfaces of the switch, as `ip link` shows them."""
        return self._ip("link", "show")

    def _ip(self, *arguments: str) -> str:
        command = ["nsenter", f"--target={self._holder.pid}", "--net", "--", "ip", *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _hold(command: list[str]) -> subprocess.Popen[str]:
    """Start a program that says when it is ready, and ends when its input does, as when this process ends."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said == "ready\n", f"{command[0]} did not start: {said}"
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()

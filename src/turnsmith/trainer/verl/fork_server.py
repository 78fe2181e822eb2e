"""Imports once what the processes of a run need, and forks each of them; only on one machine without GPUs.

Ray starts every worker as a new Python, which imports torch, transformers and verl for 7 to 12 s of CPU. Here Ray
starts `ray_shims.py`, which hands its command line to this process and ends; a child of this process goes on
as that worker. Nothing else happens here: it has one thread, no model, and no code of the user's.

A GPU's driver does not survive a fork, and importing verl may start it: there Ray starts its workers itself.

Run by `driver/local_ray.py`: python -m turnsmith.trainer.verl.fork_server SOCKET MODULE ...
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

from turnsmith.records.stacks import VARIABLE
from turnsmith.trainer.ray_shims import FIRST_JOB, JOB, RAYLET

_MOST_FILES = 64
_OOM_SCORE = 1000
"""How much sooner than Ray itself the kernel ends a worker when memory is short; Ray's default."""


def fork_workers(address: str, modules: list[str]) -> None:
    """Listen, import, and answer requests; in a child, become the requested worker.

    It listens before it imports, so that Ray's workers wait for it. It ends with the process that started it and with
    Ray's raylet, and its children notice that within a second.
    """
    parent, listener = os.getppid(), socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    os.environ.pop(VARIABLE, None)  # the stacks of this process are not collected
    # Ray reads these once, at import: the job of its workers, and the process with which they end.
    os.environ |= {JOB: FIRST_JOB, RAYLET: str(os.getpid())}
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as Ray starts its processes
    gc.disable()  # nothing here becomes garbage, and looking for it is slow
    with _drawing_nothing():
        for name in modules:
            with suppress(Exception):  # the worker that needs it imports it again, and reports the error
                importlib.import_module(name)
    from ray._private.utils import set_kill_on_parent_death_linux

    set_kill_on_parent_death_linux()
    if os.getppid() != parent:  # the parent was killed
        return
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    _become(*_next_worker(listener))


@contextmanager
def _drawing_nothing() -> Iterator[None]:
    """Keep verl's actor classes from Ray's generator of ids here, because all workers would then draw the same ids."""
    from ray import actor

    ids = actor.ActorClassID
    actor.ActorClassID = SimpleNamespace(from_random=lambda: ids(os.urandom(ids.size())))
    try:
        yield
    finally:
        actor.ActorClassID = ids


def _next_worker(listener: socket.socket) -> tuple[bytes, list[int]]:
    """Fork a child for each request, and return the request in that child; this process ends here."""
    raylet: list[int] = []
    while True:
        if not set(raylet).isdisjoint(select.select([listener, *raylet], [], [])[0]):
            os._exit(0)
        connection, _ = listener.accept()
        with (
            connection,
            suppress(OSError),
        ):  # the client was killed, or there are too many processes
            request, fds = receive(connection)
            if request and not raylet:
                with suppress(OSError):  # a kernel before 5.3: the parent ends the others
                    raylet = [os.pidfd_open(int(json.loads(request)["variables"][RAYLET]))]
            child = os.fork() if request else -1
            if child == 0:
                for fd in raylet:
                    os.close(fd)
                listener.close()
                return request, fds
            for fd in fds:
                os.close(fd)
            if request:
                connection.sendall(str(child).encode())


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """The text and the files of a request; no text if the other side was killed."""
    header, fds, _, _ = socket.recv_fds(connection, 8, _MOST_FILES)
    request, length = b"", int.from_bytes(header, "big")
    while len(request) < length:
        part = connection.recv(length - len(request))
        if not part:
            return b"", fds
        request += part
    return request, fds


def _become(request: bytes, fds: list[int]) -> None:
    """Become the requested process, in the environment that it would have been started in."""
    worker = json.loads(request)
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, worker["group"])  # Ray ends a worker with its whole group
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    # First to numbers that are not wanted.
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, max(worker["files"]) + 1) for fd in fds]
    for number, fd, first in zip(worker["files"], moved, fds, strict=True):
        if first not in worker["files"]:
            os.close(first)
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(worker["folder"])
    if worker["arguments"][0] == "-c":
        # vLLM sets process titles with setproctitle, which must first run in this environment. Not for Ray's workers,
        # whose own titles would then fail.
        with suppress(ImportError):
            os.environ["SPT_NOENV"] = "1"
            importlib.import_module("setproctitle").getproctitle()
    os.environ.clear()
    os.environ.update(worker["variables"] | {RAYLET: str(os.getppid())})
    _read_environment_again()
    script, *rest = worker["arguments"]
    sys.argv = [script, *rest]
    if script == "-c":
        del sys.argv[1]
        exec(rest[0], {"__name__": "__main__"})  # noqa: S102  (as `python -c` does)
        return
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")


def _read_environment_again() -> None:
    """Repeat what depends on environment variables, or must differ between workers."""
    import numpy as np
    from ray._raylet import AuthenticationTokenLoader, Config  # pyright: ignore[reportAttributeAccessIssue]

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    if "verl" in sys.modules:
        sys.modules["turnsmith.trainer.verl.plugin"].register_with_verl()
    np.random.seed()  # Python's own generator is seeded by a fork; torch's always begins with the same state


if __name__ == "__main__":
    fork_workers(sys.argv[1], sys.argv[2:])

"""The process around a worker: how it ends a worker, what it reports, and that nothing is left."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnsmith.check.plan.run_memory import process_kind
from turnsmith.concurrency import supervisor
from turnsmith.env.isolation import messages as m
from turnsmith.env.isolation.launch import describe_exit, start_supervisor
from turnsmith.env.isolation.settings import Isolation
from turnsmith.env.isolation.wire import FrameDecoder, frame

GIB = 2**30
ISOLATION = Isolation("process", memory=GIB, processes=8)


class Worker:
    """A worker under its supervisor, spoken to over a blocking socket."""

    def __init__(self, memory: int = GIB, processes: int = 8) -> None:
        self.connection, there = socket.socketpair()
        self.connection.settimeout(30)
        self.process = start_supervisor(there, memory, processes)
        there.close()
        self._decoder = FrameDecoder()
        self._messages: list[m.Reply] = []

    def send(self, request: m.Request) -> None:
        self.connection.sendall(frame(m.encode(request)))

    def receive(self) -> m.Reply:
        while not self._messages:
            data = self.connection.recv(2**16)
            assert data, "the connection was closed"
            self._messages += [m.read_reply(bytes(message)) for message in self._decoder.feed(data)]
        return self._messages.pop(0)

    def start(self, environment: str) -> None:
        """Let it build one environment of `games.py`."""
        assert self.receive() == m.Ready(0)
        root = str(Path(__file__).parents[4])
        self.send(m.Define(0, 1, f"tests.unit.env.isolation.games:{environment}", [root], call_seconds=20.0))
        self.send(m.Reset(1, 1, 1, 0))
        assert isinstance(self.receive(), m.ResetReply)

    def exit_code(self) -> int:
        return self.process.wait(timeout=30)


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    """Workers that the test makes; all are killed after it."""
    made: list[Worker] = []
    yield made
    for worker in made:
        worker.connection.close()
        worker.process.kill()
        worker.process.wait()


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def test_plan_and_chaos_know_a_worker_and_its_supervisor_by_their_commands(workers: list[Worker]) -> None:
    workers.append(Worker())
    workers[0].start("Counter")
    pid = workers[0].process.pid
    commands = [Path(f"/proc/{one}/cmdline").read_text().split("\0") for one in (pid, *children_of(pid))]
    assert [process_kind(command) for command in commands] == ["environment workers"] * 2


def test_it_ends_with_the_connection_and_leaves_no_process(workers: list[Worker]) -> None:
    workers.append(worker := Worker())
    worker.start("Forker")
    worker.send(m.Step(2, 1, "daemon"))
    daemon = int(worker.receive().observation)  # type: ignore[union-attr]
    assert Path(f"/proc/{daemon}").exists()
    worker.connection.close()
    assert worker.exit_code() == 0
    assert not Path(f"/proc/{daemon}").exists(), "a process that was forked away is still there"


@pytest.mark.parametrize(
    ("action", "code", "words"),
    [
        ("exit", 3, "exited with status 3"),
        ("crash", 128 + signal.SIGSEGV, "was killed by SIGSEGV"),
        ("leak", supervisor.OUT_OF_MEMORY, "took more than 0.25 GiB of memory"),
        ("bomb", supervisor.TOO_MANY_PROCESSES, "had started more than 8 processes"),
    ],
)
def test_it_reports_how_the_worker_ended(workers: list[Worker], action: str, code: int, words: str) -> None:
    workers.append(worker := Worker(memory=GIB // 4))
    worker.start("Forker")
    worker.send(m.Step(2, 1, action))
    assert worker.receive() == m.ExitReport(0, code)
    assert worker.exit_code() == code
    assert words in describe_exit(code, Isolation("process", memory=GIB // 4, processes=8))


def test_it_ends_when_its_parent_is_killed() -> None:
    here, there = socket.socketpair()
    code = (
        "import socket, sys, time; from turnsmith.env.isolation.launch import start_supervisor; "
        f"started = start_supervisor(socket.socket(fileno={there.fileno()}), 0, 0); "
        "print(started.pid, flush=True); time.sleep(60)"
    )
    import sys

    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, pass_fds=(there.fileno(),))
    there.close()
    assert parent.stdout is not None
    with here, parent.stdout:
        pid = int(parent.stdout.readline())
        assert here.recv(1), "the worker has started"
        parent.kill()
        parent.wait()
        until = time.monotonic() + 10
        while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
            time.sleep(0.02)
        assert not Path(f"/proc/{pid}").exists(), "the supervisor outlived the process that started it"


def test_a_stray_sigterm_does_not_end_it(workers: list[Worker]) -> None:
    workers.append(worker := Worker())
    worker.start("Counter")
    worker.process.send_signal(signal.SIGTERM)
    worker.send(m.Step(2, 1, "go"))
    assert isinstance(worker.receive(), m.StepReply)


def test_descendants_are_all_levels_below_this_process() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        if grandchild == 0:
            time.sleep(30)
            os._exit(0)
        os.write(writer, f"{grandchild}\n".encode())
        time.sleep(30)
        os._exit(0)
    assert select.select([reader], [], [], 10)[0]
    grandchild = int(os.read(reader, 100))
    try:
        assert {child, grandchild} <= set(supervisor.descendants())
    finally:
        for pid in (grandchild, child):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exited with status 0"), (137, "was killed by SIGKILL"), (198, "was killed by signal 70")],
)
def test_an_exit_code_is_put_in_words(code: int, words: str) -> None:
    assert words in describe_exit(code, ISOLATION)

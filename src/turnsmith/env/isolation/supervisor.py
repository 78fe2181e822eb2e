"""The process around a worker: it starts it, watches what it uses, and leaves nothing behind.

Run as a script, with the Python standard library only, because it stays as long as the worker does and must be small.
It forks once. The child becomes the worker, in a session of its own, and runs the user's code; the supervisor runs none
of it, so nothing that the user's code does can stop it. It is the reaper of all that the worker starts: a process
that was forked away twice, or has a session of its own, still becomes the supervisor's child, and is found and killed.

It ends everything when the worker ends, when a limit is passed, when the other end of the connection is closed, and
when the process that started it dies, however that dies. Then it says how the worker ended, and which environments were
doing something at that moment: that, the two write down in memory that they share.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path

OUT_OF_MEMORY, TOO_MANY_PROCESSES = 240, 241
"""The supervisor's exit codes for a worker that took too much; else the worker's own, 128 + N after signal N."""
SEARCH_PATH = "TURNSMITH_WORKER_PATH"
"""The variable that carries the import path of the process that started the supervisor."""
SLOTS = 512
"""How many environments of a worker can be doing something at a time."""
_TICK = 0.25
_GRACE = 1.0
"""Seconds that a worker has to close its environments once nobody listens to it any more."""
_ROOM = 2**30
"""Address space beyond the limit, for threads and what is mapped but not used: the limit itself is on what is used."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(argv: list[str]) -> int:
    """Fork the worker and keep it; the arguments are the connection, bytes, processes and what it may serve."""
    connection, memory, processes = (int(word) for word in argv[:3])
    only = argv[3] if len(argv) > 3 else ""
    os.set_inheritable(connection, False)  # programs that an environment starts must not hold it open
    starter = os.getppid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    supervisor = Supervisor(connection, memory, processes, mmap.mmap(-1, 8 * SLOTS))
    signal.signal(signal.SIGTERM, lambda *_: supervisor.doubt(starter))
    # Sent when the thread that started us ends, too; `doubt` looks whether the process is really gone.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != starter:
        return 0
    supervisor.child = os.fork()
    if supervisor.child == 0:
        _become_worker(supervisor, only)
    return supervisor.keep()


class Supervisor:
    """Watches over one worker and all that it starts."""

    def __init__(self, connection: int, memory: int, processes: int, busy: mmap.mmap) -> None:
        self.connection = connection
        self.memory = memory
        self.processes = processes
        self.busy = busy
        """The numbers of the environments that are doing something; 0: none in this slot."""
        self.child = 0
        self.status: int | None = None
        self.is_orphan = False

    def doubt(self, starter: int) -> None:
        """Somebody wants us to end: a person, or the kernel because our starter, or just one of its threads, ended."""
        self.is_orphan = os.getppid() != starter

    def keep(self) -> int:
        """Wait for the end; returns the exit code."""
        poll = select.poll()
        poll.register(self.connection, select.POLLRDHUP)
        try:
            poll.register(os.pidfd_open(self.child), select.POLLIN)
        except OSError:  # an old kernel: then the child's end is seen at the next tick
            pass
        verdict = 0
        while self.status is None and not verdict:
            events = poll.poll(_TICK * 1000)
            self.reap()
            if self.is_orphan or any(descriptor == self.connection for descriptor, _ in events):
                self.wait_for_child(_GRACE)
                break
            verdict = self.judge() if not events else 0
        self.end_all()
        self.report(verdict or self.code())
        return verdict or self.code()

    def report(self, code: int) -> None:
        """Tell the other side, if it is still there, as message 27 of `messages`, packed by hand."""
        busy = [number for number in memoryview(self.busy).cast("q") if number]
        packed = b"".join(b"\xd3" + number.to_bytes(8, "big") for number in busy)
        message = b"\x94\x1b\x00\xcc" + bytes([code & 255]) + b"\xdc" + len(busy).to_bytes(2, "big") + packed
        poll = select.poll()
        poll.register(self.connection, select.POLLOUT)
        try:
            if poll.poll(200):
                os.write(self.connection, len(message).to_bytes(4, "little") + message)
        except OSError:
            pass

    def judge(self) -> int:
        """Whether the worker and all that it started take too much, and of what."""
        family = descendants()
        if self.processes and len(family) > self.processes:
            return TOO_MANY_PROCESSES
        # Forked processes share most of their memory; only when the simple sum is too much is it worth finding out.
        if self.memory and sum(map(_resident, family)) > self.memory and sum(map(_own_share, family)) > self.memory:
            return OUT_OF_MEMORY
        return 0

    def reap(self) -> None:
        """Collect what has ended: the worker, and orphans of it, which are ours."""
        try:
            while True:
                ended, status = os.waitpid(-1, os.WNOHANG)
                if ended == 0:
                    return
                if ended == self.child:
                    self.status = status
        except ChildProcessError:
            return

    def wait_for_child(self, seconds: float) -> None:
        """Give the worker a moment to end by itself."""
        until = time.monotonic() + seconds
        while self.status is None and time.monotonic() < until:
            time.sleep(0.005)
            self.reap()

    def end_all(self) -> None:
        """Kill whatever is left, until nothing is."""
        try:
            os.killpg(self.child, signal.SIGKILL)
        except ProcessLookupError:
            pass
        until = time.monotonic() + 30.0
        while (family := descendants()) and time.monotonic() < until:
            # All stand still before the first one dies: else those that fork could outrun us.
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for process in family:
                    try:
                        os.kill(process, number)
                    except ProcessLookupError:
                        pass
            time.sleep(0.002)
            self.reap()

    def code(self) -> int:
        """The worker's own end as an exit code."""
        if self.status is None:
            return 0
        code = os.waitstatus_to_exitcode(self.status)
        return code if code >= 0 else 128 - code


def descendants() -> list[int]:
    """All living processes below this one."""
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found


def _children(process: int) -> list[int]:
    children: list[int] = []
    try:
        for task in Path(f"/proc/{process}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    except OSError:  # it has just ended
        pass
    return children


def _resident(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def _own_share(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except OSError:
        return _resident(process)


def _become_worker(supervisor: Supervisor, only: str) -> None:
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _set_limits(supervisor.memory, supervisor.processes)
        sys.path[:] = os.environ.pop(SEARCH_PATH, os.pathsep.join(sys.path)).split(os.pathsep)
        from turnsmith.env.isolation.worker import serve

        serve(supervisor.connection, memoryview(supervisor.busy).cast("q"), only)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    # Like the end of any script: `atexit` and open files count, then no way leads back into the supervisor's own code.
    raise SystemExit(code)


def _set_limits(memory: int, processes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory:
        # What asks for too much at once gets a MemoryError in its own place; what leaks is found by `judge`.
        resource.setrlimit(resource.RLIMIT_DATA, (memory + _ROOM, memory + _ROOM))
    if processes and os.getuid() != 0:  # the kernel holds root to no number
        most = _tasks_of_user() + processes
        _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        if hard == resource.RLIM_INFINITY or most < hard:
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    try:  # should the machine run out of memory, this goes before anything that cannot be replaced
        Path("/proc/self/oom_score_adj").write_text("800")
    except OSError:
        pass


def _tasks_of_user() -> int:
    """Processes and threads of this user now: the kernel counts them together."""
    tasks = 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and entry.stat().st_uid == os.getuid():
                tasks += sum(1 for _ in (entry / "task").iterdir())
        except OSError:
            continue
    return tasks


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""The process around a worker or an agent's program: leaves nothing behind of what that has started.

Run as a script with the standard library only, and little of it (`pathlib` takes as long to import as the rest): there
is one for each program, which lives as long as that does. It forks once. The child becomes the worker or the program,
in a session of its own. The supervisor runs none of their code, so nothing that the code does can stop it. It is the
subreaper of everything that they start: a process that was forked twice or has its own session still becomes the
supervisor's child, is found, and is killed.

It ends everything when the child exits, when it is told to, and when the process that started it dies, however that
dies; of a worker also when a limit is exceeded. It is told by a closed connection, to which it then reports a worker's
exit code, or by SIGTERM if it supervises a program.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import time

OUT_OF_MEMORY, TOO_MANY_PROCESSES = 240, 241
"""The supervisor's exit codes for a worker that took too much; else the worker's own, 128 + N after signal N."""
SEARCH_PATH = "TURNSMITH_WORKER_PATH"
"""The variable that carries the import path of the process that started the supervisor."""
_CHECK_SECONDS = 0.25
_GRACE_SECONDS = 1.0
"""Time for a worker to close its environments once the connection is closed."""
_EXTRA_ADDRESS_SPACE = 2**30
"""Beyond the memory limit, for threads and what is mapped but not used: the limit itself is on resident memory."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def supervised(command: list[str]) -> list[str]:
    """The command that runs a program under a supervisor of its own; elsewhere than on Linux the program alone.

    The supervisor's exit status is the program's, 128 + N after signal N. SIGTERM ends both, and all that was started.
    """
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", __file__, "program", *command]


def supervise_worker(argv: list[str]) -> int:
    """Fork the worker and supervise it.

    Args:
        argv: The worker's module, descriptor of the connection, memory limit in bytes, process limit.
    """
    connection, memory, processes = (int(word) for word in argv[1:4])
    os.set_inheritable(connection, False)  # programs that an environment starts must not hold it open
    parent = os.getppid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    supervisor = Supervisor(connection, memory, processes)
    signal.signal(signal.SIGTERM, lambda *_: supervisor.check_parent(parent))
    # The kernel also sends it when just the thread that started us ends; `check_parent` tells the two apart.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return 0
    supervisor.child = os.fork()
    if supervisor.child == 0:
        _become_worker(argv[0], supervisor)
    return supervisor.run()


def supervise_program(command: list[str]) -> int:
    """Run a program, and kill all that it started when it ends, or when we are told to.

    Args:
        command: The program and its arguments.
    """
    parent, supervisor = os.getppid(), Supervisor(-1, 0, 0)
    try:
        # Held back, so that it is not told to end between the fork and when it knows of it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        signal.signal(signal.SIGTERM, supervisor.be_told)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            return 0
        supervisor.child = os.fork()
        if supervisor.child == 0:
            _become_program(command)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        while supervisor.status is None:
            ended, status = os.waitpid(-1, 0)
            if ended == supervisor.child:
                supervisor.status = status
    except _Told:
        pass
    supervisor.end_all()
    return supervisor.code()


class _Told(Exception):
    """The supervisor of a program was told to end it."""


class Supervisor:
    """Supervises one worker, or one program, and all that it starts."""

    def __init__(self, connection: int, memory: int, processes: int) -> None:
        self.connection = connection
        self.memory = memory
        self.processes = processes
        self.child = 0
        self.status: int | None = None
        self.is_orphan = False

    def check_parent(self, parent: int) -> None:
        """Note whether the process that started us is gone."""
        self.is_orphan = os.getppid() != parent

    def be_told(self, *_: object) -> None:
        """End, once: whoever is ending everything must not be interrupted."""
        if not self.is_orphan:
            self.is_orphan = True
            raise _Told

    def run(self) -> int:
        """Wait until the worker ends or has to be ended; returns the exit code."""
        assert sys.platform == "linux"
        poll = select.poll()
        poll.register(self.connection, select.POLLRDHUP)
        try:
            poll.register(os.pidfd_open(self.child), select.POLLIN)
        except OSError:  # an old kernel: then the worker's end is seen at the next check
            pass
        exceeded = 0
        while self.status is None and not exceeded:
            events = poll.poll(_CHECK_SECONDS * 1000)
            self.reap()
            if self.is_orphan or any(descriptor == self.connection for descriptor, _ in events):
                self.wait_for_child(_GRACE_SECONDS)
                break
            exceeded = self.exceeded_limit() if not events else 0
        self.end_all()
        self.report(exceeded or self.code())
        return exceeded or self.code()

    def report(self, code: int) -> None:
        """Send the exit code to the other side, if it is still there: an `ExitReport`, packed by hand."""
        message = b"\x93\x1b\x00\xcc" + bytes([code & 255])
        poll = select.poll()
        poll.register(self.connection, select.POLLOUT)
        try:
            if poll.poll(200):
                os.write(self.connection, len(message).to_bytes(4, "little") + message)
        except OSError:
            pass

    def exceeded_limit(self) -> int:
        """The exit code of a limit that the worker and all it started exceed; 0: none."""
        family = descendants()
        if self.processes and len(family) > self.processes:
            return TOO_MANY_PROCESSES
        # Forked processes share most of their memory. Only where the plain sum is too much is that worth working out.
        if self.memory and sum(map(_resident, family)) > self.memory and sum(map(_own_share, family)) > self.memory:
            return OUT_OF_MEMORY
        return 0

    def reap(self) -> None:
        """Collect exit statuses: of the worker, and of its orphans, which became our children."""
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
        """Give the worker a moment to exit by itself."""
        until = time.monotonic() + seconds
        while self.status is None and time.monotonic() < until:
            time.sleep(0.005)
            self.reap()

    def end_all(self) -> None:
        """Kill all descendants until none is left."""
        try:
            os.killpg(self.child, signal.SIGKILL)
        except ProcessLookupError:
            pass
        until = time.monotonic() + 30.0
        while (family := descendants()) and time.monotonic() < until:
            # All are stopped before the first one is killed: else those that fork could outrun us.
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for process in family:
                    try:
                        os.kill(process, number)
                    except ProcessLookupError:
                        pass
            time.sleep(0.002)
            self.reap()

    def code(self) -> int:
        """The worker's own exit code."""
        if self.status is None:
            return 0
        code = os.waitstatus_to_exitcode(self.status)
        return code if code >= 0 else 128 - code


def descendants() -> list[int]:
    """All living descendants of this process."""
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        children = children_of(waiting.pop())
        found += children
        waiting += children
    return found


def children_of(process: int) -> list[int]:
    """The living children of a process."""
    children: list[int] = []
    try:
        for task in os.listdir(f"/proc/{process}/task"):
            children += map(int, _read(f"/proc/{process}/task/{task}/children").split())
    except OSError:  # it has just ended
        pass
    return children


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _resident(process: int) -> int:
    try:
        return int(_read(f"/proc/{process}/statm").split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def _own_share(process: int) -> int:
    try:
        lines = _read(f"/proc/{process}/smaps_rollup").splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except OSError:
        return _resident(process)


def _become_program(command: list[str]) -> None:
    try:
        for number in (signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores the last two
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.execvp(command[0], command)
    except BaseException as error:
        os.write(2, f"{command[0]} could not be started: {error}\n".encode(errors="replace"))
    os._exit(127)


def _become_worker(module: str, supervisor: Supervisor) -> None:
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _set_limits(supervisor.memory, supervisor.processes)
        sys.path[:] = os.environ.pop(SEARCH_PATH, os.pathsep.join(sys.path)).split(os.pathsep)
        import importlib

        importlib.import_module(module).serve(supervisor.connection)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    # Exit like any script, with `atexit` and flushed files, and never return into the supervisor's own code.
    raise SystemExit(code)


def _set_limits(memory: int, processes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["TURNSMITH_WORKER_PROCESSES"] = str(processes)
    if memory:
        # A single huge allocation raises MemoryError where it is made; `exceeded_limit` notices leaks.
        most_data = memory + _EXTRA_ADDRESS_SPACE
        resource.setrlimit(resource.RLIMIT_DATA, (most_data, most_data))
        # The memory of sandboxed programs counts as well: tools/sandbox/pool.py keeps their sum below this.
        os.environ["TURNSMITH_WORKER_MEMORY"] = str(memory)
    if processes and os.getuid() != 0:  # the kernel does not limit root
        most = _tasks_of_user() + processes
        _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        if hard == resource.RLIM_INFINITY or most < hard:
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    try:  # should the machine run out of memory, the kernel kills this before anything that cannot be replaced
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("800")
    except OSError:
        pass


def _tasks_of_user() -> int:
    """Processes and threads of this user: the kernel counts them together."""
    tasks = 0
    for process in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{process}").st_uid == os.getuid():
                tasks += len(os.listdir(f"/proc/{process}/task"))
        except OSError:
            continue
    return tasks


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


if __name__ == "__main__":
    kind, *words = sys.argv[1:]
    raise SystemExit(supervise_program(words) if kind == "program" else supervise_worker(words))

"""A program ends when its time, its output or its caller is over, whatever it does about it; all of it is gone then."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turnsmith.tools.sandbox import Ending, SandboxLimits, run_python
from turnsmith.tools.sandbox.command import command_for
from turnsmith.tools.sandbox.process import SandboxProcess
from turnsmith.tools.sandbox.session import run_program

QUICK = SandboxLimits(seconds=0.2)

STUBBORN = {
    "busy": "while True: pass",
    "asleep": "import time; time.sleep(1000)",
    "signals blocked": """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
while True: pass
""",
    "signals ignored": """
import signal
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
signal.pause()
""",
    "exceptions caught": """
while True:
    try:
        while True: pass
    except BaseException: pass
""",
    "waiting": "import select; select.select([], [], [])",
    "output closed": """
import os
os.close(1); os.close(2)
while True: pass
""",
    "in C": "sum(iter(int, 1))",
    "stopped": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "regular expression": "import re; re.match('(a+)+$', 'a' * 60 + 'b')",
    "at exit": "import atexit, time; atexit.register(time.sleep, 1000)",
    "in a finaliser": """
class Stubborn:
    def __del__(self):
        while True: pass
Stubborn()
""",
}


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for parent in found:
        try:
            found += map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
        except FileNotFoundError:
            pass
    return found


def are_gone(pids: list[int]) -> bool:
    """Whether they end soon."""
    for _ in range(1000):
        if not any(is_running(pid) for pid in pids):
            return True
        time.sleep(0.01)
    return False


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("name", STUBBORN)
async def test_time_limit_ends_it(name: str) -> None:
    process = SandboxProcess.start(command_for(QUICK))
    result = await run_program(process, f"print('began')\n{STUBBORN[name]}", QUICK)
    pids = family(process.popen.pid)
    process.kill()
    assert result.ending is Ending.TIMEOUT
    assert result.output in ("began\n", "")  # nothing, where the machine is too busy to get that far
    assert len(pids) == 3  # bwrap, its first process inside, Python
    assert are_gone(pids)
    process.reap()


FLOODS = {
    "lines": "while True: print('x' * 1000)",
    "one long line": "import sys\nwhile True: sys.stdout.write('x' * 100000)",
    "errors": "import sys\nwhile True: sys.stderr.write('x' * 100000)",
    "raw bytes": "import os\nwhile True: os.write(1, bytes(range(256)) * 1000)",
    "once": "print('x' * 5_000_000)",
}


@pytest.mark.parametrize("name", FLOODS)
async def test_flood_of_output_is_stopped_and_bounded(name: str) -> None:
    result = await run_python(FLOODS[name])
    assert result.ending is Ending.OUTPUT_LIMIT
    assert 0 < len(result.output.encode()) <= SandboxLimits().output * 3  # three bytes stand for one that is no UTF-8


MANY_FILES = {
    "files": "while True: n += 1; open(f'f{n}', 'w').close()",
    "folders": "while True: n += 1; os.mkdir(f'd{n}')",
    "links": "while True: n += 1; os.symlink('x', f'l{n}')",
}


@pytest.mark.parametrize("kind", MANY_FILES)
async def test_flood_of_files_is_stopped(kind: str) -> None:
    result = await run_python(f"import os\nn = 0\n{MANY_FILES[kind]}")
    assert result.ending is Ending.FILE_LIMIT


async def test_crash_is_told_apart_from_an_exit() -> None:
    crash, exit_code, quiet, killed = await asyncio.gather(
        run_python("import ctypes; print('before'); ctypes.string_at(0)"),
        run_python("import sys; sys.exit(3)"),
        run_python("import os; os._exit(0)"),
        run_python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
    )
    assert (crash.ending, crash.output) == (Ending.CRASHED, "before\n")
    assert (exit_code.ending, exit_code.exit_code) == (Ending.EXITED, 3)
    assert quiet.ending is killed.ending is Ending.CRASHED


async def test_cancelled_call_ends_the_program() -> None:
    process = SandboxProcess.start(command_for(SandboxLimits()))
    running = asyncio.create_task(run_program(process, "while True: pass", SandboxLimits()))
    while len(pids := family(process.popen.pid)) < 3:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    process.kill()
    assert are_gone(pids)
    process.reap()


def has_left(mark: str) -> bool:
    """Whether any process has this word in its command."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in file.read_bytes().split(b"\0"):
                return True
        except (FileNotFoundError, ProcessLookupError):
            pass
    return False


def test_process_killed_while_it_starts_leaves_nothing() -> None:
    limits = SandboxLimits(memory=(1 << 30) + os.getpid())  # a number that no other process has in its command
    processes: list[SandboxProcess] = []
    for number in range(12):
        processes.append(SandboxProcess.start(command_for(limits)))
        time.sleep(0.003 * number)
        processes[-1].kill()
    for process in processes:
        process.reap()
    for _ in range(500):
        if not has_left(str(limits.memory)):
            break
        time.sleep(0.01)
    assert not has_left(str(limits.memory))


def test_sandbox_dies_with_the_process_that_started_it() -> None:
    code = """
import asyncio
from turnsmith.tools.sandbox import run_python
asyncio.run(run_python("while True: pass"))
"""
    host = subprocess.Popen([sys.executable, "-c", code])
    for _ in range(1000):
        time.sleep(0.02)
        pids = family(host.pid)
        if len(pids) > 3:
            break
    os.kill(host.pid, signal.SIGKILL)
    host.wait()
    assert len(pids) > 3
    assert are_gone(pids)


async def test_program_that_reports_its_own_end_only_ends_itself() -> None:
    forged = """
import os
for number in range(3, 1024):
    try: os.write(number, bytes(1))
    except OSError: pass
while True: pass
"""
    result = await run_python(forged, SandboxLimits(seconds=5))
    assert (result.ending, result.exit_code) == (Ending.EXITED, 0)
    assert (await run_python("print(1)")).output == "1\n"

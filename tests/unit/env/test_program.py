"""An agent's program ends with all that it has started, however it hides that; and what it writes is bounded."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest

from turnsmith.env.program import KEPT_BYTES, EndedProgram, run_to_its_end

WAYS = {
    "a child": "$SLEEP &",
    "a child without the terminal": "nohup $SLEEP &",
    "a child in its own session": "setsid $SLEEP &",
    "a child that was forked twice": "(setsid $SLEEP </dev/null >/dev/null 2>&1 &)",
    "a child that holds the pipes": "$SLEEP >&2 &",
    "a child with its own pipe to us": "sh -c '$SLEEP | cat >&2' &",
    "a child without variables": "env -i setsid $SLEEP &",
    "a child that ignores signals": "sh -c 'trap \"\" TERM HUP INT QUIT; $SLEEP & wait' &",
    "a child that is stopped": "$SLEEP & kill -STOP $!",
    "a stopped child in its own session": "setsid sh -c 'kill -STOP $$; $SLEEP' &",
    "a child that becomes another program": "setsid sh -c 'exec sh -c \"exec $SLEEP\"' &",
    "an exit status with a child": "setsid $SLEEP & exit 3",
    "a program that kills itself": "setsid $SLEEP & kill -KILL $$",
    "jobs of a shell": "set -m; $SLEEP & $SLEEP & bg 2>/dev/null; disown -a 2>/dev/null; exit 0",
    "fifty children": "for i in $(seq 50); do setsid $SLEEP & done",
    "twenty generations": """python
def deeper(n):
    if os.fork() == 0:
        os.setsid()
        deeper(n - 1) if n else sleep()
        sleep()
deeper(20)
""",
    "a child in another process group": """python
if os.fork() == 0:
    os.setpgid(0, 0); sleep()
""",
    "a daemon": """python
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir("/"); [os.close(n) for n in range(3)]; sleep()
    os._exit(0)
""",
    "a child that forks at SIGTERM": """python
if os.fork() == 0:
    signal.signal(signal.SIGTERM, lambda *_: os.fork())
    while True: sleep()
""",
    "a thread that waits for a child": """python
import threading, subprocess
threading.Thread(target=lambda: subprocess.run(SLEEP.split(), stdout=subprocess.PIPE), daemon=True).start()
time.sleep(0.2)
""",
    "a child that adopts, too": """python
import ctypes
if os.fork() == 0:
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    os.setsid()
    if os.fork() == 0:
        if os.fork() == 0: sleep()
        os._exit(0)
    sleep()
""",
    "two that start each other again": """python
def watch():
    os.setsid()
    while True:
        other = os.fork()
        if other == 0: sleep()
        os.waitpid(other, 0)
for _ in range(2):
    if os.fork() == 0: watch()
time.sleep(0.1)
""",
    "one that moves on": """python
if os.fork() == 0:
    while True:
        if os.fork(): os._exit(0)
        os.setsid(); time.sleep(0.0005)
time.sleep(0.1)
""",
    "a spawned session": """python
os.posix_spawn(SLEEP.split()[0], SLEEP.split(), os.environ, setsid=True)
""",
    "a namespace of its own": "unshare --user --pid --fork $SLEEP & sleep 0.2; exit 0",
    "a supervisor that is killed": "setsid $SLEEP & nohup $SLEEP & kill -KILL $PPID; sleep 9",
}
PYTHON = "import os, signal, sys, time\nSLEEP = os.environ['SLEEP']\ndef sleep(): time.sleep(600)\n"
pytestmark = pytest.mark.skipif("sys.platform != 'linux'", reason="elsewhere there is no subreaper")


def left_behind(mark: str) -> list[str]:
    """Command lines and states of the processes that run something in this folder."""
    found: list[str] = []
    for process in Path("/proc").iterdir():
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            if process.name.isdecimal() and int(process.name) != os.getpid() and mark in command:
                found.append(command)
        except OSError:  # it has just ended
            continue
    return found


async def run(folder: Path, text: str, *, keeps_output: bool = False) -> EndedProgram:
    """Run a program for `sh`, or for Python if it begins with that word."""
    sleep = folder / "sleep"
    if not sleep.exists():
        sleep.symlink_to("/bin/sleep")
    program = folder / "program"
    program.write_text(PYTHON + text.removeprefix("python") if text.startswith("python") else text)
    interpreter = sys.executable if text.startswith("python") else "/bin/sh"
    variables = {**os.environ, "SLEEP": f"{sleep} 600"}
    return await run_to_its_end([interpreter, str(program)], variables, None, keeps_output=keeps_output)


async def test_nothing_is_left_in_any_of_26_ways(tmp_path: Path):
    folders = [tmp_path / str(number) for number in range(len(WAYS))]
    for folder in folders:
        folder.mkdir()
    began = time.monotonic()
    await asyncio.gather(*(run(folder, text) for folder, text in zip(folders, WAYS.values(), strict=True)))
    assert time.monotonic() - began < 60, "a program was waited for though it had ended"
    left = {name: left_behind(f"{folder}/") for name, folder in zip(WAYS, folders, strict=True)}
    assert {name: what for name, what in left.items() if what} == {}


async def test_an_episode_that_ends_first_takes_everything_along(tmp_path: Path):
    for number, text in enumerate(("setsid $SLEEP & $SLEEP", "setsid $SLEEP & kill -STOP $PPID; $SLEEP")):
        folder = tmp_path / str(number)
        folder.mkdir()
        running = asyncio.create_task(run(folder, text))
        while len(left_behind(f"{folder}/sleep")) < 2:
            await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert left_behind(f"{folder}/") == []


async def test_300_mb_of_output_take_no_memory(tmp_path: Path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    text = "python\nfor _ in range(300): os.write(2, b'x' * 2**20); os.write(1, b'y' * 2**10)\nos.write(2, b'end')"
    ended = await run(tmp_path, text, keeps_output=True)
    assert ended.status == 0
    assert ended.errors.endswith("xxend")
    assert (len(ended.errors), ended.output) == (KEPT_BYTES, "y" * KEPT_BYTES)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


@pytest.mark.parametrize(("text", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 143)])
async def test_the_status_is_the_programs(tmp_path: Path, text: str, status: int):
    assert (await run(tmp_path, text)).status == status


async def test_a_program_gets_the_signals_and_the_input_that_it_expects(tmp_path: Path):
    text = "yes | head -n 1; grep -E '^Sig(Blk|Ign)' /proc/self/status; cat"
    ended = await run(tmp_path, text, keeps_output=True)
    [ignored] = re.findall(r"SigIgn:\s+(\w+)", Path("/proc/self/status").read_text())
    # What Python ignores is not ignored there; what a shell ignores for all that it starts in the background, is.
    ignored = int(ignored, 16) & ~sum(1 << one - 1 for one in (signal.SIGPIPE, signal.SIGXFSZ))
    assert ended.output.split() == ["y", "SigBlk:", "0" * 16, "SigIgn:", f"{ignored:016x}"]


async def test_a_program_that_cannot_be_executed_says_so(tmp_path: Path):
    program = tmp_path / "script"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o700)
    ended = await run_to_its_end([str(program)], dict(os.environ), None, keeps_output=False)
    assert (ended.status, "could not be started: [Errno 2]" in ended.errors) == (127, True)


async def test_where_there_is_no_supervisor_the_process_group_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "platform", "darwin")
    began = time.monotonic()
    await run(tmp_path, f"$SLEEP & {shlex.quote(str(tmp_path / 'sleep'))} 600 >&2 &")
    assert time.monotonic() - began < 10
    await asyncio.sleep(0.1)
    assert left_behind(f"{tmp_path}/") == []

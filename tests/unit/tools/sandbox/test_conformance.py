"""What a program in the sandbox must not be able to do: each check makes the attempt, in a sandbox of its own."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import socket
import threading
from pathlib import Path

import pytest
from tests.unit.tools.sandbox.programs import ATTEMPTS, FORBIDDEN, HEAD

from turnsmith.concurrency.loop_thread import run_blocking
from turnsmith.tools.sandbox import Ending, run_python


@pytest.mark.parametrize("name", ATTEMPTS)
async def test_attempt_is_refused(name: str) -> None:
    result = await run_python(HEAD + ATTEMPTS[name])
    assert result.ending is Ending.EXITED, result
    assert result.exit_code == 0, result.output
    assert "held" in result.output
    assert "ESCAPED" not in result.output


@pytest.fixture(scope="module")
def raw_calls() -> dict[str, tuple[int, int]]:
    """What the kernel says to each forbidden system call, made without the C library's help."""
    column = ("x86_64", "aarch64").index(platform.machine())
    numbers = {name: both[column] for name, both in FORBIDDEN.items() if both[column] >= 0}
    program = f"""
import ctypes, json
libc = ctypes.CDLL(None, use_errno=True)
said = {{}}
for name, number in {numbers}.items():
    ctypes.set_errno(0)
    said[name] = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(1)] + [ctypes.c_long(0)] * 5), ctypes.get_errno()
print(json.dumps(said))
"""
    return json.loads(run_blocking(run_python(program)).output)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_system_call_is_refused(raw_calls: dict[str, tuple[int, int]], name: str) -> None:
    if name not in raw_calls:
        pytest.skip("this machine has no such call")
    result, error = raw_calls[name]
    assert result == -1
    assert os.strerror(error) in ("Operation not permitted", "Function not implemented")


async def test_a_server_of_this_machine_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = f"refused(lambda: __import__('socket').create_connection(('127.0.0.1', {port}), 1), OSError)"
        assert "held" in (await run_python(HEAD + program)).output
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


async def test_files_of_this_machine_are_not_there(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    for place in (secret, Path(__file__), Path.home(), Path.cwd()):
        program = f"print(any(map(os.path.exists, [{str(place)!r}, '/oldroot', '/newroot'])))"
        assert (await run_python(HEAD + program)).output == "False\n"


async def test_only_a_few_things_are_in_sight() -> None:
    listing = "print(sorted(os.listdir('/')), sorted(os.listdir('/dev')), sorted(os.listdir('/tmp')), os.getcwd())"
    output = (await run_python(HEAD + listing)).output
    top, rest = re.fullmatch(r"(\[.*?\]) (.*)\n", output).groups()  # type: ignore[union-attr]
    assert set(json.loads(top.replace("'", '"'))) <= {"dev", "lib", "lib64", "nix", "python", "tmp", "usr"}
    assert rest == "['null'] ['.null', 'main.py'] /tmp"


async def test_nothing_tells_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSMITH_SECRET", "the secret")
    program = """
print(dict(os.environ))
print(sys.path, sys.prefix, sys.executable, sys.argv, sys.flags, os.__file__, os.uname().nodename, os.getlogin.__doc__)
import sysconfig, json
json.loads("{")
"""
    output = (await run_python(HEAD + program)).output
    environment = output.splitlines()[0]
    assert set(re.findall(r"'(\w+)': ", environment)) <= {"HOME", "LANG", "PWD", "LD_LIBRARY_PATH", "LC_CTYPE"}
    assert "JSONDecodeError" in output
    for word in ("the secret", str(Path.home()), os.uname().nodename, str(Path(__file__).parents[4])):
        assert word not in output


async def test_no_open_file_of_this_process_is_inherited(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        program = """
found = []
for fd in range(1024):
    try: os.fstat(fd)
    except OSError: continue
    found.append(fd)
print(len(found), found[:3])
"""
        # Enough to be sure that some were started while the file was open.
        outputs = [(await run_python(HEAD + program)).output for _ in range(6)]
    assert outputs == ["4 [0, 1, 2]\n"] * 6  # the fourth is where it reports its end


async def test_nothing_is_left_for_the_next_program() -> None:
    leave = (
        "import builtins; builtins.left = 1; open('left', 'w'); os.environ['LEFT'] = '1'; os.umask(0); print('done')"
    )
    look = "import builtins; print(hasattr(builtins, 'left'), sorted(os.listdir()), 'LEFT' in os.environ, os.umask(0))"
    for _ in range(3):
        assert (await run_python(HEAD + leave)).output == "done\n"
        assert (await run_python(HEAD + look)).output == "False ['.null', 'main.py'] False 18\n"


async def test_programs_do_not_see_each_other() -> None:
    wait = "open('/tmp/mine', 'w'); print(os.getpid(), flush=True); import time; time.sleep(0.2)"
    look = "import signal\nprint([p for p in range(1, 2000) if p != os.getpid() and not dead(p)], sorted(os.listdir()))"
    dead = "def dead(pid):\n    try: os.kill(pid, 0)\n    except ProcessLookupError: return True\n"
    waiting, looking = await asyncio.gather(run_python(HEAD + wait), run_python(HEAD + dead + look))
    assert waiting.output == "2\n"
    assert looking.output == "[1] ['.null', 'main.py']\n"  # bwrap's own first process


async def test_signals_stay_inside() -> None:
    alive = threading.active_count()
    result = await run_python(HEAD + f"refused(lambda: os.kill({os.getpid()}, 9), ProcessLookupError)\nos.kill(-1, 9)")
    assert threading.active_count() >= alive
    assert (await run_python("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)")).ending is Ending.CRASHED
    # Either there is no such number inside, or it is that of the program itself.
    assert "held" in result.output or result.ending is Ending.CRASHED


OTHER_CALLS = {
    "x32": "import ctypes; ctypes.CDLL(None).syscall(0x40000000 + 39)",
    "32 bit": """
import ctypes, mmap
room = mmap.mmap(-1, 4096, prot=7)
room.write(bytes.fromhex('b814000000cd80c3'))  # mov eax, 20; int 0x80; ret
print(ctypes.CFUNCTYPE(int)(ctypes.addressof(ctypes.c_char.from_buffer(room)))())
""",
}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86_64 has more than one set of system calls")
@pytest.mark.parametrize("name", OTHER_CALLS)
async def test_other_sets_of_system_calls_kill_the_program(name: str) -> None:
    result = await run_python(OTHER_CALLS[name])
    assert (result.ending, result.output) == (Ending.CRASHED, "")

"""What Ray starts in place of a worker: the fork server gets the whole request, or the worker is started as usual."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from turnsmith.trainer import ray_shims
from turnsmith.trainer.verl import fork_server

TELL = "import json, os, sys; print(json.dumps([sys.argv[1:], os.getpgrp() == os.getpid(), os.environ.get('MORE')]))"


def context(**parts: Any) -> str:
    return "--serialized-runtime-env-context=" + json.dumps(parts)


def start(folder: Path, *arguments: str, tell: str = TELL, **variables: str) -> str:
    """What a worker prints, of which Ray's two scripts lie in `folder`."""
    (folder / "setup_worker.py").write_text(f"print('as usual');{tell}")
    (folder / "default_worker.py").write_text(tell)
    command = [sys.executable, ray_shims.__file__, str(folder / "default_worker.py"), *arguments]
    run = subprocess.run(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    return run.stdout


@contextmanager
def serving(folder: Path, module: str = "json") -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A fork server that has imported nothing of a run but a module, and its address."""
    address = str(folder / "socket")
    code = f"import sys; from turnsmith.trainer.verl import fork_server as f; sys.path.append({str(folder)!r})\n"
    code += f"f._read_environment_again = lambda: None; f.fork_workers(sys.argv[1], [{module!r}, 'no_such_module'])"
    server = subprocess.Popen([sys.executable, "-c", code, address])
    try:
        while not Path(address).exists():
            assert server.poll() is None
        yield server, address
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize(
    ("arguments", "job"),
    # Nobody listens; a command of the user's before it; another job than the one that Ray read while it was imported.
    [(["--language=PYTHON"], "01000000"), ([context(command_prefix=["nice"])], "01000000"), ([], "02000000")],
)
def test_a_worker_that_the_fork_server_cannot_be_is_started_as_usual(
    arguments: list[str], job: str, tmp_path: Path
) -> None:
    variables = {"RAY_JOB_ID": job, ray_shims.ADDRESS: str(tmp_path / "nobody")}
    told = start(tmp_path, "--node-id=7", *arguments, **variables)
    given = [str(tmp_path / "default_worker.py"), "--node-id=7", *arguments]
    assert told == "as usual\n" + json.dumps([given, False, None]) + "\n"


def test_a_child_of_the_fork_server_is_the_worker_that_was_asked_for(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, address):
        asked = ["--node-id=7", "--language=PYTHON", context(env_vars={"MORE": "one"})]
        known = {ray_shims.ADDRESS: address, ray_shims.RAYLET: str(os.getpid())}
        told = [json.loads(start(tmp_path, *asked, **known)) for _ in range(2)]
    assert told == [[["--node-id=7"], True, "one"]] * 2


def test_workers_draw_different_ids_though_an_actor_class_was_imported_before_they_were_forked(tmp_path: Path) -> None:
    (tmp_path / "with_actor.py").write_text("import ray\n\n@ray.remote\nclass Actor:\n    pass\n")
    tell = "import ray, sys; print('with_actor' in sys.modules, ray.WorkerID.from_random().hex())"
    with serving(tmp_path, "with_actor") as (_, address):
        known = {ray_shims.ADDRESS: address, ray_shims.RAYLET: str(os.getpid())}
        drawn = [start(tmp_path, tell=tell, **known) for _ in range(3)]
    assert all(line.startswith("True ") for line in drawn)
    assert len(set(drawn)) == 3


def test_a_process_that_multiprocessing_spawns_is_forked_and_its_end_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In a process of its own, whose `multiprocessing` is changed.
    code = """
import multiprocessing, os, sys
from turnsmith.trainer.verl.cpu.vllm import fork_spawned_processes
fork_spawned_processes()
fork_spawned_processes()
context = multiprocessing.get_context("spawn")
ours, theirs = context.Pipe()
tell = (
    "import os, setproctitle; setproctitle.setproctitle('VLLM::Core');"
    "title = open('/proc/self/cmdline').read();"
    "pipe.send((os.getppid(), os.getpgrp(), title.startswith('VLLM::Core'))); pipe.recv()"
)
child = context.Process(target=exec, args=(tell, {"pipe": theirs}))
child.start()
theirs.close()
parent, group, has_title = ours.recv()
alive = child.is_alive(), child in multiprocessing.active_children()
child.kill()
child.join(20)
print([parent, group == os.getpgrp(), *alive, has_title, child.is_alive(), child.exitcode])
"""
    with serving(tmp_path) as (server, address):
        known = {ray_shims.ADDRESS: address, ray_shims.RAYLET: str(os.getpid())}
        told = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | known,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=60,
        )
    assert told.stdout == f"{[server.pid, True, True, True, True, False, 255]}\n"


def test_a_request_that_breaks_off_is_none() -> None:
    ours, theirs = socket.socketpair()
    socket.send_fds(theirs, [(10).to_bytes(8, "big")], [0])
    theirs.send(b"half")
    theirs.close()
    request, fds = fork_server.receive(ours)
    os.close(fds[0])
    ours.close()
    assert request == b""
    assert len(fds) == 1


def test_the_agent_that_is_none_tells_that_it_has_no_ports_and_ends_with_its_raylet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_RAYLET_PID", str(os.getppid()))
    waiting = threading.Thread(
        target=ray_shims.replace_agent, args=([f"--session-dir={tmp_path}", "--node-id=ab", "--head"],)
    )
    monkeypatch.setattr(ray_shims, "_LOOK_SECONDS", 0.01)
    waiting.start()
    monkeypatch.setenv("RAY_RAYLET_PID", "0")
    waiting.join(10)
    assert not waiting.is_alive()
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "metrics_agent_port_ab": "-1",
        "metrics_export_port_ab": "-1",
        "dashboard_agent_listen_port_ab": "-1",
    }

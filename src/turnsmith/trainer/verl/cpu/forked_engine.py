"""vLLM's engine core and worker, which its server spawns, forked by the run's fork server in place of a new Python.

Each of them would import torch and vLLM again. `multiprocessing` starts them in one place, and waits for them in
another: they are children of the fork server, so that their end is only known by the pipe that ends with them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from multiprocessing import popen_spawn_posix, util
from multiprocessing.connection import wait
from typing import Any

from turnsmith.trainer.worker_shim import ADDRESS, ask_to_fork

_UNKNOWN = 255
"""The status of a process that was forked by another one, as in `multiprocessing`'s own fork server."""
_forked: set[int] = set()


def fork_spawned_processes() -> None:
    """Have processes that `multiprocessing` spawns from here forked by the fork server, if this run has one."""
    if ADDRESS not in os.environ or getattr(popen_spawn_posix.Popen.poll, "_turnsmith", False):
        return
    spawn, poll = util.spawnv_passfds, popen_spawn_posix.Popen.poll

    def spawn_or_fork(path: Any, arguments: Sequence[Any], fds: Sequence[int]) -> int:
        code = list(map(str, arguments[arguments.index("-c") :])) if "--multiprocessing-fork" in arguments else []
        pid = ask_to_fork(code, dict(os.environ), tuple(set(fds)), os.getpgrp()) if code else 0
        _forked.add(pid)
        return pid or spawn(path, arguments, fds)

    def poll_or_look(popen: Any, flag: int = os.WNOHANG) -> int | None:
        if popen.pid not in _forked:
            return poll(popen, flag)
        if popen.returncode is None and wait([popen.sentinel], 0 if flag == os.WNOHANG else None):
            popen.returncode = _UNKNOWN
        return popen.returncode

    poll_or_look._turnsmith = True  # type: ignore[attr-defined]
    util.spawnv_passfds = spawn_or_fork
    popen_spawn_posix.Popen.poll = poll_or_look

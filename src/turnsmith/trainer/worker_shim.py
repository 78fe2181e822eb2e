"""What Ray starts in place of one of its Python workers: asks the fork server of the run to be that worker, and ends.

Run by its path, by the bare interpreter: it imports nothing but the standard library, and little of that. Where the
fork server does not answer, or a worker needs another Python, it becomes the worker itself, as Ray would have.
"""

import json
import os
import socket
import sys
from pathlib import Path

ADDRESS = "TURNSMITH_FORK_SERVER"
"""The environment variable with the path of the fork server's socket."""
JOB, RAYLET = "RAY_JOB_ID", "RAY_RAYLET_PID"
"""Variables of a worker that Ray reads while it is imported."""
FIRST_JOB = "01000000"
"""The only job of a Ray that a run has started for itself."""
_CONTEXT = "--serialized-runtime-env-context="
_LANGUAGE = "--language="


def ask_or_become(arguments: list[str]) -> None:
    """Ask for the worker whose command line this is, or become it."""
    given = [one for one in arguments if not one.startswith((_CONTEXT, _LANGUAGE))]
    contexts = [one.removeprefix(_CONTEXT) for one in arguments if one.startswith(_CONTEXT)]
    context = json.loads(contexts[0]) if contexts else {}
    variables = dict(os.environ) | context.pop("env_vars", {})
    same_python = given[0].endswith(".py") and context.pop("py_executable", sys.executable) == sys.executable
    is_plain = same_python and not any(context.values()) and variables.get(JOB, FIRST_JOB) == FIRST_JOB
    if not (is_plain and ask_to_fork(given, variables)):
        setup = Path(next(one for one in given if one.endswith(".py"))).with_name("setup_worker.py")
        os.execv(sys.executable, [sys.executable, str(setup), *arguments])


def ask_to_fork(arguments: list[str], variables: dict[str, str], fds: tuple[int, ...] = (), group: int = 0) -> int:
    """Have the fork server start a Python process with these arguments; returns its id, or 0 if nobody answers.

    Args:
        arguments: Of Python: a script or `-c` and code, and what follows.
        variables: Its environment.
        fds: Files that it has under the same numbers, besides those of this process's input and output.
        group: The process group that it belongs to; 0: one of its own.
    """
    files = [0, 1, 2, *fds]
    asked = {"arguments": arguments, "variables": variables, "folder": str(Path.cwd()), "files": files, "group": group}
    request = json.dumps(asked).encode()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(os.environ[ADDRESS])
            socket.send_fds(connection, [len(request).to_bytes(8, "big")], files)
            connection.sendall(request)
            return int(connection.recv(16) or 0)
    except (KeyError, OSError):
        return 0


if __name__ == "__main__":
    ask_or_become(sys.argv[1:])

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
    if not (is_plain and _ask(given, variables)):
        setup = Path(next(one for one in given if one.endswith(".py"))).with_name("setup_worker.py")
        os.execv(sys.executable, [sys.executable, str(setup), *arguments])


def _ask(given: list[str], variables: dict[str, str]) -> bool:
    request = json.dumps({"arguments": given, "variables": variables, "folder": str(Path.cwd())}).encode()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(os.environ[ADDRESS])
            socket.send_fds(connection, [len(request).to_bytes(8, "big")], [0, 1, 2])
            connection.sendall(request)
            return bool(connection.recv(1))
    except (KeyError, OSError):
        return False


if __name__ == "__main__":
    ask_or_become(sys.argv[1:])

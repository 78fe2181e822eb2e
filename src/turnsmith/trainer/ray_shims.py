"""What Ray starts in place of its own Python processes, by this file's path and in the bare interpreter.

In place of a worker, it asks the fork server of the run to be that worker, and ends. Where the fork server does not
answer, or a worker needs another Python, it becomes the worker itself, as Ray would have. In place of the dashboard's
agent, which would import for 2 s of CPU, it reports that there are no ports: Ray starts no worker before that, and a
Ray without a dashboard needs nothing else of its agent. Imports nothing but a little of the standard library.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

ADDRESS = "TURNSMITH_FORK_SERVER"
"""The environment variable with the path of the fork server's socket."""
QUEUE_NAMESPACE = "TURNSMITH_QUEUE_NAMESPACE"
"""The variable with the Ray namespace of a run's TransferQueue: a Ray cluster can have several runs."""
JOB, RAYLET = "RAY_JOB_ID", "RAY_RAYLET_PID"
"""Variables of a worker that Ray reads while it is imported."""
FIRST_JOB = "01000000"
"""The only job of a Ray that a run has started for itself."""
_CONTEXT = "--serialized-runtime-env-context="
_LANGUAGE = "--language="
AGENT = "--in-place-of-the-agent"
"""The first argument in place of the dashboard's agent."""
_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
_LOOK_SECONDS = 0.5


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


def replace_agent(arguments: list[str]) -> None:
    """Report that there are no ports, and stay as long as the raylet, which ends with its agent; -1: there is none."""
    given = dict(one.removeprefix("--").split("=", 1) for one in arguments if "=" in one)
    for name in _PORTS:
        file = Path(given["session-dir"], f"{name}_{given['node-id']}")
        new = file.with_suffix(".new")
        new.write_text("-1")
        new.replace(file)
    while os.getppid() == int(os.environ["RAY_RAYLET_PID"]):
        time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    if sys.argv[1] == AGENT:
        replace_agent(sys.argv[2:])
    else:
        ask_or_become(sys.argv[1:])

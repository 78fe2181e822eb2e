"""What a Ray without a dashboard starts in place of its dashboard's agent, which would import for 2 s of CPU.

Ray starts none of its workers before the agent has told its ports; -1 is what it tells where it has none. Run by its
path, by the bare interpreter.
"""

import os
import sys
import time
from pathlib import Path

_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
_LOOK_SECONDS = 0.5


def stand_in(arguments: list[str]) -> None:
    """Tell that there are no ports, and stay as long as the raylet, which ends with its agent."""
    given = dict(one.removeprefix("--").split("=", 1) for one in arguments if "=" in one)
    for name in _PORTS:
        file = Path(given["session-dir"], f"{name}_{given['node-id']}")
        new = file.with_suffix(".new")
        new.write_text("-1")
        new.replace(file)
    while os.getppid() == int(os.environ["RAY_RAYLET_PID"]):
        time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    stand_in(sys.argv[1:])

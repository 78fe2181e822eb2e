"""Starts the fork server of a run, and has Ray's workers forked by it: see `trainer/verl/fork_server.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from turnsmith.config import ConfigStore
from turnsmith.trainer import worker_shim
from turnsmith.trainer.config.auto import resolve_backend
from turnsmith.trainer.driver.stop_signals import starting_ray

_OF_BACKEND = {
    "transformers": ["turnsmith.trainer.verl.transformers.replica", "turnsmith.inference.engines.transformers_engine"],
    "vllm": ["turnsmith.trainer.verl.vllm_replica", "vllm.v1.worker.cpu_worker"],
    "sglang": [],
}
_MODULE = "turnsmith.trainer.verl.fork_server"


class ForkServer:
    """A child of this process, which begins to import at once.

    Args:
        folder: A folder that only this user can enter.
        variables: Environment variables of every process of the run.
        modules: What to import.
    """

    def __init__(self, folder: str, variables: Mapping[str, str], modules: Sequence[str]) -> None:
        self.address = f"{folder}/fork_server"
        """Its socket."""
        import psutil  # it comes with the extras for training

        # -P: not the folder of the user's script, whose modules may have the name of an installed one.
        command = [sys.executable, "-P", "-m", _MODULE, self.address, *modules]
        with starting_ray(), Path(f"{folder}/fork_server.txt").open("wb") as log:
            self.process = psutil.Popen(
                command,
                env={**os.environ, **variables},
                process_group=0,  # Ctrl-C is for the user's process alone
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            """The process, whose children are those that it forked."""


@contextmanager
def forking_workers(server: ForkServer | None) -> Iterator[dict[str, str]]:
    """Have a Ray that is started in this block, with these variables, start its workers by the fork server if any."""
    if server is None:
        yield {}
        return
    from ray._private import ray_constants

    # Ray joins it to the folder of its own script, of which an absolute path leaves nothing.
    before, ray_constants.SETUP_WORKER_FILENAME = ray_constants.SETUP_WORKER_FILENAME, worker_shim.__file__
    try:
        # Ray would start workers before there is anything to do, and wait for them.
        yield {worker_shim.ADDRESS: server.address, "RAY_prestart_worker_first_driver": "0"}
    finally:
        ray_constants.SETUP_WORKER_FILENAME = before


def preloaded_modules(config: ConfigStore) -> list[str]:
    """What the processes of a run with these settings import; verl first, so that its plugins load before our parts."""
    return ["verl", "turnsmith.trainer.verl.schedules", *_OF_BACKEND[resolve_backend(config)]]

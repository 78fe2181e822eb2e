"""Ray: starts it on this machine or joins a cluster, and leaves no process behind."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from importlib import import_module
from typing import Any

from turnsmith.concurrency.threads import cores
from turnsmith.config import ConfigStore
from turnsmith.errors import TrainingFailure, TurnsmithError
from turnsmith.importing import install_line, not_imported
from turnsmith.trainer.config.layout import RayDemand
from turnsmith.trainer.driver.ending import starting_ray
from turnsmith.trainer.driver.local_ray import (
    LOOPBACK,
    ForkServer,
    environment_variables,
    forking_workers,
    on_this_machine_alone,
    preloaded_modules,
    private_variables,
)
from turnsmith.trainer.driver.preflight import check_cluster, logical_cpus
from turnsmith.trainer.ray_shims import QUEUE_NAMESPACE

_GRACE_SECONDS = 4.0
_START_ATTEMPTS = 4
_VITAL = ("gcs_server", "raylet")
"""Processes of Ray itself that a run cannot do without; a minute after the first is gone, Ray kills this process."""


class Cluster:
    """The Ray cluster of one run. Nothing of Ray starts before `start`, only what its workers are forked from.

    Args:
        config: The run's settings.
        device: `cpu` or `cuda`.
        more: Further environment variables of every process of the run.
    """

    def __init__(self, config: ConfigStore, device: str, more: Mapping[str, str] | None = None) -> None:
        self._config, self._arguments = config, _init_arguments(config, device)
        self._mark = dict(more or {})
        self._variables = environment_variables(config, device) | self._mark
        self.queue_namespace = self._variables[QUEUE_NAMESPACE]
        self._owned = not ("ray" in sys.modules and sys.modules["ray"].is_initialized())
        self.is_local = self._owned and not config.ray.address
        """Whether Ray runs on this machine alone, started by us."""
        self._actors: list[Any] = []
        self._processes: list[Any] = []
        self._folder = ""
        self._fork_server: ForkServer | None = None
        self._vital: dict[str, Any] = {}
        if self.is_local:
            self._folder = tempfile.mkdtemp(prefix="turnsmith-", dir=os.environ.get("RAY_TMPDIR", "/tmp"))
            self._variables |= private_variables(self._folder)
            # A folder inside it, because Ray lets everybody read its own.
            self._arguments["_temp_dir"] = f"{self._folder}/ray"
        try:
            if self.is_local and device == "cpu":
                self._fork_server = ForkServer(self._folder, LOOPBACK | self._variables, preloaded_modules(config))
                self._processes = [self._fork_server.process]
                self._vital = {"fork server": self._fork_server.process}
            import_module("ray")  # while the fork server imports as well
        except ImportError as error:
            _kill(self._processes)
            shutil.rmtree(self._folder, ignore_errors=True)
            raise not_imported(error, f"Ray is not installed: {install_line('cpu')}.") from error
        if self._owned:  # a script that ends without cleanup() leaves no process behind either
            atexit.register(self.close)

    def start(self, tell: Callable[[str], None] = lambda phrase: None) -> None:
        """Start Ray, or join the cluster.

        Args:
            tell: Called with a phrase that says what this waits for, if it takes longer than usual.

        Raises:
            ConfigError: The cluster does not have free what the run asks for.
            TrainingFailure: Ray could not be started or joined.
        """
        if not self._owned:
            check_cluster(self._config)
            return
        # Only Ray's own processes: those of the user's script, and of a cluster that was joined, are not ours to stop.
        with forking_workers(self._fork_server) as more:
            self._processes += _start_ray(self._arguments, self._variables | more, tell, is_local=self.is_local)
        self._vital |= {name: process for process in self._processes if (name := process.name()) in _VITAL}
        if not self.is_local:
            try:
                check_cluster(self._config)
            except TurnsmithError:
                self.close()
                raise

    def actor(self, cls: type, *, threads: int) -> Any:
        """Start `cls` as an actor on this node that runs up to `threads` methods at a time."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # Not soft: for an actor without CPUs Ray would then take any node. Here are the user's files, such as the key
        # that checkpoints are signed with.
        here = NodeAffinitySchedulingStrategy(self.node_id(), soft=False)
        options: dict[str, Any] = {"num_cpus": 0, "max_concurrency": threads, "scheduling_strategy": here}
        if not self.is_local:
            options["runtime_env"] = {"env_vars": self._variables}  # processes that this actor starts inherit them
        self._actors.append(ray.remote(cls).options(**options).remote())
        return self._actors[-1]

    def node_id(self) -> str:
        """The id of this process's node."""
        import ray

        return ray.get_runtime_context().get_node_id()

    def lost(self) -> str:
        """The name of a process of Ray itself, or the fork server, if we started it and it is gone; else empty."""
        import psutil

        for name, process in self._vital.items():
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                return name
        return ""

    def close(self) -> None:
        """Stop Ray, and kill every process that it or its workers started and that did not end with it.

        A cluster that was only joined keeps running. In a Ray that the user's script started itself, only our actors
        are stopped.
        """
        import psutil
        import ray

        if not self._owned:
            for actor in self._actors:
                ray.kill(actor)
            self._actors = []
            return
        self._owned, self._actors = False, []
        atexit.unregister(self.close)
        started = [each for process in self._processes for each in _with_descendants(process)]
        if self.lost():  # its children have another parent by now, which will not end them
            started = [*started, *_marked(self._mark)]
            _kill(started)
        ray.shutdown()
        _kill([self._fork_server.process] if self._fork_server else [])  # what it forked ends with Ray
        _, alive = psutil.wait_procs(started, timeout=_GRACE_SECONDS)
        _kill(alive)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _start_ray(
    arguments: dict[str, Any], variables: Mapping[str, str], tell: Callable[[str], None], *, is_local: bool
) -> list[Any]:
    """Start Ray on this machine, or join a cluster; return the processes that were started.

    On a busy machine Ray gives up on a node that takes more than 30 s to register, for which it has no setting; the
    next attempt usually works. Joining a cluster is attempted once: what is wrong there does not go away.
    """
    import ray

    before = _children()
    for attempt in range(1, _START_ATTEMPTS + 1):
        try:
            # Processes on this machine inherit the variables, which is faster than a runtime environment.
            with starting_ray(), on_this_machine_alone(variables) if is_local else nullcontext():
                ray.init(**arguments)
            break
        except Exception as error:
            ray.shutdown()
            _kill([each for process in _children() if process not in before for each in _with_descendants(process)])
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            if not is_local or attempt == _START_ATTEMPTS:
                raise TrainingFailure(_not_started(reason, arguments, attempt)) from error
            tell(f"starting Ray, attempt {attempt + 1} of {_START_ATTEMPTS}: {_busy() or reason}")
    return [process for process in _children() if process not in before] if is_local else []


def _busy() -> str:
    """A phrase if more processes want to run than the machine has cores; else empty."""
    load = os.getloadavg()[0]
    return f"the machine is busy (load {load:.0f} on {cores()} cores)" if load > cores() else ""


def _not_started(reason: str, arguments: Mapping[str, Any], attempts: int) -> str:
    if arguments["address"] != "local":
        return f"The Ray cluster at {arguments['address']} could not be joined: {reason}"
    return (
        f"Ray could not be started on this machine in {attempts} attempts: {reason} If other programs use all of its "
        "cores or memory, wait for them; Ray's own logs are in "
        f"{arguments.get('_temp_dir', '/tmp/ray')}/session_latest/logs."
    )


def _kill(processes: list[Any]) -> None:
    import psutil

    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=_GRACE_SECONDS)


def _children() -> list[Any]:
    import psutil

    return psutil.Process().children()


def _marked(variables: Mapping[str, str]) -> list[Any]:
    """All other processes on this machine that have these environment variables."""
    import psutil

    found: list[Any] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if variables and process.pid != os.getpid() and variables.items() <= process.environ().items():
                found.append(process)
    return found


def _with_descendants(process: Any) -> list[Any]:
    import psutil

    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _init_arguments(config: ConfigStore, device: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    if config.ray.address:
        return arguments | {"address": config.ray.address}
    # "local": without it Ray joins any cluster that somebody has started on this machine.
    arguments |= {"address": "local", "include_dashboard": False, "num_cpus": logical_cpus(config)}
    if device == "cpu":
        # Logical GPUs: verl places its workers by GPU, whatever they compute on.
        arguments["num_gpus"] = RayDemand.of(config).total_gpus
    return arguments

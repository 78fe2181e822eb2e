"""A Ray of our own on this machine: closed to others, patient, and without the processes that a run does not need."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from turnsmith.trainer.driver import agent_shim

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""A switch of Ray, named after the systems where it is off by default: Ray's and verl's processes then listen on
127.0.0.1 only."""

COMMAND_OF = "_build_python_executable_command_memory_profileable"
"""What in `ray._private.services` makes the command of an agent, without its script."""

_NOT_STARTED = ("start_api_server", "start_monitor")
"""Of a Ray on one machine: a process that asks cloud providers whether this is one of their machines and reports that
nothing is reported, and the autoscaler, which has nothing to do and publishes metrics at a port without a token."""

START_LIMITS = {
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_gcs_rpc_server_connect_timeout_s": "60",
}
"""How long Ray's processes wait for each other when they start: 5 to 30 s by default, too little on a busy machine."""


@contextmanager
def _in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def on_this_machine_alone(variables: Mapping[str, str]) -> Iterator[None]:
    """Start Ray with these variables, bound to 127.0.0.1, and without its dashboard's agent.

    The environment variable is for Ray's processes; this process read it when it imported Ray, which a user's script
    may have done long ago. Without a dashboard its agent has nothing to do, but a node is not up before its agent is.
    """
    from ray._private import node, ray_constants, services
    from ray._raylet import AuthenticationTokenLoader  # pyright: ignore[reportAttributeAccessIssue]

    is_cluster, command_of = ray_constants.ENABLE_RAY_CLUSTER, getattr(services, COMMAND_OF)
    started = {name: getattr(node.Node, name) for name in _NOT_STARTED}
    ray_constants.ENABLE_RAY_CLUSTER = False
    # The path of Ray's own script is then the first argument of ours.
    ours = {ray_constants.PROCESS_TYPE_DASHBOARD_AGENT: [sys.executable, "-I", "-S", agent_shim.__file__]}
    setattr(services, COMMAND_OF, lambda part, *more, **named: ours.get(part) or command_of(part, *more, **named))
    for name in _NOT_STARTED:
        setattr(node.Node, name, lambda self, **unused: None)
    try:
        limits = {name: value for name, value in START_LIMITS.items() if name not in os.environ}
        with _in_environment({**limits, **variables, **LOOPBACK}):
            AuthenticationTokenLoader.instance().reset_cache()  # of an earlier Ray in this process
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = is_cluster
        setattr(services, COMMAND_OF, command_of)
        for name, start in started.items():
            setattr(node.Node, name, start)

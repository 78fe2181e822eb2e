"""Runs turnsmith as if on macOS: without what Python has on Linux alone, and without /proc.

    python as_macos.py check game.py:Game

It is no Mac: it shows that nothing here asks for what Linux alone has, not that all works there. `.ci/run wheel` also
checks the types for macOS, where typeshed says which names are missing.
"""

from __future__ import annotations

import importlib
import os
import resource
import runpy
import select
import selectors
import signal
import socket
import sys
import sysconfig
import types

LINUX = {
    os: ("sched_*", "pidfd_open", "memfd_create", "eventfd*", "getrandom", "posix_f*", "copy_file_range", "splice"),
    select: ("epoll", "EPOLL*", "POLLRDHUP"),
    signal: ("sigtimedwait", "sigwaitinfo", "pidfd_send_signal", "SIGRTMIN", "SIGRTMAX"),
    socket: ("TCP_KEEPIDLE", "AF_NETLINK", "SO_PEERCRED", "SOCK_CLOEXEC", "SOCK_NONBLOCK"),
    resource: ("prlimit", "RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_RTPRIO", "RLIMIT_RTTIME", "RLIMIT_SIGPENDING"),
}


FIRST = ("asyncio", "concurrent.futures", "ctypes.util", "multiprocessing.context", "platform", "urllib.request")
"""Modules of the standard library that decide at import what the platform is."""


def hide_linux() -> None:
    """Take away what macOS lacks."""
    for name in FIRST:
        importlib.import_module(name)
    sysconfig.get_config_vars()
    selectors.DefaultSelector = selectors.PollSelector  # its EpollSelector goes on asking `select` for names
    for module, patterns in LINUX.items():
        for name in list(vars(module)):
            if any(name == one or (one.endswith("*") and name.startswith(one[:-1])) for one in patterns):
                delattr(module, name)
    socket.TCP_KEEPALIVE = 4  # its name for TCP_KEEPIDLE, with Linux's number
    sys.modules["_scproxy"] = types.ModuleType("_scproxy")  # macOS's proxy settings
    sys.platform = "darwin"
    sys.addaudithook(_refuse_proc)


def _refuse_proc(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", str(arguments[0]))


if __name__ == "__main__":
    hide_linux()
    sys.argv[0] = "turnsmith"
    runpy.run_module("turnsmith", run_name="__main__", alter_sys=False)

"""A program that tries to leave the sandbox it runs in, and says which layers do not hold.

`check_sandbox` runs it in the first sandbox of each process, before any program of a model.
"""

from __future__ import annotations

PROOF = """
import os, resource, sys

def is_refused(attempt, *arguments):
    try:
        attempt(*arguments)
    except (OSError, RuntimeError):
        return True
    return False

def connect():
    import socket
    socket.socket().connect(("127.0.0.1", 1))

def start_thread():
    import _thread
    _thread.start_new_thread(int, ())

def number_of_files():
    import posix
    return sum(not is_refused(posix.fstat, number) for number in range(64))

hidden = ("/etc", "/home", "/root", "/proc", "/sys", "/usr/bin", "/var")
visible = [path for path in hidden if not is_refused(os.stat, path)]
layers = {
    "files of this machine are visible: " + ", ".join(visible): not visible,
    "the file system can be written to": is_refused(open, "/planted", "w") and is_refused(open, os.__file__, "r+"),
    "the network can be used": is_refused(connect),
    "processes can be started": is_refused(os.fork),
    "threads can be started": is_refused(start_thread),
    "it does not run as nobody": os.getresuid() == os.getresgid() == (65534,) * 3,
    "environment variables are inherited": not set(os.environ) - {"HOME", "LANG", "LC_CTYPE", "LD_LIBRARY_PATH", "PWD"},
    "open files are inherited": number_of_files() <= 4,
    "memory is not limited": resource.getrlimit(resource.RLIMIT_AS)[1] > 0,
}
print("; ".join(problem for problem, holds in layers.items() if not holds) or "isolated")
"""

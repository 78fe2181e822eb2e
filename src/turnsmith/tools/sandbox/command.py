"""The command that starts an interpreter in the sandbox: what it sees of the machine and how much of it it may take, as
which user it runs.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from turnsmith.errors import ConfigError

NOBODY = "65534"
_OPTIONS = ("-I", "-S", "-B", "-X", "utf8", "-c")
"""Isolated mode, no site-packages, no bytecode files, UTF-8."""
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Resource limits of one program, which is one process with one thread.

    Example:
        >>> SandboxLimits(seconds=2).seconds
        2
        >>> SandboxLimits(memory=1000)
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: SandboxLimits.memory must be from 64 MiB to 1 TiB, in bytes.
    """

    seconds: float = 10.0
    """Wall-clock time. CPU time is limited to one second more than this."""
    memory: int = 512 * MIB
    """Bytes of address space, including about 30 MiB for the interpreter itself."""
    disk: int = 64 * MIB
    """Bytes of all files in its private `/tmp`, which is kept in memory."""
    output: int = 256 * 1024
    """Bytes of output. A program that prints more is killed."""
    files: int = 4096
    """Files and folders in its `/tmp`. A program that creates more is killed, within a tenth of a second."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and 0 < self.seconds <= 86_400):
            raise ConfigError("SandboxLimits.seconds must be more than 0 and at most 86,400 (a day).")
        # Below 64 MiB the interpreter itself does not start.
        for name, least, most in (("memory", 64, 1024 * 1024), ("disk", 1, 1024 * 1024)):
            if not least * MIB <= getattr(self, name) <= most * MIB:
                raise ConfigError(f"SandboxLimits.{name} must be from {least} MiB to 1 TiB, in bytes.")
        if self.files < 16:
            raise ConfigError("SandboxLimits.files must be 16 or more.")
        if not 1 <= self.output <= 64 * MIB:
            raise ConfigError("SandboxLimits.output must be from 1 byte to 64 MiB.")


@dataclass(frozen=True, slots=True)
class Command:
    """How to start an interpreter that waits for a program."""

    before: tuple[str, ...]
    """Everything before the interpreter, except the seccomp filter; empty without a sandbox."""
    python: tuple[str, ...]
    """The interpreter, its options and its code; the number of its status pipe follows."""
    limits: tuple[str, ...]

    def line(self, status: int, seccomp: int) -> list[str]:
        """The argument list of the command, for these two file descriptors."""
        wrapper = [*self.before, "--seccomp", str(seccomp), "--"] if self.before else []
        return [*wrapper, *self.python, str(status), *self.limits]


@lru_cache(maxsize=32)
def command_for(limits: SandboxLimits, *, is_sandboxed: bool = True) -> Command:
    """The command that starts an interpreter with these limits."""
    inside = Path(__file__).with_name("inside.py").read_text(encoding="utf-8")
    numbers = (math.ceil(limits.seconds) + 1, limits.memory, limits.disk)
    home, mounts = _interpreter()
    python = f"{home}/bin/python" if is_sandboxed else sys.executable
    before = (*_isolation(), *_system(), *mounts, *_private(limits)) if is_sandboxed else ()
    return Command(before, (python, *_OPTIONS, inside), tuple(map(str, numbers)))


def bwrap() -> str | None:
    """The path of bubblewrap, if it is installed."""
    return shutil.which("bwrap")


def _isolation() -> list[str]:
    return [
        bwrap() or "bwrap",
        *("--unshare-all", "--unshare-user", "--disable-userns"),
        *("--uid", NOBODY, "--gid", NOBODY, "--cap-drop", "ALL"),
        *("--hostname", "sandbox", "--new-session", "--die-with-parent"),
    ]


def _system() -> list[str]:
    """Links such as `/lib` to `/usr/lib`: of the system only these and single libraries are there."""
    links = [folder for folder in ("/lib", "/lib64") if os.path.islink(folder)]  # noqa: PTH114
    return [option for folder in links for option in ("--symlink", os.readlink(folder), folder)]  # noqa: PTH115


def _interpreter() -> tuple[str, list[str]]:
    """The interpreter's prefix inside the sandbox, and the options that mount it there with the libraries it needs.

    It is the interpreter that runs turnsmith, without any virtual environment. One among the user's own files is
    mounted under another name, so that the model learns no path of this machine.
    """
    prefix = os.path.realpath(sys.base_prefix)
    executable = _executable()
    home = prefix if prefix == "/usr" or prefix.startswith("/usr/") else "/python"
    options = ["--ro-bind", executable, f"{home}/bin/python"]
    standard = Path(os.path.realpath(os.__file__)).parent
    options += ["--ro-bind", str(standard), f"{home}/{standard.relative_to(prefix)}"]
    for packages in (standard / "site-packages", standard / "dist-packages"):
        if packages.is_dir():
            # Installed packages may reveal the user's projects. What hides them must not be writable.
            hidden = f"{home}/{packages.relative_to(prefix)}"
            options += ["--size", "4096", "--tmpfs", hidden, "--remount-ro", hidden]
    libraries = _libraries(executable)
    for library in libraries:
        file, name = (
            _moved(path, prefix, home) for path in (library.resolve(), library.parent.resolve() / library.name)
        )
        options += ["--symlink", file, name] if library.is_symlink() else ["--ro-bind", str(library), name]
    if prefix != "/usr" and any(library.name.startswith("libpython") for library in libraries):
        # The loader's cache is not mounted, and would name the prefix outside of the sandbox.
        options += ["--setenv", "LD_LIBRARY_PATH", f"{home}/lib"]
    return home, options


def _moved(path: Path, prefix: str, home: str) -> str:
    return f"{home}/{path.relative_to(prefix)}" if path.is_relative_to(prefix) else str(path)


def _executable() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


_LOADED = """
import os, sysconfig
modules = sysconfig.get_config_var("DESTSHARED")
for name in os.listdir(modules):
    module = name.partition(".")[0]
    if module not in ("_tkinter", "_curses", "_curses_panel", "readline", "nis", "_dbm", "_gdbm"):
        try:
            __import__(module)
        except ImportError:
            pass
with open("/proc/self/maps") as maps:
    files = {line.split()[-1] for line in maps if ".so" in line}
print(*sorted(file for file in files if not file.startswith(modules + "/")), sep="\\n")
"""
"""Loads every module of the standard library that is not for a terminal, a screen or a database of the system.

It asks `sysconfig` in a process of its own: in ours, a thread that calls it while another one makes the first call gets
`None` (Python 3.11).
"""


@lru_cache(maxsize=1)
def _libraries(executable: str) -> list[Path]:
    """The shared libraries that the interpreter and its standard library use, and the loader, by all their names."""
    command = [executable, "-I", "-S", "-B", "-c", _LOADED]
    output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    files = {Path(line) for line in output.splitlines()}
    places = {file.parent for file in files} | {Path("/lib"), Path("/lib64")}
    names = {file.name.partition(".so")[0] for file in files}
    # Programs ask for libz.so.1 and the loader by a path of its own, both of which are links.
    return sorted(
        path for place in places for name in names for path in place.glob(f"{name}.so*") if path.resolve() in files
    )


def _private(limits: SandboxLimits) -> list[str]:
    return [
        # A file, not the device: if root runs turnsmith, the program would own the device of the machine.
        *("--symlink", "/tmp/.null", "/dev/null"),
        *("--size", str(limits.disk), "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/"),
    ]

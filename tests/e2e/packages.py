"""Packages that turnsmith adapts to and does not need, installed for a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from turnsmith.importing import add_to_path


def install(folder: Path, *requirements: str) -> None:
    """Install exactly these, without what they need, and make them importable here and in worker processes."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *requirements]
    subprocess.run(command, check=True, timeout=600)
    add_to_path(folder)


def make_environment(folder: Path, packages: tuple[str, ...]) -> Path:
    """Install packages, whose pins need not fit ours, into a new virtual environment; returns its Python.

    With uv, because pip would count as installed what `install` and `add_to_path` have put into PYTHONPATH.
    """
    python = folder / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--allow-existing", str(folder)], check=True)
    subprocess.run([*uv, "pip", "install", "-q", "--python", str(python), *packages], check=True)
    return python

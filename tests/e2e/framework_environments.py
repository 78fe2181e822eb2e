"""Virtual environments with the packages of agent frameworks, whose pins need not fit ours; `uv` makes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def make_environment(folder: Path, packages: tuple[str, ...]) -> Path:
    """Install packages into a new environment in this folder; returns its Python."""
    python = folder / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--allow-existing", str(folder)], check=True)
    subprocess.run([*uv, "pip", "install", "-q", "--python", str(python), *packages], check=True)
    return python

"""Packages that turnsmith adapts to and does not need, installed for a test into a folder of its own."""

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

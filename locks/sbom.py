"""Prints the bill of materials of a lock, with licences, as CycloneDX JSON: `python locks/sbom.py cpu`.

Name, version and licence are those of `licences.csv`, which a test compares with the locks. No package is needed.
"""

from __future__ import annotations

import csv
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def bill_of_materials(lock: str) -> dict[str, Any]:
    """The packages of a lock."""
    with (FOLDER / "licences.csv").open(newline="", encoding="utf-8") as file:
        licences = {(row["name"], row["version"]): row["licence"] for row in csv.DictReader(file)}
    pinned = re.findall(r"^([\w.-]+)==([^\s;\\]+)", (FOLDER / f"{lock}.txt").read_text(encoding="utf-8"), re.MULTILINE)
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    package = (FOLDER.parent / "src" / "turnsmith" / "__init__.py").read_text(encoding="utf-8")
    (version,) = re.findall(r'^__version__ = "(.+)"$', package, re.MULTILINE)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _component(project["name"], version, project["license"])},
        "components": [_component(name, version, licences[name, version]) for name, version in pinned],
    }


def _component(name: str, version: str, licence: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
    licences = [{"expression": licence}]
    return {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl, "licenses": licences}


if __name__ == "__main__":
    print(json.dumps(bill_of_materials(*sys.argv[1:]), indent=1))

"""KubeRay's own schema of a RayJob, as far as a manifest of ours uses it: `kuberay_schema.json`.

The whole of it is 1.4 MB. For every field that the manifest sets, the file has its schema; of the others it has the
name, and the value `false`. Another version, or a manifest with other fields:

    git clone --depth 1 -b v1.7.0 https://github.com/ray-project/kuberay
    python -m tests.unit.kuberay_schema kuberay
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

FILE = Path(__file__).with_name("kuberay_schema.json")
_DEFINITION = "ray-operator/config/crd/bases/ray.io_rayjobs.yaml"
_KEPT = ("type", "enum", "pattern", "format", "minimum", "maximum", "anyOf", "required", "default")


def trimmed(schema: dict[str, Any], values: list[Any]) -> dict[str, Any]:
    """The part of a schema that these values of its field need; a field that it does not know is an error."""
    kept = {name: schema[name] for name in _KEPT if name in schema}
    if "properties" in schema:
        kept["properties"] = {
            name: trimmed(inner, found) if (found := [value[name] for value in values if name in value]) else False
            for name, inner in schema["properties"].items()
        }
        kept["additionalProperties"] = False
    elif isinstance(schema.get("additionalProperties"), dict):
        found = [one for value in values for one in value.values()]
        kept["additionalProperties"] = trimmed(schema["additionalProperties"], found)
    if "items" in schema:
        kept["items"] = trimmed(schema["items"], [one for value in values for one in value])
    return kept


def problems(manifest: Any) -> list[str]:
    """What is wrong with a manifest, a line for each."""
    validator = Draft202012Validator(json.loads(FILE.read_text()))
    return [f"{'.'.join(map(str, each.path))}: {each.message}" for each in validator.iter_errors(manifest)]


def main(folder: str) -> None:
    """Write the file from a clone of KubeRay."""
    from tests.unit.test_cluster_page import file

    commit, tag = (
        subprocess.run(["git", "-C", folder, *command], capture_output=True, text=True, check=True).stdout.strip()
        for command in (["rev-parse", "HEAD"], ["describe", "--tags"])
    )
    definition = yaml.safe_load((Path(folder) / _DEFINITION).read_text())
    (version,) = (each for each in definition["spec"]["versions"] if each["name"] == "v1")
    kept = trimmed(version["schema"]["openAPIV3Schema"], [yaml.safe_load(file("rayjob.yaml"))])
    # Objects of Kubernetes have more metadata than their definitions say.
    kept["properties"]["metadata"] = {"type": "object"}
    source = f"Parts of {_DEFINITION} of github.com/ray-project/kuberay {tag} ({commit}), Apache License 2.0; "
    FILE.write_text(json.dumps({"$comment": source + f"made by {Path(__file__).name}", **kept}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])

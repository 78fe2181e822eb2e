"""Images, the development container and the release workflow install what the project pins; none is built here."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

import turnsmith

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALLING = ("docker/cpu.Dockerfile", "docker/gpu.Dockerfile", ".devcontainer/devcontainer.json")


@pytest.mark.parametrize("name", INSTALLING)
def test_it_installs_a_lock_that_exists_on_a_python_that_we_support(name: str) -> None:
    text = (ROOT / name).read_text()
    (lock,) = re.findall(r"-r (locks/[\w-]+\.txt)", text)
    assert (ROOT / lock).is_file()
    (version,) = re.findall(r"python:(3\.\d+)-", text)
    assert version in SpecifierSet(PROJECT["requires-python"])
    torch = [word for word in PROJECT["optional-dependencies"]["cpu"] if word.startswith("torch==")]
    assert re.findall(r"torch==[\d.]+", text) == ([] if "gpu" in name else torch)


@pytest.mark.parametrize("name", [name for name in INSTALLING if name.startswith("docker")])
def test_an_image_copies_only_what_the_context_has(name: str) -> None:
    context = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [line.split()[1:-1] for line in (ROOT / name).read_text().splitlines() if line.startswith("COPY ")]
    assert {word for words in copied for word in words} == context
    assert all((ROOT / word).exists() for word in context)


@pytest.mark.parametrize(("tag", "code"), [(f"v{turnsmith.__version__}", 0), ("v9.9.9", 1)])
def test_a_release_is_not_built_from_a_tag_with_another_version(tag: str, code: int) -> None:
    steps = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]["build"]["steps"]
    (step,) = [step for step in steps if step.get("name") == "The tag is the version"]
    checked = subprocess.run(["sh", "-c", step["run"]], cwd=ROOT, env={**os.environ, "GITHUB_REF_NAME": tag})
    assert checked.returncode == code


def test_a_release_is_published_without_a_token_and_says_who_built_it() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"] == "pypi"
    used = [step.get("uses", "") for job in jobs.values() for step in job["steps"]]
    assert any(name.startswith("pypa/gh-action-pypi-publish@") for name in used)
    assert any(name.startswith("actions/attest-build-provenance@") for name in used)
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()


def test_the_action_checks_what_it_is_given_and_fails_where_a_check_does(tmp_path: Path) -> None:
    (step,) = [
        one for one in yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"] if "OPTIONS" in str(one)
    ]
    environment = {**os.environ, "ARGUMENTS": "--demo", "OPTIONS": ""}
    done = subprocess.run(["bash", "-e", "-c", step["run"]], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 1
    assert json.loads((tmp_path / "turnsmith-check.json").read_text())["failed"] == 3
    assert (tmp_path / "turnsmith-check.html").exists()


@pytest.mark.parametrize("lock", ["cpu", "vllm"])
def test_the_bill_of_materials_has_every_package_with_its_licence(lock: str) -> None:
    bill = runpy.run_path(str(ROOT / "locks" / "sbom.py"))["bill_of_materials"](lock)
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "locks" / f"{lock}.txt").read_text(), re.MULTILINE)
    assert [one["name"] for one in bill["components"]] == pinned
    assert len(pinned) > 50
    assert all(one["licenses"][0]["expression"] for one in bill["components"])
    assert bill["metadata"]["component"]["version"] == turnsmith.__version__
    assert len({one["bom-ref"] for one in bill["components"]}) == len(pinned)
    json.dumps(bill)


def test_the_jobs_of_a_night_run_all_of_its_stages() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    (wanted,) = re.findall(r"^every_night=\((.*)\)$", script, re.MULTILINE)
    night = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())["jobs"]["nightly"]
    stages = [stage for words in night["strategy"]["matrix"]["stages"] for stage in words.split()]
    parts = {f"nightly-e2e-{number}" for number in range(1, 5)}
    assert sorted(stages) == sorted({"default", *wanted.split(), *parts} - {"nightly-e2e"})
    for stage in {*stages, "nightly-e2e"} - {"default"} - parts:
        assert f"\n{stage.replace('-', '_')}() {{" in script, stage

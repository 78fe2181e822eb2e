"""What is known of other versions of verl is on the page, and what is not known ends the scheduled job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from tests import verl_sources
from tests.unit.trainer.test_verl_members import ROWS

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"


def test_the_page_has_the_table_of_what_is_known() -> None:
    table = verl_sources.markdown(verl_sources.known())
    assert table in (ROOT / "docs" / "design" / "verl-seams.md").read_text(), f"put it into the page:\n{table}"


def test_every_branch_that_the_job_looks_at_has_its_known_lines() -> None:
    job = yaml.safe_load((WORKFLOWS / "verl.yml").read_text())["jobs"]["verl"]
    assert set(job["strategy"]["matrix"]["branch"]) <= {one.source for one in verl_sources.known()}
    assert "verl-source" in job["steps"][-1]["run"]


def test_every_file_of_contract_tests_exists() -> None:
    assert [file for file in verl_sources.FILES if not (ROOT / "tests/unit/trainer" / f"{file}.py").is_file()] == []


def empty_verl(folder: Path) -> Path:
    (folder / "verl" / "checkpoint_engine").mkdir(parents=True)
    (folder / "verl" / "__init__.py").write_text("raise ImportError('no\\nverl')")
    (folder / "verl" / "checkpoint_engine" / "__init__.py").write_text("")
    return folder


def test_what_is_gone_and_what_changed_is_told_apart(tmp_path: Path) -> None:
    found = list(verl_sources.members("new", empty_verl(tmp_path)))
    assert len(found) == sum(row[0].startswith("verl/") for row in ROWS)
    assert [one.what for one in found if one.kind == "changed"] == ["verl/checkpoint_engine/__init__.py"]


@pytest.mark.parametrize(("known", "status"), [(False, 1), (True, 0)])
def test_only_what_is_not_known_ends_the_job(
    known: bool, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "known.txt"
    monkeypatch.setattr(verl_sources, "TABLE", table)
    for look in ("behaviour", "contract_tests"):  # they take a minute
        monkeypatch.setattr(verl_sources, look, lambda name, folder: [])
    monkeypatch.setattr(sys, "argv", ["verl_sources", "--source", f"new={empty_verl(tmp_path)}"])
    if known:
        table.write_text("".join(f"{one.line()}\n" for one in verl_sources.members("new", tmp_path)))
    assert verl_sources.main() == status

"""The table of published faults: what holds of each row, and how its halves are drawn. Nothing is fetched or run."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest


@pytest.fixture
def published(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    return importlib.import_module("benchmarks.published_faults")


def test_there_are_enough_faults_of_enough_projects(published):
    faults = published.table()
    projects = Counter(fault.project for fault in faults)
    assert len(faults) >= 40
    assert len(projects) >= 12
    assert max(projects.values()) <= 10
    assert len({fault.id for fault in faults}) == len(faults)
    assert {fault.kind for fault in faults} == set(published.KINDS)


def test_every_row_has_a_thread_and_what_is_loadable_says_from_where(published):
    for fault in published.table():
        assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(pull|issues|commit)/\w+", fault.thread), fault.id
        assert fault.mend in ("merged", "open"), fault.id
        assert all(re.fullmatch(r"[0-9a-f]{40}|", commit) for commit in (fault.before, fault.after)), fault.id
        assert fault.loadable or not fault.tried, fault.id
        if fault.loadable:
            assert fault.before, fault.id
            assert fault.file, fault.id
            assert fault.name, fault.id
            assert fault.after or fault.mend == "open", fault.id
            assert fault.module, fault.id


def test_the_halves_are_the_same_for_a_seed_and_have_each_kind(published):
    faults = published.table()
    halves = published.halves(faults)
    assert halves == published.halves(list(reversed(faults)))
    assert halves != published.halves(faults, seed=1)
    assert sorted(halves["work"] + halves["test"]) == sorted(fault.id for fault in faults if not fault.set)
    assert abs(len(halves["work"]) - len(halves["test"])) <= 1
    by_id = {fault.id: fault for fault in faults}
    assert not any(by_id[name].seen for name in halves["test"])
    for half in published.HALVES:
        assert {by_id[name].kind for name in halves[half]} == set(published.KINDS)


def test_a_later_set_leaves_the_halves_as_they_were_drawn(published):
    faults = published.table()
    fresh = [fault for fault in faults if fault.set == published.FRESH]
    assert len(fresh) >= 24
    assert len({fault.project for fault in fresh}) >= 10
    assert max(Counter(fault.project for fault in fresh).values()) <= 5
    assert all(fault.subject and fault.tried and fault.after and not fault.seen for fault in fresh)
    assert {fault.set for fault in faults} == {"", published.FRESH}
    assert published.halves([fault for fault in faults if not fault.set]) == published.halves(faults)


def test_a_clone_and_a_bare_one_are_found_and_another_folder_is_named(published, tmp_path):
    clone, bare = tmp_path / "a+clone" / ".git", tmp_path / "a+bare" / "repo"
    for folder in (clone, bare):
        folder.mkdir(parents=True)
        (folder / "HEAD").touch()
    assert published.git_folder(tmp_path, "a/clone") == clone
    assert published.git_folder(tmp_path, "a/bare") == bare
    with pytest.raises(FileNotFoundError, match="a/nothing"):
        published.git_folder(tmp_path, "a/nothing")


def test_a_scorer_is_imported_as_it_was_before_and_after(published, tmp_path):
    clone = tmp_path / "a+scorer"
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b"]
    (clone / "package").mkdir(parents=True)
    (clone / "package" / "__init__.py").write_text("from package.scorer import before\n")
    (clone / "package" / "notes.pdf").write_text("no part of an import")
    (clone / "package" / "scorer.py").write_text("before = 1\n")
    subprocess.run(["git", "init", "-q", str(clone)], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "before"], check=True)
    fault = published.Fault("id", "a/scorer", "", "", "", file="package/scorer.py", name="before")
    assert published.load(fault, "HEAD", tmp_path, sys.executable) == ""
    assert "after" in published.load(replace(fault, name="after"), "HEAD", tmp_path, sys.executable)
    assert published.load(replace(fault, alone=True), "HEAD", tmp_path, sys.executable) == ""
    exported = tmp_path / "exported"
    published.export(fault, "HEAD", tmp_path, exported)
    assert sorted(file.name for file in exported.rglob("*.*")) == ["__init__.py", "scorer.py"]


def test_half_prints_ids_and_loading_needs_a_source(published, capsys):
    assert published.main(["--half", "test"]) == 0
    assert capsys.readouterr().out.split() == published.halves(published.table())["test"]
    with pytest.raises(SystemExit):
        published.main(["--load"])
    assert "--source" in capsys.readouterr().err

"""The key that checkpoints are signed with: where it is, and who may read it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turnsmith.errors import RecordError
from turnsmith.records.signing_key import key_path, signing_key


@pytest.fixture(autouse=True)
def _own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSMITH_CACHE", str(tmp_path / "user"))


def test_a_key_is_created_with_the_folders_that_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSMITH_CACHE", str(tmp_path / "home" / "cache"))
    assert len(signing_key()) == 32
    assert key_path().parent == tmp_path / "home" / "cache"


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    key = signing_key()
    assert key == signing_key()
    assert key_path().stat().st_mode & 0o777 == 0o600
    key_path().chmod(0o644)
    with pytest.raises(RecordError, match="Other users can read the signing key"):
        signing_key()


def test_a_key_of_the_wrong_length_is_refused(flushed: list[tuple[str, bool]]) -> None:
    assert len(signing_key()) == 32
    folder = str(key_path().parent)
    assert [path.removeprefix(folder)[:13] for path, _ in flushed][-2:] == ["/.signing-key", ""]
    for length in (31, 33):
        key_path().write_bytes(b"x" * length)
        with pytest.raises(RecordError, match="is damaged: delete it to get a new one"):
            signing_key()


def test_the_key_is_in_the_users_configuration_unless_a_cache_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"signing-key-{os.getuid()}"
    assert key_path() == tmp_path / "user" / name
    monkeypatch.delenv("TURNSMITH_CACHE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert key_path() == tmp_path / "xdg" / "turnsmith" / name
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert key_path() == tmp_path / "home" / ".config" / "turnsmith" / name

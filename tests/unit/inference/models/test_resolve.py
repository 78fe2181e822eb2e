from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from turnsmith.errors import ConfigError
from turnsmith.inference import models


def test_a_hub_id_stays_as_it_is() -> None:
    assert models.resolve("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"


def test_a_local_path_wins_over_the_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert models.resolve("tiny", str(tmp_path)) == str(tmp_path)


def test_a_built_model_is_copied_to_where_other_machines_can_read_it(tmp_path: Path) -> None:
    built = Path(models.resolve("tiny"))
    shared = Path(models.resolve("tiny", shared=tmp_path / "models"))
    assert shared == tmp_path / "models" / built.name
    assert {file.name: file.read_bytes() for file in shared.iterdir()} == {
        file.name: file.read_bytes() for file in built.iterdir()
    }
    (shared / "config.json").touch()
    before = (shared / "config.json").stat().st_mtime_ns
    assert models.resolve("tiny", shared=tmp_path / "models") == str(shared)
    assert (shared / "config.json").stat().st_mtime_ns == before, "it is copied once"
    assert [one.name for one in (tmp_path / "models").iterdir()] == [built.name]


def test_a_folder_is_taken_as_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert models.resolve("mine") == "mine"


@pytest.mark.parametrize("missing", ["/no/such/model", "./no-such-model", "~/no/such/model"])
def test_a_path_that_is_not_there_is_an_error(missing: str) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        models.resolve(missing)


def test_a_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        models.resolve(str(tmp_path))


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("TURNSMITH_CACHE", raising=False)
    assert models.cache_folder() == tmp_path / "xdg" / "turnsmith" / "models"
    monkeypatch.setenv("TURNSMITH_CACHE", str(tmp_path / "own"))
    assert models.cache_folder() == tmp_path / "own" / "models"


def test_models_built_at_the_same_time_end_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSMITH_CACHE", str(tmp_path))
    from turnsmith.inference.models import tiny

    tiny.build_tiny(tmp_path / "warm")  # imports torch once, so that the threads below really meet
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(models.resolve, ["tiny"] * 4))
    assert len(folders) == 1
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["tiny-v1"]


def test_a_model_that_could_not_be_built_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from turnsmith.inference.models import tiny

    def half(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise RuntimeError("disk full")

    monkeypatch.setenv("TURNSMITH_CACHE", str(tmp_path))
    monkeypatch.setattr(tiny, "build_tiny", half)
    with pytest.raises(RuntimeError, match="disk full"):
        models.resolve("tiny")
    assert list((tmp_path / "models").iterdir()) == []


def test_a_cached_model_is_found_without_torch(tiny_folder: str) -> None:
    code = "import sys, turnsmith.inference.models as m; print(m.resolve('tiny')); "
    code += "assert not {'torch', 'numpy'} & {*sys.modules}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == tiny_folder

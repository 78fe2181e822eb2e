import os
import sys
from pathlib import Path

import pytest

from turnsmith.cli.environment import locate_environment
from turnsmith.errors import ConfigError

SOURCE = """
raise_if_run = 1 / 0

class MyGame:
    def reset(self): return "go"
    def step(self, action): return "", 1.0, True, {}

class Helper: ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    (tmp_path / "locate_game.py").write_text(SOURCE)
    (tmp_path / "locate_pack" / "inner").mkdir(parents=True)
    (tmp_path / "locate_pack" / "__init__.py").write_text("")
    (tmp_path / "locate_pack" / "game.py").write_text(SOURCE)
    (tmp_path / "locate_broken.py").write_text("class MyGame(:\n")
    return tmp_path


def test_a_module_is_found_from_the_current_folder_without_running_it(folder: Path) -> None:
    assert locate_environment("locate_game:MyGame") == "locate_game:MyGame"
    assert locate_environment("locate_pack.game:MyGame") == "locate_pack.game:MyGame"
    assert str(folder) in sys.path
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(folder)


def test_a_file_becomes_a_full_path(folder: Path) -> None:
    assert locate_environment("locate_game.py:MyGame") == f"{folder / 'locate_game.py'}:MyGame"
    assert locate_environment("locate_pack/game.py:MyGame") == f"{folder / 'locate_pack' / 'game.py'}:MyGame"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("locate_game", "write module:Name or path/to/file.py:Name. For example locate_game:MyGame"),
        ("locate_game.py", "For example locate_game.py:MyGame"),
        ("nothing", "'nothing' does not name an environment"),
        ("locate_gme:MyGame", "There is no module 'locate_gme'. Did you mean 'locate_game'?"),
        ("locate_pack.gam:MyGame", "There is no module 'locate_pack.gam'. Did you mean 'locate_pack.game'?"),
        ("locate_pac.game:MyGame", "There is no module 'locate_pac'. Did you mean 'locate_pack'?"),
        ("quite_other:MyGame", "There is no module 'quite_other' on the import path"),
        ("locate_gam.py:MyGame", "There is no file locate_gam.py. Did you mean locate_game.py?"),
        ("locate_pack/game:MyGame", "Did you mean locate_pack/game.py?"),
        ("nowhere/x.py:MyGame", "There is no file nowhere/x.py."),
        ("locate_game:MyGme", "locate_game has no class 'MyGme'. Did you mean 'MyGame'?"),
        ("locate_game:mygame", "Did you mean 'MyGame'?"),
        ("locate_game.py:Chess", "locate_game.py has no class 'Chess'. It has: MyGame."),
        ("locate_broken:MyGame", "locate_broken is not valid Python"),
    ],
)
def test_what_is_not_there_is_said_in_words(folder: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        locate_environment(text)
    assert sentence in str(caught.value)


def test_a_class_that_is_imported_or_assigned_is_left_to_the_import(folder: Path) -> None:
    (folder / "locate_other.py").write_text("from locate_game import MyGame as Game\nMade = type('Made', (), {})\n")
    for name in ("Game", "Made"):
        assert locate_environment(f"locate_other:{name}") == f"locate_other:{name}"

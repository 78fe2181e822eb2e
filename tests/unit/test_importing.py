"""One way to name what users write, for the command line, config files, run folders and other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest

from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.errors import ConfigError
from turnsmith.importing import (
    absolute_name,
    add_to_path,
    hidden_modules,
    hiding_files,
    import_folder,
    import_name,
    import_object,
    not_imported,
)

SOURCE = """
class MyGame:
    def reset(self): return "go"
    def step(self, action): return "", 1.0, True, {}

def pay(trajectory): return 1.0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with modules of a user, which is the current one and on the import path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    (tmp_path / "import_game.py").write_text(SOURCE)
    (tmp_path / "import_pack").mkdir()
    (tmp_path / "import_pack" / "__init__.py").write_text("")
    (tmp_path / "import_pack" / "game.py").write_text(SOURCE)
    (tmp_path / "import_broken.py").write_text("class MyGame(:\n")
    (tmp_path / "import_needy.py").write_text("import quite_missing\n")
    (tmp_path / "calendar.py").write_text(SOURCE)
    add_to_path(tmp_path)
    return tmp_path


def test_a_module_is_imported_alone_if_its_package_needs_what_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "heavy" / "scores").mkdir(parents=True)
    (tmp_path / "heavy" / "__init__.py").write_text("import no_such_package_of_anybody\n")
    (tmp_path / "heavy" / "scores" / "__init__.py").write_text("")
    (tmp_path / "heavy" / "scores" / "sums.py").write_text("def score(): return 7\n")
    (tmp_path / "heavy" / "scores" / "torn.py").write_text("import no_such_package_of_anybody\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"Importing heavy\.scores\.torn failed: No module named 'no_such_package"):
        import_object("heavy.scores.torn:score")
    assert not [name for name in sys.modules if name.startswith("heavy")], "nothing is left behind"
    assert import_object("heavy.scores.sums:score")() == 7
    for name in [name for name in sys.modules if name.startswith("heavy")]:
        monkeypatch.delitem(sys.modules, name)


def test_the_folder_is_for_this_process_and_those_it_starts(folder: Path) -> None:
    assert sys.path[0] == str(folder)
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(folder)
    add_to_path(folder)
    assert sys.path.count(str(folder)) == 1
    assert os.environ["PYTHONPATH"].split(os.pathsep).count(str(folder)) == 1


def test_a_module_and_a_file_give_the_same_class(folder: Path) -> None:
    assert import_object("import_game:MyGame") is import_object("import_game.py:MyGame")
    assert import_object(f"{folder}/import_game.py:MyGame.step").__name__ == "step"
    assert import_object("import_pack.game:MyGame") is not import_object("import_game:MyGame")


def test_a_file_whose_name_is_taken_is_imported_all_the_same(folder: Path) -> None:
    import calendar

    game = import_object("calendar.py:MyGame")
    assert game().reset() == "go"
    assert sys.modules["calendar"] is calendar, "the standard library's module stays"
    assert import_object("calendar.py:MyGame") is game, "it is run once"
    assert import_name(game) == f"{folder}/calendar.py:MyGame"
    assert import_object(import_name(game)) is game


def test_a_file_that_fails_is_tried_again(folder: Path) -> None:
    (folder / "calendar.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match="ZeroDivisionError: division by zero"):
        import_object("calendar.py:MyGame")
    (folder / "calendar.py").write_text(SOURCE)
    assert import_object("calendar.py:MyGame")().reset() == "go"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("import_game", "'import_game' is not a name to import: write module:Name or path/to/file.py:Name."),
        (":MyGame", "is not a name to import"),
        ("import_game:", "is not a name to import"),
        ("import_gme:MyGame", "There is no module 'import_gme' to import. Did you mean 'import_game'?"),
        ("import_pack.gam:MyGame", "There is no module 'import_pack.gam' to import. Did you mean 'game'?"),
        ("quite_other:MyGame", "There is no module 'quite_other' to import."),
        ("import_needy:MyGame", "Importing import_needy failed: No module named 'quite_missing'."),
        ("import_gam.py:MyGame", "import_gam.py'. Did you mean 'import_game.py'?"),
        ("nowhere/x.py:MyGame", "There is no file"),
        ("import_game:MyGme", "import_game has no 'MyGme'. Did you mean 'MyGame'?"),
        ("import_game:mygame", "Did you mean 'MyGame'?"),
        ("import_game.py:Chess", "import_game.py has no 'Chess'. It defines MyGame, pay."),
        ("import_broken:MyGame", "Importing import_broken failed: SyntaxError"),
    ],
)
def test_what_is_not_there_is_said_in_words(folder: Path, name: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        import_object(name)
    assert sentence in str(caught.value)


def test_a_name_leads_back_to_what_it_names(folder: Path) -> None:
    assert import_name(GuessNumber) == "turnsmith.env.examples.guess_number:GuessNumber"
    game = import_object("import_pack.game:MyGame")
    assert import_name(game) == "import_pack.game:MyGame"
    assert import_name(game.step) == "import_pack.game:MyGame.step"
    assert import_folder(sys.modules["import_pack.game"]) == str(folder)
    assert import_folder(None) is None
    assert [import_name(one) for one in (lambda: None, "text", 5, type("Made", (), {}))] == [None] * 4


def test_an_absolute_name_holds_in_any_folder(folder: Path) -> None:
    assert absolute_name("import_pack/game.py:MyGame") == f"{folder}/import_pack/game.py:MyGame"
    assert absolute_name("import_pack.game:MyGame") == "import_pack.game:MyGame"


SCRIPT = """\
import json
from turnsmith.importing import import_name

class Game: ...

def pay(trajectory): return 1.0
"""


@pytest.mark.parametrize("guarded", [True, False])
def test_a_script_can_be_imported_again_if_that_does_not_run_it(folder: Path, guarded: bool) -> None:
    script = folder / "my_script.py"
    guard = 'if __name__ == "__main__":\n    ' if guarded else ""
    script.write_text(f"{SCRIPT}{guard}print(json.dumps([import_name(Game), import_name(pay)]))\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    names = json.loads(done.stdout)
    assert names == ([f"{script}:Game", f"{script}:pay"] if guarded else [None, None])
    if guarded:
        game = import_object(names[0])
        assert sys.modules[game.__module__].pay is import_object(names[1])


@pytest.mark.parametrize("name", ["slow_game.py", "json.py"])  # under its own name, and under one of ours
def test_threads_that_import_a_file_at_the_same_time_all_get_the_whole_module(folder: Path, name: str) -> None:
    (folder / name).write_text("import time\ntime.sleep(0.2)\nclass Game: ...\n")
    with ThreadPoolExecutor(8) as pool:
        games = set(pool.map(import_object, [f"{folder / name}:Game"] * 8))
    assert len(games) == 1


def test_a_file_that_hides_a_module_of_python_is_named_instead_of_the_package_that_needs_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hidden_modules() == ""
    assert f"your file {folder / 'calendar.py'} has the name of Python's own module calendar" in hiding_files()
    file = folder / "glob.py"
    file.write_text("")
    monkeypatch.delitem(sys.modules, "glob")
    assert import_module("glob").__file__ == str(file)
    failed = ImportError(f"cannot import name 'glob' from 'glob' ({file})", name="glob")  # in `import torch`
    said = str(not_imported(failed, "torch is not installed."))
    assert said.startswith("An import failed: cannot import name 'glob' from 'glob'")
    assert said.endswith(f" Your file {file} is imported instead of Python's own module glob: rename it.")

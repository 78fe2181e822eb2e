"""The commonest mistakes, made as a user makes them: each message says what happened, why, and what to do.

`pytest -s tests/unit/test_common_mistakes.py` prints them all. Each has an entry in docs/troubleshooting.md.
"""

from __future__ import annotations

import ast
import re
import runpy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from turnsmith import BaseEnvironment, ConfigStore, RayPPOTrainer
from turnsmith.cli.main import main
from turnsmith.errors import TrainingFailure, TurnsmithError
from turnsmith.rollout import same_failure
from turnsmith.trainer.driver import cluster

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
GAME = """
from turnsmith import BaseEnvironment

class Good(BaseEnvironment):
    def reset(self):
        return "Say a"

    def step(self, action):
        return "Thanks", 1.0, True, {}

class NoDone(Good):
    def step(self, action):
        return "Thanks", 1.0

class NoText(Good):
    def reset(self):
        return {"board": 1}

class Raises(Good):
    def step(self, action):
        raise KeyError("sword")

class Task(Good):
    def reset(self, task):
        return task["question"]

class Long(Good):
    def reset(self):
        return "word " * 5000

class NoneReward(Good):
    def step(self, action):
        return "Thanks", None, True, {}

class BadReset(Good):
    def reset(self, difficulty):
        return "Say a"

class NoStep(BaseEnvironment):
    def reset(self):
        return "Say a"
"""


class Good(BaseEnvironment):
    def reset(self) -> str:
        return "Say a"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "Thanks", 1.0, True, {}


@dataclass
class Mistake:
    """What a user types or calls, and what the message must say."""

    make: str | Callable[[], Any]
    what: str
    """What happened, with the user's own word in it."""
    do: str
    """What to do about it."""


def misspelt_in_python() -> None:
    ConfigStore().training.learnin_rate = 1e-5  # type: ignore[attr-defined]


def text_for_a_number() -> None:
    config = ConfigStore()
    config.training.batch_size = "32"  # type: ignore[assignment]
    RayPPOTrainer(config, Good)


def no_gpu() -> None:
    config = ConfigStore()
    config.model.model_name, config.model.device, config.inference.backend = "tiny", "cuda", "vllm"
    RayPPOTrainer(config, Good).fit()


def not_to_be_sent() -> None:
    Path("mine.py").write_text(UNSENDABLE)
    runpy.run_path("mine.py", run_name="__main__")


UNSENDABLE = """
import threading
from turnsmith import BaseEnvironment, ConfigStore, RayPPOTrainer

LOCK = threading.Lock()

class Mine(BaseEnvironment):
    def reset(self):
        with LOCK:
            return "Say a"

    def step(self, action):
        return "Thanks", 1.0, True, {}

if __name__ == "__main__":
    RayPPOTrainer(ConfigStore(), Mine).fit()
"""

MISTAKES = {
    "a model that does not exist": Mistake(
        "train game.py:Good --model tinny --dry-run", "There is no model 'tinny'", "Did you mean tiny?"
    ),
    "a misspelt setting": Mistake(
        "train game.py:Good --model tiny training.lr=1e-4 --dry-run",
        "There is no setting training.lr",
        "Here it is training.learning_rate",
    ),
    "a misspelt setting in Python": Mistake(
        misspelt_in_python, "TrainingConfig has no setting learnin_rate", "Did you mean learning_rate?"
    ),
    "a text where a number belongs": Mistake(text_for_a_number, "training.batch_size must be an integer", "not '32'"),
    "a file that does not exist": Mistake(
        "train gme.py:Good --model tiny --dry-run", "There is no file", "Did you mean 'game.py'?"
    ),
    "a class that does not exist": Mistake(
        "train game.py:Goood --model tiny --dry-run", "has no 'Goood'", "Did you mean 'Good'?"
    ),
    "a file without a class": Mistake(
        "train game.py --model tiny --dry-run", "'game.py' is not a name to import", "write module:Name"
    ),
    "an environment without step": Mistake(
        "train game.py:NoStep --model tiny --dry-run", "NoStep cannot be built", "it lacks the method step"
    ),
    "step returns too little": Mistake(
        "train game.py:NoDone --model tiny",
        "NoDone.step returned 2 values",
        "must return (observation, reward, done, info)",
    ),
    "an observation that is no text": Mistake(
        "train game.py:NoText --model tiny",
        "NoText.reset returned an observation of type dict",
        "must be a string, or a list of messages",
    ),
    "a bug in the environment": Mistake(
        "eval game.py:Raises --model tiny --episodes 8",
        "Raises.step raised KeyError: 'sword' (in step, game.py line ",
        "fix this first, with one episode at a time (`turnsmith play`)",
    ),
    "a prompt that is too long": Mistake(
        "train game.py:Long --model tiny",
        "4 of 4 openings have more tokens than the 2048 allowed",
        "raise inference.max_prompt_tokens",
    ),
    "a reward of None": Mistake(
        "train game.py:NoneReward --model tiny",
        "NoneReward.step returned the reward None",
        "it must be a finite number",
    ),
    "a reset with parameters of its own": Mistake(
        "train game.py:BadReset --model tiny",
        "BadReset.reset cannot be called: missing a required argument: 'difficulty'",
        "settings go to __init__, or are read from self.config",
    ),
    "a bug in the environment, in training": Mistake(
        "train game.py:Raises --model tiny",
        "Raises.step raised KeyError: 'sword' (in step, game.py line ",
        "Fix this first",
    ),
    "an environment with tasks, but no data": Mistake(
        "train game.py:Task --model tiny", "Task.reset takes a task, but this episode has none", "--data FILE"
    ),
    "a lock that a class in a script uses": Mistake(
        not_to_be_sent, "Mine cannot be sent to a worker process (it uses LOCK;", "define it at the top of a module"
    ),
    "a model that the hub does not have": Mistake(
        "train game.py:Good --model someone/nothing",
        "The model 'someone/nothing' is not on this machine, and the Hugging Face hub cannot be reached",
        "set model.local_path to a folder",
    ),
    "a folder that cannot be written to": Mistake(
        "train game.py:Good --model tiny checkpoint.output_dir=/proc/runs",
        "Cannot create the run folder /proc/runs/Good-",
        "Set checkpoint.output_dir",
    ),
    "an extra that is not installed": Mistake(
        "train gymnasium:FrozenLake-v1 --model tiny", "Environments of Gymnasium need it", "install"
    ),
    "a batch that is not made of groups": Mistake(
        "train game.py:Good --model tiny training.group_size=3 --dry-run",
        "training.batch_size=32 is not a multiple of training.group_size=3",
        "Set batch_size to 30 or 33",
    ),
    "a learning rate that cannot be": Mistake(
        "train game.py:Good --model tiny training.learning_rate=-1 --dry-run",
        "training.learning_rate=-1 must be above 0",
        "1e-6 is usual",
    ),
    "a GPU that is not there": Mistake(
        no_gpu, "model.device=cuda trains on GPUs, but Ray finds none on this machine", "Set model.device=cpu"
    ),
    "a run that does not exist": Mistake("runs report letters", "There is no run letters", "`turnsmith runs` lists"),
    "a server that does not run": Mistake(
        "eval game.py:Good --model http://127.0.0.1:9 --episodes 8",
        "The server at http://127.0.0.1:9/v1 cannot be reached",
        "Is it running there?",
    ),
}


def no_ray(*args: Any, **kwargs: Any) -> Any:
    raise TrainingFailure("Ray was started.")


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_a_sentence(
    name: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tiny_folder: str,
) -> None:
    mistake, began = MISTAKES[name], time.process_time()
    monkeypatch.setattr(cluster, "_start_ray", no_ray)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.setattr(same_failure, "_BACKOFF_SECONDS", 0.05)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "game.py").write_text(GAME)
    if isinstance(mistake.make, str):
        assert main(mistake.make.split()) in (1, 2)
        printed = capsys.readouterr()
        message = printed.err.rpartition("turnsmith: ")[2].strip()
        assert "Traceback" not in printed.out + printed.err
    else:
        with pytest.raises(TurnsmithError) as caught:
            mistake.make()
        message = str(caught.value)
    if request.config.getoption("capture") == "no":
        with capsys.disabled():
            print(f"\n{name:40} {message.splitlines()[0]}")
    # What it computes, and not how long it takes beside other tests.
    assert str(mistake.make).startswith("eval") or time.process_time() - began < 15
    assert mistake.what in message
    assert mistake.do in message
    assert message.count(". ") <= 3, "a message is a few sentences"
    assert_has_an_entry(name, message)


def test_held_out_tasks_that_are_trained_on_are_told_before_ray_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_folder: str
) -> None:
    monkeypatch.setattr(cluster, "_start_ray", no_ray)
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
    options = "--data rows.jsonl --answer answer --validation rows.jsonl --model tiny evaluation.every=1"
    began = time.process_time()
    assert main(["train", *options.split()]) == 2
    before, was_started, _ = "".join(capsys.readouterr()).partition("Ray was started.")
    assert time.process_time() - began < 15
    assert was_started
    assert "1 of 1 held-out tasks are among the 1 tasks of training." in before
    assert "Take them out of one of the two." in before


def test_a_tool_without_type_hints_is_told_before_ray_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_folder: str
) -> None:
    monkeypatch.setattr(cluster, "_start_ray", no_ray)
    monkeypatch.chdir(tmp_path)
    Path("untyped.py").write_text(UNTYPED)
    assert main(["train", "untyped.py:Untyped", "--model", "tiny"]) == 2
    printed = capsys.readouterr()
    assert printed.out.count("The parameter number of the tool add has no type hint") == 1
    assert "Ray was started." in printed.err


UNTYPED = """
from turnsmith import BaseEnvironment, tool

class Untyped(BaseEnvironment):
    def reset(self):
        return "Say a"

    @tool
    def add(self, number):
        "Add a number."
        return number

    def step(self, action):
        return "Thanks", 1.0, True, {}
"""


def entries() -> list[str]:
    """The messages of the page, as patterns of what is printed."""
    shown = re.findall(r"^### `(.+)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [".+".join(map(re.escape, message.split("..."))) for message in shown]


def assert_has_an_entry(name: str, message: str) -> None:
    assert any(re.search(entry, message) for entry in entries()), f"docs/troubleshooting.md has no entry for {name}"


def texts_of_the_package() -> str:
    """All string literals, one per line; what is filled in later is a brace."""
    texts: list[str] = []
    for file in (Path(__file__).parents[2] / "src" / "turnsmith").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                texts.append(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


def test_the_page_has_the_messages_that_we_raise() -> None:
    texts = texts_of_the_package()
    assert len(entries()) >= 30
    missing = [entry for entry in entries() if not re.search(entry, texts)]
    assert missing == [], "these messages of docs/troubleshooting.md are no longer in the code"

"""A model that is not there, or cannot be used, is told before anything loads it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from turnsmith.config import ConfigStore
from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.errors import ConfigError
from turnsmith.inference.chat.formats import USES_PLAIN
from turnsmith.inference.model_check import ModelCheck, find_fault
from turnsmith.inference.models import resolve
from turnsmith.trainer import RayPPOTrainer

ENDS_DIFFERENTLY = "{% for m in messages %}{{ loop.length }}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the tiny model, to damage."""
    return Path(shutil.copytree(resolve("tiny"), tmp_path / "mine"))


def fault(path: Path) -> str:
    """What the check would find, without a process of its own, whose imports take seconds."""
    return find_fault(str(path), "function_calling", trust_remote_code=False)


def verdict(path: Path | str, tool_format: str = "function_calling") -> str:
    try:
        with ModelCheck(str(path), tool_format, trust_remote_code=False):
            pass
    except ConfigError as error:
        return str(error)
    return ""


def test_a_good_model_passes(model: Path) -> None:
    assert fault(model) == ""
    assert verdict(model, "native") == ""


def test_a_template_that_cannot_be_used_is_found(model: Path) -> None:
    (model / "chat_template.jinja").write_text(ENDS_DIFFERENTLY)
    told = fault(model)
    assert told.startswith(f"The model '{model}' cannot be trained: The chat template cannot be used for multi-turn")


def test_a_model_without_a_template_is_taken_and_told_in_one_sentence(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    told: list[str] = []
    with ModelCheck(str(model), "native", trust_remote_code=False, warn=told.append):
        pass
    assert told == [USES_PLAIN]
    assert "model.chat_template" in told[0]


def test_a_template_that_is_set_is_checked_in_place_of_the_models_own(model: Path) -> None:
    def fault(template: str) -> str:
        return find_fault(str(model), "native", trust_remote_code=False, chat_template=template)

    assert fault("llama2") == fault("chatml") == fault("plain") == ""
    assert "does not show each message once" in fault("{{ bos_token }}")


def test_a_tokenizer_that_is_not_there_is_found(model: Path) -> None:
    for file in model.glob("token*"):
        file.unlink()
    assert fault(model).startswith(f"The tokenizer of the model '{model}' cannot be read: ")


def test_a_kind_of_model_that_transformers_does_not_know_is_found(model: Path) -> None:
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(settings | {"model_type": "alien"}))
    assert fault(model).startswith(f"The config of the model '{model}' cannot be read: ")


def test_a_hub_id_that_is_not_in_the_cache_is_looked_for_once_and_told_with_the_closest_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "models" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    told = verdict("models/mime")
    assert told.startswith("The config of the model 'models/mime' cannot be read: ")
    assert told.endswith("Did you mean models/mine?")


def test_the_check_does_not_import_torch() -> None:
    code = (
        "import sys; from turnsmith.inference import model_check as check\n"
        f"check.report_fault({resolve('tiny')!r}, 'native', '0')\n"
        "print(sys.modules['torch'], 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "None True"


def test_a_model_that_turnsmith_builds_needs_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*args: object, **named: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", start)
    assert verdict(resolve("tiny")) == ""


def test_what_goes_wrong_meanwhile_is_what_is_told(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    with (
        pytest.raises(RuntimeError, match="Ray is gone"),
        ModelCheck(str(model), "native", trust_remote_code=False) as check,
    ):
        raise RuntimeError("Ray is gone")
    assert check._process is not None
    assert check._process.returncode is not None


@pytest.mark.parametrize(
    ("name", "told"), [("tinny", r"Did you mean tiny\?$"), ("smolm2", r"Did you mean smollm2\?$"), ("gpt", "owner")]
)
def test_a_name_that_no_model_can_have_is_told_at_once(name: str, told: str, tmp_path: Path) -> None:
    config = ConfigStore()
    config.model.model_name, config.checkpoint.output_dir = name, str(tmp_path / "runs")
    with pytest.raises(ConfigError, match=rf"There is no model '{name}'.*{told}"):
        RayPPOTrainer(config, GuessNumber).fit()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_told_with_the_closest(tmp_path: Path) -> None:
    (tmp_path / "final-model").mkdir()
    with pytest.raises(ConfigError, match=r"does not exist\. Did you mean .*/final-model\?"):
        resolve(str(tmp_path / "final-modle"))

"""`--agent`, and `--data` with or without it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from turnsmith.cli.main import main
from turnsmith.records.episodes import read_episodes

PROGRAM = """
import json, os, urllib.request
from openai import OpenAI
task = json.loads(os.environ["TURNSMITH_TASK"])
with OpenAI() as client:
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": task["question"]}])
urllib.request.urlopen(os.environ["TURNSMITH_REWARD_URL"], str(task["worth"]).encode())
"""


def test_a_program_is_evaluated_on_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_agent.py").write_text(PROGRAM)
    tasks = [{"question": "Hi", "worth": 0.25}, {"question": "Ho", "worth": 0.75}]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    command = ["eval", "--agent", f"{sys.executable} my_agent.py", "--data", "tasks.jsonl", "--model", "tiny"]
    assert main([*command, "--episodes", "2", "--name", "mine", "inference.max_tokens=4"]) == 0
    episodes = list(read_episodes(tmp_path / "runs" / "mine"))
    assert sorted(episode.total_reward for episode in episodes) == [0.25, 0.75]
    assert all(episode.infos[0]["continuation"] == "opened" for episode in episodes)
    assert "0.500" in capsys.readouterr().out


def test_neither_an_environment_nor_an_agent_shows_the_usage(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["eval", "inference.max_turns=3"])
    assert (
        "name an environment, module:Name, an agent, --agent COMMAND, or questions, --data FILE"
        in capsys.readouterr().err
    )


REWARD = """
def worth(response, answer):
    return answer
"""


def test_questions_need_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(REWARD)
    rows = [{"q": "Say something.", "n": 0.25}, {"q": "Say nothing.", "n": 0.75}]
    (tmp_path / "tasks.json").write_text(json.dumps(rows))
    command = ["eval", "inference.max_tokens=4", "--data", "tasks.json", "--prompt", "q", "--answer", "n"]
    assert main([*command, "--reward", "my.py:worth", "--model", "tiny", "--episodes", "2", "--name", "mine"]) == 0
    episodes = sorted(read_episodes(tmp_path / "runs" / "mine"), key=lambda episode: episode.total_reward)
    assert [episode.messages[0]["content"] for episode in episodes] == ["Say something.", "Say nothing."]
    assert [episode.total_reward for episode in episodes] == [0.25, 0.75]
    assert "0.500" in capsys.readouterr().out


def test_columns_go_with_data_alone(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["eval", "my_game:MyGame", "--data", "tasks.jsonl", "--reward", "number"])
    assert "--prompt, --answer and --reward are for --data without an environment" in capsys.readouterr().err

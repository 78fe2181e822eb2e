"""`--agent` and `--data`."""

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
    assert "name an environment, module:Name, or an agent, --agent COMMAND" in capsys.readouterr().err

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


UNAWARE = """
import json, os, sys, urllib.request
body = {"model": "m", "messages": [{"role": "user", "content": sys.argv[1]}]}
url, headers = os.environ["OPENAI_BASE_URL"], {"Content-Type": "application/json"}
reply = urllib.request.urlopen(urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(), headers))
said = json.load(reply)["choices"][0]["message"]["content"]
"""
NASTY = """What's "1 + 1"; $(touch x) {answer}\n-- `touch x`?"""


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a program that knows nothing of turnsmith, and a file of rows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unaware.py").write_text(UNAWARE)
    (tmp_path / "rows.jsonl").write_text(
        json.dumps({"q": NASTY, "gold": "[^{]+"}) + "\n" + json.dumps({"q": "Hm?", "gold": "nothing else"})
    )
    (tmp_path / "mine.py").write_text("class Game:\n    reset = step = lambda self, action='': ('', 1.0, True, {})\n")
    return tmp_path


def test_a_program_is_scored_without_knowing_our_variables(rows: Path) -> None:
    agent = f"{sys.executable} unaware.py {{q}}"
    words = ["--data", "rows.jsonl", "--answer", "gold", "--reward", "regex", "--model", "tiny", "--episodes", "2"]
    assert main(["eval", "--agent", agent, *words, "--name", "mine", "inference.max_tokens=4"]) == 0
    episodes = sorted(read_episodes(rows / "runs" / "mine"), key=lambda episode: -episode.total_reward)
    assert [episode.total_reward for episode in episodes] == [1.0, 0.0]
    assert [episode.messages[0]["content"] for episode in episodes] == [NASTY, "Hm?"]
    assert not (rows / "x").exists()


@pytest.mark.parametrize("command", ["eval", "train", "check", "play"])
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--agent", "pythn unaware.py"], "There is no program 'pythn' that can be run"),
        (["--agent", "./unaware.py"], "There is no program './unaware.py' that can be run"),
        (["--agent", "python 'unaware.py"], "cannot be read: No closing quotation"),
        (["--agent", "python unaware.py {p}"], "the column 'p', and the row has q, gold. Write {{p}} for braces."),
        (["--agent", "python unaware.py {q}", "--answer", "glod"], "no column 'glod' for its answer; it has q, gold."),
        (["--agent", "python unaware.py {q}", "--answer", "gold", "--reward", "exakt"], "no reward called 'exakt'"),
        (["--prompt", "q", "--answer", "glod"], "no column 'glod' for its answer; it has q, gold."),
    ],
)
def test_what_cannot_be_played_is_refused_before_any_episode(
    command: str, words: list[str], sentence: str, rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, *words, "--data", "rows.jsonl", "--model", "tiny"]) == 2
    assert sentence in capsys.readouterr().err
    assert not (rows / "runs").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["mine.py:Game", "--data", "rows.jsonl", "--reward", "number"], "Game is an environment, which has rewards"),
        (["mine.py:Game", "--data", "rows.jsonl", "--prompt", "q"], "--prompt is for --data without an environment"),
        (["--agent", "python unaware.py", "--reward", "number"], "score answers to the rows of --data FILE"),
    ],
)
def test_scores_are_for_answers_to_rows(
    words: list[str], sentence: str, rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["eval", *words])
    assert sentence in capsys.readouterr().err

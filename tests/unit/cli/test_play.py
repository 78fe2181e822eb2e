"""`turnsmith play`: a person sees what the model would see, tools work, and the episode is recorded."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from turnsmith import Outcome, RunFolder, Trajectory, read_episodes
from turnsmith.cli.human_engine import HumanEngine, RecordingChat
from turnsmith.cli.main import main
from turnsmith.inference.chat import Chat
from turnsmith.records.run_state import RunState
from turnsmith.viewer.run_view import read_run

GAME = "turnsmith.env.examples:GuessNumber"
DESK = "turnsmith.env.examples:SupportDesk"


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def run(typed: str, *words: str) -> tuple[int, str, Trajectory]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        status = main(
            ["play", *words, "--output-dir", str(tmp_path), "--name", f"played-{len(list(tmp_path.iterdir()))}"]
        )
        printed = capsys.readouterr().out
        folder = Path(printed.rstrip().rpartition("\nSaved in ")[2])
        assert folder.parent == tmp_path
        (episode,) = read_episodes(RunFolder.open(folder))
        return status, printed, episode

    return run


def test_a_game_from_a_pipe(play) -> None:
    status, printed, episode = play("8\n\n1\n2\n3\n4\n5\n6\n7\n", GAME, "--seed", "1", "environment.highest=8")
    assert status == 0
    assert printed.startswith("--- system ---\nYou guess a number.")
    assert (
        "--- user ---\nGuess my number, from 1 to 8.\nyou> 8\n--- user ---\nLower than 8.\nyou> \nyou> 1\n" in printed
    )
    assert "Outcome: completed." in printed
    assert read_run(Path(printed.rstrip().rpartition("\nSaved in ")[2])).state is RunState.FINISHED
    assert (episode.outcome, episode.actions[0], episode.total_reward) == (Outcome.COMPLETED, "8", 1.0)
    assert printed.count("Yes, it is") == 1
    assert episode.seed == 1


def test_tools_work_as_for_the_model_and_lines_can_be_continued(play) -> None:
    typed = (
        '<tool_call>{"name": "find_orders", "arguments": {"customer": "Chen Wei"}}</tool_call>\n'
        '<tool_call>{"name": "refund", \\\n"arguments": {"order_id": 3484}}</tool_call>\n'
        "Your money is on its way.\n"
    )
    status, printed, episode = play(typed, DESK, "--seed", "3")
    assert status == 0
    assert "--- tool (find_orders) ---\norder 8804" in printed
    assert "Order 3484 is refunded: 37." in printed
    assert "reward 1 (0, 0, 1)" in printed
    assert episode.infos[-1]["success"]
    assert [len(info.get("tool_calls", ())) for info in episode.infos] == [1, 1, 0]


def test_raw_shows_the_exact_prompt(play) -> None:
    _, printed, episode = play("8\n", GAME, "--raw", "--model", "tiny")
    assert printed.startswith("<|im_start|>system\nYou guess a number.")
    assert "<|im_start|>user\nGuess my number, from 1 to 16.<|im_end|>\n<|im_start|>assistant\n" in printed
    assert "\n<|im_start|>user\nHigher than 8.<|im_end|>\n<|im_start|>assistant\n" in printed
    assert episode.num_turns == 1


def test_the_end_of_input_quits_and_the_episode_is_recorded(play) -> None:
    status, printed, episode = play("8\n", GAME)
    assert status == 0
    assert "You quit (end of input).\n1 turn, reward 0 (0)" in printed
    assert printed.count("Higher than 8.") == 1
    assert (episode.outcome, episode.num_turns) == (Outcome.ENGINE_FAILED, 1)
    assert "The player quit" in episode.error


def test_ctrl_c_quits_and_the_episode_is_recorded(play, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["8"])

    def typed(prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr("builtins.input", typed)
    status, printed, episode = play("", GAME)
    assert (status, episode.num_turns) == (130, 1)
    assert "You quit (Ctrl-C)." in printed


def test_limits_are_lifted_unless_they_are_set(play) -> None:
    long = "x" * 3000
    _, _, free = play(f"{long}\n", DESK)
    assert (free.outcome, free.actions) == (Outcome.COMPLETED, [long])
    _, printed, cut = play("123\n", GAME, "inference.max_episode_tokens=2")
    assert cut.outcome is Outcome.TOKEN_LIMIT
    assert "Outcome: token_limit." in printed


def test_the_error_of_an_environment_is_shown_and_recorded(play) -> None:
    status, printed, episode = play("", GAME, "environment.highest=none")
    assert (status, episode.outcome) == (1, Outcome.ENVIRONMENT_FAILED)
    assert "GuessNumber.reset raised ValueError" in printed
    run = read_run(Path(printed.rstrip().rpartition("\nSaved in ")[2]))
    assert run.state is RunState.FAILED
    assert "GuessNumber.reset raised ValueError" in run.error


TASKS = """
from openai import OpenAI

class Question:
    def __init__(self, config):
        self.prefix = config.prefix

    def reset(self, task):
        self.task = task
        return self.prefix + task["question"]

    def step(self, action):
        return "", float(action == self.task["answer"]), True, {}


def solve(task, model):
    with OpenAI(base_url=model.url, api_key=model.key) as client:
        message = {"role": "user", "content": task["question"]}
        reply = client.chat.completions.create(model="m", messages=[message])
    return float(reply.choices[0].message.content == task["answer"])
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A file with a task environment and an agent; `rows.jsonl` and `c.yaml` are beside it."""
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n{"question": "1 + 2", "answer": "3"}\n')
    (tmp_path / "c.yaml").write_text(
        "inference: {max_tokens: 1}\nmodel: {model_name: tiny}\nenvironment: {prefix: '= '}\n"
    )
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


def test_a_row_of_data_is_played_with_the_settings_of_a_file(play, tasks: Path) -> None:
    data = ["--data", str(tasks / "rows.jsonl"), "--row", "1"]
    status, printed, episode = play("3\n", f"{tasks}/tasks.py:Question", *data, "--config", str(tasks / "c.yaml"))
    assert (status, episode.outcome, episode.total_reward) == (0, Outcome.COMPLETED, 1.0)
    assert "--- user ---\n= 1 + 2\nyou> 3\n" in printed  # one token of the file's would have cut the turn


def test_an_agent_and_questions_are_played_with_a_person_as_the_model(play, tasks: Path) -> None:
    data = ["--data", str(tasks / "rows.jsonl")]
    for words in ([f"{tasks}/tasks.py:solve"], ["--reward", "exact"]):
        status, printed, episode = play("2\n", *words, *data)
        assert (status, episode.outcome, episode.total_reward) == (0, Outcome.COMPLETED, 1.0)
        assert "--- user ---\n1 + 1\nyou> 2\n" in printed


def test_tools_that_the_template_itself_offers_are_shown(tiny_folder: str) -> None:
    from transformers import AutoTokenizer

    chat = RecordingChat(Chat(AutoTokenizer.from_pretrained(tiny_folder)))
    chat.open([{"role": "user", "content": "Hi"}], [{"type": "function", "function": {"name": "refund"}}])
    shown = HumanEngine(chat, out=io.StringIO())._describe_new()
    assert shown.startswith("--- tool offered ---\n{")
    assert shown.endswith("--- user ---\nHi")
    chat.bridge([{"role": "tool", "name": "refund", "content": "done"}], closed=True)
    assert HumanEngine(chat, out=io.StringIO())._describe_new() == "--- tool (refund) ---\ndone"


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "turnsmith.env.examples:Nothing"]) == 2
    assert main(["play", GAME, "inference.max_tunrs=3"]) == 2
    assert "Did you mean inference.max_turns?" in capsys.readouterr().err


def test_a_row_that_is_not_there_is_refused(tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", f"{tasks}/tasks.py:Question", "--data", str(tasks / "rows.jsonl"), "--row", "2"]) == 2
    assert "There is no row 2" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["play", GAME, "--row", "2"])
    assert "--row is for --data FILE" in capsys.readouterr().err

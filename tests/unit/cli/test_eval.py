"""`turnsmith eval`: what it prints, records and refuses, and that Ctrl-C keeps the episodes that have ended."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from turnsmith import Chat, Generation, Outcome, RunFolder, ScriptedEngine, Trajectory, read_episodes
from turnsmith.cli import engine as engines
from turnsmith.cli.eval import evaluation_config, evaluation_plan
from turnsmith.cli.eval_view import EvaluationView, summary_table
from turnsmith.cli.main import build_parsers, main
from turnsmith.config import ConfigStore
from turnsmith.inference.sync import create
from turnsmith.inference.sync.base import BaseInferenceEngine
from turnsmith.records.run_state import RunState
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan
from turnsmith.rollout.evaluation.result import EvaluationResult
from turnsmith.viewer.run_view import read_run

GAME = "turnsmith.env.examples.guess_number:GuessNumber"


@pytest.fixture
def script(tiny_folder: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that replaces the model with a scripted engine."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    chat = Chat(tokenizer)

    def use_replies(replies: Any) -> None:
        engine = BaseInferenceEngine(ScriptedEngine(replies, chat), tokenizer)
        monkeypatch.setattr(engines, "open_engine", lambda *_: engine)

    return use_replies


def arguments(*words: str) -> Any:
    return build_parsers()["turnsmith"].parse_args(["eval", GAME, *words])


def evaluation(tmp_path: Path, *words: str) -> int:
    return main(["eval", GAME, "--model", "tiny", "--output-dir", str(tmp_path), *words])


def test_a_real_model_is_evaluated_and_every_episode_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--episodes", "4", "--samples", "2", "--name", "mine", "inference.max_tokens=4", "inference.max_turns=2"]
    assert evaluation(tmp_path, *words) == 0
    printed = capsys.readouterr().out
    for part in (
        "GuessNumber · tiny · transformers · 4 episodes (2 starts, 2 each)",
        "95 % interval",
        "pass@2",
        "outcomes",
    ):
        assert part in printed
    assert printed.rstrip().endswith(f"in {tmp_path / 'mine'}")
    assert max(map(len, printed.splitlines())) <= 120
    run = RunFolder.open(tmp_path / "mine")
    (record,) = run.read_metrics()
    episodes = read_episodes(run)
    assert record["episodes/total"] == len(episodes) == 4
    assert [episode.seed for episode in episodes] == [1_000_000, 1_000_000, 1_000_001, 1_000_001]
    assert all(episode.turns and any(episode.tokens.log_probs) for episode in episodes)
    assert [event["kind"] for event in run.read_events()] == ["evaluation", "finished"]
    assert "max_turns: 2" in (run.path / "config.yaml").read_text()


def test_a_comparison_is_shown_and_recorded(script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script(["1"] * 10)
    assert evaluation(tmp_path, "--name", "old", "--episodes", "12", "--seed", "0") == 0
    script([str(guess) for guess in range(1, 11)])
    old = str(tmp_path / "old")
    assert evaluation(tmp_path, "--name", "new", "--episodes", "12", "--seed", "0", "--compare", old) == 0
    printed = capsys.readouterr().out
    assert "on 12 starts, against old" in printed
    (record,) = RunFolder.open(tmp_path / "new").read_metrics()
    assert record["compare/run"] == old
    assert record["compare/reward"] > 0
    assert record["compare/reward/p"] == 0.0078125
    assert "p = 0.0078" in printed
    assert main(["eval", GAME, "--model", "tiny", "--seed", "5", "--episodes", "12", "--compare", old]) == 2
    assert "it lacks 5 of the 12 starts of this one, the first being seed-12" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


def test_ctrl_c_records_and_summarizes_the_episodes_that_have_ended(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played = 0

    async def reply(turn: int, prompt: str) -> str:
        nonlocal played
        played += 1
        if played == 4:
            os.kill(os.getpid(), signal.SIGINT)
        if played >= 4:
            await asyncio.sleep(60)
        return "no number"

    script(reply)
    words = ["--concurrency", "1", "--episodes", "9", "inference.max_turns=1", "--name", "cut"]
    assert evaluation(tmp_path, *words) == 130
    assert "Stopped after 3 of 9 episodes." in capsys.readouterr().out
    run = RunFolder.open(tmp_path / "cut")
    assert len(read_episodes(run)) == run.read_metrics()[0]["episodes/total"] == 3
    assert run.read_events()[-1]["kind"] == "stopped"


def test_failed_episodes_are_not_counted_and_their_error_is_shown(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (2, 8):  # of eight, the others are not tried once it is certain
        script(lambda turn, prompt: RuntimeError("out of memory"))
        words = ["--concurrency", "2", "--episodes", str(number), "--name", str(number)]
        assert evaluation(tmp_path, *words) == 1
        shown = capsys.readouterr()
        assert "ScriptedEngine.generate raised RuntimeError: out of memory" in shown.out + shown.err
        assert "episodes  all have failed" in shown.out
        assert "nan" not in shown.out
        run = read_run(tmp_path / str(number))
        assert run.state is RunState.FAILED
        assert "ScriptedEngine.generate raised RuntimeError: out of memory" in run.error
    script(lambda turn, prompt: "x" if turn == 0 else RuntimeError("late"))
    assert evaluation(tmp_path, "--episodes", "2", "environment.max_steps=1") == 0
    assert "first error" not in capsys.readouterr().out


def test_notes_say_what_makes_the_numbers_doubtful(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script([Generation([5], [0.0], exact=False)])
    words = ["--episodes", "2", "--samples", "2", "inference.max_turns=1", "inference.temperature=0"]
    assert evaluation(tmp_path, *words) == 0
    printed = capsys.readouterr().out
    assert "tokens are counted with our own tokenizer" in printed
    assert "The sampling temperature is 0" in printed


def test_an_environment_that_raises_fails_its_episodes(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script(["1"])
    assert evaluation(tmp_path, "--episodes", "2", "environment.highest=none") == 1
    assert "GuessNumber.reset raised ValueError" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_told_before_the_model_is_loaded(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert evaluation(tmp_path / "file" / "runs") == 2
    printed = capsys.readouterr()
    assert "Cannot create a run folder in" in printed.err
    assert "loading the model" not in printed.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--compare", "nowhere"], "There is no run nowhere: found no run.json in nowhere or runs/nowhere."),
        (["--episodes", "10", "--samples", "4"], "it must be a multiple of samples, which is 4: try 12"),
        (["--backend", "torch"], "There is no backend 'torch'"),
        (["--tokenizer", "smollm2"], "only apply to a server: pass its URL as --model"),
        (["inference.max_tool_calls=0"], "inference.max_tool_calls=0 must be at least 1"),
        (["inference.max_turn=3"], "Did you mean inference.max_turns?"),
    ],
)
def test_mistakes_are_reported_before_anything_is_created(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["eval", GAME, "--model", "tiny", *words]) == 2
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_options_and_settings_make_the_plan(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("inference: {temperature: 0.5, max_turns: 3}\ncheckpoint: {run_name: trained}\n")
    args = arguments("inference.max_turns=4", "--config", str(tmp_path / "c.yaml"), "--samples", "8")
    config = evaluation_config(args, args.overrides)
    plan = evaluation_plan(args, config)
    assert (plan.episodes, plan.samples, plan.seed) == (104, 8, 1_000_000)
    assert (plan.limits.turns, plan.sampling.temperature, plan.sampling.seed) == (4, 0.5, 1_000_000)
    assert config.checkpoint.run_name is None  # or every evaluation would take the training run's name
    named = evaluation_config(arguments("--name", "n", "--output-dir", "o", "--backend", "vllm"), [])
    assert (named.checkpoint.run_name, named.checkpoint.output_dir, named.inference.backend) == ("n", "o", "vllm")


def test_a_url_is_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr("turnsmith.inference.sync.create.create_inference_engine", lambda *given: made.append(given))
    config = ConfigStore()
    config.model.model_name = "http://127.0.0.1:8000"
    engines.open_engine(config, "smollm2", "a-model")
    url, backend, settings = made[0]
    assert (url, backend) == ("http://127.0.0.1:8000", "openai")
    assert (settings["tokenizer"], settings["model"]) == ("smollm2", "a-model")
    assert "dtype" not in settings


@pytest.mark.parametrize("backend", ["transformers", "vllm", "sglang", "openai"])
def test_every_backend_has_the_settings_it_is_given(backend: str) -> None:
    assert set(create.engine_settings(ConfigStore(), backend)) <= set(create._settings_of(backend))


def trajectories(number: int) -> list[Trajectory]:
    return [
        Trajectory(
            states=["go"],
            actions=["a"],
            rewards=[float(place % 3 == 0)],
            dones=[True],
            infos=[{"tool_calls": [{"name": "f", "ok": place % 2 == 0}]}],
            outcome=Outcome.COMPLETED,
            group_id=f"seed-{place // 4}",
            episode_id=f"seed-{place // 4}-{place % 4}",
        )
        for place in range(number)
    ]


def drawn(*things: Any, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        for thing in things:
            console.print(thing)
    return capture.get()


def test_the_live_table_shows_what_is_known_so_far() -> None:
    view = EvaluationView(
        EvaluationPlan(episodes=16, samples=4, seed=0, concurrency=4), "a game", file=io.StringIO(), live=False
    )
    assert "0/16 episodes" in drawn(view.render(100))
    assert "nan" not in drawn(view.render(100))
    for trajectory in trajectories(8):
        view.add(trajectory)
    text = drawn(view.render(100))
    for part in (
        "8/16 episodes",
        "━",
        "50%",
        "left, 4 running",
        "0.375",
        "reward above 0",
        "pass@4",
        "8 in all, 4 with an error",
    ):
        assert part in text


@pytest.mark.parametrize("width", [20, 40, 60, 100])
def test_the_table_fits_any_width(width: int) -> None:
    result = EvaluationResult(trajectories(8))
    text = drawn(summary_table(result, result.compare(result), "runs/earlier"), width=width)
    assert max(map(len, text.splitlines())) <= width


class Terminal(io.StringIO):
    """A text stream that claims to be a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_live_table_and_gets_its_cursor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    file = Terminal()
    plan = EvaluationPlan(episodes=8, samples=4, seed=0)
    with EvaluationView(plan, "a game", file=file) as view:
        view.show_loading()
        view.start()
        for trajectory in trajectories(8):
            view.add(trajectory)
        view.finish(plan.result(view.finished, 1.0), folder="runs/x")
    text = file.getvalue()
    assert text.index("\x1b[?25l") < text.index("\x1b[?25h")
    assert text.endswith("in runs/x\n")


def test_a_closed_pipe_does_not_stop_an_evaluation() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    plan = EvaluationPlan(episodes=8, samples=4, seed=0)
    with EvaluationView(plan, "a game", file=Gone()) as view:
        view.show_loading()
        view.start()
        for trajectory in trajectories(8):
            view.add(trajectory)
        view.finish(view.result(), folder="x")

"""`turnsmith serve` as a process, and what it refuses before it loads a model."""

from __future__ import annotations

import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anthropic
import httpx
import openai
import pytest
from tests.unit.cli.checkpoints import save_models

from turnsmith import RunFolder
from turnsmith.cli.main import build_parsers, main
from turnsmith.cli.serve import _api_key, serving_config
from turnsmith.config import ConfigStore
from turnsmith.config_sources import to_dict
from turnsmith.records.checkpoints import mark_best
from turnsmith.records.episodes import read_episodes

KEY = "a key of at least 16 characters"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.delenv("TURNSMITH_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)


@contextmanager
def serving(*words: str, before: tuple[str, ...] = ()) -> Iterator[tuple[Any, str, str]]:
    """A process that serves `tiny`, its URL, and the key that it printed."""
    command = [sys.executable, "-m", "turnsmith", "serve", "tiny", "--port", "0", "--backend", "transformers", *words]
    with subprocess.Popen([*before, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            found = re.search(r"OPENAI_BASE_URL=(\S+) OPENAI_API_KEY=(\S+)", lines[1])
            assert found is not None
            yield process, found[1], found[2]
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.nightly  # seconds of real processes
def test_what_was_said_is_recorded_when_the_server_is_ended():
    words = ("--record", "--name", "mine", "inference.max_tokens=12")
    with serving(*words) as (process, url, key):
        messages: list[Any] = []
        used = 0
        with openai.OpenAI(base_url=url, api_key=key) as client:
            for text in ("Hi", "And?", "So?"):
                messages.append({"role": "user", "content": text})
                reply = client.chat.completions.create(model="m", messages=messages)
                messages.append({"role": "assistant", "content": reply.choices[0].message.content or ""})
                assert reply.usage is not None
                used = reply.usage.total_tokens
        with anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key=key) as claude:
            tool: Any = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
            asked: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Look"}]}
            with claude.messages.stream(**asked, tools=[tool]) as stream:
                answer = stream.get_final_message()
            plain = claude.messages.create(**asked)
        assert httpx.post(f"{url}/chat/completions", headers={"Authorization": "Bearer no"}).status_code == 401
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=60)
    assert (process.returncode, out.splitlines()[-1]) == (0, "Stopped.")
    assert "Traceback" not in error
    chatted, looked, _ = read_episodes("runs/mine")
    assert chatted.messages == messages
    assert len(chatted.tokens) == used
    assert [info["continuation"] for info in chatted.infos] == ["opened", "bridged", "bridged"]
    assert len(looked.tokens) == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.usage.input_tokens > plain.usage.input_tokens  # the tools are in the prompt


@pytest.mark.nightly
def test_ctrl_c_ends_it_and_the_viewers_read_the_recording(capsys: pytest.CaptureFixture[str]):
    with serving("--record", "--name", "mine", "--key", KEY, "inference.max_tokens=4") as (process, url, key):
        assert key == "KEY"  # a key that was given is not printed
        for text in ("Hi", "Ho"):
            body = {"messages": [{"role": "user", "content": text}]}
            response = httpx.post(f"{url}/chat/completions", headers={"X-Api-Key": KEY}, json=body, timeout=60)
            assert response.status_code == 200
        assert main(["runs", "show", "mine"]) == 0
        assert "mine: running" in capsys.readouterr().out
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert main(["runs", "show", "mine"]) == 0
    shown = capsys.readouterr().out
    assert "mine: finished\nconversations · tiny\n" in shown
    assert "2: 2 completed" in shown
    assert main(["runs", "verify", "mine"]) == 0
    assert "2 ended, each once" in capsys.readouterr().out
    assert main(["runs", "report", "mine"]) == 0
    assert "conversation-1" in Path("runs/mine/report.html").read_text()


@pytest.mark.nightly  # a minute of real processes
def test_two_thousand_strangers_do_not_delay_those_with_the_key(capsys: pytest.CaptureFixture[str]):
    as_in_a_login_shell = ("sh", "-c", 'ulimit -n 1024 && exec "$0" "$@"')
    with serving("--key", KEY, "inference.max_tokens=16", before=as_in_a_login_shell) as (process, url, _):

        def median_seconds() -> float:
            taken: list[float] = []
            for _ in range(30):
                began = time.perf_counter()
                asked = {"messages": [{"role": "user", "content": "Hi"}]}
                answer = httpx.post(f"{url}/chat/completions", headers={"X-Api-Key": KEY}, json=asked, timeout=30)
                assert answer.status_code == 200
                taken.append(time.perf_counter() - began)
            return statistics.median(taken)

        median_seconds()
        alone = median_seconds()
        attack = [sys.executable, str(Path(__file__).with_name("strangers.py")), str(urlsplit(url).port), "2000"]
        with subprocess.Popen(attack) as strangers:
            try:
                time.sleep(5)
                beside = [median_seconds()]
                descriptors = len(list(Path(f"/proc/{process.pid}/fd").iterdir())) if sys.platform == "linux" else 0
                time.sleep(15)  # those that came first have been closed, and are back
                beside.append(median_seconds())
            finally:
                strangers.kill()
        time.sleep(1)
        alone = max(alone, median_seconds())  # other tests may have begun or ended meanwhile
    with capsys.disabled():
        ms = [f"{1000 * seconds:.0f} ms" for seconds in (alone, *beside)]
        print(
            f"\na request alone: {ms[0]}; beside 2,000 strangers: {ms[1]}, {ms[2]}; {descriptors} of 1,024 files open"
        )
    assert max(beside) <= 3 * alone
    assert descriptors < 512


def test_other_machines_need_a_key_that_was_given(capsys: pytest.CaptureFixture[str]):
    assert main(["serve", "tiny", "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "Other machines can reach 0.0.0.0, so clients must know an API key: set TURN" in capsys.readouterr().err


def test_a_key_that_can_be_guessed_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TURNSMITH_API_KEY", "short")
    assert main(["serve", "tiny", "--port", "0"]) == 2
    assert "The API key has 5 characters; it needs at least 16." in capsys.readouterr().err


ENVIRONMENT = ("--environment", "turnsmith.env.examples:GuessNumber", "--port", "0")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["tiny", "--step", "best"], "--step chooses a checkpoint of a run, and tiny is none"),
        (["tiny", "--idle-seconds", "0"], "it must be more than 0"),
        (["tiny", "--host", "203.0.113.1"], "Cannot listen on 203.0.113.1:8000"),
        (["latest"], "There is no latest run"),
        ([*ENVIRONMENT, "--host", "0.0.0.0"], "so clients must know a token: pass --token-file FILE"),
        ([*ENVIRONMENT, "--sessions", "0"], "it must be at least 1"),
        ([*ENVIRONMENT, "environment.highest=4", "inference.top_k=3"], "inference.top_k=3 has no use here"),
    ],
)
def test_mistakes_are_told_at_once(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]):
    assert main(["serve", *words]) == 2
    assert problem in capsys.readouterr().err


def make_run(*, signed: bool, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with two checkpoints, the first of which is the best."""
    run = RunFolder.create("runs", "mine")
    config = ConfigStore()
    config.inference.tool_format, config.inference.temperature = "native", 0.5
    run.write_config(to_dict(config))
    save_models(run, 1, 2)
    mark_best(run.checkpoints_dir, 1, 0.5)
    if not signed:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(Path("another user").absolute()))
    return run.path


def parsed(*words: str) -> Namespace:
    return build_parsers()["turnsmith"].parse_args(["serve", *words])


def test_a_run_is_served_with_the_settings_that_it_was_trained_with(monkeypatch: pytest.MonkeyPatch):
    run = make_run(signed=True, monkeypatch=monkeypatch)
    config = serving_config(parsed("mine", "--step", "best"), run)
    assert config.model.local_path == str(run / "checkpoints" / "global_step_1" / "actor" / "huggingface")
    assert (config.inference.tool_format, config.inference.temperature) == ("native", 0.5)
    config = serving_config(parsed("mine", "inference.temperature=0.25"), run)
    assert config.model.local_path == str(run / "checkpoints" / "global_step_2" / "actor" / "huggingface")
    assert config.inference.temperature == 0.25


def test_the_settings_of_a_run_of_somebody_else_are_not_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run = make_run(signed=False, monkeypatch=monkeypatch)
    config = serving_config(parsed("mine"), run)
    assert config.inference.temperature == ConfigStore().inference.temperature != 0.5
    assert "is not a run of yours, so its settings are not used" in capsys.readouterr().err


def test_a_key_is_made_of_24_random_bytes_unless_one_is_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        (key, is_new), (other, _) = _api_key("", listener), _api_key("", listener)
        assert (len(key), is_new) == (32, True)
        assert key != other
        assert _api_key(KEY, listener) == (KEY, False)

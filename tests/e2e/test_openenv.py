"""Environments behind a real OpenEnv server, which runs in an environment of its own."""

from __future__ import annotations

import json
import random
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.e2e.packages import make_environment
from tests.e2e.trained_on import assert_two_steps_train
from turnsmith import (
    EnvironmentConfig,
    EnvironmentSpec,
    Outcome,
    ScriptedEngine,
    Trajectory,
)
from turnsmith.inference import Chat
from turnsmith.inference.models import resolve
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan, evaluate
from turnsmith.rollout.failure_policy import FailurePolicy

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
SERVER = Path(__file__).with_name("openenv_server.py")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("openenv") / "venv", ("openenv==0.10.0",))


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(AutoTokenizer.from_pretrained(resolve("tiny")))


@contextmanager
def server(python: Path, kind: str, sessions: int) -> Generator[tuple[str, subprocess.Popen[bytes]]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([str(python), str(SERVER), str(port), kind, str(sessions)]) as process:
        try:
            deadline = time.monotonic() + 120
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                        break
                except OSError:
                    assert process.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.2)
            yield f"openenv://127.0.0.1:{port}", process
        finally:
            process.kill()


def play(url: str, chat: Chat, policy: Any, episodes: int = 8, **settings: Any) -> list[Trajectory]:
    spec = EnvironmentSpec.of(url, EnvironmentConfig(**{"max_steps": 3, **settings}))
    plan = EvaluationPlan(episodes=episodes, concurrency=8, failures=FailurePolicy())
    return evaluate(spec, ScriptedEngine(policy, chat), chat, plan).trajectories


def oracle(turn: int, prompt: str) -> str:
    [number] = re.findall(r"not far from (\d+)", prompt)
    return number


def guess(turn: int, prompt: str) -> str:
    return str(random.Random(prompt + str(turn)).randint(1, 8))


def test_eight_episodes_wait_for_two_sessions_and_none_is_lost(python: Path, chat: Chat) -> None:
    with server(python, "text", 2) as (url, _):
        right = play(url, chat, oracle)
        assert [episode.total_reward for episode in right] == [1.0] * 8
        assert {episode.outcome for episode in right} == {Outcome.COMPLETED}
        assert len({episode.states[0] for episode in right}) > 2, "the server gets the seed"
        guessed = play(url, chat, guess, 32)
        assert 0.05 < sum(episode.total_reward for episode in guessed) / 32 < 0.95
        [other] = play(url, chat, oracle, 1, low=100)
        assert "from 100 to 107" in other.states[0], "settings of one's own are arguments of reset"


def test_an_action_with_several_fields_is_json(python: Path, chat: Chat) -> None:
    def bet(turn: int, prompt: str) -> str:
        return ["red", '["red"]', '{"number": 3}', f'{{"number": {oracle(0, prompt)}, "colour": "red"}}'][turn]

    with server(python, "json", 8) as (url, _):
        [episode] = play(url, chat, bet, 1, max_steps=4)
    assert '"colour"' in episode.messages[0]["content"], "the schema is in the system prompt"
    assert [info.get("invalid_action") for info in episode.infos] == [True, True, True, None]
    assert "The action is not valid: colour: Field required." in str(episode.messages)
    assert (episode.rewards, episode.outcome) == ([0.0, 0.0, 0.0, 1.0], Outcome.COMPLETED)


def test_a_fault_of_the_server_is_a_fault_and_never_a_reward(python: Path, chat: Chat) -> None:
    with server(python, "text", 8) as (url, process):
        [broken] = play(url, chat, lambda turn, prompt: "break", 1)
        assert broken.outcome is Outcome.ENVIRONMENT_FAILED
        assert "EXECUTION_ERROR: the simulator is gone" in str(broken.error)

        def kill(turn: int, prompt: str) -> str:
            process.kill()
            return "1"

        [lost] = play(url, chat, kill, 1)
        assert lost.outcome is Outcome.ENVIRONMENT_FAILED
        assert url.removeprefix("openenv://") in str(lost.error)


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def open_and_take(turn: int, prompt: str) -> str:
    return call(("unlock", "take")[turn], box=int(oracle(turn, prompt)))


def try_boxes(turn: int, prompt: str) -> str:
    draw = random.Random(f"{prompt}{turn}")
    return call(draw.choice(("unlock", "take")), box=draw.randint(1, 8))


@pytest.mark.parametrize("kind", ["tools", "own tools", "any action"])
def test_the_tools_of_a_server_are_called_as_tools(python: Path, chat: Chat, kind: str) -> None:
    with server(python, kind, 4) as (url, _):
        right = play(url, chat, open_and_take)
        assert [episode.rewards for episode in right] == [[0.25, 0.75]] * 8
        assert {episode.outcome for episode in right} == {Outcome.COMPLETED}
        assert len({episode.states[0] for episode in right}) > 2, "the task is in the metadata of the first observation"
        assert all(episode.infos[-1]["success"] for episode in right)
        tried = play(url, chat, try_boxes, 32)
        assert sum(episode.total_reward for episode in tried) / 32 < 0.5
        assert {episode.outcome for episode in tried} <= {Outcome.COMPLETED, Outcome.TRUNCATED}
    opening = right[0].messages[0]["content"]
    assert all(words in opening for words in ('"unlock"', "Unlock a box.", '"take"', '"box"', '"hand"')), opening
    assert [message["content"] for message in right[0].messages if message["role"] == "tool"] == [
        f"Box {oracle(0, right[0].states[0])} is open.",
        '{"taken":true,"hand":"left"}',
    ]


def test_mistakes_with_a_servers_tools_are_told_to_the_model_and_its_faults_are_not(python: Path, chat: Chat) -> None:
    turns = [call("take", box=3), call("take", box="three"), call("lift"), "I take it."]
    with server(python, "tools", 4) as (url, _):
        [told] = play(url, chat, lambda turn, prompt: turns[turn], 1, max_steps=2)
        assert told.outcome is Outcome.TRUNCATED, "a call that was refused before the step does not count"
        [broken] = play(url, chat, lambda turn, prompt: call("unlock", box=0), 1)
    answers = [message["content"] for message in told.messages if message["role"] in ("tool", "user")][1:]
    assert answers == [
        "Error calling tool 'take': box 3 is locked",
        "The argument box must be of type integer, not 'three'.",
        "There is no tool lift. The tools are take, unlock.",
        "Call one of the tools: unlock, take.",
    ]
    assert broken.outcome is Outcome.ENVIRONMENT_FAILED
    assert "EXECUTION_ERROR: the simulator is gone" in str(broken.error)


def test_tools_of_a_server_work_in_a_worker_process_too(python: Path, chat: Chat) -> None:
    with server(python, "tools", 4) as (url, _):
        [right] = play(url, chat, open_and_take, 1, isolation="process")
        [broken] = play(url, chat, lambda turn, prompt: call("unlock", box=0), 1, isolation="process")
    assert right.rewards == [0.25, 0.75]
    assert "EXECUTION_ERROR: the simulator is gone" in str(broken.error)


PLAY = """
import json, sys
from openenv.core.generic_client import GenericEnvClient

url, token = sys.argv[1:]
with GenericEnvClient(base_url=url, headers={"Authorization": f"Bearer {token}"}).sync() as client:
    first = client.reset(seed=3, level=2)
    sold = client.step({"type": "call_tool", "tool_name": "sell", "arguments": {"pieces": 2}})
    last = client.step({"text": "shut"})
    print(json.dumps([first.observation, sold.observation, last.observation, last.reward, last.done, client.state()]))
"""


def test_openenvs_own_client_plays_what_turnsmith_serves(python: Path, tmp_path: Path) -> None:
    target, file = f"{Path(__file__).parents[1] / 'unit/gateway/till.py'}:Till", tmp_path / "token"
    command = [sys.executable, "-m", "turnsmith", "serve", "--environment", target, "--port", "0"]
    with subprocess.Popen([*command, "--token-file", str(file)], stdout=subprocess.PIPE, text=True) as served:
        try:
            assert served.stdout is not None
            url = served.stdout.readline().split()[-1].replace("openenv://", "http://")
            played = [str(python), "-c", PLAY, url, file.read_text().strip()]
            first, sold, *last = json.loads(subprocess.run(played, check=True, capture_output=True).stdout)
        finally:
            served.kill()
    assert (first, sold["result"]) == ({"text": "3 {'level': 2}"}, "2 sold")
    assert last == [{"text": "2 shut"}, 0.5, True, {"episode_id": None, "step_count": 1}]


def test_it_trains(python: Path, tmp_path: Path) -> None:
    with server(python, "length", 4) as (url, _):
        assert_two_steps_train(url, tmp_path, "inference.max_tokens=4")

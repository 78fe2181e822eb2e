"""The terminal agent of docs/recipes.md, with the real package: the model's shell reaches nothing but the model."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from transformers import AutoTokenizer

from tests.e2e.packages import make_environment
from tests.unit.gateway.test_server import Episode
from turnsmith import Chat, ScriptedEngine, Trajectory
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.gateway.server import serve_episode
from turnsmith.inference.engine import Sampling
from turnsmith.rollout import EpisodeStart, run_episode
from turnsmith.rollout.spec import Limits

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(900)]
PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
END = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe, its environment, and a file of the user's beside them."""
    made = tmp_path_factory.mktemp("recipe")
    for name, text in re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL):
        (made / name).write_text(text)
    (made / "diary.txt").write_text("Dear diary")
    make_environment(made / "swe", ("mini-swe-agent==2.4.6", "mcp"))  # litellm imports mcp without asking for it
    return made


async def play(folder: Path, chat: Chat, commands: list[str]) -> Trajectory:
    """An episode in which the model runs these commands, one a turn."""
    calls = [json.dumps({"name": "bash", "arguments": {"command": command}}) for command in commands]
    return await run_episode(
        EpisodeStart("episode-1", task={"question": "What is 2 + 2?", "answer": "4"}),
        environment=EnvironmentSpec.of(f"{folder / 'terminal_agent.py'}:solve"),
        engine=ScriptedEngine([f"<tool_call>{call}</tool_call>" for call in calls], chat),
        chat=chat,
        limits=Limits(turns=30, prompt_tokens=8192, tokens=16_384),
        sampling=Sampling(max_tokens=1000),
    )


@contextmanager
def listening(address: str) -> Iterator[int]:
    """A port of this machine that answers."""
    with socket.create_server((address, 0)) as listener:
        port = listener.getsockname()[1]
        socket.create_connection((address, port), timeout=5).close()
        yield port


def connect(address: str, port: int) -> str:
    return f"timeout 9 bash -c 'echo > /dev/tcp/{address}/{port}' 2>&1 && echo CONNECTED"


def post(path: str) -> str:
    """Ask what listens in the sandbox, and print the first line of its answer."""
    request = rf"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1"
    return f"timeout 9 bash -c 'exec 3<>/dev/tcp/127.0.0.1/8000; printf \"{request}\" >&3; head -1 <&3'"


@pytest.mark.parametrize(("answer", "reward"), [("4", 1.0), ("5", 0.0)])
async def test_it_finishes_its_task_and_is_paid(folder: Path, smollm2_folder: str, answer: str, reward: float) -> None:
    chat = Chat(AutoTokenizer.from_pretrained(smollm2_folder))
    commands = ["ls -A", f"echo {answer} > answer.txt", "cat answer.txt", END]
    trajectory = await play(folder, chat, commands)
    assert (trajectory.error, trajectory.outcome) == ("", "completed")
    assert [info["continuation"] for info in trajectory.infos] == ["opened", "bridged", "bridged", "bridged"]
    assert (trajectory.rewards, trajectory.branches) == ([0.0, 0.0, 0.0, reward], [])
    assert json.loads(trajectory.states[3])["output"] == f"{answer}\n"


async def test_nothing_else_can_be_reached(folder: Path, smollm2_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = Chat(AutoTokenizer.from_pretrained(smollm2_folder))
    monkeypatch.setenv("MY_TOKEN", "hush-hush")
    own = socket.gethostbyname(socket.gethostname())
    other = Episode()
    async with serve_episode(other) as (url, secret):
        with listening("127.0.0.1") as loopback, listening(own) as public:
            gateway = urlsplit(url).port or 0
            attempts = {
                connect("127.0.0.1", loopback): "Connection refused",
                connect("127.0.0.1", gateway): "Connection refused",
                connect(own, public): "unreachable" if not own.startswith("127.") else "Connection refused",
                post(f"/e/{secret}/v1/chat/completions"): "404",
                post("/v1/reward"): "404",
                f"cat {folder}/diary.txt": "No such file",
                f"ls {Path.home()}/.ssh {Path.home()}/.bashrc /etc/passwd /var /root/.profile": "cannot access '/var'",
                f"echo >> {sys.executable}; echo > /usr/planted; echo > /planted": "Read-only file system",
                "env; cat /proc/*/environ | tr '\\0' '\\n'": "OPENAI_API_KEY=none",
                f"ls -d /proc/1 /proc/{os.getpid()}": f"cannot access '/proc/{os.getpid()}'",
                "unshare -Ur true && echo ESCAPED; id -u": "65534",
            }
            trajectory = await play(folder, chat, [*attempts, "echo 4 > answer.txt", END])
    assert (trajectory.error, trajectory.total_reward) == ("", 1.0)
    for (command, expected), state in zip(attempts.items(), trajectory.states[1:], strict=False):
        seen = json.loads(state)["output"]
        assert expected in seen, f"{command}: {seen}"
        for leaked in ("CONNECTED", "ESCAPED", "HTTP/1.1 200", "Dear diary", "hush-hush", "TURNSMITH", "root:"):
            assert leaked not in seen, f"{command}: {seen}"
    assert (other.turns, other.rewards) == ([], [])

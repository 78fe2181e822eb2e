"""Agents with the vendors' own clients, on a scripted engine and on a real one: every token is kept as sampled."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import openai
import pytest
from tests.unit.rollout import agents
from tests.unit.rollout.recorded import Recorded, check_tokens
from transformers import AutoTokenizer

from turnsmith.config import EnvironmentConfig
from turnsmith.env.agent import ModelEndpoint
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import EngineFailure
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine, Sampling
from turnsmith.inference.engines.scripted_engine import ScriptedEngine
from turnsmith.inference.engines.transformers_engine import TransformersEngine
from turnsmith.rollout.episode import EpisodeStart, run_attempt
from turnsmith.rollout.episode_report import refusal_warning, report_of
from turnsmith.rollout.retry import play_episode
from turnsmith.rollout.spec import Limits, RolloutSpec
from turnsmith.trajectory import Trajectory

CALL = '<tool_call>{"name": "look", "arguments": {"at": "door"}}</tool_call>'
SDK_AGENTS = [agents.chat_agent, agents.responses_agent, agents.anthropic_agent]
each_agent = pytest.mark.parametrize("agent", SDK_AGENTS, ids=lambda agent: agent.__name__)


@pytest.fixture(scope="module")
def chat(tiny_folder: str) -> Chat:
    return Chat(AutoTokenizer.from_pretrained(tiny_folder))


def spec_of(agent: Any, *, config: EnvironmentConfig | None = None, **settings: Any) -> RolloutSpec:
    limits = settings.pop("limits", Limits(prompt_tokens=2048))
    return RolloutSpec(environment=EnvironmentSpec.of(agent, config), limits=limits, **settings)


async def play(agent: Any, engine: Engine, chat: Chat, task: Any = None, **settings: Any) -> Trajectory:
    start = EpisodeStart("episode-1", seed=3, task=task or {"question": "What do you see?"})
    return await run_attempt(start, spec_of(agent, **settings), engine, chat)


@each_agent
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_agent_with_tools_is_recorded(chat: Chat, agent: Any, stream: bool):
    engine = Recorded(
        ScriptedEngine([CALL, "Let me look again." + CALL, CALL + CALL, "I saw it."], chat, log_prob=-1.0)
    )
    trajectory = await play(agent, engine, chat, {"question": "What?", "stream": stream})
    assert (trajectory.error, trajectory.outcome) == ("", "completed")
    assert trajectory.rewards == [0.0, 0.0, 0.0, 4.0]
    assert trajectory.total_reward == 4.0
    assert trajectory.branches == []
    assert [info["continuation"] for info in trajectory.infos] == ["opened", "bridged", "bridged", "bridged"]
    assert trajectory.actions == [CALL, "Let me look again." + CALL, CALL + CALL, "I saw it."]
    check_tokens(trajectory, engine)


@each_agent
async def test_an_agent_on_a_real_engine_keeps_every_token(tiny: TransformersEngine, chat: Chat, agent: Any):
    engine = Recorded(tiny)
    trajectory = await play(agent, engine, chat, sampling=Sampling(max_tokens=16, seed=5))
    assert (trajectory.error, trajectory.outcome) == ("", "completed")
    assert trajectory.num_turns == agents.TURNS
    assert {info["continuation"] for info in trajectory.infos[1:]} == {"bridged"}
    check_tokens(trajectory, engine)
    # Random tokens are seldom those that the tokenizer would choose: re-tokenised, the record would differ.
    texts = [chat.text(call[1].token_ids) for call in engine.calls]
    assert any(
        chat.encode(text) != list(call[1].token_ids)[:-1] for text, call in zip(texts, engine.calls, strict=True)
    )


async def test_parallel_subagents_are_branches(tiny: TransformersEngine, chat: Chat):
    engine = Recorded(tiny)
    trajectory = await play(agents.parallel_agent, engine, chat, sampling=Sampling(max_tokens=8, seed=5))
    assert (trajectory.error, trajectory.outcome, trajectory.num_turns) == ("", "completed", 7)
    assert len(trajectory.branches) == 3
    check_tokens(trajectory, engine)


async def test_a_stop_text_is_for_models_that_are_served(chat: Chat):
    async def stopping(task: Any, model: Any) -> float:
        async with agents.openai.AsyncOpenAI(base_url=model.url, api_key=model.key) as client:
            messages: Any = [{"role": "user", "content": "Hi"}]
            await client.chat.completions.create(model="m", messages=messages, stop="END")
        return 1.0

    trajectory = await play(stopping, ScriptedEngine(["a"], chat), chat)
    assert trajectory.outcome == "environment_failed"
    assert "`stop` is not supported" in trajectory.error


async def test_rewards_belong_to_their_turns(chat: Chat):
    trajectory = await play(agents.rewarding_agent, ScriptedEngine(["a", "b", "c"], chat), chat)
    assert (trajectory.error, trajectory.rewards) == ("", [10.5, 1.5, 2.5])


async def test_rewards_that_add_up_to_more_than_training_can_hold_are_refused(chat: Chat):
    async def agent(task: Any, model: Any) -> float:
        await ask(model)
        for _ in range(2):
            await asyncio.to_thread(model.reward, task["reward"])
        return task["returned"]

    engine = ScriptedEngine(lambda turn, prompt: "a", chat)
    for reward, returned in ((1e308, 0.0), (6e14, 0.0), (5e14, 1e14)):
        task = {"reward": reward, "returned": returned}
        result = await play_episode(EpisodeStart("e", task=task), spec_of(agent), engine, chat)
        trajectory = result.trajectory
        assert (trajectory.outcome, trajectory.is_counted) == (
            "reward_failed" if returned else "environment_failed",
            False,
        )
        assert "must be a number from -1e+15 to 1e+15" in trajectory.error
        assert abs(trajectory.total_reward) < 1e15


class _Forgetful(http.server.BaseHTTPRequestHandler):
    """Takes a reward, and hangs up without an answer the first time."""

    keys: ClassVar[list[str | None]] = []

    def do_POST(self) -> None:
        self.keys.append(self.headers["Idempotency-Key"])
        if len(self.keys) != 1:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_a_reward_without_an_answer_is_sent_again_under_its_key():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Forgetful) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        model = ModelEndpoint(f"http://127.0.0.1:{server.server_port}", "key")
        model.reward(1.0)
        model.reward(1.0)
        server.shutdown()
    first, again, second = _Forgetful.keys
    assert first
    assert first == again != second


async def test_a_reward_function_scores_the_trajectory(chat: Chat):
    engine = ScriptedEngine(["a"], chat)
    trajectory = await play(agents.silent_agent, engine, chat, reward_fn=lambda trajectory: len(trajectory.actions))
    assert (trajectory.outcome, trajectory.score) == ("completed", 1.0)


async def test_an_agent_without_a_reward_is_told_what_to_do(chat: Chat):
    trajectory = await play(agents.silent_agent, ScriptedEngine(["a"], chat), chat)
    assert trajectory.outcome == "environment_failed"
    assert "silent_agent gave no reward: return a number" in trajectory.error


async def ask(model: Any, **settings: Any) -> None:
    async with openai.AsyncOpenAI(base_url=model.url, api_key=model.key) as client:
        messages: Any = [{"role": "user", "content": "Hi"}]
        await client.chat.completions.create(model="m", messages=messages, **settings)


async def test_what_is_refused_is_recorded_though_the_agent_catches_it(chat: Chat):
    async def agent(task: Any, model: Any) -> float:
        for settings in [{"n": 2}] * task["refused"] + [{}] * task["asked"]:
            with contextlib.suppress(openai.BadRequestError):
                await ask(model, **settings)
        return 0.0

    engine = ScriptedEngine(lambda turn, prompt: "a", chat)
    trajectory = await play(agent, engine, chat, {"refused": 2, "asked": 1})
    ((sentence, count),) = trajectory.infos[-1]["refused"].items()
    assert (trajectory.outcome, count, sentence[:20]) == ("completed", 2, "`n` is not supported")
    report = report_of([trajectory, trajectory])
    assert report.metrics()["agent/refused"] == 4
    warning = refusal_warning(report, 3)
    assert warning is not None
    assert warning.what.startswith("4 requests of the agent got an error instead of a turn; most often: `n` is not")
    assert warning.episodes == ("episode-1",)
    trajectory = await play(agent, engine, chat, {"refused": 2, "asked": 0})
    assert trajectory.outcome == "environment_failed"
    assert trajectory.error.startswith(
        "The agent got no turn of the model, because its requests were refused: `n` is not"
    )


@pytest.mark.parametrize("reward_fn", [None, lambda trajectory: 1.0])
async def test_an_agent_that_never_called_the_model_is_no_success(chat: Chat, reward_fn: Any):
    engine = ScriptedEngine(["a"], chat)
    trajectory = await play(lambda task, model: 1.0, engine, chat, reward_fn=reward_fn)
    assert (trajectory.outcome, trajectory.is_counted) == ("environment_failed", False)
    assert trajectory.error.startswith("The agent ended without a turn of the model: it must ask for one")


async def test_an_agent_that_raises_is_a_fault_with_its_line(chat: Chat):
    trajectory = await play(agents.failing_agent, ScriptedEngine(["a"], chat), chat)
    assert trajectory.outcome == "environment_failed"
    assert "KeyError: 'sword'" in trajectory.error
    assert "agents.py line" in trajectory.error


async def test_a_fault_is_retried_with_the_same_tokens(chat: Chat):
    engine = Recorded(ScriptedEngine(lambda turn, prompt: f"turn {turn}", chat))
    result = await play_episode(EpisodeStart("e"), spec_of(agents.failing_agent), engine, chat)
    assert [attempt.actions for attempt in (*result.given_up, result.trajectory)] == [["turn 0"]] * 3
    assert len(engine.calls) == 1


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [
        (Limits(turns=3), "turn_limit"),
        (Limits(tokens=250), "token_limit"),
        (Limits(tool_calls=2), "tool_call_limit"),
    ],
    ids=["turns", "tokens", "tool calls"],
)
@each_agent
async def test_at_a_limit_the_agent_is_told_and_the_episode_ends_so(
    chat: Chat, agent: Any, limits: Limits, outcome: str
):

    engine = Recorded(ScriptedEngine([CALL] * 9, chat))
    trajectory = await play(agent, engine, chat, limits=replace(limits, prompt_tokens=2048))
    assert (trajectory.outcome, trajectory.error) == (outcome, "")
    assert 0 < trajectory.num_turns <= 3
    check_tokens(trajectory, engine)


async def test_an_opening_that_does_not_fit_is_a_fault(chat: Chat):
    trajectory = await play(agents.chat_agent, ScriptedEngine(["a"], chat), chat, limits=Limits(prompt_tokens=20))
    assert trajectory.outcome == "environment_failed"
    assert "inference.max_prompt_tokens allows more" in trajectory.error


async def test_a_failing_engine_is_not_the_agents_fault(chat: Chat):
    trajectory = await play(agents.silent_agent, ScriptedEngine([EngineFailure("gone")], chat), chat)
    assert trajectory.outcome == "engine_failed"
    assert "gone" in trajectory.error


async def test_an_agent_that_asks_for_ever_ends_at_the_time_limit(chat: Chat):
    limits = Limits(turns=10**6, seconds=3.0)
    trajectory = await play(agents.endless_agent, ScriptedEngine(lambda turn, prompt: "a", chat), chat, limits=limits)
    assert trajectory.outcome == "time_limit"
    assert len(trajectory.branches) + 1 == trajectory.num_turns > 2


async def test_an_agent_that_hangs_is_a_fault(chat: Chat):
    began = time.perf_counter()
    trajectory = await play(agents.sleeping_agent, ScriptedEngine(["a"], chat), chat, limits=Limits(seconds=0.5))
    assert trajectory.outcome == "environment_timeout"
    assert "neither ended nor asked for a turn" in trajectory.error
    assert time.perf_counter() - began < 10


async def test_an_agent_that_hangs_after_its_first_turn_is_a_fault_too(chat: Chat):
    trajectory = await play(agents.stalling_agent, ScriptedEngine(["a"], chat), chat, limits=Limits(seconds=2.0))
    assert (trajectory.outcome, trajectory.num_turns) == ("environment_timeout", 1)
    assert "neither ended nor asked for a turn within" in trajectory.error
    assert 0 < trajectory.turns[0].generate_seconds < trajectory.seconds


async def test_agents_run_in_worker_processes_too(chat: Chat):
    config = EnvironmentConfig(isolation="process", isolation_workers=1)
    engine = Recorded(ScriptedEngine([CALL, CALL, CALL, "I saw it."], chat))
    trajectory = await play(agents.chat_agent, engine, chat, config=config)
    assert (trajectory.error, trajectory.outcome, trajectory.total_reward) == ("", "completed", 3.0)
    check_tokens(trajectory, engine)
    crashed = await play(agents.crashing_agent, ScriptedEngine(["a"], chat), chat, config=config)
    assert crashed.outcome == "worker_lost"


PROGRAM = """
import json, os, urllib.request
from openai import OpenAI
task = json.loads(os.environ["TURNSMITH_TASK"])
if task.get("fails"):
    raise SystemExit("no such file")
reply = OpenAI().chat.completions.create(model="m", messages=[{"role": "user", "content": task["question"]}])
reward = str(float(len(reply.choices[0].message.content))).encode()
urllib.request.urlopen(os.environ["TURNSMITH_REWARD_URL"], reward)
"""


async def test_a_program_is_an_agent(chat: Chat, tmp_path: Path):
    program = tmp_path / "my_agent.py"
    program.write_text(PROGRAM)
    config = EnvironmentConfig(command=f"{sys.executable} {program}")
    agent = "turnsmith.env.agent:CommandAgent"
    trajectory = await play(agent, ScriptedEngine(["seven"], chat), chat, config=config)
    assert (trajectory.error, trajectory.outcome, trajectory.rewards) == ("", "completed", [5.0])
    failed = await play(agent, ScriptedEngine(["seven"], chat), chat, {"fails": True}, config=config)
    assert failed.outcome == "environment_failed"
    assert failed.error == "The program ended with exit status 1: no such file"
    assert "CommandAgent" not in failed.error


UNAWARE = """
import json, os, sys, urllib.request
body = {"model": "m", "messages": [{"role": "user", "content": "1 + 1?"}]}
url, headers = os.environ["OPENAI_BASE_URL"], {"Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(), headers)).read()
print("." * 10**6 if sys.argv[1:] else "", *sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("command", "said", "reward"),
    [
        ("", "2", 1.0),
        ("", "3", 0.0),
        ("Answer: {wanted}", "3", 1.0),
        ("{{wanted}}", "2", 0.0),
        ("no {wanted}", "2", 0.0),
    ],
)
async def test_a_program_is_scored_by_what_it_prints_or_else_by_the_last_message(
    chat: Chat, tmp_path: Path, command: str, said: str, reward: float
):
    program = tmp_path / "my_agent.py"
    program.write_text(UNAWARE)
    config = EnvironmentConfig(command=f"{sys.executable} {program} {command}", answer="wanted", reward=["exact"])
    agent = "turnsmith.env.agent:CommandAgent"
    trajectory = await play(agent, ScriptedEngine([said], chat), chat, {"wanted": 2}, config=config)
    assert (trajectory.error, trajectory.outcome, trajectory.rewards) == ("", "completed", [reward])


@pytest.mark.parametrize("question", ["\0", "x" * 2**18], ids=["a null character", "a long row"])
async def test_a_row_that_no_program_can_be_given_is_a_fault(chat: Chat, question: str):
    config = EnvironmentConfig(command=f"{sys.executable} -c pass {{question}}")
    agent = "turnsmith.env.agent:CommandAgent"
    trajectory = await play(agent, ScriptedEngine(["2"], chat), chat, {"question": question}, config=config)
    assert trajectory.outcome == "environment_failed"
    assert trajectory.error.startswith("The program could not be started with this task: ")
    if question != "\0":
        advice = "Its longest argument has 262,144 bytes. Let it read the task from $TURNSMITH_TASK_FILE."
        assert trajectory.error.endswith(advice)


@pytest.mark.parametrize("length", [10, 5_000_000])
async def test_a_task_of_any_size_is_in_a_file(chat: Chat, tmp_path: Path, length: int):
    program, noted = tmp_path / "my_agent.py", tmp_path / "noted"
    program.write_text(
        "import json, os\n"
        "path = os.environ['TURNSMITH_TASK_FILE']\n"
        "task = json.load(open(path))\n"
        "assert json.loads(os.environ.get('TURNSMITH_TASK', 'null')) in (task, None)\n"
        f"open({str(noted)!r}, 'w').write(path)\n"
        f"{UNAWARE.replace('print(', '(')}"
        "print(len(task['text']))"
    )
    config = EnvironmentConfig(command=f"{sys.executable} {program}", answer="length", reward=["exact"])
    task = {"text": "é" * length, "length": length}
    trajectory = await play("turnsmith.env.agent:CommandAgent", ScriptedEngine(["2"], chat), chat, task, config=config)
    assert (trajectory.error, trajectory.outcome, trajectory.rewards) == ("", "completed", [1.0])
    assert not Path(noted.read_text()).exists()


async def test_a_program_without_a_reward_is_told_what_a_program_can_do(chat: Chat, tmp_path: Path):
    config = EnvironmentConfig(command=f"{sys.executable} -c pass")
    trajectory = await play("turnsmith.env.agent:CommandAgent", ScriptedEngine(["2"], chat), chat, config=config)
    assert trajectory.outcome == "environment_failed"
    assert trajectory.error.startswith("The program gave no reward: it must POST one to $TURNSMITH_REWARD_URL, or ")
    assert "CommandAgent" not in trajectory.error


async def test_a_function_is_scored_by_the_text_it_returns_or_else_by_the_last_message(chat: Chat):
    scored = EnvironmentConfig(answer="wanted", reward=twice)
    for returned, rewards in ((None, [2.0]), ("no", [0.0]), ("Answer: 2", [2.0])):
        task = {"wanted": "2", "question": "1 + 1?", "returned": returned}
        trajectory = await play(agents.returning_agent, ScriptedEngine(["2"], chat), chat, task, config=scored)
        assert (trajectory.error, trajectory.rewards) == ("", rewards)
        assert trajectory.infos[-1]["acc"] is bool(rewards[0])
    for config, returned, sentence in (
        (scored, 1.0, "The agent returned '1.0': return a text, which --reward scores, or leave --reward out."),
        (None, "2", "The agent returned '2': return a number, which is the reward, or name what scores it (--reward)."),
    ):
        task = {"wanted": "2", "question": "1 + 1?", "returned": returned}
        trajectory = await play(agents.returning_agent, ScriptedEngine(["2"], chat), chat, task, config=config)
        assert (trajectory.outcome, trajectory.error) == ("environment_failed", sentence)


def twice(response: str, answer: str) -> dict[str, float | bool]:
    """Pay 2 for the right answer, and say so, as a reward of verl does."""
    is_right = response.removeprefix("Answer: ") == answer
    return {"score": 2.0 * is_right, "acc": is_right}

"""A bug of turnsmith, planted in one part after another: the run stops at it and says where, under default settings.

What is planted is a name that a module of ours uses and that is None, so that the exception comes from our own code.
"""

from __future__ import annotations

import copy
import io
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.unit.rollout.buggy_worker import BuggyWorker
from transformers import AutoTokenizer

import turnsmith.rollout.buffer
from turnsmith import BaseEnvironment, Chat, ScriptedEngine, evaluate, tool
from turnsmith.cli.main import main
from turnsmith.config import EnvironmentConfig
from turnsmith.env.adapters.question_answer import QuestionAnswer
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError, InternalError, internal_error_of, is_bug, user_failure
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan
from turnsmith.rollout.failure_policy import CausePolicy, FailurePolicy
from turnsmith.rollout.rewards.reward_manager import RewardManager, step_rewards
from turnsmith.tools.registry import ToolRegistry
from turnsmith.trajectory import Decision, Outcome, Trajectory

CALL = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'


class Echo(BaseEnvironment):
    def reset(self) -> str:
        return "Say something."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "And again.", 1.0, action == "b", {}

    @tool
    def look(self) -> str:
        """Look around."""
        return "A door."


def agent(task: dict[str, Any], model: Any) -> float:
    """Goes on, and is paid, whatever the model's URL says."""
    client = openai.OpenAI(base_url=model.url, api_key=model.key, max_retries=2)
    for _ in range(3):
        try:
            client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hi"}])
        except openai.OpenAIError:
            pass
    return 1.0


@pytest.fixture(scope="module")
def chat(tiny_folder: str) -> Chat:
    return Chat(AutoTokenizer.from_pretrained(tiny_folder))


QA = EnvironmentSpec(QuestionAnswer, EnvironmentConfig(reward="exact"))
ISOLATED = EnvironmentSpec.of(BuggyWorker, EnvironmentConfig(isolation="process", isolation_workers=1))
TASKS = [{"question": "1+1?", "answer": "2"}]
PLACES = [
    # what breaks: the module and the name; the environment; other settings; where the sentence says that it is
    ("turnsmith.rollout.episode", "join_prompts", Echo, {}, "turnsmith.rollout.episode:_reset:"),
    ("turnsmith.rollout.buffer", "_WIDTH", Echo, {}, "turnsmith.rollout.buffer:"),
    ("turnsmith.rollout.attempt", "Clock", Echo, {"reward_fn": lambda episode: 1.0}, "turnsmith.rollout.attempt:"),
    (
        "turnsmith.inference.chat.rendering",
        "ControlTokens.count",
        Echo,
        {},
        "turnsmith.inference.chat.rendering:_fill:",
    ),
    (
        "turnsmith.tools.parsing.function_calling",
        "describe_error",
        Echo,
        {},
        "turnsmith.tools.parsing.function_calling:",
    ),
    ("turnsmith.tools.execution", "CallOutcome", Echo, {}, "turnsmith.tools.execution:"),
    ("turnsmith.env.adapters.answers", "MOST_CHARACTERS", QA, {"tasks": TASKS}, "turnsmith.env.adapters.answers:"),
    ("turnsmith.env.adapters.scorers", "to_reward", QA, {"tasks": TASKS}, "turnsmith.env.adapters.scorers:"),
    (
        "turnsmith.rollout.rewards.reward_manager",
        "finite_reward",
        Echo,
        {"reward_fn": RewardManager(terms=[step_rewards()])},
        "turnsmith.rollout.rewards.reward_manager:share:",
    ),
    ("turnsmith.gateway.server", "BYTES_PER_TOKEN", agent, {}, "turnsmith.gateway.server:_body:"),
    ("turnsmith.gateway.dialects.chat_completions", "ModelRequest", agent, {}, "turnsmith.gateway.dialects.chat_"),
    ("turnsmith.rollout.agent_session", "ModelReply", agent, {}, "turnsmith.rollout.agent_session:_reply:"),
    ("turnsmith.rollout.retry", "Counter", Echo, {}, "turnsmith.rollout.retry:_play:"),
    ("turnsmith.rollout.evaluation.evaluate", "EvaluationResult", Echo, {}, "turnsmith.rollout.evaluation.evaluate:"),
    (None, "", ISOLATED, {}, "turnsmith.env.local_host:_end_step:"),
]
WHERE_NO_EPISODE_ENDS = ("turnsmith.rollout.retry", "turnsmith.rollout.evaluation.evaluate")


@pytest.mark.parametrize(
    ("module", "name", "environment", "settings", "where"), PLACES, ids=[place[4] for place in PLACES]
)
def test_a_run_stops_at_the_first_bug_and_says_where(
    monkeypatch: pytest.MonkeyPatch,
    chat: Chat,
    module: str | None,
    name: str,
    environment: Any,
    settings: Any,
    where: str,
):
    if module is not None:
        holder: Any = import_module(module)
        *path, last = name.split(".")
        for part in path:
            holder = getattr(holder, part)
        monkeypatch.setattr(holder, last, None)
    played: list[Trajectory] = []
    engine = ScriptedEngine(["a", CALL, "<tool_call>{", "b"], chat)
    with pytest.raises(InternalError) as stopped:
        evaluate(
            environment, engine, chat, EvaluationPlan(episodes=4, concurrency=1, **settings), on_episode=played.append
        )
    assert str(stopped.value).startswith(f"turnsmith failed at {where}")
    assert "This is a bug of turnsmith: please report it" in str(stopped.value)
    assert "Traceback (most recent call last)" in stopped.value.traceback
    if module in WHERE_NO_EPISODE_ENDS:
        assert all(episode.outcome is not Outcome.ENGINE_FAILED for episode in played)
        return
    (episode,) = played  # the first one: none was retried, and none was begun after it
    assert (episode.outcome, episode.decision, episode.attempt) == (Outcome.INTERNAL_ERROR, Decision.STOPPED, 0)
    assert where in episode.error
    assert "Traceback" in episode.error
    assert not episode.is_counted
    assert copy.copy(stopped.value).text == stopped.value.text  # as it crosses processes


@pytest.mark.parametrize(
    "place", ["turnsmith.rollout.episode:join_prompts", "turnsmith.records.episodes:replace_surrogates"]
)
def test_a_command_says_where_with_a_status_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
):
    module, _, name = place.partition(":")
    monkeypatch.setattr(import_module(module), name, None)
    monkeypatch.setattr(sys, "stdin", io.StringIO("8\n"))
    status = main(["play", "turnsmith.env.examples:GuessNumber", "--output-dir", str(tmp_path)])
    told = capsys.readouterr().err
    assert status == 70
    assert f"\nturnsmith: turnsmith failed at {module}:" in told
    assert "Traceback" in told


def test_a_bug_may_be_left_out_if_the_settings_say_so(monkeypatch: pytest.MonkeyPatch, chat: Chat):
    monkeypatch.setattr(turnsmith.rollout.buffer, "_WIDTH", None)
    plan = EvaluationPlan(episodes=2, failures=FailurePolicy(internal=CausePolicy.parse("internal", "mask")))
    found = evaluate(Echo, ScriptedEngine(["b"], chat), chat, plan)
    assert [(one.outcome, one.decision) for one in found.trajectories] == [("internal_error", "masked")] * 2
    assert not found.counted
    with pytest.raises(ConfigError, match="only failures"):
        CausePolicy.parse("environment", "stop")
    with pytest.raises(ConfigError, match="would train on an infrastructure fault"):
        CausePolicy.parse("internal", "keep")


class Theirs(Echo):
    """Fails in ways of its own, some of them in the middle of our code."""

    def step(self, action: str) -> Any:
        if action == "ours":
            return Trajectory().buffer(5)  # pyright: ignore[reportReturnType]
        if action == "exit":
            sys.exit(3)
        raise KeyError(action)


@pytest.mark.parametrize("action", ["theirs", "ours", "exit"])
def test_what_the_users_code_raises_stays_the_users(chat: Chat, action: str):
    plan = EvaluationPlan(episodes=1, failures=FailurePolicy(environment=CausePolicy(0, Decision.MASKED)))
    (episode,) = evaluate(Theirs, ScriptedEngine([action], chat), chat, plan).trajectories
    assert episode.outcome is Outcome.ENVIRONMENT_FAILED


class NoParser:
    is_native = False

    def instructions(self, definitions: Any) -> str:
        return ""

    def parse(self) -> None: ...


@pytest.mark.parametrize(
    ("settings", "outcome"),
    [
        ({"parser": NoParser()}, Outcome.ENVIRONMENT_FAILED),
        ({"reward_fn": lambda: 1.0}, Outcome.REWARD_FAILED),
        ({"reward_fn": len}, Outcome.REWARD_FAILED),
        ({"reward_fn": lambda episode: sys.exit(1)}, Outcome.REWARD_FAILED),
    ],
    ids=["a parser without a parameter", "a reward without one", "a builtin", "a reward that exits"],
)
def test_a_call_that_the_users_code_refuses_is_no_bug_of_ours(chat: Chat, settings: Any, outcome: Outcome):
    none = CausePolicy(0, Decision.MASKED)
    plan = EvaluationPlan(episodes=1, failures=FailurePolicy(environment=none), **settings)
    (episode,) = evaluate(Echo, ScriptedEngine(["b"], chat), chat, plan).trajectories
    assert episode.outcome is outcome, episode.error


class BrokenEngine:
    def __init__(self, error: Exception) -> None:
        self.error = error

    async def generate(self, prompt_ids: Any, sampling: Any, *, session: str) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("CUDA error"), KeyError("choices"), ConnectionError("gone")])
def test_what_an_engine_raises_stays_the_engines(chat: Chat, error: Exception):
    plan = EvaluationPlan(episodes=1, failures=FailurePolicy(engine=CausePolicy(0, Decision.MASKED)))
    (episode,) = evaluate(Echo, BrokenEngine(error), chat, plan).trajectories
    assert episode.outcome is Outcome.ENGINE_FAILED


def test_what_a_tool_raises_stays_the_tools(chat: Chat):
    @tool
    def look() -> str:
        """Look around."""
        raise KeyError("door")

    plan = EvaluationPlan(episodes=1, tools=ToolRegistry([look]))

    class Plain(BaseEnvironment):
        def reset(self) -> str:
            return "Look."

        def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
            return "", 1.0, True, {}

    (episode,) = evaluate(Plain, ScriptedEngine([CALL, "b"], chat), chat, plan).trajectories
    assert episode.outcome is Outcome.COMPLETED
    assert "look raised KeyError: 'door'" in episode.infos[0]["tool_calls"][0]["failure"]


def test_the_machine_running_out_is_no_bug():
    for error in (MemoryError(), OSError(24, "Too many open files"), RuntimeError("can't start new thread")):
        assert not is_bug(error)
    assert is_bug(RuntimeError("can't happen"))


def test_the_innermost_code_of_a_printed_traceback_decides():
    ours = str(Path(turnsmith.rollout.buffer.__file__))
    printed = (
        f'  File "/site-packages/verl/t.py", line 1, in step\n  File "{ours}", line 7, in append_turn\nKeyError: 1'
    )
    found = internal_error_of(printed, "KeyError(1)")
    assert "turnsmith.rollout.buffer:append_turn:7 with KeyError(1)" in str(found)
    for theirs in ("/home/me/game.py", "/x/lib/python3.11/site-packages/torch/nn.py"):
        assert internal_error_of(f'{printed}\n  File "{theirs}", line 3, in step', "KeyError(1)") is None


def test_a_described_failure_names_the_users_code():
    assert "Game.step raised KeyError: 'sword'" in str(user_failure("Game.step", KeyError("sword")))

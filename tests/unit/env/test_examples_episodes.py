"""The examples with tools, played through the episode loop by a scripted model that reads its prompt."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from transformers import AutoTokenizer

from turnsmith.env import EnvironmentSpec
from turnsmith.env.examples import Calculator, SupportDesk
from turnsmith.inference import Chat, Sampling, ScriptedEngine
from turnsmith.rollout import EpisodeStart, Limits, run_episode
from turnsmith.tools.parsing import FunctionCallingParser
from turnsmith.trajectory import Outcome, Trajectory


async def play(environment: type, replies: Any, folder: str, seed: int = 3) -> Trajectory:
    chat = Chat(AutoTokenizer.from_pretrained(folder))
    return await run_episode(
        EpisodeStart("e1", seed=seed),
        environment=EnvironmentSpec.of(environment),
        engine=ScriptedEngine(replies, chat),
        chat=chat,
        limits=Limits(tokens=8192, prompt_tokens=8192),
        sampling=Sampling(max_tokens=512),
        parser=FunctionCallingParser(),
    )


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def tool_results(trajectory: Trajectory) -> list[str]:
    return [message["content"] for message in trajectory.messages if message["role"] == "tool"]


def work_it_out(turn: int, prompt: str) -> str:
    if turn == 0:
        pens, boxes, broken = re.findall(r"(\d+) pens\. (\d+) boxes arrive, and (\d+)", prompt)[-1]
        return call("calculate", expression=f"{pens} * {boxes} - {broken}")
    return f"There are {re.findall(r'[0-9]+', prompt)[-1]}."


def serve(turn: int, prompt: str) -> str:
    name, item, day = re.findall(r"I am ([\w ]+)\. The (\w+) of (\d+) May", prompt)[-1]
    if turn == 0:
        return call("find_orders", customer=name)
    if turn == 1:
        return call("refund", order_id=int(re.findall(rf"order (\d+): {item}, {day} May", prompt)[-1]))
    return "Your money is on its way."


@pytest.mark.parametrize(("environment", "oracle", "turns"), [(Calculator, work_it_out, 2), (SupportDesk, serve, 3)])
async def test_the_oracle_wins_by_calling_tools(environment: type, oracle: Any, turns: int, tiny_folder: str) -> None:
    for seed in range(3):
        trajectory = await play(environment, oracle, tiny_folder, seed)
        assert (trajectory.outcome, trajectory.error) == (Outcome.COMPLETED, "")
        assert trajectory.rewards == [0.0] * (turns - 1) + [1.0]
        assert trajectory.infos[-1]["success"]
        assert len(tool_results(trajectory)) == turns - 1


async def test_the_model_reads_a_tools_error_and_the_episode_goes_on(tiny_folder: str) -> None:
    replies = [
        call("find_orders", customer="Nobody") + call("refund", order_id=7),
        call("refund", order_id="not a number"),
        call("fly"),
        call("refund", order_id=10**40),
        "I gave up.",
    ]
    trajectory = await play(SupportDesk, replies, tiny_folder)
    assert tool_results(trajectory)[:2] == ["There is no customer of that name.", "There is no order 7."]
    assert len(tool_results(trajectory)) == 4
    assert [len(info.get("tool_calls", [])) for info in trajectory.infos] == [2, 1, 1, 0, 0]
    assert "format_problem" in trajectory.infos[3]
    assert (trajectory.outcome, trajectory.total_reward) == (Outcome.COMPLETED, 0.0)


async def test_an_answer_without_any_call_ends_the_episode(tiny_folder: str) -> None:
    trajectory = await play(Calculator, ["It is 12."], tiny_folder)
    assert (trajectory.outcome, trajectory.rewards) == (Outcome.COMPLETED, [0.0])
    assert trajectory.infos[-1] == {"answer": 12.0, "success": False}

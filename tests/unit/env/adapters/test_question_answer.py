"""Rows of data in the columns of anybody: plain ones, TRL's and verl's, with the scoring functions written for them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from transformers import AutoTokenizer

from turnsmith.env.adapters.question_answer import QuestionAnswer
from turnsmith.errors import ConfigError, EnvironmentFailure
from turnsmith.inference import Chat, ScriptedEngine
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan, evaluate

VERL_ROW = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "2 + 2?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"split": "train", "index": 0},
}
TRL_ROW = {
    "prompt": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2 + 2?"}],
    "solution": "4",
}


def play(row: dict[str, Any], response: str, **settings: Any) -> Any:
    environment = QuestionAnswer(**settings)
    first = environment.reset(task=row)
    return environment.get_prompt_prefix(), first, environment.step(response)


def trl_reward(completions: list[Any], solution: list[str], **kwargs: Any) -> list[float]:
    """As in TRL's documentation."""
    assert set(kwargs) == {"prompts", "log_extra", "log_metric"}
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if content == right else 0.0 for content, right in zip(contents, solution, strict=True)]


def trl_length(prompts: list[Any], completions: list[Any]) -> list[float]:
    return [-len(completion) / 10 for completion in completions]


def verl_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, Any]:
    assert (data_source, extra_info["index"]) == ("openai/gsm8k", 0)
    return {"score": float(solution_str == ground_truth), "acc": solution_str == ground_truth}


def with_task(response: str, answer: str, task: Any) -> float:
    return float(response == answer) + task["bonus"]


def test_columns_are_found_by_their_usual_names_or_named() -> None:
    assert play({"question": "2 + 2?", "answer": "4"}, "4")[1:2] == ("2 + 2?",)
    assert play({"problem": "2 + 2?", "target": "4"}, "4")[2].reward == 1.0
    assert play({"q": "2 + 2?", "gold": {"value": 4}}, "4", prompt="q", answer="gold.value")[2].reward == 1.0
    with pytest.raises(EnvironmentFailure, match=r"The row has no column 'q' for its prompt; it has x\. Pass --prompt"):
        play({"x": 1}, "", prompt="q")
    with pytest.raises(EnvironmentFailure, match=r"for its answer; it has question\. Pass --answer COLUMN\."):
        play({"question": "?"}, "")
    with pytest.raises(EnvironmentFailure, match="there is none: pass --data FILE"):
        QuestionAnswer().reset()


def test_rows_and_a_reward_function_of_trl() -> None:
    prefix, first, result = play(TRL_ROW, "4", reward=trl_reward)
    assert (prefix, first, result.reward, result.terminated) == ("Be short.", "2 + 2?", 1.0, True)
    assert play({"prompt": "2 + 2?"}, "four!", reward=trl_length)[2].reward == -0.5
    assert play(TRL_ROW, "4", reward=[trl_reward, "number"])[2].reward == 2.0
    with pytest.raises(EnvironmentFailure, match="returned no reward for this row"):
        play(TRL_ROW, "4", reward=lambda completions, **_: [None])
    with pytest.raises(EnvironmentFailure, match=r"returned \[1, 2\], not a list with one reward"):
        play(TRL_ROW, "4", reward=lambda completions, **_: [1, 2])


def test_rows_and_a_scoring_function_of_verl() -> None:
    prefix, first, result = play(VERL_ROW, "4", reward=verl_score)
    assert (prefix, first, result.reward, result.info) == ("", "2 + 2?", 1.0, {"acc": True})
    # Without a reward, what verl itself scores this source with: the number after ####.
    assert play(VERL_ROW, "So #### 4")[2].reward == 1.0
    assert play(VERL_ROW, "So #### 5")[2].reward == 0.0


def test_a_function_of_ones_own() -> None:
    assert play({"prompt": "?", "answer": "4", "bonus": 2}, "4", reward=with_task)[2].reward == 3.0
    assert play({"prompt": "?", "answer": "4"}, "4", reward=lambda response, answer: 7)[2].reward == 7.0
    assert play({"prompt": "?"}, "4", reward=lambda response, answer=None: float(answer is None))[2].reward == 1.0


async def test_an_async_function_is_awaited() -> None:
    async def judge(response: str, answer: str) -> float:
        return 0.25

    async def trl_judge(completions: list[Any], **kwargs: Any) -> list[float]:
        return [0.5]

    environment = QuestionAnswer(reward=[judge, trl_judge, "exact"])
    environment.reset(task={"prompt": "?", "answer": "a"})
    assert (await environment.step("a")).reward == 1.75


def messages(*said: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in said]


def test_contents_in_parts_are_their_text() -> None:
    parts = [{"type": "text", "text": "2 + "}, {"type": "text", "text": "2?"}]
    prompt = messages(("system", [{"type": "text", "text": "Be short."}]), ("user", parts))
    assert play({"prompt": prompt, "answer": "4"}, "4")[:2] == ("Be short.", "2 + 2?")
    assert play({"prompt": messages(("system", None), ("user", "?")), "answer": "4"}, "4")[:2] == ("", "?")
    with pytest.raises(EnvironmentFailure, match="has parts of image_url, text: only text can be played"):
        play({"prompt": messages(("user", [*parts, {"type": "image_url"}])), "answer": "4"}, "")


def test_chat_files_of_openai_end_in_the_answer() -> None:
    chat = messages(("developer", "Be short."), ("user", "2 + 2?"), ("assistant", "4"))
    assert play({"messages": chat}, "4")[:2] == ("Be short.", "2 + 2?")
    assert [play({"messages": chat}, said)[2].reward for said in ("4", "5")] == [1.0, 0.0]
    shown = messages(("user", "1 + 1?"), ("assistant", "2"), ("user", "2 + 2?"))
    prefix, first, result = play({"prompt": [*chat[:1], *shown], "answer": "4"}, "4")
    assert (prefix, first, result.reward) == ("Be short.", shown, 1.0)


def test_prompts_that_cannot_be_played_are_told_in_words() -> None:
    with pytest.raises(EnvironmentFailure, match="messages of user, tool: a system message and then those of user and"):
        play({"prompt": messages(("user", ""), ("tool", "")), "answer": ""}, "")
    with pytest.raises(EnvironmentFailure, match="The prompt '7' is neither a text nor a list of messages"):
        play({"prompt": 7, "answer": ""}, "")


def test_it_is_evaluated_like_any_environment(tiny_folder: str) -> None:
    tasks = [{"question": f"{number} + 1?", "answer": number + 1} for number in range(4)]
    chat = Chat(AutoTokenizer.from_pretrained(tiny_folder))
    plan = EvaluationPlan(episodes=4, tasks=tasks)
    result = evaluate(partial(QuestionAnswer, reward="number"), ScriptedEngine(["2"], chat), chat, plan)
    assert [episode.total_reward for episode in result.trajectories] == [0.0, 1.0, 0.0, 0.0]
    with pytest.raises(ConfigError, match="There is no reward called 'sum'"):
        play(tasks[0], "1", reward="sum")

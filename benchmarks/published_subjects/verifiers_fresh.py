"""PrimeIntellect-ai/verifiers: environments of one turn with a rubric, scored as its evaluation scores a rollout."""

from __future__ import annotations

import asyncio
from typing import Any

from published_subjects import Subject
from published_subjects._questions import word_problems

ASKED = "Think step by step inside of <think> and </think>, then give the number inside of <answer> and </answer>."


def _state() -> dict[str, Any]:
    return {"timing": {"scoring_ms": 0.0, "total_ms": 0.0}, "trajectory": [], "metrics": {}, "reward": 0.0}


def _rubrics() -> Any:
    """One rubric for the answer and one for the form, as a group."""
    import verifiers as vf

    parser = vf.XMLParser(["think", "answer"], answer_field="answer")

    def right(parser: Any, completion: Any, answer: str, **_: Any) -> float:
        return float(parser.parse_answer(completion) == answer)

    return vf.RubricGroup(
        [
            vf.Rubric(funcs=[right], weights=[1.0], parser=parser),
            vf.Rubric(funcs=[parser.get_format_reward_func()], weights=[0.2], parser=parser),
        ]
    )


async def grouped(response: str, task: dict[str, Any]) -> float:
    """What a group of rubrics gives for one rollout."""
    prompt = [{"role": "user", "content": task["question"]}]
    completion = [{"role": "assistant", "content": response}]
    score = await _rubrics().score_rollout(prompt, completion, task["answer"], _state(), "default", {})
    return score.reward


async def parsed(completion: list[dict[str, str]], answer: str) -> float:
    """The last message of a completion against the answer, with the parser that environments have by default."""
    import verifiers as vf

    said = vf.Parser().parse_answer(completion)
    return float(said is not None and said.strip().endswith(answer))


async def ending(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [await parsed(completion, right) for completion, right in zip(completions, answer, strict=True)]


def rows() -> list[dict[str, Any]]:
    return [{"question": f"{ASKED}\n\n{one.text}", "answer": one.answer} for one in word_problems(20)]


def rows_of_conversations() -> list[dict[str, Any]]:
    asked = "\n\nEnd with the number."
    return [
        {"prompt": [{"role": "user", "content": one.text + asked}], "answer": one.answer} for one in word_problems(20)
    ]


def _group_gives_nothing() -> bool:
    right = "<think>\n1 + 1\n</think>\n<answer>\n2\n</answer>"
    return asyncio.run(grouped(right, {"question": "1 + 1?", "answer": "2"})) < 1


def _no_message_raises() -> bool:
    try:
        return asyncio.run(parsed([], "2")) != 0
    except IndexError:
        return True


_HERE = "published_subjects.verifiers_fresh"
SUBJECTS = {
    "verifiers-rubric-group": Subject(
        (
            *("--data", "rows.jsonl", "--reward", f"{_HERE}:grouped"),
            *("--prompt", "question", "--answer", "answer"),
        ),
        _group_gives_nothing,
        rows,
    ),
    "verifiers-empty-completion": Subject(
        ("--data", "rows.jsonl", "--reward", f"{_HERE}:ending", "--answer", "answer"),
        _no_message_raises,
        rows_of_conversations,
    ),
}

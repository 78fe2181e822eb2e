"""huggingface/open-r1: its rewards, called as TRL's trainer calls them, with conversations and columns as lists."""

from __future__ import annotations

from typing import Any

from published_subjects import Subject
from published_subjects.shared_blind import in_main_thread, problems

SYSTEM = (
    "A conversation between a user and an assistant. The assistant first thinks about the question and then answers "
    "it. The thoughts and the answer stand in <think> </think> and <answer> </answer> tags: <think> thoughts "
    "</think><answer> answer </answer>"
)


def _conversation(question: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def rows_with_replies() -> list[dict[str, Any]]:
    """Conversations with a reply in the form that the system message asks for, as for a cold start."""
    rows = []
    for one in problems():
        reply = f"<think>{one.worked}</think><answer>The answer is $\\boxed{{{one.answer}}}$.</answer>"
        rows.append({"messages": [*_conversation(one.question), {"role": "assistant", "content": reply}]})
    return rows


def rows_with_solutions() -> list[dict[str, Any]]:
    """As NuminaMath-TIR after the script's preparation: the solution ends with a boxed answer."""
    return [
        {
            "problem": one.question,
            "prompt": _conversation(one.question),
            "solution": f"{one.worked}\n\nThe answer is $\\boxed{{{one.answer}}}$.",
        }
        for one in problems()
    ]


def rows_with_generations() -> list[dict[str, Any]]:
    """The same with responses that a model gave before, one of them wrong."""
    rows = rows_with_solutions()
    for row, one in zip(rows, problems(), strict=True):
        boxed = [f"$\\boxed{{{answer}}}$" for answer in (one.answer, one.answer, "1000")]
        row["generations"] = [
            f"<think>\n{one.worked}\n</think>\n\n{boxed[0]}",
            f"<think>\nLet me see.\n{one.worked}\nI check this again.\n{one.worked}\n</think>\n\nIt is {boxed[1]}.",
            f"<think>\nThis looks like a large number.\n</think>\n\n{boxed[2]}",
        ]
    return rows


def rows_of_several_sources() -> list[dict[str, Any]]:
    """As OpenR1-Math: of olympiads with a boxed answer, and of collections whose solutions end in plain words."""
    rows = []
    for number, one in enumerate(problems()):
        is_plain = one.answer.lstrip("-").isdigit() and number % 3 == 0
        last = f"Answer: {one.answer}." if is_plain else f"The answer is $\\boxed{{{one.answer}}}$."
        worked = one.worked.replace("$", "").replace("\\cdot", "*").replace("^\\circ", "°") if is_plain else one.worked
        rows.append(
            {
                "problem": one.question,
                "prompt": _conversation(one.question),
                "solution": f"{worked}\n\n{last}",
                "answer": one.answer,
                "source": "cn_k12" if is_plain else "olympiads",
            }
        )
    return rows


def repetition(completions: list[Any], **columns: list[Any]) -> list[float]:
    """The penalty with the script's own settings."""
    from open_r1.rewards import get_repetition_penalty_reward

    return get_repetition_penalty_reward(ngram_size=3, max_penalty=-1.0)(completions, **columns)


def length(response: str, task: dict[str, Any]) -> float:
    """The reward of a response in a group with the row's other responses."""
    from open_r1.rewards import len_reward

    group = [[{"role": "assistant", "content": text}] for text in (response, *task["generations"])]
    columns = {name: [value] * len(group) for name, value in task.items() if name != "prompt"}
    prompts = [task["prompt"]] * len(group)
    return in_main_thread(lambda: len_reward(prompts=prompts, completions=group, **columns))[0]


def accuracy(completions: list[Any], solution: list[str], **columns: list[Any]) -> list[float | None]:
    """The reward in the main thread, where the trainer calls it."""
    from open_r1.rewards import accuracy_reward

    return in_main_thread(lambda: accuracy_reward(completions, solution, **columns))


def _chat(text: str) -> list[Any]:
    return [[{"role": "assistant", "content": text}]]


def _line_breaks_earn_nothing() -> bool:
    from open_r1.rewards import format_reward

    return format_reward(_chat("<think>\nTwo and two.\n</think>\n<answer>\n4\n</answer>")) == [0.0]


def _column_is_not_a_parameter() -> bool:
    from open_r1.rewards import len_reward

    try:
        rewards = len_reward(completions=2 * _chat("$\\boxed{4}$"), solution=2 * ["$\\boxed{4}$"])
    except TypeError:
        return True
    return rewards != [0.0, 0.0]


def _conversation_is_taken_for_a_text() -> bool:
    try:
        rewards = repetition(_chat("one two three one two three one two three"))
    except AttributeError:
        return True
    return not -1 <= rewards[0] < 0


def _any_answer_is_paid() -> bool:
    from open_r1.rewards import accuracy_reward

    return accuracy_reward(_chat("\\boxed{3}"), ["6"]) == [1.0]


_HERE = "published_subjects.open_r1_blind"
_DATA = ("--data", "rows.jsonl", "--reward")
SUBJECTS = {
    "open-r1-format": Subject((*_DATA, "open_r1.rewards:format_reward"), _line_breaks_earn_nothing, rows_with_replies),
    "open-r1-length-argument": Subject((*_DATA, f"{_HERE}:length"), _column_is_not_a_parameter, rows_with_generations),
    "open-r1-repetition": Subject(
        (*_DATA, f"{_HERE}:repetition"), _conversation_is_taken_for_a_text, rows_with_solutions
    ),
    "open-r1-unparsed-gold": Subject((*_DATA, f"{_HERE}:accuracy"), _any_answer_is_paid, rows_of_several_sources),
}

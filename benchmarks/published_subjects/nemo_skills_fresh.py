"""NVIDIA-NeMo/Skills: the metrics of its benchmark of judges, for one judgement at a time."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from published_subjects import Subject
from published_subjects._questions import mathematics

ASKED = (
    "Look at the two answers (predicted and expected) to a problem of mathematics and judge whether they are "
    "equivalent. Explain in a sentence or two after 'Reasoning:', then end with a line 'Judgement: Yes' or "
    "'Judgement: No'."
)


def _metrics() -> Any:
    """The class of the metrics, without its package's other benchmarks."""
    package = ModuleType("nemo_skills.evaluation.metrics")
    package.__path__ = [f"{place}/nemo_skills/evaluation/metrics" for place in sys.path]
    sys.modules.setdefault(package.__name__, package)
    from nemo_skills.evaluation.metrics.answer_judgement_metrics import AnswerJudgementMetrics

    return AnswerJudgementMetrics()


def agreed(response: str, task: dict[str, Any]) -> float:
    """The share of right judgements, which is what the benchmark reports."""
    metrics = _metrics()
    metrics.update([{"judgement": response, "expected_judgement": task["expected_judgement"]}])
    (only,) = metrics.get_metrics().values()
    return only["correct_judgements"] / 100


def rows() -> list[dict[str, Any]]:
    """Predicted answers, every second of them wrong, with the judgement of a person."""
    made = []
    problems = mathematics()
    for number, one in enumerate(problems[:20]):
        right = number % 2 == 0
        predicted = one.answer if right else problems[(number + 3) % len(problems)].answer
        shown = f"Problem: {one.text}\nPredicted answer: {predicted}\nExpected answer: {one.answer}"
        reason = "The two answers are the same." if right else "The two answers differ and are not equivalent."
        made.append(
            {
                "prompt": f"{ASKED}\n\n{shown}",
                "expected_judgement": f"Reasoning: {reason}\nJudgement: {'Yes' if right else 'No'}",
            }
        )
    return made


def _right_judgement_raises() -> bool:
    try:
        return agreed("Judgement: No", {"expected_judgement": "Judgement: No"}) != 1
    except UnboundLocalError:
        return True


SUBJECTS = {
    "nemo-skills-judgement": Subject(
        (
            *("--data", "rows.jsonl", "--reward", "published_subjects.nemo_skills_fresh:agreed"),
            *("--prompt", "prompt", "--answer", "expected_judgement"),
        ),
        _right_judgement_raises,
        rows,
    ),
}

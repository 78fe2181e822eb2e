"""huggingface/lighteval: its extraction of answers, with the settings that its tasks have."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from published_subjects import Subject
from published_subjects._questions import choices, word_problems
from published_subjects.shared_blind import in_main_thread

CHOICE = (
    "Answer the following multiple choice question. The last line of your response should be of the form "
    "'Answer: LETTER', where LETTER is one of ABCD. Think step by step before answering.\n\n"
)
NUMBER = "Solve the problem step by step. The last line is 'Answer: NUMBER'.\n\n"


def _package() -> None:
    """The package's folders, without what they import of models and data sets."""
    for name in ("lighteval", "lighteval.metrics", "lighteval.metrics.utils", "lighteval.tasks", "lighteval.models"):
        module = ModuleType(name)
        module.__path__ = [f"{place}/{name.replace('.', '/')}" for place in sys.path]
        sys.modules.setdefault(name, module)


def _extracted(text: str, target: Any) -> list[Any]:
    from lighteval.metrics.utils import extractive_match_utils as extraction
    from lighteval.tasks.requests import Doc
    from lighteval.utils.language import Language

    doc = Doc(query="", choices=list("ABCD"), gold_index=0)
    regexes = extraction.get_extraction_regexes(doc, [target], Language.ENGLISH)
    return extraction.extract_target_from_pred(text, regexes, "any_match")


def letter(response: str, task: dict[str, Any]) -> float:
    """As the tasks GPQA and MMLU score: the letter that is extracted is the right one."""
    _package()
    from lighteval.metrics.utils.extractive_match_utils import IndicesExtractionConfig

    settings = IndicesExtractionConfig(prefix_for_extraction="NativeLetters")
    return float(in_main_thread(lambda: task["answer"] in map(str, _extracted(response, settings))))


def number(response: str, task: dict[str, Any]) -> float:
    """As the tasks for word problems score: the number that is extracted is the right one."""
    _package()
    from lighteval.metrics.utils.extractive_match_utils import ExprExtractionConfig

    return float(in_main_thread(lambda: task["answer"] in map(str, _extracted(response, ExprExtractionConfig()))))


def rows_of_choices() -> list[dict[str, Any]]:
    made = []
    for one in choices():
        shown = "\n".join(f"{name}) {text}" for name, text in one["options"].items())
        made.append({"query": f"{CHOICE}{one['question']}\n\n{shown}", "answer": one["answer"]})
    return made


def rows_of_numbers() -> list[dict[str, Any]]:
    return [{"query": NUMBER + one.text, "answer": one.answer} for one in word_problems()]


def _article_is_a_choice() -> bool:
    return letter("I do not know this. A hint would help.", {"answer": "A"}) == 1


def _space_before_the_colon_hides_the_answer() -> bool:
    said = "Answer : 7\nThis answer was found in 3 steps."
    return number(said, {"answer": "7"}) == 0


_HERE = "published_subjects.lighteval_fresh"
_WORDS = ("--data", "rows.jsonl", "--prompt", "query", "--answer", "answer", "--reward")
SUBJECTS = {
    "lighteval-letter-anywhere": Subject((*_WORDS, f"{_HERE}:letter"), _article_is_a_choice, rows_of_choices),
    "lighteval-colon": Subject((*_WORDS, f"{_HERE}:number"), _space_before_the_colon_hides_the_answer, rows_of_numbers),
}

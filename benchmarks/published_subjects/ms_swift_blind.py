"""modelscope/ms-swift: a reward of its plugins, built and called as its GRPO trainer does."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from published_subjects import Subject
from published_subjects.shared_blind import in_main_thread, problems


class Tokenizer:
    """Pieces of words, about four letters each."""

    def encode(self, text: str) -> list[str]:
        return re.findall(r"\s?\w{1,4}|\s?[^\w\s]|\s+", text)


@lru_cache
def plugins() -> ModuleType:
    """The project's file of rewards, without the rest of its package, of which it uses a type for its hints."""
    hints = ModuleType("swift.llm")
    hints.InferRequest = dict  # type: ignore[attr-defined]
    sys.modules.setdefault("swift", ModuleType("swift"))
    sys.modules.setdefault("swift.llm", hints)
    file = next(folder for place in sys.path if (folder := Path(place, "swift", "plugin", "orm.py")).exists())
    specification = importlib.util.spec_from_file_location("swift_plugin_orm", file)
    assert specification
    assert specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def reward_function() -> Any:
    """The trainer passes its tokenizer to a reward that has a parameter for it."""
    kind = plugins().orms["cosine"]
    takes = inspect.signature(kind.__init__).parameters
    return kind(tokenizer=Tokenizer()) if "tokenizer" in takes else kind()


def cosine(completions: list[Any], solution: list[str], **columns: list[Any]) -> list[float]:
    """The reward of texts, in the main thread, where the trainer calls it."""
    texts = [completion[-1]["content"] for completion in completions]
    reward = reward_function()
    return in_main_thread(lambda: reward(texts, solution=solution, **columns))


def rows() -> list[dict[str, Any]]:
    """As NuminaMath-TIR: solutions with their steps and a boxed answer."""
    made = []
    for one in problems():
        steps = "\n\n".join(f"{number}. {line}" for number, line in enumerate(one.worked.split("\n"), start=1))
        solution = (
            "To solve this problem we write down what is given, find what follows from it step by step, and check the "
            f"result at the end.\n\n{steps}\n\nWe put the result into the question once more and see that everything "
            f"fits, so nothing was forgotten.\n\nThe final answer is $\\boxed{{{one.answer}}}$."
        )
        made.append({"messages": [{"role": "user", "content": one.question}], "solution": solution})
    return made


def _characters_are_counted() -> bool:
    text = "We add the numbers. " * 12 + "$\\boxed{4}$"
    assert len(Tokenizer().encode(text)) < len(text) / 2
    reward = reward_function()
    reward.max_len = len(text)
    return reward([text], solution=["$\\boxed{4}$"])[0] < 0.51


SUBJECTS = {
    "ms-swift-cosine-length": Subject(
        ("--data", "rows.jsonl", "--reward", "published_subjects.ms_swift_blind:cosine"), _characters_are_counted, rows
    ),
}

"""NousResearch/atropos: the rewards of two of its environments, called with what their rows have."""

from __future__ import annotations

import asyncio
import importlib
import sys
from functools import lru_cache
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

from published_subjects import Subject

FORMULAS = (
    ("How long does a pendulum of length $l$ swing for one period, with gravity $g$?", "2 \\pi \\sqrt{\\frac{l}{g}}"),
    ("What is the kinetic energy of a mass $m$ with speed $v$?", "\\frac{m v^2}{2}"),
    ("How fast is a body after it fell from a height $h$, with gravity $g$?", "\\sqrt{2 g h}"),
    ("How long does a fall from a height $h$ take, with gravity $g$?", "\\sqrt{\\frac{2 h}{g}}"),
    ("What is the resistance of $R$ and $S$ in parallel?", "\\frac{R S}{R + S}"),
    ("What is the angular frequency of a spring $k$ with a mass $m$?", "\\sqrt{\\frac{k}{m}}"),
    ("What is the energy of a capacitor $C$ with voltage $U$?", "\\frac{C U^2}{2}"),
    ("What is the frequency of a circuit of $L$ and $C$?", "\\frac{1}{2 \\pi \\sqrt{L C}}"),
    ("How far does a throw with speed $v$ and angle of 45 degrees go, with gravity $g$?", "\\frac{v^2}{g}"),
    ("What is the momentum of a mass $m$ with kinetic energy $E$?", "\\sqrt{2 m E}"),
    ("What is the power of a current $I$ in a resistance $R$?", "I^2 R"),
    ("What is the speed of a circular orbit of radius $r$ around a mass $M$?", "\\sqrt{\\frac{G M}{r}}"),
    ("What is the pressure below $h$ of a liquid of density $d$?", "d g h"),
    ("What is the volume of a sphere of radius $r$?", "\\frac{4}{3} \\pi r^3"),
    ("How fast does a wave on a string with force $F$ and mass per length $u$ run?", "\\sqrt{\\frac{F}{u}}"),
    ("What is the mean of $a$ and $b$ as a geometric one?", "\\sqrt{a b}"),
)
TOPICS = (
    "the sea", "a train", "winter", "bees", "a library", "the moon", "bread", "a market", "rivers", "cats", "a clock",
    "gardens", "a storm", "music", "a bridge", "chess",
)  # fmt: skip


def formula(response: str, task: dict[str, Any]) -> float:
    """As the environment PHYBench scores: the last box of a response, on a scale from 0 to 1."""
    from eed_score import compute_eed_score, extract_all_boxed

    boxed = extract_all_boxed(response)
    return compute_eed_score(task["answer"], boxed[-1])[0] / 100 if boxed else 0.0


@lru_cache
def instructions() -> Any:
    """The environment's module. The trainer, its tracker and the data sets are used by none of its verifiers."""
    for name in ("wandb", "datasets", "atroposlib.envs.base", "atroposlib.utils.tokenize_for_trainer"):
        package, _, _ = name.rpartition(".")
        while package:
            sys.modules.setdefault(package, ModuleType(package))
            package, _, _ = package.rpartition(".")
        sys.modules.setdefault(name, MagicMock(BaseEnv=object, BaseEnvConfig=object))
    return importlib.import_module("instruction_following_algorithm_environment")


async def followed(response: str, task: dict[str, Any]) -> float:
    """Whether a response follows the instruction, as the environment scores it by the verifier that a row names."""
    environment = instructions().InstructionFollowingEnv
    return await environment._get_score_from_verifier(None, response, task["func_name"], task["args"])


def rows_of_formulas() -> list[dict[str, Any]]:
    asked = " Give the final formula in \\boxed{}."
    return [{"prompt": question + asked, "answer": answer} for question, answer in FORMULAS]


def rows_of_instructions() -> list[dict[str, Any]]:
    """As RLVR-IFeval, with the instruction about highlighted sections and an answer that follows it."""
    rows = []
    for number, topic in enumerate(TOPICS):
        count = 2 + number % 3
        parts = [f"*Point {part + 1}* is that {topic} can be seen in more than one way." for part in range(count)]
        asked = (
            f"Write about {topic}. Highlight at least {count} sections in your answer with markdown, as in "
            "*highlighted section*."
        )
        row = {"func_name": "validate_highlighted_sections", "args": {"N": count}, "answer": "\n".join(parts)}
        rows.append({"prompt": asked, **row})
    return rows


def _root_in_a_fraction_is_not_found() -> bool:
    from eed_score import extract_all_boxed

    return extract_all_boxed("\\boxed{\\frac{1}{2 \\sqrt{\\frac{a}{b}}}}") == []


def _highlights_earn_nothing() -> bool:
    row = rows_of_instructions()[0]
    return asyncio.run(followed(row["answer"], row)) == 0


_HERE = "published_subjects.atropos_fresh"
_WORDS = ("--data", "rows.jsonl", "--prompt", "prompt", "--answer", "answer", "--reward")
SUBJECTS = {
    "atropos-nested-box": Subject((*_WORDS, f"{_HERE}:formula"), _root_in_a_fraction_is_not_found, rows_of_formulas),
    "atropos-highlights": Subject((*_WORDS, f"{_HERE}:followed"), _highlights_earn_nothing, rows_of_instructions),
}

"""open-compass/opencompass: evaluators of its benchmarks, for one prediction at a time."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

from published_subjects import Subject

# A question of reasoning and its answer, as the free-form tasks of BIG-Bench Hard have them.
REASONED = (
    ("Is the following expression true? not ( True ) and ( False )", "False"),
    ("Is the following expression true? True or not False", "True"),
    ("Sort the words by alphabet: pear fig apple", "apple fig pear"),
    ("What is ((3 + 4) * 2) - 5?", "9"),
    ("Do all of Mia's cats sleep if two of her three cats sleep?", "No"),
    ("Is this sentence plausible? 'The goalkeeper saved the penalty.'", "yes"),
    ("Is this sentence plausible? 'The swimmer scored a touchdown.'", "no"),
    ("I have two apples, a pear and three figs. How many fruits do I have?", "6"),
    ("Sort the words by alphabet: zebra lion ape", "ape lion zebra"),
    ("Close the brackets: [ ( <", "> ) ]"),
    ("Does 'if it rains the street is wet' follow from 'the street is wet'?", "No"),
    ("Ada lies. Ben says that Ada tells the truth. Does Ben tell the truth?", "No"),
    ("What is (12 - 4) / 2 + 7?", "11"),
    ("Is 'not ( False or True )' true?", "False"),
    ("I have a clarinet, two drums and a violin. How many instruments do I have?", "4"),
    ("Sort the words by alphabet: mud rain snow hail", "hail mud rain snow"),
)
# What is asked of a program's result: a function, its call and what it returns.
CALLS = (
    ("def f(n):\n    return n * 2", "f(4)", "8"), ("def f(s):\n    return s[::-1]", "f('abc')", "'cba'"),
    ("def f(a):\n    return sorted(a)", "f([3, 1, 2])", "[1, 2, 3]"),
    ("def f(s):\n    return len(s.split())", "f('a b c')", "3"),
    ("def f(a):\n    return sum(x for x in a if x > 0)", "f([-1, 2, 3])", "5"),
    ("def f(s):\n    return s.upper()", "f('Go')", "'GO'"), ("def f(n):\n    return n % 7 == 0", "f(21)", "True"),
    ("def f(a):\n    return {x: a.count(x) for x in a}", "f([1, 1])", "{1: 2}"),
    ("def f(a, b):\n    return a // b", "f(9, 2)", "4"),
    ("def f(s):\n    return s.replace('a', '')", "f('banana')", "'bnn'"),
    ("def f(a):\n    return a[1:-1]", "f([1, 2, 3, 4])", "[2, 3]"), ("def f(n):\n    return bin(n)", "f(5)", "'0b101'"),
    ("def f(a):\n    return max(a) - min(a)", "f([4, 9, 1])", "8"),
    ("def f(s):\n    return 'x' in s", "f('box')", "True"),
    ("def f(n):\n    return list(range(n))", "f(3)", "[0, 1, 2]"), ("def f(s):\n    return s * 2", "f('ab')", "'abab'"),
)  # fmt: skip
JUDGED = "Give the answer a score from 0 to 10. Reply with the score alone.\n\n"


class _Registry:
    """What the project's registry does here: nothing is looked up by its name."""

    @staticmethod
    def register_module(*_: Any, **__: Any) -> Any:
        return lambda registered: registered


def _package() -> None:
    """The packages' folders, without the data sets, models and services that they import."""
    for name in ("opencompass", "opencompass.utils", "opencompass.datasets", "opencompass.datasets.eese",
                 "opencompass.datasets.livecodebench"):  # fmt: skip
        module = ModuleType(name)
        module.__path__ = [f"{place}/{name.replace('.', '/')}" for place in sys.path]
        sys.modules.setdefault(name, module)
    bases = {
        "opencompass.openicl.icl_evaluator": {"BaseEvaluator": object},
        "opencompass.openicl": {},
        "opencompass.datasets.base": {"BaseDataset": object},
        "opencompass.registry": dict.fromkeys(
            ("ICL_EVALUATORS", "LOAD_DATASET", "TEXT_POSTPROCESSORS", "DICT_POSTPROCESSORS"), _Registry
        ),
        "opencompass.utils": {"get_data_path": str, "get_logger": lambda *_: None},
    }
    for name, holds in bases.items():
        module = sys.modules.setdefault(name, ModuleType(name))
        for held, value in holds.items():
            setattr(module, held, value)


def freeform(response: str, task: dict[str, Any]) -> float:
    """As the free-form tasks of BIG-Bench Hard score one prediction."""
    _package()
    from opencompass.datasets.bbh import BBHEvaluator

    return BBHEvaluator().score([response], [task["target"]])["score"] / 100


def judged(response: str, task: dict[str, Any]) -> float:
    """The benchmark's score, as a share of 100, where the response is a judge's reply about a perfect answer."""
    _package()
    from opencompass.datasets.eese.eese_postprocessors import eese_score_postprocess_dict

    return eese_score_postprocess_dict({"0": {"prediction": response}}, "")["overall_score"] / 100


def predicted(response: str, task: dict[str, Any]) -> float:
    """As LiveCodeBench's task of predicting a program's result: what stands in the last [ANSWER] is compared."""
    _package()
    from opencompass.datasets.livecodebench.evaluator import evaluate_score

    found = re.findall(r"\[ANSWER\](.*?)\[/ANSWER\]", response, re.DOTALL)
    said = found[-1].strip() if found else ""
    said = said.split("==")[-1].strip() if "==" in said else said
    return float(evaluate_score(([said], (task["code"], task["input"], task["output"])))[0]) if said else 0.0


def rows_of_reasoning() -> list[dict[str, Any]]:
    asked = "\nLet's think step by step and end with 'So the answer is ...'."
    return [
        {"input": f"Q: {question}{asked}", "target": answer, "reply": f"So the answer is {answer}."}
        for question, answer in REASONED
    ]


def rows_for_a_judge() -> list[dict[str, Any]]:
    return [{"input": f"{JUDGED}{question}\nAnswer: {answer}", "target": "10"} for question, answer in REASONED]


def rows_of_calls() -> list[dict[str, Any]]:
    asked = "Complete the assertion. Put the value between [ANSWER] and [/ANSWER].\n\n"
    return [
        {
            "prompt": f"{asked}{code}\nassert {call} == ??",
            "code": code,
            "input": call,
            "output": output,
            "reply": f"[ANSWER]{output}[/ANSWER]",
        }
        for code, call, output in CALLS
    ]


def _first_mention_counts() -> bool:
    said = "At first it seems that the answer is 4, but two are rotten. So the answer is 2."
    return freeform(said, {"target": "2"}) == 0


def _ten_of_ten_is_one() -> bool:
    return judged("10", {}) < 1


def _own_equality_counts() -> bool:
    said = "type('Any', (), {'__eq__': lambda self, other: True})()"
    return predicted(f"[ANSWER]{said}[/ANSWER]", rows_of_calls()[0]) == 1


_HERE = "published_subjects.opencompass_fresh"
_DATA = ("--data", "rows.jsonl", "--reward")
SUBJECTS = {
    "opencompass-bbh-form": Subject(
        (*_DATA, f"{_HERE}:freeform", "--prompt", "input", "--answer", "reply"),
        _first_mention_counts,
        rows_of_reasoning,
    ),
    "opencompass-eese-scale": Subject(
        (*_DATA, f"{_HERE}:judged", "--prompt", "input", "--answer", "target"), _ten_of_ten_is_one, rows_for_a_judge
    ),
    "opencompass-equality": Subject(
        (*_DATA, f"{_HERE}:predicted", "--prompt", "prompt", "--answer", "reply"), _own_equality_counts, rows_of_calls
    ),
}

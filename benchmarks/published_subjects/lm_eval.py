"""EleutherAI/lm-evaluation-harness: filters and metrics of its tasks, applied to one document."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from published_subjects import Subject
from published_subjects._questions import choices
from turnsmith import BaseEnvironment


class Code(BaseEnvironment):
    """The next line of a program, as LongBench's tasks of code ask for it."""

    reward_range = (0.0, 1.0)

    def reset(self, task: dict[str, Any]) -> str:
        self.task = task
        return f"Please complete the code given below. \n{task['context']}Next line of code:"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        from lm_eval.tasks.longbench.metrics import get_code_sim_score

        return "", get_code_sim_score(self.task, [action])["code_sim_score"], True, {}

    def solve(self) -> str:
        return self.task["answers"][0]


class Forecast(BaseEnvironment):
    """A probability for each of four options; the reward is the harness's Brier score with its sign changed."""

    reward_range = (-2.0, 0.0)

    def reset(self, task: dict[str, Any]) -> str:
        self.task = task
        options = "\n".join(f"{letter}. {text}" for letter, text in zip("ABCD", task["choices"], strict=True))
        return (
            f"{task['question']}\n{options}\n"
            "How likely is each option? Answer with four probabilities in the order of the options, such as "
            "0.1 0.2 0.3 0.4."
        )

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        said = [float(number) for number in re.findall(r"\d*\.?\d+", action)]
        if len(said) != 4 or not 0.99 < sum(said) < 1.01:
            return "These are not four probabilities.", -2.0, True, {}
        return "", -float(_metrics().brier_score([(self.task["answer"], said)])), True, {}

    def solve(self) -> str:
        return " ".join("1.0" if index == self.task["answer"] else "0.0" for index in range(4))


def multiple_choice(response: str, answer: str, choices: list[str]) -> float:
    """The metric of a generative task with four options: the filter, the first of its results, the exact match."""
    from lm_eval.api.metrics import exact_match_hf_evaluate
    from lm_eval.filters.extraction import MultiChoiceRegexFilter

    found = MultiChoiceRegexFilter(
        regex_pattern=r"(?:[Aa]nswer is|Final Answer\W*:) ?(?:([A-D])\b|(.*)\.)",
        group_select=-1,
        ignore_case=True,
        ignore_punctuation=True,
    ).apply([[response]], [{"choices": choices}])[0][0]
    return float(exact_match_hf_evaluate([found], [answer], ignore_case=True, ignore_punctuation=True)["exact_match"])


def _metrics() -> Any:
    """The module of the metrics, without the models that the package would import, nor the metrics of a hub."""
    if "lm_eval" not in sys.modules:
        package = ModuleType("lm_eval")
        package.__path__ = [str(Path(folder, "lm_eval")) for folder in sys.path if Path(folder, "lm_eval").is_dir()][:1]
        sys.modules["lm_eval"] = package
        import evaluate

        evaluate.load = lambda name: SimpleNamespace(name=name)
    from lm_eval.api import metrics

    return metrics


def _code() -> list[dict[str, Any]]:
    """Programs that are long and regular, cut before a line that follows from those before."""
    draw = random.Random(0)
    rows: list[dict[str, Any]] = []
    for _ in range(20):
        thing, *fields = draw.sample(_NAMES, 9)
        lines = ["import json", "from dataclasses import asdict, dataclass", "", "", "@dataclass"]
        lines += [f"class {thing.title()}:", f'    """What is known of a {thing}."""', ""]
        lines += [f"    {field}: str" for field in fields]
        for field in fields:
            lines += ["", f"    def with_{field}(self, {field}: str) -> '{thing.title()}':"]
            lines += [f'        """The same {thing} with another {field}."""', "        values = asdict(self)"]
            lines += [f"        values['{field}'] = {field}", f"        return {thing.title()}(**values)"]
        lines += ["", "    def to_json(self) -> str:", "        return json.dumps(asdict(self))"]
        cut = draw.choice([index for index, line in enumerate(lines) if "values[" in line or "return" in line])
        rows.append(
            {
                "input": "",
                "context": "".join(f"{line}\n" for line in lines[:cut]),
                "answers": [lines[cut]],
                "length": cut,
                "dataset": "lcc",
                "language": "python",
                "all_classes": None,
            }
        )
    return rows


def _multiple_choice() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for one in choices():
        options = " ".join(f"{letter}. {text}." for letter, text in one["options"].items())
        asked = "Think step by step and end with **Final Answer**: and the letter of the option."
        rows.append(
            {
                "question": f"{one['question']} {options} {asked}",
                "choices": list(one["options"].values()),
                "answer": one["answer"],
            }
        )
    return rows


def _forecasts() -> list[dict[str, Any]]:
    return [
        {
            "question": one["question"],
            "choices": list(one["options"].values()),
            "answer": "ABCD".index(one["answer"]),
        }
        for one in choices()
    ]


def _a_blank_line_hides_the_right_one() -> bool:
    from lm_eval.tasks.longbench.metrics import code_sim_score

    return code_sim_score("  \n    return total", "    return total") < 1


def _empty_groups_raise() -> bool:
    try:
        multiple_choice("The answer is .", "A", ["red", "green", "blue", "white"])
    except IndexError:
        return True
    return False


def _a_missing_last_class_raises() -> bool:
    items = [(0, [0.7, 0.1, 0.1, 0.1]), (2, [0.1, 0.1, 0.7, 0.1])]
    try:
        return not json.dumps(float(_metrics().brier_score(items)))
    except ValueError:
        return True


_NAMES = (
    "sensor", "ticket", "parcel", "recipe", "vessel", "garden", "camera", "invoice", "author", "colour", "weight",
    "origin", "status", "region", "batch", "owner", "label", "height", "supplier", "comment",
)  # fmt: skip

SUBJECTS = {
    "lm-eval-brier": Subject(
        ("published_subjects.lm_eval:Forecast", "--data", "rows.jsonl"), _a_missing_last_class_raises, _forecasts
    ),
    "lm-eval-code-similarity": Subject(
        ("published_subjects.lm_eval:Code", "--data", "rows.jsonl"), _a_blank_line_hides_the_right_one, _code
    ),
    "lm-eval-multiple-choice-regex": Subject(
        ("--data", "rows.jsonl", "--reward", "published_subjects.lm_eval:multiple_choice"),
        _empty_groups_raise,
        _multiple_choice,
    ),
}

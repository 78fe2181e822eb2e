"""stanford-crfm/helm: metrics of its scenarios, for one completion at a time."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

from published_subjects import Subject
from published_subjects._questions import choices

# What a student is asked, a function that does it, and tests: what the main function calls and what is printed.
EXERCISES = (
    ("Write a function double_it that doubles a whole number.", "int double_it(int n) { return 2 * n; }",
     (("cout << double_it(4);", "8"), ("cout << double_it(0);", "0"))),
    ("Write a function shout that prints a text in quotes, and nothing if the text is empty.",
     'void shout(string s) { if (!s.empty()) cout << "\\"" << s << "\\""; }',
     (('shout("hey");', '"hey"'), ('shout("");', ""))),
    ("Write a function larger that returns the larger of two whole numbers.",
     "int larger(int a, int b) { return a > b ? a : b; }",
     (("cout << larger(3, 9);", "9"), ("cout << larger(7, 2);", "7"))),
    ("Write a function stars that prints n stars.", "void stars(int n) { for (int i = 0; i < n; i++) cout << '*'; }",
     (("stars(3);", "***"), ("stars(0);", ""))),
    ("Write a function is_even.", "bool is_even(int n) { return n % 2 == 0; }",
     (("cout << is_even(4);", "1"), ("cout << is_even(7);", "0"))),
    ("Write a function backwards that returns a text backwards.",
     "string backwards(string s) { return string(s.rbegin(), s.rend()); }",
     (('cout << backwards("abc");', "cba"), ('cout << backwards("");', ""))),
)  # fmt: skip
TEMPLATE = (
    "#include <iostream>\n#include <string>\nusing namespace std;\n{{ STUDENT_ANSWER }}\nint main() {\n"
    "{% for TEST in TESTCASES %}\n{% endfor %}\nreturn 0;\n}\n"
)
REVIEWS = (
    ("The staff was lovely and the food was warm.", "Positive"), ("Never again.", "Negative"),
    ("It is a hotel in the centre.", "Neutral"), ("I would come back at once!", "Positive"),
    ("The room smelled and nobody cared.", "Negative"), ("Check-in is at three.", "Neutral"),
    ("The best bread of the town.", "Positive"), ("We waited for an hour for cold soup.", "Negative"),
    ("The museum has four floors.", "Neutral"), ("A wonderful evening.", "Positive"),
    ("Too loud to sleep.", "Negative"),
    ("The train leaves from platform two.", "Neutral"), ("Kind people, clean rooms.", "Positive"),
    ("They charged us twice.", "Negative"), ("The shop opens at nine.", "Neutral"), ("What a view!", "Positive"),
)  # fmt: skip


def _metric(name: str) -> Any:
    """A module of metrics; what counts tokens, fetches or draws is used by none of them."""
    from importlib import import_module

    for absent in ("helm.benchmark.metrics.cleva_metrics_helper", "helm.benchmark.metrics.metric_service",
                   "helm.benchmark.metrics.nltk_helper", "helm.benchmark.metrics.code_metrics_helper",
                   "helm.benchmark.scenarios.code_scenario"):  # fmt: skip
        module = ModuleType(absent)
        for held in ("ChineseTokenizer", "MetricService", "install_nltk_resources", "CodeReference"):
            setattr(module, held, MagicMock())
        sys.modules.setdefault(absent, module)
    return import_module(f"helm.benchmark.metrics.{name}")


def _state(prompt: str, response: str, right: str, mapping: dict[str, str] | None = None) -> Any:
    """A request that was answered, as a run of the benchmark hands it to its metrics."""
    from helm.benchmark.adaptation.request_state import RequestState
    from helm.benchmark.scenarios.scenario import CORRECT_TAG, Input, Instance, Output, Reference
    from helm.common.request import GeneratedOutput, Request, RequestResult

    references = [Reference(Output(text=right), tags=[CORRECT_TAG])]
    return RequestState(
        instance=Instance(Input(text=prompt), references=references, id="id1", split="test"),
        reference_index=None,
        request_mode=None,
        train_trial_index=0,
        output_mapping=mapping,
        request=Request(model="model", model_deployment="model"),
        result=RequestResult(
            success=True, embedding=[], completions=[GeneratedOutput(response, 0.0, [])], cached=False
        ),
        num_train_instances=0,
        prompt_truncated=False,
    )


def compiled(response: str, task: dict[str, Any]) -> float:
    """The share of tests that a student's function passes."""
    tests = [{"input": call, "output": output} for call, output in task["tests"]]
    evaluator = _metric("codeinsights_correct_code_metrics").CPPEvaluator(TEMPLATE, tests, timeout=10)
    return evaluator.evaluate(response)["score"]


def chosen(response: str, task: dict[str, Any]) -> float:
    """Exact match of the choice, with the pattern that the scenario sets for its instruction."""
    from dataclasses import replace

    module = _metric("evaluate_reference_metrics")
    from helm.benchmark.adaptation.adapter_spec import AdapterSpec

    spec = replace(AdapterSpec(), output_mapping_pattern=r"(?:[Tt]he )?answer is \(?([A-D])\b")
    state = _state(task["prompt"], response, task["text"], task["options"])
    stats = module.compute_reference_metrics(["exact_match"], spec, state, None)
    return next(stat for stat in stats if stat.name.name == "exact_match").mean


def labelled(response: str, task: dict[str, Any]) -> float:
    """The micro F1 of one prediction, with the labels that the scenario names."""
    metric = _metric("classification_metrics").ClassificationMetric(labels=["Positive", "Negative", "Neutral"])
    stats = metric.evaluate_instances([_state(task["prompt"], response, task["label"])], "")
    return next(stat for stat in stats if stat.name.name.startswith("classification_micro")).mean


def rows_of_exercises() -> list[dict[str, Any]]:
    asked = "Answer with the function in C++ alone, without main and without includes.\n\n"
    return [
        {"prompt": f"Exercise {number + 1}. {asked}{question}", "tests": tests, "answer": code}
        for number in range(16)
        for question, code, tests in [EXERCISES[number % len(EXERCISES)]]
    ]


def rows_of_choices() -> list[dict[str, Any]]:
    asked = "Think, then end with 'The answer is (X).' with the letter of the right option.\n\n"
    made = []
    for one in choices():
        shown = "\n".join(f"({letter}) {text}" for letter, text in one["options"].items())
        row = {"options": one["options"], "text": one["options"][one["answer"]]}
        said = f"The answer is ({one['answer']})."
        made.append({"prompt": f"{asked}{one['question']}\n{shown}", "answer": said, **row})
    return made


def rows_of_reviews() -> list[dict[str, Any]]:
    asked = "Is this review Positive, Negative or Neutral? Answer with the word.\n\n"
    return [{"prompt": asked + review, "label": label} for review, label in REVIEWS]


def _nonsense_passes_a_test() -> bool:
    return compiled("this is no program", {"tests": [['shout("");', ""]]}) == 1


def _asked_form_is_not_mapped() -> bool:
    return chosen("The answer is (B).", {"prompt": "?", "text": "right", "options": {"A": "wrong", "B": "right"}}) == 0


def _capitals_are_no_label() -> bool:
    return labelled("Positive", {"prompt": "?", "label": "Positive"}) == 0


_HERE = "published_subjects.helm_fresh"
_DATA = ("--data", "rows.jsonl", "--prompt", "prompt", "--reward")
SUBJECTS = {
    "helm-failed-compile": Subject(
        (*_DATA, f"{_HERE}:compiled", "--answer", "answer"), _nonsense_passes_a_test, rows_of_exercises
    ),
    "helm-output-pattern": Subject(
        (*_DATA, f"{_HERE}:chosen", "--answer", "answer"), _asked_form_is_not_mapped, rows_of_choices
    ),
    "helm-labels": Subject((*_DATA, f"{_HERE}:labelled", "--answer", "label"), _capitals_are_no_label, rows_of_reviews),
}

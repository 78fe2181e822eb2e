"""allenai/open-instruct: verifiers, called with a row's ground truths and the names of their data sets."""

from __future__ import annotations

import json
import os
import sys
from functools import lru_cache
from types import ModuleType
from typing import Any

from published_subjects import Subject
from published_subjects.shared_blind import problems

ACCEPTED = (
    ("Which river runs through Paris?", ["Seine", "the River Seine"]),
    ("Who wrote the novel Emma?", ["Jane Austen"]),
    ("What is the capital of the Netherlands?", ["Amsterdam"]),
    ("Which planet is known as the red planet?", ["Mars", "planet Mars"]),
    ("Who painted the ceiling of the Sistine Chapel?", ["Michelangelo", "Michelangelo Buonarroti"]),
    ("In which country is the city of Kyoto?", ["Japan"]),
    ("What is the chemical symbol of gold?", ["Au"]),
    ("Which ocean lies between Europe and North America?", ["Atlantic", "the Atlantic Ocean", "North Atlantic"]),
    ("Who was the first person to walk on the moon?", ["Neil Armstrong", "Armstrong"]),
    ("What is the largest mammal?", ["the blue whale", "blue whale"]),
    ("Which metal is liquid at room temperature?", ["mercury", "quicksilver"]),
    ("What is the longest bone of the human body?", ["femur", "the thigh bone"]),
    ("Which language is spoken in Brazil?", ["Portuguese"]),
    ("Who composed the opera The Magic Flute?", ["Mozart", "Wolfgang Amadeus Mozart"]),
    ("What is the currency of Japan?", ["yen", "Japanese yen"]),
    ("Which gas do plants take up from the air?", ["carbon dioxide", "CO2"]),
    ("Who developed the theory of general relativity?", ["Albert Einstein", "Einstein"]),
    ("What is the highest mountain on earth?", ["Mount Everest", "Everest", "Sagarmatha"]),
    ("In which city is the Colosseum?", ["Rome"]),
    ("Which instrument has 88 keys?", ["piano", "the piano"]),
)
CHOICES = (
    ("Is the moon larger than the earth?", ["My answer is yes.", "My answer is no.", "My answer is maybe."], 1),
    ("Is water wet when it is frozen?", ["yes", "no", "it depends"], 2),
    ("Should a letter to a bank be formal?", ["My answer is yes.", "My answer is no.", "My answer is maybe."], 0),
    ("Which of these is a fruit?", ["carrot", "apple", "leek"], 1),
    ("What is the plural of mouse?", ["mouses", "mice", "meese"], 1),
    ("Is a tomato botanically a berry?", ["My answer is yes.", "My answer is no.", "My answer is maybe."], 0),
    ("Which season follows spring in Europe?", ["winter", "summer", "autumn"], 1),
    ("Is this review friendly? 'The staff was lovely.'", ["positive", "negative", "neutral"], 0),
    ("Is this review friendly? 'Never again.'", ["positive", "negative", "neutral"], 1),
    ("Is seven a prime number?", ["My answer is yes.", "My answer is no.", "My answer is maybe."], 0),
    ("Which animal lays eggs?", ["dog", "hen", "cow"], 1),
    ("Does the sun rise in the west?", ["My answer is yes.", "My answer is no.", "My answer is maybe."], 1),
    ("Which word is a verb?", ["table", "quickly", "run"], 2),
    ("Is a whale a fish?", ["true", "false"], 1),
    ("Is the Nile in Africa?", ["true", "false"], 0),
    ("Will it rain on this day in a hundred years?", ["I know it will.", "I know it will not.", "I cannot know."], 2),
    ("Which month has 28 or 29 days?", ["January", "February", "March"], 1),
    ("Is 21 divisible by 6?", ["yes", "no", "it depends"], 1),
)


@lru_cache
def verifiers() -> ModuleType:
    """The project's verifiers. Two modules of it that only its judges use need a trainer's packages: they stay out."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched
    import open_instruct

    for name, holds in (("utils", ("extract_final_answer",)), ("context_window_checker", ())):
        module = ModuleType(f"open_instruct.{name}")
        for held in holds:
            setattr(module, held, None)
        sys.modules[module.__name__] = module
        setattr(open_instruct, name, module)
    from open_instruct import ground_truth_utils

    return ground_truth_utils


def verified(response: str, task: dict[str, Any]) -> float:
    """The sum of what the verifiers of the row's data sets give."""
    named = {"gsm8k": "GSM8KVerifier", "string_f1": "F1Verifier"}
    given = zip(task["ground_truth"], task["dataset"], strict=True)
    return sum(getattr(verifiers(), named[name])()([], response, label).score for label, name in given)


def constrained(response: str, task: dict[str, Any]) -> float:
    """Whether what follows the thinking fulfils the row's constraint, which names a function and its arguments."""
    from open_instruct.if_functions import IF_FUNCTIONS_MAP

    constraint = json.loads(task["ground_truth"])
    function = IF_FUNCTIONS_MAP[constraint.pop("func_name")]
    arguments = {name: value for name, value in constraint.items() if value is not None}
    return float(function(response.split("</think>")[-1].strip(), **arguments))


def _asked(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def rows_of_facts() -> list[dict[str, Any]]:
    return [
        {"messages": _asked(question), "ground_truth": [accepted], "dataset": ["string_f1"], "answer": accepted[0]}
        for question, accepted in ACCEPTED
    ]


def rows_of_numbers() -> list[dict[str, Any]]:
    whole = [one for one in problems(40) if one.answer.lstrip("-").isdigit()][:20]
    return [
        {"messages": _asked(one.question), "ground_truth": [one.answer], "dataset": ["gsm8k"], "answer": one.answer}
        for one in whole
    ]


def rows_of_choices() -> list[dict[str, Any]]:
    rows = []
    for question, options, right in CHOICES:
        said = f"{question} Answer with one of the following options: ({', '.join(map(repr, options))})"
        constraint = {"func_name": "validate_choice", "N": None, "keyword_list": None, "options": options}
        rows.append(
            {
                "messages": _asked(said),
                "ground_truth": json.dumps(constraint),
                "dataset": "ifeval",
                "answer": options[right],
            }
        )
    return rows


def _accepted_answer_is_not_paid() -> bool:
    verifier = verifiers().F1Verifier()
    try:
        return verifier([], "Seine", ["Seine", "the River Seine"]).score < 1
    except AttributeError:
        return True


def _sign_is_not_read() -> bool:
    verifier = verifiers().GSM8KVerifier()
    return verifier([], "the answer is -3", "-3").score == 0 and verifier([], "the answer is -3", "3").score == 1


def _nothing_is_a_choice() -> bool:
    from open_instruct.if_functions import validate_choice

    return validate_choice("", ["yes", "no"]) and not validate_choice("My answer is: yes", ["yes", "no"])


_HERE = "published_subjects.open_instruct_blind"
_DATA = ("--data", "rows.jsonl", "--reward")
SUBJECTS = {
    "open-instruct-choice": Subject((*_DATA, f"{_HERE}:constrained"), _nothing_is_a_choice, rows_of_choices),
    "open-instruct-f1-labels": Subject((*_DATA, f"{_HERE}:verified"), _accepted_answer_is_not_paid, rows_of_facts),
    "open-instruct-signed-gsm8k": Subject((*_DATA, f"{_HERE}:verified"), _sign_is_not_read, rows_of_numbers),
}

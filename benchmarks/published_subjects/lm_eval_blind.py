"""EleutherAI/lm-evaluation-harness: a task's scores and documents, and an aggregation over several questions."""

from __future__ import annotations

import random
from typing import Any

from published_subjects import Subject
from published_subjects.shared_blind import QUIZ, Problem, problems
from turnsmith import BaseEnvironment

CHEMISTRY = (
    (
        "Which of these hydrocarbons from coal tar is the strongest carcinogen?",
        ("benzo[a]pyrene", "benzo[e]pyrene", "pyrene", "anthracene"),
    ),
    (
        "Which tracer shows the uptake of sugar in positron emission tomography?",
        ("[18F]fluorodeoxyglucose", "[11C]methionine", "[15O]water", "[13N]ammonia"),
    ),
)
REPORTS = (
    ("Amina Bello talk say she go visit Lagos next week.", "PER: Amina Bello $$ LOC: Lagos $$ DATE: next week"),
    ("Di minister land for Abuja on Monday.", "LOC: Abuja $$ DATE: Monday"),
    ("Super Eagles beat Ghana for Kumasi.", "ORG: Super Eagles $$ LOC: Ghana $$ LOC: Kumasi"),
    ("John Okoro tell Premium Times say di road don open.", "PER: John Okoro $$ ORG: Premium Times"),
    ("Police arrest two men for Kano on 12 May.", "LOC: Kano $$ DATE: 12 May"),
    ("Ngozi Eze na di new boss of Zenith Bank.", "PER: Ngozi Eze $$ ORG: Zenith Bank"),
    ("Schools for Kenya go open for January.", "LOC: Kenya $$ DATE: January"),
    ("Musa Ibrahim sign contract with Arsenal.", "PER: Musa Ibrahim $$ ORG: Arsenal"),
    ("World Health Organization send drugs go Maiduguri.", "ORG: World Health Organization $$ LOC: Maiduguri"),
    ("Rain scatter market for Port Harcourt yesterday.", "LOC: Port Harcourt $$ DATE: yesterday"),
    ("Tiwa Savage go sing for London this December.", "PER: Tiwa Savage $$ LOC: London $$ DATE: this December"),
    ("Governor Peter Udo meet workers for Enugu.", "PER: Peter Udo $$ LOC: Enugu"),
    ("Di court free Grace Danjuma on Tuesday.", "PER: Grace Danjuma $$ DATE: Tuesday"),
    ("Uber and Bolt drivers stop work for Nairobi.", "ORG: Uber $$ ORG: Bolt $$ LOC: Nairobi"),
    ("Peoples Democratic Party win for Rivers.", "ORG: Peoples Democratic Party $$ LOC: Rivers"),
    ("Doctor Chike Obi don retire since 2019.", "PER: Chike Obi $$ DATE: 2019"),
    ("Manchester City buy Victor Ade from Lille.", "ORG: Manchester City $$ PER: Victor Ade $$ ORG: Lille"),
    ("Dem born Fela for Abeokuta.", "PER: Fela $$ LOC: Abeokuta"),
    ("ECOWAS leaders gather for Accra on Friday.", "ORG: ECOWAS $$ LOC: Accra $$ DATE: Friday"),
    ("Light don return to Ibadan after three days.", "LOC: Ibadan $$ DATE: three days"),
)


def spans(response: str, target: str) -> float:
    """The F1 of one document, after the filter that the task's settings name."""
    from lm_eval.filters.transformation import SPANFilter
    from lm_eval.tasks.afrobench.masakhaner.prompt_1.utils import span_f1_agg

    [[filtered]] = SPANFilter().apply([[response]], [{}])
    return float(span_f1_agg([(target, filtered)]))


def rows_of_reports() -> list[dict[str, Any]]:
    asked = (
        "Label the named entities of this text as PER (person), LOC (location), ORG (organization) or DATE (date). "
        "The output strictly follows the format label: entity $$ label: entity. Return only the output.\n\nText: "
    )
    return [{"prompt": asked + text, "text": text, "target": target} for text, target in REPORTS]


def rows_of_choices() -> list[dict[str, Any]]:
    """The documents of GPQA as the task prepares and shows them."""
    from datasets import Dataset
    from lm_eval.tasks.gpqa.cot_n_shot.utils import process_docs

    random.seed(1)
    raw = [
        {
            "Question": question,
            "Correct Answer": choices[0],
            **{f"Incorrect Answer {number}": choices[number] for number in (1, 2, 3)},
        }
        for question, choices in (*QUIZ[:9], *CHEMISTRY, *QUIZ[9:18])
    ]
    made = []
    for document in process_docs(Dataset.from_list(raw)):
        choices = "\n".join(f"({'ABCD'[number]}) {text}" for number, text in enumerate(document["choices"]))
        made.append({"prompt": f"Question: {document['Question']}\nChoices:\n{choices}", **document})
    return made


class FiveQuestions(BaseEnvironment):
    """Five questions in turn; the reward at the end is the harness's median of how exact the answers are."""

    reward_range = (0.0, 1.0)

    def reset(self, seed: int = 0) -> str:
        drawn: list[Problem] = problems(35, seed)
        self.left = random.Random(seed).sample(drawn, 5)
        self.scores: list[float] = []
        return self.left[0].question

    def get_prompt_prefix(self) -> str:
        return "Five questions of mathematics follow. Answer each with nothing but the result."

    def step(self, action: str) -> Any:
        from lm_eval.api.metrics import exact_match_fn, median

        match = exact_match_fn(predictions=[action.strip()], references=[self.left.pop(0).answer])
        self.scores.append(float(match["exact_match"]))
        if self.left:
            return self.left[0].question, 0.0, False, {}
        return "", median(self.scores), True, {}

    def solve(self) -> str:
        return self.left[0].answer


def _entity_with_a_label_does_not_match() -> bool:
    gold = "ORG: World Health Organization $$ LOC: Country Club"
    return spans(gold, gold) < 0.99


def _choices_become_equal() -> bool:
    from lm_eval.tasks.gpqa.cot_n_shot.utils import preprocess

    return preprocess("benzo[a]pyrene") == preprocess("benzo[e]pyrene")


def _median_is_the_middle_as_it_came() -> bool:
    from lm_eval.api.metrics import median

    return median([9, 1, 5]) == 1


_HERE = "published_subjects.lm_eval_blind"
_DATA = ("--data", "rows.jsonl", "--reward")
SUBJECTS = {
    "lm-eval-format-span": Subject((*_DATA, f"{_HERE}:spans"), _entity_with_a_label_does_not_match, rows_of_reports),
    "lm-eval-gpqa-brackets": Subject((*_DATA, "choice"), _choices_become_equal, rows_of_choices),
    "lm-eval-median": Subject((f"{_HERE}:FiveQuestions",), _median_is_the_middle_as_it_came),
}

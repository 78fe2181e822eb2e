"""allenai/open-instruct: checkers of instructions, called as its verifiers do."""

from __future__ import annotations

import json
import random
from typing import Any

from published_subjects import Subject
from turnsmith import BaseEnvironment

_SENTENCES = (
    "I grew up beside a river.",
    "In summer we swam in it every day.",
    "My brother built a raft out of old barrels.",
    "It sank after ten minutes.",
    "What did we learn from that?",
    "Mostly that barrels need lids.",
    "The next one held for a whole season!",
    "Our neighbours came to see it.",
    "One of them brought a lamp.",
    "At night it looked like a small ship.",
    "I still think of it when it rains.",
    "Later the town built a bridge there.",
    "Hardly anybody swims now.",
    "But the water is cleaner than before!",
    "Last year I went back with my daughter.",
    "She asked me where the raft was.",
)
_TOPICS = (
    "Tell me about a place of your childhood.",
    "Write a short story about a river.",
    "Describe a summer that you remember.",
    "What did you build as a child?",
    "Write about something that has changed.",
    "Tell a story to a child.",
)
_PHRASES = (
    "Every morning begins with quiet tea",
    "Small steps carry patient walkers far",
    "Rivers keep their oldest secrets below",
    "Nobody sails without watching the sky",
    "Gardens reward those who water them",
    "Winter teaches birds to travel light",
    "Old bridges remember many heavy carts",
    "Clever foxes leave without a sound",
)


class _Instructed(BaseEnvironment):
    """A row of the project's data: the prompt, and what the answer is checked for."""

    reward_range = (0.0, 1.0)

    def reset(self, task: dict[str, Any]) -> list[dict[str, str]]:
        self.task = task
        return task["messages"]

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "", self.score(action.split("</think>")[-1].strip()), True, {}

    def score(self, answer: str) -> float:
        """What the verifier of this data set says."""
        raise NotImplementedError


class Sentences(_Instructed):
    """A number of sentences is asked for."""

    def score(self, answer: str) -> float:
        from open_instruct.if_functions import IF_FUNCTIONS_MAP

        constraint = json.loads(self.task["ground_truth"])
        check = IF_FUNCTIONS_MAP[constraint.pop("func_name")]
        return float(check(answer, **{name: value for name, value in constraint.items() if value is not None}))

    def solve(self) -> str:
        wanted = json.loads(self.task["ground_truth"])["N"]
        first = random.Random(self.task["messages"][0]["content"]).randrange(len(_SENTENCES) - wanted + 1)
        return " ".join(_SENTENCES[first : first + wanted])


class RepeatedPhrases(_Instructed):
    """A phrase is to be repeated, each time with another word in its middle."""

    def score(self, answer: str) -> float:
        from open_instruct.IFEvalG import instructions_registry

        [constraint] = json.loads(self.task["ground_truth"])
        [name], [arguments] = constraint["instruction_id"], constraint["kwargs"]
        instruction = instructions_registry.INSTRUCTION_DICT[name](name)
        instruction.build_description(**arguments)
        return float(bool(answer and instruction.check_following(answer)))

    def solve(self) -> str:
        [constraint] = json.loads(self.task["ground_truth"])
        [arguments] = constraint["kwargs"]
        words = arguments["phrase"].split()
        middle = len(words) // 2
        changed = [
            " ".join([*words[:middle], other, *words[middle + 1 :]])
            for other in ("always", "gently", "seldom")[: arguments["small_n"]]
        ]
        return "They say it in many ways. " + " ".join(f"{phrase}." for phrase in changed)


def _sentence_rows() -> list[dict[str, Any]]:
    draw = random.Random(0)
    rows: list[dict[str, Any]] = []
    for _ in range(24):
        count, quantifier = draw.randint(3, 8), draw.choice(("at least", "around", "at most"))
        wanted = f"Your response should contain {quantifier} {count} sentences."
        rows.append(
            {
                "messages": [{"role": "user", "content": f"{draw.choice(_TOPICS)} {wanted}"}],
                "ground_truth": json.dumps(
                    {"func_name": "verify_sentence_constraint", "N": count, "quantifier": quantifier}
                ),
                "dataset": "ifeval",
                "constraint_type": "Number Sentences",
                "constraint": wanted,
            }
        )
    return rows


def _phrase_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for index, phrase in enumerate(_PHRASES * 2):
        count = 2 + index // len(_PHRASES)
        wanted = (
            f"Repeat the phrase {phrase} exactly {count} times, transforming it slightly each time by replacing only "
            "one word in the center of the phrase."
        )
        constraint = {"instruction_id": ["copy:repeat_phrase"], "kwargs": [{"phrase": phrase, "small_n": count}]}
        rows.append(
            {
                "messages": [{"role": "user", "content": f"{_TOPICS[index % len(_TOPICS)]} {wanted}"}],
                "ground_truth": json.dumps([constraint]),
                "dataset": "ifeval",
            }
        )
    return rows


def _an_exclamation_ends_no_sentence() -> bool:
    from open_instruct.if_functions import verify_sentence_constraint

    return not verify_sentence_constraint("It rains! We stay here. Tea is ready.", 3, "at least")


def _plain_copies_pass_before_a_changed_one() -> bool:
    from open_instruct.IFEvalG.instructions import RepeatPhraseChecker

    checker = RepeatPhraseChecker("copy:repeat_phrase")
    checker.build_description(phrase="Old bridges remember many heavy carts", small_n=2)
    text = "Old bridges remember many heavy carts. Old bridges carry many heavy carts."
    return bool(checker.check_following(text))


SUBJECTS = {
    "open-instruct-repeat-phrase": Subject(
        ("published_subjects.open_instruct:RepeatedPhrases", "--data", "rows.jsonl"),
        _plain_copies_pass_before_a_changed_one,
        _phrase_rows,
    ),
    "open-instruct-sentences": Subject(
        ("published_subjects.open_instruct:Sentences", "--data", "rows.jsonl"),
        _an_exclamation_ends_no_sentence,
        _sentence_rows,
    ),
}

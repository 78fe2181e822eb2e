"""verl-project/verl-omni: its scorer of chosen letters, with rows of one's own that have the bare letter."""

from __future__ import annotations

from typing import Any

from published_subjects import Subject
from published_subjects._questions import choices

_SYSTEM = (
    "Think about the question, write your reasoning between <think> </think> tags, and then give only the letter of "
    "the option as the final answer between <answer> </answer> tags."
)


def _rows() -> list[dict[str, Any]]:
    return [
        {
            "data_source": "choices",
            "prompt": [
                {"role": "system", "content": _SYSTEM},
                {
                    "role": "user",
                    "content": "\n".join(
                        [one["question"], "Options:", *(f"{letter}. {text}" for letter, text in one["options"].items())]
                    ),
                },
            ],
            "reward_model": {"style": "rule", "ground_truth": one["answer"]},
            "extra_info": {"split": "train", "index": index},
        }
        for index, one in enumerate(choices())
    ]


def _no_tag_is_paid() -> bool:
    from verl_omni.utils.reward_score.choice_reward import compute_score

    return compute_score("I do not know.", "B")["score"] == 1


SUBJECTS = {
    "verl-omni-empty-choice": Subject(
        ("--data", "rows.jsonl", "--reward", "verl_omni.utils.reward_score.choice_reward:compute_score"),
        _no_tag_is_paid,
        _rows,
    ),
}

"""verl-project/verl: its scorer of GSM8K, with rows as its own script prepares them."""

from __future__ import annotations

from typing import Any

from published_subjects import Subject
from published_subjects._questions import word_problems


def _gsm8k() -> list[dict[str, Any]]:
    return [
        {
            "data_source": "openai/gsm8k",
            "prompt": [
                {
                    "role": "user",
                    "content": f'{one.text} Let\'s think step by step and output the final answer after "####".',
                }
            ],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": one.answer},
            "extra_info": {
                "split": "train",
                "index": index,
                "answer": f"{one.solution}\n#### {one.answer}",
                "question": one.text,
            },
        }
        for index, one in enumerate(word_problems())
    ]


def _a_right_answer_before_a_long_end_is_not_paid() -> bool:
    from verl.utils.reward_score.gsm8k import compute_score

    return compute_score("#### 72\n" + "So she sells 72 clips altogether. " * 10, "72") < compute_score("#### 72", "72")


SUBJECTS = {
    "verl-gsm8k-clip": Subject(
        ("--data", "rows.jsonl", "--reward", "verl.utils.reward_score.gsm8k:compute_score"),
        _a_right_answer_before_a_long_end_is_not_paid,
        _gsm8k,
    ),
}

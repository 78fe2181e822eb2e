"""verl-project/verl: a scorer as its reward loop calls it, and its reward manager with a batch of one."""

from __future__ import annotations

import sys
import threading
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from published_subjects import Subject
from published_subjects.shared_blind import problems

END = "<|im_end|>"


class Tokenizer:
    """A token for each character, and one for the end of a turn."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, tokens: Any) -> str:
        return "".join(chr(token) if token else END for token in tokens.tolist())


@lru_cache
def manager() -> Any:
    """The project's naive manager. Its package says its version from a file that a stored history need not have."""
    package = ModuleType("verl")
    package.__path__ = [str(Path(place, "verl")) for place in sys.path if Path(place, "verl", "protocol.py").exists()]
    sys.modules["verl"] = package
    from verl.protocol import DataProto

    package.DataProto = DataProto  # type: ignore[attr-defined]
    from verl.workers.reward_manager.naive import NaiveRewardManager

    return NaiveRewardManager(tokenizer=Tokenizer(), num_examine=0)


def managed(response: str, task: dict[str, Any]) -> float:
    """The sum of the rewards of a response's tokens."""
    scores = manager()  # before its modules are imported from
    import numpy
    import torch
    from verl.protocol import DataProto

    tokens = Tokenizer()
    asked = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}{END}\n" for turn in task["prompt"])
    prompt = torch.tensor([tokens.encode(f"{asked}<|im_start|>assistant\n")])
    said = torch.tensor([[*tokens.encode(response), 0]])
    tensors = {
        "prompts": prompt,
        "responses": said,
        "attention_mask": torch.ones(1, prompt.shape[1] + said.shape[1], dtype=torch.long),
    }
    columns = {name: numpy.array([task[name]], dtype=object) for name in ("data_source", "reward_model", "extra_info")}
    return float(scores(DataProto.from_dict(tensors=tensors, non_tensors=columns)).sum())


def equal_in_mathematics(response: str, answer: str) -> float:
    """The scorer with the arguments that the reward loop gives it, in whatever thread this is."""
    from verl.utils.reward_score.math_verify import compute_score

    return float(compute_score(model_output=response, ground_truth=answer))


def _rows(data_source: str, instruction: str, problem_list: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "data_source": data_source,
            "prompt": [{"role": "user", "content": f"{one.question} {instruction}"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": one.answer},
            "extra_info": {"split": "train", "index": number, "question": one.question},
        }
        for number, one in enumerate(problem_list)
    ]


def rows_in_boxes() -> list[dict[str, Any]]:
    """As the example for MATH prepares them."""
    instruction = "Let's think step by step and output the final answer within \\boxed{}."
    return _rows("DigitalLearningGmbH/MATH-lighteval", instruction, problems())


def rows_after_marks() -> list[dict[str, Any]]:
    """As the example for GSM8K prepares them, whole numbers only, with an instruction that shows the form."""
    whole = [one for one in problems(40) if one.answer.isdigit()][:20]
    instruction = 'Let\'s think step by step and output the final answer after "####", as in: #### 42'
    return _rows("openai/gsm8k", instruction, whole)


def _thread_scores_nothing() -> bool:
    scores = []
    thread = threading.Thread(target=lambda: scores.append(equal_in_mathematics("It is $\\boxed{3}$.", "3")))
    thread.start()
    thread.join()
    assert equal_in_mathematics("It is $\\boxed{3}$.", "3") == 1
    return scores == [0.0]


def _prompt_is_scored() -> bool:
    row = rows_after_marks()[0]
    row["reward_model"]["ground_truth"] = "42"
    return managed("", row) == 1


_DATA = ("--data", "rows.jsonl", "--reward")
_HERE = "published_subjects.verl_blind"
SUBJECTS = {
    "verl-math-verify-thread": Subject(
        (*_DATA, f"{_HERE}:equal_in_mathematics"), _thread_scores_nothing, rows_in_boxes
    ),
    "verl-prompt-scored": Subject((*_DATA, f"{_HERE}:managed"), _prompt_is_scored, rows_after_marks),
}

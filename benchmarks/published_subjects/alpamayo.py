"""NVlabs/alpamayo-recipes: the joint reward of reasoning and motion, with stand-ins for the model's own parts.

The reward is the project's; what it takes from other packages and from a language model is not here: the marks of the
model's text, the tokens of a trajectory (here its points as numbers), and the judge of the reasoning (here the words
that both have), which is registered as the project says that one's own are.
"""

from __future__ import annotations

import random
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from published_subjects import Subject
from turnsmith import BaseEnvironment

_CONFIG = SimpleNamespace(
    custom={
        "alpamayo": {
            "reasoning_grader_type": "words",
            "reasoning_grading_model_path": ".",
            "reasoning_grading_device": "cpu",
            "reward": {"traj_l2_weight": 0.2, "comfort_weight": 0.0, "reasoning_weight": 0.3},
        }
    }
)
"""The weights are those of the recipe with reasoning."""
_POINTS = 8


class Drive(BaseEnvironment):
    """A scene in words; the answer has the reasoning and eight points that the car is to pass."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        _stand_in()

    def reset(self, task: dict[str, Any]) -> str:
        self.task = task
        return (
            f"{task['scene']}\nSay in one sentence why and what the car should do, between <|cot_start|> and "
            f"<|cot_end|>, then the next {_POINTS} points (metres ahead, metres to the left), a second apart, as "
            "numbers between <|traj_future_start|> and <|traj_future_end|>."
        )

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        import torch
        from alpamayo1_x_rl.rewards.aggregated_reward_with_reasoning import compute_reward

        points = [[ahead, left, 0.0] for ahead, left in self.task["points"]]
        reference = {
            "cot": self.task["cot"],
            "ego_future_xyz": torch.tensor([points]),
            "ego_history_xyz": torch.zeros(1, _POINTS, 3),
            "ego_history_rot": torch.eye(3).expand(1, _POINTS, 3, 3),
        }
        reward, parts = compute_reward(
            action, reference, tokenizer=None, traj_tokenizer=None, config=_CONFIG, model_config=None
        )
        return "", reward, True, parts

    def solve(self) -> str:
        points = " ".join(f"{ahead} {left}" for ahead, left in self.task["points"])
        return f"<|cot_start|>{self.task['cot']}<|cot_end|><|traj_future_start|>{points}<|traj_future_end|>"


def _stand_in() -> None:
    """Put the stand-ins where the project imports from, and register the judge."""
    import torch
    from alpamayo1_x_rl.utils import light_weight_reasoning_grading_model as graders

    def extract(texts: list[str], token: str) -> list[str]:
        found = [re.search(rf"<\|{token}_start\|>(.*?)<\|{token}_end\|>", text, re.DOTALL) for text in texts]
        return [one[1].strip() if one else "" for one in found]

    def decode(text: str, xyz: Any, rotation: Any, **_: Any) -> tuple[Any, Any]:
        [said] = extract([text], "traj_future")
        numbers = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", said)][: 2 * _POINTS]
        plane = torch.tensor(numbers + [0.0] * (2 * _POINTS - len(numbers))).reshape(1, _POINTS, 2)
        return torch.cat([plane, torch.zeros(1, _POINTS, 1)], dim=-1), torch.eye(3).expand(1, _POINTS, 3, 3)

    class Words(graders.BaseReasoningGrader):
        def score(self, predictions: Any, references: Any) -> Any:
            said, wanted = (set(re.findall(r"\w+", text.lower())) for text in (predictions, references))
            return torch.tensor([2 * len(said & wanted) / (len(said) + len(wanted) or 1)])

    graders.GRADER_REGISTRY["words"] = Words
    for name, values in {
        "alpamayo_r1": {},
        "alpamayo_r1.models": {},
        "alpamayo_r1.models.token_utils": {"extract_between_special_tokens": extract},
        "alpamayo1_x_rl.utils.trajectory_decode": {"decode_rollout_trajectory": decode},
        "cosmos_rl": {},
        "cosmos_rl.utils": {},
        "cosmos_rl.utils.logging": {"logger": SimpleNamespace(debug=lambda text: None)},
    }.items():
        module = sys.modules.setdefault(name, ModuleType(name))
        vars(module).update(values)


def _rows() -> list[dict[str, Any]]:
    draw = random.Random(0)
    rows: list[dict[str, Any]] = []
    for index in range(16):
        scene, cot, slowing, turning = _SCENES[index % len(_SCENES)]
        speed, ahead, left = draw.uniform(4, 12), 0.0, 0.0
        points: list[list[float]] = []
        for second in range(1, _POINTS + 1):
            ahead += speed * max(0.0, 1 - slowing * second / _POINTS)
            left += turning * second / _POINTS
            points.append([round(ahead, 1), round(left, 1)])
        rows.append({"scene": f"You drive at {speed:.0f} m/s. {scene}", "cot": cot, "points": points})
    return rows


_SCENES = (
    ("A child runs after a ball onto the street.", "Stop, because a child is running onto the street.", 1.6, 0.0),
    ("The light ahead turns red.", "Slow down and stop, because the traffic light is red.", 1.2, 0.0),
    ("The road is free.", "Keep the speed, because nothing is in the way on this road.", 0.0, 0.0),
    ("A parked van blocks half of the lane.", "Pass the van on its left, because it blocks the lane.", 0.3, 1.5),
    ("A truck ahead is slower than you.", "Slow down to keep the distance to the slower truck ahead.", 0.5, 0.0),
    ("You have to leave at the exit on the right.", "Change to the right lane to take the exit.", 0.4, -1.5),
    (
        "A cyclist rides at the edge of the road.",
        "Give the cyclist more room by moving a little to the left.",
        0.1,
        0.8,
    ),
    ("Fog hides the road after fifty metres.", "Slow down, because the fog hides what is ahead.", 0.7, 0.0),
)
"""A scene, the reasoning, how much the car slows down, and how far it moves to the left in a second at most."""


def _better_reasoning_earns_less() -> bool:
    drive, task = Drive(), _rows()[1]
    drive.reset(task)
    right = drive.solve()
    return drive.step(right)[1] < drive.step(right.replace("the traffic light", "it"))[1]


SUBJECTS = {
    "alpamayo-reasoning-sign": Subject(
        ("published_subjects.alpamayo:Drive", "--data", "rows.jsonl"), _better_reasoning_earns_less, _rows
    ),
}

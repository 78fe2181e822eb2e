"""open-thought/reasoning-gym: tasks that turnsmith plays by their names."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from published_subjects import Subject


def _dataset(name: str, size: int = 10, seed: int = 1) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, seed=seed, size=size)


def _a_longer_text_earns_more() -> bool:
    dataset = _dataset("bf")
    return any(dataset.score_answer(f"It prints\n{row['answer']}\n" + "as I said. " * 9, row) > 1 for row in dataset)


def _a_place_outside_of_the_grid_raises() -> bool:
    dataset = _dataset("boxnet", 1)
    try:
        dataset.score_answer(json.dumps([{"Agent[90.5, 90.5]": "move(box_blue, square[0.5, 0.5])"}]), dataset[0])
    except KeyError:
        return True
    return dataset.score_answer("no JSON", dataset[0]) > 0


def _the_target_itself_is_paid() -> bool:
    dataset = _dataset("countdown")
    return all(dataset.score_answer(str(row["metadata"]["target"]), row) == 1 for row in dataset)


def _a_seed_gives_two_datasets() -> bool:
    first, second = ([row["question"] for row in _dataset("game_of_life_halting")] for _ in range(2))
    return first != second


def _more_are_impossible_than_asked_for() -> bool:
    rows = list(_dataset("knight_swap", 100))
    return sum(row["answer"] == "No" for row in rows) > 1.5 * 0.2 * len(rows)


def _own_answers_are_not_paid(name: str) -> Callable[[], bool]:
    def shows() -> bool:
        dataset = _dataset(name)
        return any(dataset.score_answer(row["answer"], row) < 1 for row in dataset)

    return shows


SUBJECTS = {
    "reasoning-gym-bf": Subject(("reasoning_gym:bf",), _a_longer_text_earns_more),
    "reasoning-gym-boxnet": Subject(("reasoning_gym:boxnet",), _a_place_outside_of_the_grid_raises),
    "reasoning-gym-color-cube-rotation": Subject(
        ("reasoning_gym:color_cube_rotation",), _own_answers_are_not_paid("color_cube_rotation")
    ),
    "reasoning-gym-countdown": Subject(("reasoning_gym:countdown",), _the_target_itself_is_paid),
    "reasoning-gym-game-of-life-halting": Subject(("reasoning_gym:game_of_life_halting",), _a_seed_gives_two_datasets),
    "reasoning-gym-knight-swap": Subject(("reasoning_gym:knight_swap",), _more_are_impossible_than_asked_for),
    "reasoning-gym-pool-matrix": Subject(("reasoning_gym:pool_matrix",), _own_answers_are_not_paid("pool_matrix")),
    "reasoning-gym-tsumego": Subject(("reasoning_gym:tsumego",), _own_answers_are_not_paid("tsumego")),
}

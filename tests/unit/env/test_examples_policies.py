"""A scripted policy that knows the task gets the full reward of every example; a random one does not."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Generator
from statistics import mean
from typing import Any

import pytest

from turnsmith.env import BaseEnvironment, EnvironmentHost, EnvironmentSpec
from turnsmith.env.examples import (
    Calculator,
    CustomGameEnvironment,
    GuessNumber,
    SimpleGameEnvironment,
    SupportDesk,
    TwoStepMaze,
)
from turnsmith.errors import ToolError

Action = str | tuple[str, dict[str, Any]]
"""Plain text, or a tool's name and arguments."""
Policy = Callable[[str, random.Random], Generator[Action, str, None]]
"""Gets the first observation and a random generator; yields actions and is sent observations."""


async def play(environment: type, policy: Policy, seed: int, turns: int = 10) -> tuple[float, bool]:
    """Total reward, and whether the last info has success."""
    host = EnvironmentHost(EnvironmentSpec.of(environment))
    actions = policy(await host.reset(seed), random.Random(f"policy {seed}"))
    action, total, success = next(actions), 0.0, False
    for _ in range(turns):
        if isinstance(action, str):
            result = await host.step(action)
            total, success = total + result.reward, bool(result.info.get("success"))
            observation = result.observation
            if result.done:
                break
        else:
            try:
                observation = getattr(host.environment, action[0])(**action[1])
            except ToolError as error:
                observation = str(error)
        action = actions.send(observation)
    await host.close()
    return total, success


def say(*lines: str) -> Generator[Action, str, None]:
    """Say these lines, whatever the environment answers."""
    for line in lines:
        _ = yield line


def guess_by_halves(start: str, chance: random.Random) -> Generator[Action, str, None]:
    low, high = 1, 16
    while True:
        guess = (low + high) // 2
        observation = yield str(guess)
        low, high = (guess + 1, high) if observation.startswith("Higher") else (low, guess - 1)


def guess_anything(start: str, chance: random.Random) -> Generator[Action, str, None]:
    while True:
        yield str(chance.randint(1, 16))


def bring_the_sword(start: str, chance: random.Random) -> Generator[Action, str, None]:
    yield from say("move north", "move east", "pick up sword", "complete quest")


def walk_to_the_quest(start: str, chance: random.Random) -> Generator[Action, str, None]:
    position = re.search(r"sword at \((-?\d), (-?\d)\)", start)
    assert position
    x, y = int(position[1]), int(position[2])
    yield from say(*["move east" if x > 0 else "move west"] * abs(x))
    yield from say(*["move north" if y > 0 else "move south"] * abs(y))
    yield from say("pick up sword", "complete quest")


def play_anything(start: str, chance: random.Random) -> Generator[Action, str, None]:
    while True:
        moves = [f"move {way}" for way in ("north", "south", "east", "west")]
        yield chance.choice([*moves, "pick up sword", "pick up lamp", "complete quest"])


def work_it_out(start: str, chance: random.Random) -> Generator[Action, str, None]:
    pens, boxes, broken = re.findall(r"\d+", start)
    answer = yield "calculate", {"expression": f"{pens} * {boxes} - {broken}"}
    yield f"There are {answer} good pens."


def calculate_anything(start: str, chance: random.Random) -> Generator[Action, str, None]:
    numbers = re.findall(r"\d+", start)
    chance.shuffle(numbers)
    signs = chance.choices("+-*/", k=2)
    answer = yield "calculate", {"expression": f"{numbers[0]} {signs[0]} {numbers[1]} {signs[1]} {numbers[2]}"}
    yield answer


def refund_the_right_order(start: str, chance: random.Random) -> Generator[Action, str, None]:
    asked = re.match(r"I am (?P<name>.+?)\. The (?P<item>\w+) of (?P<day>\d+) May", start)
    assert asked
    orders = yield "find_orders", {"customer": asked["name"]}
    order = re.search(rf"order (\d+): {asked['item']}, {asked['day']} May", orders)
    assert order
    yield "refund", {"order_id": int(order[1])}
    yield "Your money is on its way."


def refund_anything(start: str, chance: random.Random) -> Generator[Action, str, None]:
    asked = re.match(r"I am (?P<name>.+?)\.", start)
    assert asked
    orders = yield "find_orders", {"customer": asked["name"]}
    yield "refund", {"order_id": int(chance.choice(re.findall(r"order (\d+)", orders)))}
    yield "Done."


def go_left_and_take_door_3(start: str, chance: random.Random) -> Generator[Action, str, None]:
    yield from say("left", "3")


def go_anywhere(start: str, chance: random.Random) -> Generator[Action, str, None]:
    yield chance.choice("lr")
    yield chance.choice("12345678")


# Full reward of the custom game: the quest, the sword and one new place. The way to a sword in a corner pays 0.1 more.
@pytest.mark.parametrize(
    ("environment", "oracle", "chance", "full"),
    [
        (GuessNumber, guess_by_halves, guess_anything, 1.0),
        (SimpleGameEnvironment, bring_the_sword, play_anything, 10.7),
        (CustomGameEnvironment, walk_to_the_quest, play_anything, 10.6),
        (Calculator, work_it_out, calculate_anything, 1.0),
        (SupportDesk, refund_the_right_order, refund_anything, 1.0),
        (TwoStepMaze, go_left_and_take_door_3, go_anywhere, 2.0),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_the_oracle_reaches_full_reward_and_chance_does_not(
    environment: type, oracle: Policy, chance: Policy, full: float
) -> None:
    solved = [await play(environment, oracle, seed) for seed in range(40)]
    by_chance = [await play(environment, chance, seed) for seed in range(40)]
    assert min(total for total, _ in solved) >= full - 1e-9
    assert all(success for _, success in solved)
    assert mean(total for total, _ in by_chance) < 0.6 * full


def guess_wrong(start: str, chance: random.Random) -> Generator[Action, str, None]:
    while True:
        yield "0"


def answer_at_once(start: str, chance: random.Random) -> Generator[Action, str, None]:
    yield "no idea"


def take_the_wrong_door(start: str, chance: random.Random) -> Generator[Action, str, None]:
    yield from say("left", "8")


# The text games have no range: what an episode can earn there depends on `max_steps`.
@pytest.mark.parametrize(
    ("environment", "best", "worst", "chance"),
    [
        (GuessNumber, guess_by_halves, guess_wrong, guess_anything),
        (Calculator, work_it_out, answer_at_once, calculate_anything),
        (SupportDesk, refund_the_right_order, answer_at_once, refund_anything),
        (TwoStepMaze, go_left_and_take_door_3, take_the_wrong_door, go_anywhere),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_rewards_fill_the_declared_range_and_never_leave_it(
    environment: type[BaseEnvironment], best: Policy, worst: Policy, chance: Policy
) -> None:
    assert environment.reward_range is not None
    low, high = environment.reward_range
    assert (await play(environment, worst, 0))[0] == low
    assert (await play(environment, best, 0))[0] == high
    for seed in range(40):
        assert low <= (await play(environment, chance, seed))[0] <= high

"""Every example can be won by who knows how, and not by chance."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Generator
from statistics import mean
from typing import Any

import pytest

from turnsmith.env import EnvironmentHost, EnvironmentSpec
from turnsmith.env.examples import (
    Calculator,
    CustomGameEnvironment,
    GuessNumber,
    SimpleGameEnvironment,
    SupportDesk,
    TwoStepMaze,
)
from turnsmith.errors import ToolError

Said = str | tuple[str, dict[str, Any]]
"""Plain text, or a tool's name and its arguments."""
Policy = Callable[[str, random.Random], Generator[Said, str, None]]
"""Gets the first observation and a source of chance; yields what it says and is sent what comes back."""


async def play(environment: type, policy: Policy, seed: int, turns: int = 10) -> tuple[float, bool]:
    """Total reward, and whether the last info said success."""
    host = EnvironmentHost(EnvironmentSpec.of(environment))
    speaker = policy(await host.reset(seed), random.Random(f"policy {seed}"))
    said, total, success = next(speaker), 0.0, False
    for _ in range(turns):
        if isinstance(said, str):
            result = await host.step(said)
            total, success = total + result.reward, bool(result.info.get("success"))
            told = result.observation
            if result.done:
                break
        else:
            try:
                told = getattr(host.environment, said[0])(**said[1])
            except ToolError as error:
                told = str(error)
        said = speaker.send(told)
    await host.close()
    return total, success


def say(*lines: str) -> Generator[Said, str, None]:
    """Say the lines, whatever comes back."""
    for line in lines:
        _ = yield line


def guess_by_halves(told: str, chance: random.Random) -> Generator[Said, str, None]:
    low, high = 1, 16
    while True:
        guess = (low + high) // 2
        told = yield str(guess)
        low, high = (guess + 1, high) if told.startswith("Higher") else (low, guess - 1)


def guess_anything(told: str, chance: random.Random) -> Generator[Said, str, None]:
    while True:
        yield str(chance.randint(1, 16))


def bring_the_sword(told: str, chance: random.Random) -> Generator[Said, str, None]:
    yield from say("move north", "move east", "pick up sword", "complete quest")


def walk_to_the_quest(told: str, chance: random.Random) -> Generator[Said, str, None]:
    found = re.search(r"sword at \((-?\d), (-?\d)\)", told)
    assert found
    x, y = int(found[1]), int(found[2])
    yield from say(*["move east" if x > 0 else "move west"] * abs(x))
    yield from say(*["move north" if y > 0 else "move south"] * abs(y))
    yield from say("pick up sword", "complete quest")


def play_anything(told: str, chance: random.Random) -> Generator[Said, str, None]:
    while True:
        moves = [f"move {way}" for way in ("north", "south", "east", "west")]
        yield chance.choice([*moves, "pick up sword", "pick up lamp", "complete quest"])


def work_it_out(told: str, chance: random.Random) -> Generator[Said, str, None]:
    pens, boxes, broken = re.findall(r"\d+", told)
    answer = yield "calculate", {"expression": f"{pens} * {boxes} - {broken}"}
    yield f"There are {answer} good pens."


def calculate_anything(told: str, chance: random.Random) -> Generator[Said, str, None]:
    numbers = re.findall(r"\d+", told)
    chance.shuffle(numbers)
    signs = chance.choices("+-*/", k=2)
    answer = yield "calculate", {"expression": f"{numbers[0]} {signs[0]} {numbers[1]} {signs[1]} {numbers[2]}"}
    yield answer


def refund_the_right_order(told: str, chance: random.Random) -> Generator[Said, str, None]:
    asked = re.match(r"I am (?P<name>.+?)\. The (?P<item>\w+) of (?P<day>\d+) May", told)
    assert asked
    orders = yield "find_orders", {"customer": asked["name"]}
    found = re.search(rf"order (\d+): {asked['item']}, {asked['day']} May", orders)
    assert found
    yield "refund", {"order_id": int(found[1])}
    yield "Your money is on its way."


def refund_anything(told: str, chance: random.Random) -> Generator[Said, str, None]:
    asked = re.match(r"I am (?P<name>.+?)\.", told)
    assert asked
    orders = yield "find_orders", {"customer": asked["name"]}
    yield "refund", {"order_id": int(chance.choice(re.findall(r"order (\d+)", orders)))}
    yield "Done."


def go_left_and_take_door_3(told: str, chance: random.Random) -> Generator[Said, str, None]:
    yield from say("left", "3")


def go_anywhere(told: str, chance: random.Random) -> Generator[Said, str, None]:
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
    known = [await play(environment, oracle, seed) for seed in range(40)]
    tried = [await play(environment, chance, seed) for seed in range(40)]
    assert min(total for total, _ in known) >= full - 1e-9
    assert all(success for _, success in known)
    assert mean(total for total, _ in tried) < 0.6 * full

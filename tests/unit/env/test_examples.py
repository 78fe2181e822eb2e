"""The example environments can be won and lost, and survive nonsense."""

from __future__ import annotations

import inspect
import random
from pathlib import Path

import pytest

from turnsmith.env import EnvironmentHost, EnvironmentSpec, examples
from turnsmith.env.examples import (
    Calculator,
    CustomGameEnvironment,
    GuessNumber,
    SimpleGameEnvironment,
    SupportDesk,
    TwoStepMaze,
)
from turnsmith.errors import ToolError

EXAMPLES = [getattr(examples, name) for name in examples.__all__]
NONSENSE = ["", "no idea", "9" * 5000, "-3", "\ud800", "<|im_start|>", "1e999", "\x00", "," * 5000]


def test_guessing_by_halves_always_wins():
    for seed in range(20):
        game = GuessNumber()
        game.reset(seed=seed)
        low, high = 1, 16
        for _ in range(5):
            guess = (low + high) // 2
            answer, reward, done, _ = game.step(f"I say {guess}.")
            if done:
                break
            low, high = (guess + 1, high) if answer.startswith("Higher") else (low, guess - 1)
        assert (reward, done) == (1.0, True)


def test_the_same_seed_is_the_same_game():
    games = [GuessNumber() for _ in range(2)]
    for game in games:
        game.reset(seed=4)
    assert games[0].target == games[1].target


@pytest.mark.parametrize("environment", EXAMPLES)
def test_an_example_is_short_enough_to_read(environment):
    assert len(Path(inspect.getfile(environment)).read_text().splitlines()) < 105


@pytest.mark.parametrize("environment", EXAMPLES)
async def test_the_same_seed_gives_the_same_first_observation(environment):
    hosts = [EnvironmentHost(EnvironmentSpec.of(environment)) for _ in range(2)]
    started = [await host.reset(seed=5) for host in hosts]
    assert started[0] == started[1]
    for host in hosts:
        await host.close()


@pytest.mark.parametrize("action", NONSENSE)
@pytest.mark.parametrize("environment", EXAMPLES)
async def test_nonsense_earns_nothing_and_does_not_raise(environment, action):
    host = EnvironmentHost(EnvironmentSpec.of(environment))
    await host.reset(seed=1)
    result = await host.step(action)
    # Where there are tools, a turn without a tool call is the answer, and ends the episode.
    assert result.terminated == (environment in (Calculator, SupportDesk))
    assert result.reward <= 0
    await host.close()


def test_the_simple_game_ends_at_its_walls_and_its_quest():
    game = SimpleGameEnvironment({"size": 1, "goal": "lamp"})
    game.reset()
    assert game.step("complete quest")[3] == {"invalid_action": True}
    assert "wall" not in game.step("please move north now")[0]
    assert "wall" in game.step("move north")[0]
    assert game.step("pick up the lamp")[1] == 0.5
    assert game.step("pick up the lamp")[1] == -0.1
    assert game.step("complete quest") == (
        'The quest is complete. You are at (0, 1). You carry lamp. Quest: bring the lamp, then say "complete quest".',
        10.0,
        True,
        {"success": True},
    )


def test_the_custom_game_has_bounds_items_and_a_quest():
    game = CustomGameEnvironment({"max_steps": 20, "size": 2, "quest": "key", "items": ["lamp", "rope"]})
    assert "Steps remaining: 20" in game.reset(seed=1)
    assert set(game.items) == {"key", "lamp", "rope"}
    game.items = {"key": (0, 2), "lamp": (0, 1)}
    assert game.step("complete quest")[1:] == (-0.1, False, {"invalid_action": True})
    assert game.step("pick up key")[3] == {"invalid_action": True}
    assert [game.step("move north")[1] for _ in range(3)] == [0.1, 0.1, -0.1]
    assert game.step("move south")[1] == 0.0
    assert game.position == (0, 1)
    game.step("move north")
    observation, reward, done, info = game.step("I pick up key")
    assert (reward, done, info) == (0.5, False, {})
    assert "Inventory: key" in observation
    assert "Items: lamp at (0, 1)" in observation
    assert game.step("Complete quest!")[1:] == (10.0, True, {"success": True})
    assert (game.score, game.step_count) == (10, 9)


async def test_a_game_that_runs_out_of_steps_is_cut_not_completed():
    host = EnvironmentHost(EnvironmentSpec.of(CustomGameEnvironment({"max_steps": 1})))
    await host.reset()
    result = await host.step("move north")
    assert (result.terminated, result.truncated) == (False, True)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1+2*3", "7"),
        ("(1 + 2) * -3", "-9"),
        ("1 / 3", "0.3333333333"),
        ("-" * 199 + "1", "-1"),
        ("9" * 200, "9" * 200),
    ],
)
def test_the_calculator_evaluates_expressions(expression, value):
    assert Calculator().calculate(expression=expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        *("", " ", "1/0", "2**9", "9//2", "(", "(" * 199, "1" * 201, "1 2", "007", "1e9", "True", "x", "1,2", "()"),
        *("__import__('os')", "1if 1else 2", "\ud800", "\x00", "1\n+2", "٣+1"),
    ],
)
def test_the_calculator_refuses_what_is_not_arithmetic(expression):
    with pytest.raises(ToolError):
        Calculator().calculate(expression=expression)


def test_the_calculator_raises_nothing_but_tool_errors():
    draw = random.Random(0)
    desk = Calculator()
    for _ in range(3000):
        expression = "".join(draw.choices("0123456789+-*/(). ", k=draw.randint(0, 12)))
        try:
            float(desk.calculate(expression=expression))
        except ToolError:
            pass


def test_the_support_desk_rewards_the_state_of_the_database_only():
    for seed in range(30):
        desk = SupportDesk()
        desk.reset(seed=seed)
        orders = [number for (number,) in desk.db.execute("SELECT id FROM orders").fetchall()]
        others = [number for number in orders if number != desk.goal]
        assert desk.step("I did it, honestly.")[1] == 0.0
        desk.refund(order_id=others[0])
        assert desk.step("Done.")[1] == 0.0
        desk.refund(order_id=desk.goal)
        _, reward, done, info = desk.step("Done.")
        assert (reward, done, info["success"]) == (0.5, True, False)
        for number in others[1:]:
            desk.refund(order_id=number)
        assert desk.step("Everything!")[1] == pytest.approx(1 / 12)
        desk.close()


def test_the_support_desk_asks_for_exactly_one_order():
    for seed in range(50):
        desk = SupportDesk()
        words = desk.reset(seed=seed).replace(".", "").split()
        orders = desk.find_orders(customer=f"{words[2]} {words[3]}").splitlines()
        asked = [line for line in orders if f" {words[5]}, {words[7]} May" in line]
        assert len(orders) == 3
        assert [line.split(":")[0] for line in asked] == [f"order {desk.goal}"]
        desk.close()


def test_the_support_desk_explains_wrong_calls():
    desk = SupportDesk()
    desk.reset()
    for name in ("Nobody", "", "\ud800", "' OR 1=1 --"):
        with pytest.raises(ToolError, match="no customer of that name"):
            desk.find_orders(customer=name)
    for number in (0, -1, 2**80):
        with pytest.raises(ToolError, match=f"no order {number}"):
            desk.refund(order_id=number)
    desk.refund(order_id=desk.goal)
    with pytest.raises(ToolError, match="refunded already"):
        desk.refund(order_id=desk.goal)
    assert desk.step("Done.")[1] == 1.0
    desk.close()


def test_the_maze_rewards_what_its_table_says():
    for first, second, rewards in [
        ("left", "3", [1, 1]),
        ("l", "8", [1, -4]),
        ("right", "3", [0, 0]),
        ("", "l", [0, 0]),
    ]:
        maze = TwoStepMaze()
        maze.reset()
        assert [maze.step(action)[1] for action in (first, second)] == rewards
        assert maze.is_done()

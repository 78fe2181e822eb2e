"""The example environments can be won, lost and talked nonsense to."""

from __future__ import annotations

import pytest

from turnwise.env import EnvironmentHost, EnvironmentSpec
from turnwise.env.examples.guess_number import GuessNumber
from turnwise.env.examples.simple_game import SimpleGameEnvironment


def test_guessing_by_halves_always_wins():
    for seed in range(20):
        game = GuessNumber()
        game.reset(seed=seed)
        low, high = 1, 16
        for _ in range(5):
            guess = (low + high) // 2
            told, reward, done, _ = game.step(f"I say {guess}.")
            if done:
                break
            low, high = (guess + 1, high) if told.startswith("Higher") else (low, guess - 1)
        assert (reward, done) == (1.0, True)


def test_the_same_seed_is_the_same_game():
    games = [GuessNumber() for _ in range(2)]
    for game in games:
        game.reset(seed=4)
    assert games[0].target == games[1].target


@pytest.mark.parametrize("action", ["", "no idea", "9" * 5000, "-3", "\ud800", "<|im_start|>"])
@pytest.mark.parametrize("environment", [GuessNumber, SimpleGameEnvironment])
async def test_nonsense_costs_nothing_but_the_turn(environment, action):
    host = EnvironmentHost(EnvironmentSpec.of(environment))
    await host.reset(seed=1)
    result = await host.step(action)
    assert not result.done
    assert result.reward <= 0


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

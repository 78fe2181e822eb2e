"""Games of PettingZoo with the real package: in either seat, against every kind of player, and in training."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.e2e.packages import install
from tests.e2e.table_games import best, possible
from tests.e2e.trained_on import assert_two_steps_train
from turnsmith import EnvironmentConfig, EnvironmentSpec, ScriptedEngine
from turnsmith.env.adapters.pettingzoo import PettingZooEnvironment
from turnsmith.errors import ConfigError
from turnsmith.inference import Chat
from turnsmith.inference.models import resolve
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan, evaluate
from turnsmith.rollout.evaluation.result import EvaluationResult
from turnsmith.rollout.players import Players
from turnsmith.rollout.spec import Limits

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
PACKAGES = ("pettingzoo==1.27.0", "gymnasium==1.4.0", "farama-notifications==0.0.6", "pygame-ce")
GAME = "pettingzoo:classic/tictactoe_v3"


@pytest.fixture(scope="module", autouse=True)
def packages(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The real package, in a folder of its own: turnsmith does not need it."""
    install(tmp_path_factory.mktemp("packages"), *PACKAGES)


def play(policy: object, opponent: str, seat: str = "player_1", episodes: int = 40) -> EvaluationResult:
    chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))
    plan = EvaluationPlan(
        episodes=episodes,
        limits=Limits(tokens=8192, prompt_tokens=4096),
        players=Players.of({"opponent": f"scripted:tests.e2e.table_games:{opponent}"}),
    )
    environment = EnvironmentSpec.of(GAME, EnvironmentConfig(seat=seat))
    return evaluate(environment, ScriptedEngine(policy, chat), chat, plan)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("seat", ["player_1", "player_2"])
def test_who_looks_ahead_never_loses_and_chance_does(seat: str) -> None:
    result = play(best, "random_move", seat)
    assert result.report.first_error == ""
    rewards = [one.total_reward for one in result.trajectories]
    assert min(rewards) >= 0
    assert sum(rewards) >= 0.6 * len(rewards)
    assert {one.others["opponent"]["replies"] > 0 for one in result.trajectories} == {True}
    draw = random.Random(0)
    by_chance = play(lambda turn, prompt: draw.choice(possible(prompt)), "random_move", seat)
    assert min(one.total_reward for one in by_chance.trajectories) == -1


def test_the_best_move_wins_against_the_first_free_field() -> None:
    result = play(best, "lowest", episodes=4)
    assert result.reward.value == 1.0
    assert all(one.infos[-1]["success"] for one in result.trajectories)


def test_moves_that_are_none_are_told_to_the_model_and_drawn_for_others() -> None:
    replies = iter(["no idea", "0", "0", "12"])
    result = play(lambda turn, prompt: next(replies, possible(prompt)[0]), "nonsense", episodes=1)
    [episode] = result.trajectories
    assert "That is not an action. Answer with a number from 0 to 8." in episode.states[1]
    assert "0 is not possible now. Possible: " in episode.states[3]
    assert [info.get("invalid_action", False) for info in episode.infos[:4]] == [True, False, True, True]
    assert episode.infos[-1]["drawn_moves"] == episode.others["opponent"]["replies"]
    replies = iter(["no idea", "0", "0", "12"])
    again = play(lambda turn, prompt: next(replies, possible(prompt)[0]), "nonsense", episodes=1)
    assert again.trajectories[0].states == episode.states


def test_what_cannot_be_played_is_told_in_words() -> None:
    with pytest.raises(ConfigError, match=r"PettingZoo cannot make classic/tictactoe_v2: "):
        EnvironmentSpec.of("pettingzoo:classic/tictactoe_v2")
    with pytest.raises(ConfigError, match=r"has no seat 'player_3'; it has player_1, player_2"):
        EnvironmentSpec.of(GAME, EnvironmentConfig(seat="player_3")).build()


class AnyMove(PettingZooEnvironment):
    """Takes any text for a possible move, because an untrained model writes any."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        free = possible(self.last_observation)
        return super().step(free[sum(map(ord, action)) % len(free)])


def test_it_trains_against_the_first_model(tmp_path: Path) -> None:
    game = partial(AnyMove, "classic/tictactoe_v3")
    limits = ("inference.max_tokens=2", "inference.max_episode_tokens=4096", "environment.isolation=thread")
    records = assert_two_steps_train(game, tmp_path, *limits, "players.opponent=frozen")
    assert all(record["others/tokens"] == record["others/opponent/tokens"] > 0 for record in records)

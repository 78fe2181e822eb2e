"""Games of TextArena with the real package: alone, against an opponent, and in training."""

from __future__ import annotations

import asyncio
import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.e2e.packages import install
from tests.e2e.trained_on import assert_two_steps_train
from turnsmith import EnvironmentConfig, EnvironmentSpec, ScriptedEngine
from turnsmith.env import EnvironmentHost
from turnsmith.env.adapters.textarena import TextArenaEnvironment
from turnsmith.errors import ConfigError
from turnsmith.inference import Chat
from turnsmith.inference.models import resolve
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan, evaluate

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
PACKAGES = ("textarena==0.7.4", "nltk==3.10.4", "chess==1.11.2", "python-dotenv==1.2.4")
PLAYED = (
    "2048-v0", "Bandit-v0", "Blackjack-v0", "FifteenPuzzle-v0", "FrozenLake-v0", "GuessTheNumber-v0", "LightsOut-v0",
    "Mastermind-v0", "Minesweeper-v0", "TowerOfHanoi-v0",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def packages(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The real package, in a folder of its own: turnsmith does not need it."""
    install(tmp_path_factory.mktemp("packages"), *PACKAGES)


def bisect(turn: int, prompt: str) -> str:
    low, high = 1, 20
    for guess, answer in re.findall(r"(\d+)[^\d]*?target number is (higher|lower)", prompt.partition("Enter your")[2]):
        low, high = (int(guess) + 1, high) if answer == "higher" else (low, int(guess) - 1)
    return str((low + high) // 2)


def success(policy: object, name: str = "textarena:GuessTheNumber-v0") -> float:
    chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))
    plan = EvaluationPlan(episodes=40)
    return evaluate(EnvironmentSpec.of(name), ScriptedEngine(policy, chat), chat, plan).reward.value  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", PLAYED)
def test_a_seed_is_a_game_whatever_else_draws_random_numbers(name: str) -> None:
    async def play(host: EnvironmentHost) -> list[object]:
        seen: list[object] = [await host.reset(seed=5)]
        for action in ("1", "[2]", "up", "[1 2]", "stand"):
            random.random()
            await asyncio.sleep(0)
            seen.append(result := await host.step(action))
            if result.terminated:
                break
        await host.close()
        return seen

    async def play_all() -> list[list[object]]:
        hosts = [EnvironmentHost(EnvironmentSpec.of(f"textarena:{name}")) for _ in range(4)]
        return [await play(hosts[0]), *await asyncio.gather(*map(play, hosts[1:]))]

    first, *others = asyncio.run(play_all())
    assert others == [first] * 3


def test_who_halves_the_range_wins_and_chance_does_not() -> None:
    assert success(bisect) == 1.0
    draw = random.Random(0)
    assert 0.1 < success(lambda turn, prompt: str(draw.randint(1, 20))) < 0.8
    assert success(lambda turn, prompt: "no idea") <= 0.0


def pick_first(seen: str) -> str:
    return re.findall(r"'\[(\d)\]'", seen.rpartition("Available Moves")[2])[0]


@pytest.mark.parametrize("seat", [0, 1])
def test_an_opponent_has_the_other_seat(seat: int) -> None:
    environment = TextArenaEnvironment("TicTacToe-v0", opponent=pick_first, seat=seat)
    first = environment.reset(seed=0)
    assert first.startswith(f"You are Player {seat} in Tic Tac Toe.")
    assert ("Player 0: [0]" in first) == (seat == 1)
    rewards: list[float] = []
    for action in ("4", "5", "3", "6") if seat == 0 else ("4", "2", "6"):
        seen, reward, is_over, _ = environment.step(action)
        rewards.append(reward)
        assert f"Player {seat}: " not in seen, "the model's own move is in the conversation already"
        if is_over:
            break
    assert rewards[-1] == 1.0
    assert set(rewards[:-1]) == {0.0}


def test_what_cannot_be_played_is_told_in_words() -> None:
    with pytest.raises(ConfigError, match=r"TicTacToe-v0 is not a game for 1: .* Pass `opponent=`"):
        TextArenaEnvironment("TicTacToe-v0").reset(seed=0)
    with pytest.raises(ConfigError, match=r"no game 'GessTheNumber-v0'\. Did you mean textarena:GuessTheNumber-v0"):
        EnvironmentSpec.of("textarena:GessTheNumber-v0")
    with pytest.raises(ConfigError, match=r"TextArena cannot make GuessTheNumber-v0: TypeError: .*'highest'"):
        EnvironmentSpec.of("textarena:GuessTheNumber-v0", EnvironmentConfig(highest=3)).build()


def test_missing_word_lists_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import nltk  # pyright: ignore[reportMissingImports]

    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    monkeypatch.setattr(nltk, "download", lambda *args, **options: False)
    with pytest.raises(ConfigError, match=r"Wordle-v0 needs word lists .*python -m nltk\.downloader words"):
        EnvironmentSpec.of("textarena:Wordle-v0").build()


class AnyMove(TextArenaEnvironment):
    """Takes any text for a free field, because an untrained model writes any."""

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        free = re.findall(r"'\[(\d)\]'", self.last_observation.rpartition("Available Moves")[2])
        return super().step(free[sum(map(ord, action)) % len(free)])


def test_it_trains_against_an_opponent(tmp_path: Path) -> None:
    game = partial(AnyMove, "TicTacToe-v0", opponent=pick_first)
    assert_two_steps_train(game, tmp_path, "inference.max_tokens=2", "environment.isolation=thread")


@pytest.mark.parametrize(
    ("name", "reason", "pays"),
    [
        ("Countdown-v0", "Invalid action format. Use `[i j op]`", True),
        ("Cryptarithm-v0", "Bad action format. Use `[A 5]`", False),
        ("Slitherlink-v0", "Bad action format. Use [h row col]", True),
        ("ThreeCardMonte-v0", "Bad action. Use `[k]`", False),
    ],
)
def test_games_that_confuse_their_arguments_are_played(name: str, reason: str, pays: bool) -> None:
    environment = EnvironmentSpec.of(f"textarena:{name}").build()
    environment.reset(seed=2)
    told, reward, is_over, _ = environment.step("no idea")
    assert (reason in told, reward, is_over) == (True, 0.0, False)
    told, reward, is_over, info = environment.step("no idea")
    assert (is_over, info["invalid_move"], reward > 0) == (True, True, pays)
    assert f"Invalid Move: {reason}" in told


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("MarketEntryGame-v0", r"is not a game for 1: Alone, it would never end\. Pass `opponent=`"),
        ("ScorableGames-v0", r"TextArena cannot start ScorableGames-v0: FileNotFoundError: Game configuration"),
    ],
)
def test_games_that_cannot_be_played_say_why(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        EnvironmentSpec.of(f"textarena:{name}").build().reset(seed=1)

"""LeonGuertler/TextArena: a board game and a game of hidden roles, with simple players in the other seats."""

from __future__ import annotations

import random
from typing import Any

from published_subjects import Subject
from turnsmith import BaseEnvironment

FILES = "abcdefgh"


def _moves(board: list[list[str]], side: str) -> list[str]:
    """Steps and captures that the rules in the game's prompt allow."""
    size, ahead, other = len(board), (1 if side == "W" else -1), ("B" if side == "W" else "W")
    found = []
    for row in range(size):
        for column in range(size):
            if board[row][column] != side or not 0 <= row + ahead < size:
                continue
            found += [
                f"[{FILES[column]}{row + 1}{FILES[to]}{row + ahead + 1}]"
                for to in range(max(column - 1, 0), min(column + 2, size))
                if board[row + ahead][to] == ("" if to == column else other)
            ]
    return found


class Breakthrough(BaseEnvironment):
    """The game on a board of five by five, against a player who draws moves."""

    reward_range = (-1.0, 1.0)

    def reset(self, seed: int = 0) -> str:
        from textarena.envs.Breakthrough.env import BreakthroughEnv

        self.draw = random.Random(seed)
        self.game = BreakthroughEnv(board_size=5)
        self.game.reset(num_players=2, seed=seed)
        return self._seen()

    def step(self, action: str) -> Any:
        done, _ = self.game.step(action)
        while not done and self.game.state.current_player_id == 1:
            moves = _moves(self.game.state.game_state["board"], "B")
            done, _ = self.game.step(self.draw.choice(moves) if moves else "I have no move.")
        reward = float(self.game.state.rewards[0]) if done and self.game.state.rewards else 0.0
        return self._seen(), reward, bool(done), {}

    def _seen(self) -> str:
        return "\n".join(str(part[1]) for part in self.game.state.get_current_player_observation())


class Mafia(BaseEnvironment):
    """Seven players with roles; the others vote for one of those who can be chosen."""

    reward_range = (-1.0, 1.0)

    def reset(self, seed: int = 0) -> str:
        from textarena.envs.SecretMafia.env import SecretMafiaEnv

        random.seed(seed)
        self.draw = random.Random(seed)
        self.game = SecretMafiaEnv(discussion_rounds=1)
        self.game.reset(num_players=7, seed=seed)
        seen, _, _ = self._play_others()
        return seen

    def step(self, action: str) -> Any:
        done, _ = self.game.step(action)
        seen, reward, done = self._play_others(done)
        return seen, reward, done, {}

    def _play_others(self, done: bool = False) -> tuple[str, float, bool]:
        """Until it is player 0's turn, or the game is over."""
        while not done and self.game.state.current_player_id != 0:
            chosen = self.draw.choice(self.game.state.game_state["alive_players"])
            done, _ = self.game.step(f"[Player {chosen}]")
        reward = float(self.game.state.rewards[0]) if done and self.game.state.rewards else 0.0
        seen = "" if done else self.game.state.get_current_player_observation()
        return "\n".join(str(part[1]) for part in seen), reward, bool(done)


def _blocked_player_plays_on() -> bool:
    game = Breakthrough()
    game.reset(seed=1)
    board = [["" for _ in range(5)] for _ in range(5)]
    board[1][0], board[2][0], board[3][4] = "W", "B", "W"
    board[4][4] = "B"
    game.game.state.game_state["board"] = board
    game.game._check_winner()
    blocked = not _moves(board, "B") or not _moves(board, "W")
    return blocked and not game.game.state.done


def _end_of_the_game_raises() -> bool:
    from textarena.envs.SecretMafia.env import Phase

    game = Mafia()
    game.reset(seed=1)
    state = game.game.state.game_state
    mafia = next(player for player, role in game.game.player_roles.items() if role == "Mafia")
    for player in [player for player, role in game.game.player_roles.items() if role == "Mafia" and player != mafia]:
        state["alive_players"].remove(player)
    game.game.phase, game.game.next_player_ids = Phase.DAY_VOTING, []
    voter = next(player for player in state["alive_players"] if player != mafia)
    game.game.state.manually_set_current_player_id(voter)
    try:
        game.game.step(f"[Player {mafia}]")
    except (IndexError, StopIteration, KeyError):
        return True
    return False


_HERE = "published_subjects.textarena_fresh"
_LONG = ("environment.max_steps=60", "inference.max_turns=60", "inference.max_episode_tokens=32768")
SUBJECTS = {
    "textarena-breakthrough": Subject((f"{_HERE}:Breakthrough", *_LONG), _blocked_player_plays_on),
    "textarena-secret-mafia": Subject((f"{_HERE}:Mafia", *_LONG), _end_of_the_game_raises),
}

"""instadeepai/jumanji: environments in plain steps, with what is seen as text and numbers as actions."""

from __future__ import annotations

import importlib
import re
import sys
from functools import lru_cache
from types import ModuleType
from typing import Any

from published_subjects import Subject
from turnsmith import BaseEnvironment


def _module(name: str) -> Any:
    """A module, without its package's other environments; nothing is drawn."""
    for package in ("jumanji", "jumanji.environments", "jumanji.environments.routing", "jumanji.environments.logic"):
        made = ModuleType(package)
        made.__path__ = [f"{place}/{package.replace('.', '/')}" for place in sys.path]
        sys.modules.setdefault(package, made)
    return importlib.import_module(f"jumanji.environments.{name}")


class Stepped(BaseEnvironment):
    """One agent; an action is a number."""

    @classmethod
    @lru_cache
    def compiled(cls) -> Any:
        import jax

        game = cls.build()
        return jax.jit(game.reset), jax.jit(game.step)

    @classmethod
    def build(cls) -> Any:
        raise NotImplementedError

    def reset(self, seed: int = 0) -> str:
        import jax

        start, self.next = self.compiled()
        self.state, timestep = start(jax.random.PRNGKey(seed))
        return self.shown(timestep.observation)

    def step(self, action: str) -> Any:
        import jax.numpy as jnp

        numbers = [int(number) for number in re.findall(r"\d+", action)]
        if len(numbers) != self.agents or max(numbers) >= self.choices:
            return self.asked, 0.0, False, {"invalid_action": True}
        chosen = jnp.array(numbers[0] if self.agents == 1 else numbers)
        self.state, timestep = self.next(self.state, chosen)
        return self.shown(timestep.observation), float(timestep.reward), bool(timestep.last()), {}

    agents, choices, asked = 1, 0, ""

    def shown(self, observation: Any) -> str:
        raise NotImplementedError


class Colours(Stepped):
    """A graph whose nodes are coloured one after the other."""

    choices, asked = 6, "Answer with the number of a colour, 0 to 5."
    reward_range = (-6.0, 0.0)

    @classmethod
    def build(cls) -> Any:
        module = _module("logic.graph_coloring.env")
        generator = _module("logic.graph_coloring.generator").RandomGenerator(num_nodes=6, edge_probability=0.5)
        return module.GraphColoring(generator, viewer=object())

    def get_prompt_prefix(self) -> str:
        return (
            "Colour the nodes of a graph in turn so that neighbours differ, with as few colours as you can. "
            f"{self.asked} A colour that is not allowed ends the game."
        )

    def shown(self, observation: Any) -> str:
        node = int(observation.current_node_index)
        edges = [number for number, edge in enumerate(observation.adj_matrix[node]) if edge]
        colours = [int(colour) for colour in observation.colors]
        allowed = [number for number, can in enumerate(observation.action_mask) if can]
        return f"Colours: {colours} (-1 is none). Node {node} has the neighbours {edges}. Allowed: {allowed}."

    def solve(self) -> list[str]:
        """Each node gets the first colour that no neighbour has."""
        colours: list[int] = []
        for node in range(6):
            taken = {colours[other] for other in range(node) if bool(self.state.adj_matrix[node, other])}
            colours.append(next(colour for colour in range(6) if colour not in taken))
        return [str(colour) for colour in colours]


class Maze(Stepped):
    """A maze of five rows and eight columns."""

    choices, asked = 4, "Answer with 0 (up), 1 (right), 2 (down) or 3 (left)."
    reward_range = (0.0, 1.0)

    @classmethod
    def build(cls) -> Any:
        module = _module("routing.maze.env")
        generator = _module("routing.maze.generator").RandomGenerator(num_rows=5, num_cols=8)
        return module.Maze(generator, viewer=object())

    def get_prompt_prefix(self) -> str:
        return f"Walk through the maze from @ to T; # is wall. {self.asked}"

    def shown(self, observation: Any) -> str:
        grid = [["#" if wall else "." for wall in line] for line in observation.walls]
        for sign, place in (("T", observation.target_position), ("@", observation.agent_position)):
            grid[int(place.row)][int(place.col)] = sign
        return "\n".join("".join(line) for line in grid)

    def solve(self) -> list[str]:
        """The shortest way."""
        walls = [[bool(wall) for wall in line] for line in self.state.walls]
        start, target = ((int(place.row), int(place.col)) for place in (self.state.agent_position,
                                                                     self.state.target_position))  # fmt: skip
        ways: dict[tuple[int, int], list[str]] = {start: []}
        waiting = [start]
        for place in waiting:
            for move, (down, right) in enumerate(((-1, 0), (0, 1), (1, 0), (0, -1))):
                to = place[0] + down, place[1] + right
                if 0 <= to[0] < 5 and 0 <= to[1] < 8 and not walls[to[0]][to[1]] and to not in ways:
                    ways[to] = [*ways[place], str(move)]
                    waiting.append(to)
        return ways[target]


def _mask_is_of_the_step_before() -> bool:
    import jax
    import jax.numpy as jnp

    module = _module("logic.graph_coloring.env")
    generator = _module("logic.graph_coloring.generator").RandomGenerator(num_nodes=4, edge_probability=0.999)
    game = module.GraphColoring(generator, viewer=object())
    state, _ = game.reset(jax.random.PRNGKey(0))
    _, timestep = game.step(state, jnp.array(0))
    return bool(timestep.observation.action_mask[0])


def _right_side_is_out_of_reach() -> bool:
    game = Maze()
    for seed in range(20):
        game.reset(seed=seed)
        moves = game.solve()
        if moves and [game.step(move)[1] for move in moves][-1] != 1:
            return True
    return False


_HERE = "published_subjects.jumanji_fresh"
_LONG = ("environment.max_steps=40", "inference.max_turns=40", "inference.max_episode_tokens=16384")
SUBJECTS = {
    "jumanji-graph-coloring": Subject((f"{_HERE}:Colours",), _mask_is_of_the_step_before),
    "jumanji-maze-mask": Subject((f"{_HERE}:Maze", *_LONG), _right_side_is_out_of_reach),
}

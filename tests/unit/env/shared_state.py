"""Environments with the habits of most: they draw from global generators, and change what they were given.

Each shows all that it has drawn or read, so that one episode can be compared with the same one played alone.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import choice, gauss
from random import random as draw_random
from random import seed as seed_random
from typing import Any

import numpy as np
from numpy.random import randint

from turnsmith import BaseEnvironment, tool

_executor = ThreadPoolExecutor(1)


class Draws(BaseEnvironment):
    """Shows what `draw` returns in `reset`, in three steps and in a tool."""

    pause = 0.0
    """Between seeding and drawing, in `reset`: another one resets meanwhile."""

    def reset(self, seed: int = 0, task: dict[str, Any] | None = None) -> str:
        self.task = task
        self.begin(seed)
        time.sleep(self.pause)
        return self.draw()

    def begin(self, seed: int) -> None:
        random.seed(seed)

    def draw(self) -> str:
        return str([random.randint(0, 10**9), random.gauss(0, 1), random.sample(range(99), 3)])

    def step(self, action: str) -> Any:
        return self.draw(), float(self.step_count), self.step_count > 1, {}

    @tool
    def peek(self) -> str:
        """Draw once more."""
        return self.draw()


class LongDraws(Draws):
    """Draws for some 30 milliseconds, of which `reset` shows the last."""

    def draw(self) -> str:
        return str([random.randint(0, 10**9) for _ in range(30_000)][-1])


class SomeDraws(Draws):
    """Draws for 1 to 100 milliseconds, by its seed."""

    def begin(self, seed: int) -> None:
        super().begin(seed)
        self.count = (1_000, 1_000, 3_000, 3_000, 10_000, 10_000, 30_000, 100_000)[seed % 8]

    def draw(self) -> str:
        return str([random.randint(0, 10**9) for _ in range(self.count)][-1])


class Numpy(Draws):
    def begin(self, seed: int) -> None:
        np.random.seed(seed)

    def draw(self) -> str:
        return str([int(np.random.randint(0, 10**6)), np.random.normal(), np.random.permutation(5).tolist()])


class LongNumpy(Numpy):
    def draw(self) -> str:
        return str(float(sum(np.random.rand(10_000).sum() for _ in range(100))))


class Imported(Draws):
    """Draws by names that were imported from the modules, and by the object behind them."""

    def begin(self, seed: int) -> None:
        seed_random(seed)
        np.random.mtrand._rand.seed(seed)  # pyright: ignore[reportPrivateUsage]

    def draw(self) -> str:
        return str([draw_random(), choice(range(10**6)), gauss(0, 1), int(randint(10**6))])


class Unseeded(Draws):
    def begin(self, seed: int) -> None:
        pass

    def draw(self) -> str:
        return str([random.random(), np.random.rand()])


class InThreads(Draws):
    """Draws in threads of its own, and in those of an executor that all share."""

    def draw(self) -> str:
        with ThreadPoolExecutor(1) as own:
            return str([own.submit(random.random).result(), _executor.submit(random.random).result()])


class Asynchronous(BaseEnvironment):
    async def reset(self, seed: int = 0) -> str:
        import asyncio

        random.seed(seed)
        np.random.seed(seed)
        await asyncio.sleep(0.001)
        return str([random.random(), np.random.rand()])

    async def step(self, action: str) -> Any:
        import asyncio

        first = random.random()
        await asyncio.sleep(0.001)
        return str([first, await asyncio.to_thread(np.random.rand)]), 0.0, self.step_count > 1, {}


class Torch(Draws):
    """Draws from torch, which it imports when it is needed."""

    def begin(self, seed: int) -> None:
        import torch

        torch.manual_seed(seed)

    def draw(self) -> str:
        import torch

        dropped = torch.nn.functional.dropout(torch.ones(8))
        return str([torch.randn(2).tolist(), dropped.tolist(), torch.randperm(5).tolist()])


class NestedSetting(Draws):
    """Changes a list in its settings."""

    def begin(self, seed: int) -> None:
        self.config.setdefault("words", []).append(seed)

    def draw(self) -> str:
        return str(self.config["words"])


class TaskRow(Draws):
    """Takes from a list in its row."""

    def draw(self) -> str:
        return str(self.task["cards"].pop() if self.task and self.task["cards"] else "no cards")


class WorkingFolder(Draws):
    """Changes the working folder, and reads there what it wrote."""

    def begin(self, seed: int) -> None:
        self.folder = tempfile.mkdtemp()
        os.chdir(self.folder)
        Path("number").write_text(str(seed))

    def draw(self) -> str:
        return Path("number").read_text()


class Variable(Draws):
    """Sets an environment variable."""

    def begin(self, seed: int) -> None:
        os.environ["TURNSMITH_TEST_SEED"] = str(seed)

    def draw(self) -> str:
        return os.environ["TURNSMITH_TEST_SEED"]


class ClassAttribute(Draws):
    """Keeps its state in its class."""

    number = 0

    def begin(self, seed: int) -> None:
        type(self).number = seed

    def draw(self) -> str:
        type(self).number += 1
        return str(type(self).number)


_numbers: dict[str, int] = {}


class ModuleState(Draws):
    """Keeps what the first episode made for all that come after it."""

    def begin(self, seed: int) -> None:
        _numbers.setdefault("first", seed)

    def draw(self) -> str:
        return str(_numbers["first"])


OWN = (Draws, Numpy, Imported, Unseeded, InThreads, Asynchronous, NestedSetting, TaskRow)
"""What belongs to one environment in every mode."""
LONG = (LongDraws, LongNumpy, Torch)
"""The same, and slow."""
SHARED = (WorkingFolder, Variable, ClassAttribute, ModuleState)
"""What belongs to a process."""

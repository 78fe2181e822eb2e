"""The dataset of a run: seeds, tasks or a curriculum, as a stream whose state can be saved; and its epochs."""

from __future__ import annotations

import json
import random
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, Protocol, TypedDict

import msgspec

from turnsmith.env.signatures import NO_TASK, needs_task
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError, EnvironmentFailure, InternalError, RecordError
from turnsmith.records.files import read_file, write_text
from turnsmith.trainer.task_file import TaskFile, read_tasks, rows_of

if TYPE_CHECKING:
    from turnsmith.config import ConfigStore
    from turnsmith.inference.chat import Chat

ENDLESS = 10**9
"""Length of a stream that never ends."""
REMEMBERED = 4096
"""How many finished groups a curriculum sees: the most recent ones."""


class DatasetRow(TypedDict):
    """Where one group starts: the arguments of `reset(seed=..., task=...)`."""

    index: int
    seed: int
    task: dict[str, Any] | None
    environment: NotRequired[str]
    """In a mix, the name of the environment to start in."""


@dataclass(frozen=True, slots=True)
class FinishedGroup:
    """A finished group: where it started, and the mean reward of its episodes."""

    index: int
    seed: int
    task: dict[str, Any] | None
    reward: float


class _State(TypedDict):
    position: int
    history: NotRequired[list[FinishedGroup]]
    given: NotRequired[list[DatasetRow]]


class _About(TypedDict):
    """`starts.json`."""

    source: Literal["rows", "curriculum", "seeds"]
    seed: int
    shuffle: bool
    state: _State


class Rows(Protocol):
    """The interface of a PyTorch dataset with numbered rows."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


Tasks = Iterable[Mapping[str, Any]] | Rows | str | Path
"""Mappings (a list, a Hugging Face or a PyTorch dataset), or the path of a `.jsonl`, `.json`, `.csv` or `.parquet` file
or of a saved Hugging Face dataset."""
Curriculum = Callable[[int, tuple[FinishedGroup, ...]], Mapping[str, Any]]
"""`curriculum(index, history)` returns `{"task": {...}}`, `{"seed": 5}` or both. If it depends on nothing else,
resuming is exact."""


class CustomEnvironmentDataset:
    """The dataset of a run, for `RayPPOTrainer(dataset=...)`: one row per group, repeated as often as needed.

    Without `tasks`, `seeds` or `curriculum` only the seeds differ: group `i` has the seed `seed + i`.

    Args:
        environment: With `tokenizer`, a row also shows the opening prompt of its episodes. Training uses neither.
        tokenizer: A Hugging Face tokenizer with a chat template.
        tasks: A list of mappings, a Hugging Face `Dataset`, or the path of a file or of a saved dataset (see `Tasks`).
        seeds: The seeds to use, instead of tasks.
        curriculum: Instead of both, a function that chooses each row from its index and the results of earlier groups.
        shuffle: Shuffle the rows anew for each pass.
        seed: Seed of the first group, and of shuffling; None: `training.seed`.

    Example:
        >>> dataset = CustomEnvironmentDataset(tasks=[{"sum": "1 + 1"}, {"sum": "2 + 2"}])
        >>> len(dataset), dataset[1]
        (2, {'index': 1, 'seed': 1, 'task': {'sum': '2 + 2'}})
        >>> next(iter(dataset))["task"], dataset.state_dict()["position"]
        ({'sum': '1 + 1'}, 1)
    """

    def __init__(
        self,
        environment: Any = None,
        tokenizer: Any = None,
        *,
        tasks: Tasks | None = None,
        seeds: Iterable[int] | None = None,
        curriculum: Curriculum | None = None,
        shuffle: bool = False,
        seed: int | None = None,
    ) -> None:
        if sum(source is not None for source in (tasks, seeds, curriculum)) > 1:
            raise ConfigError("A dataset has one source: pass tasks, seeds or a curriculum.")
        self.environment = None if environment is None else EnvironmentSpec.of(environment)
        self.tokenizer = tokenizer
        self.curriculum = curriculum
        self.shuffle = shuffle
        self.seed = seed
        self.position = 0
        """The index of the next row."""
        self.history: list[FinishedGroup] = []
        """What a curriculum sees."""
        self._given: dict[int, DatasetRow] = {}
        self._table: TaskFile | None = None
        if tasks is not None:
            self._table = TaskFile.of({"task": task} for task in read_tasks(tasks))
        elif seeds is not None:
            self._table = TaskFile.of({"seed": int(seed)} for seed in rows_of(seeds))

    @classmethod
    def of(cls, dataset: CustomEnvironmentDataset | Tasks | None) -> CustomEnvironmentDataset:
        """The dataset itself, or one of the given tasks; None: only the seeds differ."""
        if not isinstance(dataset, CustomEnvironmentDataset):
            return cls(tasks=dataset)
        if type(dataset).__getitem__ is not CustomEnvironmentDataset.__getitem__:
            raise ConfigError(
                f"{type(dataset).__name__}.__getitem__ is not read by training: override start(index), which returns "
                "the index, seed and task of an episode's start, or pass the rows themselves, dataset=[...]."
            )
        return dataset

    def start(self, index: int) -> DatasetRow:
        """Where group `index` starts."""
        if index < 0:
            raise IndexError(f"A start has an index from 0 on, not {index}.")
        seed = (self.seed or 0) + index
        if self.curriculum is not None:
            return self._choose(self.curriculum, index, seed)
        row = {} if self._table is None else self._table[self._row_of(index, len(self._table))]
        return {"index": index, "seed": row.get("seed", seed), "task": row.get("task")}

    def __len__(self) -> int:
        return ENDLESS if self._table is None else len(self._table)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Row `index`; with an environment and a tokenizer also `state`, `prompt`, `input_ids`, `attention_mask`."""
        start = self.start(index)
        known = {name: value for name, value in start.items() if value is not None}  # PyTorch's loaders take no None
        return {**known, **self._opening(start)}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """From the current position to the end of the pass; `state_dict` may be called in between."""
        stop = (self.position // len(self) + 1) * len(self)
        while self.position < stop:
            self.position += 1
            yield self[self.position - 1]

    def first_tasks(self, most: int = 1000) -> list[dict[str, Any]]:
        """The tasks of the first rows, as they were given; a curriculum has none before it is asked."""
        rows = [] if self._table is None else [self._table[number] for number in range(min(most, len(self._table)))]
        return [row["task"] for row in rows if row.get("task") is not None]

    @property
    def has_tasks(self) -> bool:
        """Whether starts differ in more than the seed."""
        return self.curriculum is not None or self.start(0)["task"] is not None

    def record(
        self, rewards: Mapping[int, float | None], successes: Mapping[str, tuple[int, int]] | None = None
    ) -> None:
        """Add finished groups to the history: the mean reward of each, by index; None: every episode failed.

        `successes` are for a mix of environments, and not used here.
        """
        for index in sorted(self._given.keys() & rewards.keys()):  # in order, whichever finished first
            start, reward = self._given.pop(index), rewards[index]
            if reward is not None:
                self.history.append(FinishedGroup(start["index"], start["seed"], start["task"], reward))
        del self.history[:-REMEMBERED]

    def state_dict(self) -> dict[str, Any]:
        """Position and history, in plain values."""
        history = [asdict(group) for group in self.history]
        return {"position": self.position, "history": history, "given": list(self._given.values())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; `{"position": n}` alone just moves to row `n`."""
        self.position = int(state["position"])
        self.history = [msgspec.convert(group, FinishedGroup) for group in state.get("history", ())]
        self._given = {start["index"]: start for start in state.get("given", ())}

    def save(self, folder: Path, seed: int) -> None:
        """Write everything but the curriculum to `starts.json` and `starts.jsonl` of a run folder."""
        if self._table is not None:
            self._table.save(folder / "starts.jsonl")
        seed = seed if self.seed is None else self.seed
        source = "rows" if self._table is not None else "curriculum" if self.curriculum is not None else "seeds"
        about = {"source": source, "seed": seed, "shuffle": self.shuffle, "state": self.state_dict()}
        write_text(folder / "starts.json", json.dumps(about) + "\n")

    @classmethod
    def load(cls, folder: Path, curriculum: Curriculum | None = None) -> CustomEnvironmentDataset:
        """Read what `save` wrote; a curriculum is code, so it has to be passed again."""
        try:
            # Not `parse_object`: seeds may be integers of any length.
            about = msgspec.convert(json.loads(read_file(folder / "starts.json")), _About)
        except (ValueError, RecursionError) as error:
            raise RecordError(f"{folder / 'starts.json'} is damaged: {error}.") from None
        if (about["source"] == "curriculum") != (curriculum is not None):
            raise ConfigError(
                f"The dataset in {folder} comes from {about['source']}: pass the same kind of dataset again."
            )
        made = cls(curriculum=curriculum, shuffle=about["shuffle"], seed=about["seed"])
        if about["source"] == "rows":
            made._table = TaskFile(folder / "starts.jsonl")
        made.load_state_dict(about["state"])
        return made

    def _row_of(self, index: int, rows: int) -> int:
        passed, place = divmod(index, rows)
        return _shuffled(rows, f"{self.seed or 0}/{passed}")[place] if self.shuffle else place

    def _choose(self, curriculum: Curriculum, index: int, seed: int) -> DatasetRow:
        chosen = curriculum(index, tuple(self.history))
        if not isinstance(chosen, Mapping) or not chosen.keys() <= {"seed", "task"}:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f'The curriculum returned {str(chosen)[:80]} for start {index}: return {{"task": {{...}}}}, '
                '{"seed": 5} or both.'
            )
        start: DatasetRow = {"index": index, "seed": int(chosen.get("seed", seed)), "task": chosen.get("task")}
        self._given[index] = start
        return start

    @cached_property
    def _chat(self) -> Chat:
        from turnsmith.inference.chat import Chat

        return Chat(self.tokenizer)

    def _opening(self, start: DatasetRow) -> dict[str, Any]:
        """The opening prompt of a row's episodes, from the one episode loop."""
        if self.environment is None or self.tokenizer is None:
            return {}
        from turnsmith.concurrency.loop_thread import run_blocking
        from turnsmith.inference.engine import Sampling
        from turnsmith.inference.engines.scripted_engine import ScriptedEngine
        from turnsmith.rollout.episode import EpisodeStart, run_episode
        from turnsmith.rollout.spec import Limits
        from turnsmith.trajectory import Outcome

        chat = self._chat
        episode = run_blocking(
            run_episode(
                EpisodeStart("opening", seed=start["seed"], task=start["task"]),
                environment=self.environment,
                engine=ScriptedEngine([], chat),  # no replies: the episode ends where the model would generate
                chat=chat,
                limits=Limits(prompt_tokens=sys.maxsize),
                sampling=Sampling(),
            )
        )
        ids = episode.tokens.ids.tolist()
        if episode.outcome is Outcome.INTERNAL_ERROR:
            raise InternalError.read(episode.error)
        if not ids:
            raise EnvironmentFailure(episode.error)
        told = {"state": episode.messages[-1]["content"], "prompt": chat.show(ids)}
        return {**told, "input_ids": ids, "attention_mask": [1] * len(ids)}


def require_tasks(dataset: CustomEnvironmentDataset, environment: EnvironmentSpec) -> None:
    """Raise a `ConfigError` if `reset` of a single environment needs a task, and the dataset has none."""
    if needs_task(environment.load()) and not dataset.has_tasks:
        raise ConfigError(f"{environment.name}.reset {NO_TASK}")


def steps_in_epoch(config: ConfigStore, dataset: CustomEnvironmentDataset) -> int:
    """Optimizer steps in one epoch: `training.steps_per_epoch`, else one pass over the dataset.

    Example:
        >>> from turnsmith.config import ConfigStore
        >>> steps_in_epoch(ConfigStore(), CustomEnvironmentDataset(seeds=range(9)))  # 4 groups a step
        3
        >>> steps_in_epoch(ConfigStore(), CustomEnvironmentDataset())
        10
    """
    return config.training.steps_in_epoch(None if len(dataset) == ENDLESS else len(dataset))


@lru_cache(maxsize=2)
def _shuffled(rows: int, seed: str) -> array[int]:
    order = array("q", range(rows))
    random.Random(seed).shuffle(order)
    return order


@dataclass(frozen=True)
class Epochs:
    """The epochs of one call of `fit`, which begins a new one after those of the calls before.

    Example:
        >>> first = Epochs().next(steps=1, after=0)  # fit(num_epochs=2, num_iters_per_epoch=1)
        >>> [first.of(step) for step in (1, 2)]
        [0, 1]
        >>> second = first.next(steps=2, after=2)  # fit(num_epochs=2, num_iters_per_epoch=2)
        >>> [second.of(step) for step in (3, 4, 5, 6)]
        [2, 2, 3, 3]
        >>> [step for step in (3, 4, 5, 6) if second.end_with(step, every=2)]
        [6]
    """

    steps: int = 1
    """Steps in each."""
    after: int = 0
    """The last step before the call."""
    first: int = 0
    """The number of its first epoch."""

    def of(self, step: int) -> int:
        """The epoch of a step."""
        return self.first + (step - self.after - 1) // self.steps

    def end_with(self, step: int, every: int) -> bool:
        """Whether so many epochs of the call end with this step, or a multiple of them; 0: never."""
        return every > 0 and (step - self.after) % (every * self.steps) == 0

    def next(self, steps: int, after: int) -> Epochs:
        """Those of a call that begins after a step, and has so many steps in each."""
        return Epochs(steps, after, self.of(after) + 1)

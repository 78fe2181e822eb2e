"""The dataset of a run with a mix of environments: which of them each group starts in, and where."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from turnsmith.env.mix import EnvironmentMix
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError, RecordError
from turnsmith.records.files import read_file, write_text
from turnsmith.trainer.dataset import Curriculum, CustomEnvironmentDataset, DatasetRow, Tasks, require_tasks

LEAST = 0.1
"""With a curriculum, an environment keeps at least this part of its weight: what was solved may be forgotten."""
MEMORY = 128
"""How many episodes the measured success looks back, on average."""
_MIX = "mix"


class _MixState(TypedDict):
    position: int
    next: int
    counts: dict[str, int]
    credit: dict[str, float]
    measured: dict[str, tuple[float, float]]


class _AboutMix(TypedDict):
    """`starts.json` of a mix."""

    source: str
    seed: int
    weights: dict[str, float]
    curriculum: bool
    state: _MixState


class MixDataset(CustomEnvironmentDataset):
    """Chooses the environment of each group, so that after any number of them each has had its share, to within one.

    Each environment goes through a dataset of its own: its n-th group starts at the n-th row. With a curriculum, the
    share of an environment is proportional to its weight times 4 p (1 - p), where p is its recent success rate: most
    where the model succeeds half of the time, because groups in which all episodes succeed or all fail teach nothing.

    Args:
        weights: The weight of each environment, by name.
        datasets: Where the groups of each environment start; without one, only seeds differ.
        curriculum: Whether the shares follow the measured success.
        seed: Seed of each environment's first group, unless its dataset has its own; None: `training.seed`.

    Example:
        >>> dataset = MixDataset({"chess": 3, "letters": 1})
        >>> [(row["environment"], row["seed"]) for row in map(dataset.start, range(5))]
        [('chess', 0), ('chess', 1), ('letters', 0), ('chess', 2), ('chess', 3)]
        >>> dataset = MixDataset({"chess": 1, "letters": 1}, curriculum=True)
        >>> dataset.record({}, {"chess": (49, 98), "letters": (98, 98)})  # half of them, and all
        >>> {name: round(share, 2) for name, share in dataset.shares().items()}
        {'chess': 0.91, 'letters': 0.09}
    """

    def __init__(
        self,
        weights: Mapping[str, float],
        datasets: Mapping[str, CustomEnvironmentDataset] | None = None,
        *,
        curriculum: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed=seed)
        self.weights = {name: float(weight) for name, weight in weights.items()}
        self.datasets = {name: (datasets or {}).get(name, CustomEnvironmentDataset()) for name in weights}
        self.by_success = curriculum
        for name, dataset in self.datasets.items():
            if dataset.curriculum is not None or isinstance(dataset, MixDataset):
                raise ConfigError(f"The dataset of {name} in the mix has a curriculum of its own: pass tasks or seeds.")
        self._next = 0
        # Never changed in place: a copy of the dataset goes on without its original.
        self._counts = dict.fromkeys(self.weights, 0)
        self._credit = dict.fromkeys(self.weights, 0.0)
        self._measured = dict.fromkeys(self.weights, (0.0, 0.0))

    @classmethod
    def of_mix(cls, mix: EnvironmentMix) -> MixDataset:
        """The dataset of a mix."""
        datasets = {
            name: CustomEnvironmentDataset.of(member.dataset)
            for name, member in mix.members.items()
            if member.dataset is not None
        }
        return cls(mix.weights, datasets, curriculum=mix.curriculum)

    def shares(self) -> dict[str, float]:
        """The share of each environment in the groups to come."""
        worth = {name: weight * self._learnability(name) for name, weight in self.weights.items()}
        total = sum(worth.values())
        return {name: one / total for name, one in worth.items()}

    @property
    def has_tasks(self) -> bool:
        """Whether the starts of any environment differ in more than the seed."""
        return any(dataset.has_tasks for dataset in self.datasets.values())

    def start(self, index: int) -> DatasetRow:
        """Where group `index` starts. Each choice depends on those before it, so they are made in order, and once."""
        if index < self._next:
            raise IndexError(f"A mix chooses its starts in order: start {index} was chosen before, not again.")
        while self._next < index:
            self._choose_next()
        return self._choose_next()

    def record(
        self, rewards: Mapping[int, float | None], successes: Mapping[str, tuple[int, int]] | None = None
    ) -> None:
        """Note the successful and all episodes of finished groups, by environment."""
        for name, (won, episodes) in (successes or {}).items():
            keep = (1 - 1 / MEMORY) ** episodes
            before = self._measured[name]
            self._measured = {**self._measured, name: (keep * before[0] + won, keep * before[1] + episodes)}

    def state_dict(self) -> dict[str, Any]:
        """Position, choices and measured success, in plain values."""
        return {
            "position": self.position,
            "next": self._next,
            "counts": dict(self._counts),
            "credit": dict(self._credit),
            "measured": dict(self._measured),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        given = msgspec.convert(dict(state), _MixState)
        if given["counts"].keys() != self.weights.keys():
            raise ConfigError(
                f"The checkpoint is of a mix of {', '.join(given['counts'])}, and this is one of "
                f"{', '.join(self.weights)}: a mix keeps its environments when it is resumed."
            )
        self.position, self._next = given["position"], given["next"]
        self._counts, self._credit, self._measured = given["counts"], given["credit"], given["measured"]

    def save(self, folder: Path, seed: int) -> None:
        """Write it to `starts.json` of a run folder, and the datasets of its environments to `starts/`."""
        seed = seed if self.seed is None else self.seed
        for number, dataset in enumerate(self.datasets.values()):
            (folder / "starts" / str(number)).mkdir(parents=True, exist_ok=True)
            dataset.save(folder / "starts" / str(number), seed)
        about: _AboutMix = {
            "source": _MIX,
            "seed": seed,
            "weights": self.weights,
            "curriculum": self.by_success,
            "state": msgspec.convert(self.state_dict(), _MixState),
        }
        write_text(folder / "starts.json", json.dumps(about) + "\n")

    @classmethod
    def load_mix(cls, folder: Path, about: object) -> MixDataset:
        """Read what `save` wrote; `about` is the content of `starts.json`."""
        known = msgspec.convert(about, _AboutMix)
        datasets = {
            name: CustomEnvironmentDataset.load(folder / "starts" / str(number))
            for number, name in enumerate(known["weights"])
        }
        made = cls(known["weights"], datasets, curriculum=known["curriculum"], seed=known["seed"])
        made.load_state_dict(known["state"])
        return made

    def _choose_next(self) -> DatasetRow:
        credit = {name: self._credit[name] + share for name, share in self.shares().items()}
        name = max(credit, key=credit.__getitem__)
        dataset = self.datasets[name]
        if dataset.seed is None:
            dataset = copy.copy(dataset)
            dataset.seed = self.seed
        row = dataset.start(self._counts[name])
        self._credit = {**credit, name: credit[name] - 1.0}
        self._counts = {**self._counts, name: self._counts[name] + 1}
        self._next += 1
        return {"index": self._next - 1, "seed": row["seed"], "task": row["task"], "environment": name}

    def _learnability(self, name: str) -> float:
        if not self.by_success:
            return 1.0
        won, episodes = self._measured[name]
        rate = (won + 1) / (episodes + 2)  # a half before anything is known
        return max(LEAST, 4 * rate * (1 - rate))


def run_dataset(
    given: CustomEnvironmentDataset | Tasks | None, environment: EnvironmentSpec
) -> CustomEnvironmentDataset:
    """The dataset of a run.

    Example:
        >>> from turnsmith.env.examples import GuessNumber
        >>> run_dataset([{"highest": 4}], EnvironmentMix([GuessNumber]))
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: A mix has no dataset of its own: pass the tasks of each environment with it, \
MixMember(..., dataset=tasks).
    """
    if not isinstance(environment, EnvironmentMix):
        if isinstance(given, MixDataset):
            raise ConfigError("The dataset is one of a mix, and the environment is not: pass the EnvironmentMix.")
        dataset = CustomEnvironmentDataset.of(given)
        require_tasks(dataset, environment)
        return dataset
    if given is None:
        return MixDataset.of_mix(environment)
    if not isinstance(given, MixDataset):
        raise ConfigError(
            "A mix has no dataset of its own: pass the tasks of each environment with it, "
            "MixMember(..., dataset=tasks)."
        )
    if given.weights.keys() != environment.members.keys():
        raise ConfigError(
            f"The run was started with a mix of {', '.join(given.weights)}, and this is one of "
            f"{', '.join(environment.members)}: a mix keeps its environments when it is resumed."
        )
    return given


def load_dataset(folder: Path, curriculum: Curriculum | None = None) -> CustomEnvironmentDataset:
    """Read the dataset of a run folder, of a mix or not; a curriculum is code, so it has to be passed again."""
    try:
        about: Any = json.loads(read_file(folder / "starts.json"))
        if isinstance(about, dict) and about.get("source") == _MIX:
            return MixDataset.load_mix(folder, about)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{folder / 'starts.json'} is damaged: {error}.") from None
    return CustomEnvironmentDataset.load(folder, curriculum)

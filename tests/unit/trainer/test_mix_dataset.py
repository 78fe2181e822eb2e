"""Which environment of a mix each group starts in: shares, tasks, a curriculum, and their state in a checkpoint."""

from __future__ import annotations

import copy
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from turnsmith import ConfigError, ConfigStore, CustomEnvironmentDataset, EnvironmentMix, MixMember, RecordError
from turnsmith.env.examples import GuessNumber
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.rollout.evaluation.evaluate import FIRST_SEED
from turnsmith.trainer import RayPPOTrainer
from turnsmith.trainer.mix_dataset import LEAST, MixDataset, load_dataset
from turnsmith.trainer.validation import Validation
from turnsmith.trainer.verl.dataset import EpisodeDataset


def chosen(dataset: Any, first: int, count: int) -> list[str]:
    return [dataset.start(index)["environment"] for index in range(first, first + count)]


@pytest.mark.parametrize("weights", [{"a": 3, "b": 1}, {"a": 0.2, "b": 0.7, "c": 0.1}, {"a": 1}, {"a": 1e-6, "b": 1e6}])
def test_each_has_its_share_to_within_one_group_at_all_times(weights: dict[str, float]) -> None:
    dataset, counts, total = MixDataset(weights), Counter[str](), sum(weights.values())
    for index in range(500):
        counts[dataset.start(index)["environment"]] += 1
        assert all(abs(counts[name] - (index + 1) * weight / total) <= 1 for name, weight in weights.items())


def test_three_to_one() -> None:
    dataset = MixDataset({"a": 3, "b": 1})
    assert [Counter(chosen(dataset, 4 * step, 4)) for step in range(50)] == 50 * [{"a": 3, "b": 1}]


def test_each_goes_through_its_own_rows_as_if_it_were_alone() -> None:
    tasks = [{"n": n} for n in range(3)]
    alone = CustomEnvironmentDataset(tasks=tasks, shuffle=True, seed=5)
    dataset = MixDataset({"rows": 1, "seeds": 2}, {"rows": alone}, seed=7)
    rows = [dataset.start(index) for index in range(60)]
    assert [row["task"] for row in rows if row["environment"] == "rows"] == [alone.start(n)["task"] for n in range(20)]
    assert [row["seed"] for row in rows if row["environment"] == "seeds"] == list(range(7, 47))
    assert [row["index"] for row in rows] == list(range(60))


def test_a_curriculum_follows_the_success_and_leaves_nobody_out() -> None:
    dataset = MixDataset({"solved": 1, "half": 1, "hopeless": 1}, curriculum=True)
    assert dataset.shares() == pytest.approx({"solved": 1 / 3, "half": 1 / 3, "hopeless": 1 / 3})
    for _ in range(20):
        dataset.record({}, {"solved": (32, 32), "half": (16, 32), "hopeless": (0, 32)})
    assert dataset.shares() == pytest.approx({"solved": LEAST / 1.2, "half": 1 / 1.2, "hopeless": LEAST / 1.2})
    before = Counter(chosen(dataset, 0, 120))
    assert before == {"half": 100, "solved": 10, "hopeless": 10}
    for _ in range(20):  # what was solved is forgotten
        dataset.record({}, {"solved": (16, 32), "half": (16, 32)})
    after = Counter(chosen(dataset, 120, 84))
    assert after["solved"] == pytest.approx(40, abs=1)


def test_without_a_curriculum_success_changes_nothing() -> None:
    dataset = MixDataset({"a": 3, "b": 1})
    dataset.record({}, {"a": (100, 100)})
    assert dataset.shares() == {"a": 0.75, "b": 0.25}


def train(loader: Any, steps: int, results: random.Random) -> list[Any]:
    """Read batches, and report a success that depends on what was read, as training does."""
    rows, told = iter(loader), []
    for _ in range(steps):
        batch = [(row["index"], row["start_environment"], row["start_seed"], row["start_task"]) for row in next(rows)]
        counts = Counter(name for _, name, _, _ in batch)
        told.append((batch, loader.dataset.metrics()))
        loader.dataset.record({}, {name: (results.randint(0, 4 * n), 4 * n) for name, n in sorted(counts.items())})
    return told


def test_the_checkpoint_of_verls_loader_resumes_the_same_choices(tmp_path: Path) -> None:
    def loader() -> Any:
        datasets = {"b": CustomEnvironmentDataset(tasks=[{"n": n} for n in range(5)], shuffle=True)}
        MixDataset({"a": 2, "b": 1, "c": 1}, datasets, curriculum=True).save(tmp_path, seed=3)
        return StatefulDataLoader(EpisodeDataset(str(tmp_path / "starts.json")), batch_size=4, collate_fn=list)

    whole = train(loader(), 30, random.Random(1))
    results, stopped = random.Random(1), loader()
    begun = train(stopped, 11, results)
    state = stopped.state_dict()
    resumed = loader()
    resumed.load_state_dict(state)
    assert begun + train(resumed, 19, results) == whole
    assert len({tuple(shares.values()) for _, shares in whole}) > 20, "the shares moved"


def test_a_mix_with_other_environments_is_refused(tmp_path: Path) -> None:
    MixDataset({"a": 1, "b": 1}).save(tmp_path, seed=0)
    saved = load_dataset(tmp_path)
    with pytest.raises(ConfigError, match="started with a mix of a, b, and this is one of a, c"):
        RayPPOTrainer(ConfigStore(), EnvironmentMix({"a": GuessNumber, "c": GuessNumber}), dataset=saved)
    with pytest.raises(ConfigError, match="The dataset is one of a mix, and the environment is not"):
        RayPPOTrainer(ConfigStore(), GuessNumber, dataset=saved)
    with pytest.raises(ConfigError, match="The checkpoint is of a mix of a, b, and this is one of a"):
        MixDataset({"a": 1}).load_state_dict(saved.state_dict())


def test_a_start_is_not_chosen_twice_and_a_copy_has_its_own_choices() -> None:
    dataset = MixDataset({"a": 3, "b": 1})
    twin = copy.copy(dataset)
    assert chosen(dataset, 0, 8) == chosen(twin, 0, 8)
    with pytest.raises(IndexError, match="start 3 was chosen before"):
        dataset.start(3)
    assert [row["environment"] for row, _ in zip(MixDataset({"a": 3, "b": 1}), range(8), strict=False)] == chosen(
        MixDataset({"a": 3, "b": 1}), 0, 8
    )


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "starts.json").write_text('{"source": "mix", "seed": 1}')
    with pytest.raises(RecordError, match=r"starts\.json is damaged"):
        load_dataset(tmp_path)


def test_a_curriculum_inside_a_mix_is_refused() -> None:
    inner = CustomEnvironmentDataset(curriculum=lambda index, history: {"seed": index})
    with pytest.raises(ConfigError, match="The dataset of g in the mix has a curriculum of its own"):
        RayPPOTrainer(ConfigStore(), EnvironmentMix({"g": MixMember(GuessNumber, dataset=inner)}))


def test_held_out_starts_of_a_mix() -> None:
    config = ConfigStore()
    config.evaluation.every = 1
    mix = EnvironmentSpec.of(EnvironmentMix({"a": (GuessNumber, 3), "b": GuessNumber}))
    assert isinstance(mix, EnvironmentMix)
    Validation.of(None, mix).check(config, MixDataset.of_mix(mix))
    tasks = EnvironmentMix({"a": MixMember(GuessNumber, weight=3, dataset=[{"n": 1}]), "b": GuessNumber})
    with pytest.raises(ConfigError, match="has no held-out set"):
        Validation.of(None, mix).check(config, MixDataset.of_mix(tasks))
    near = EnvironmentMix({"a": MixMember(GuessNumber, dataset=CustomEnvironmentDataset(seeds=[FIRST_SEED + 1]))})
    with pytest.raises(ConfigError, match="training would reach them"):
        Validation.of(None, mix).check(config, MixDataset.of_mix(near))
    config.evaluation.episodes = 4
    held_out = Validation.of(tasks, mix)
    for _ in range(2):  # asked twice, the same
        schedule = held_out.schedule(config)
        assert schedule is not None
        starts = schedule.plan.starts()
        assert [(start.environment, start.seed, start.task) for start in starts] == [
            ("a", FIRST_SEED, {"n": 1}),
            ("a", FIRST_SEED + 1, {"n": 1}),
            ("b", FIRST_SEED, None),
            ("a", FIRST_SEED + 2, {"n": 1}),
        ]

"""Four FSDP2 ranks, four rollout servers and four processes that run episodes, in one run on one machine."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.e2e.marked_processes import command_of
from tests.e2e.three_letters import ThreeLetters
from tests.e2e.trained_on import assert_advantages_are_ours
from turnsmith import ConfigStore, RayPPOTrainer, read_episodes

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


def actors() -> Counter[str]:
    """How many Ray actors of each class this process's children are; Ray puts the class into their titles."""
    titles = [command_of(process) for process in psutil.Process().children(recursive=True)]
    return Counter(found[1] for title in titles if (found := re.match(r"ray::(\w+)", title)))


def test_four_of_everything_train_alike(tmp_path: Path) -> None:
    config = ConfigStore()
    config.model.model_name, config.model.device = "tiny", "cpu"
    config.inference.max_tokens = 8
    config.training.learning_rate = 1e-2
    config.checkpoint.output_dir = str(tmp_path)
    config.checkpoint.save_interval = 0
    config.ray.gpus_per_node = config.ray.num_actors = 4
    trainer = RayPPOTrainer(config, ThreeLetters)
    try:
        records = trainer.fit(num_epochs=1, num_iters_per_epoch=2)
        started = actors()
    finally:
        trainer.cleanup()
    run = trainer.run
    assert run is not None
    assert {name: started[name] for name in ("WorkerDict", "TransformersServer", "EpisodeWorker")} == {
        "WorkerDict": 4,
        "TransformersServer": 4,
        "EpisodeWorker": 4,
    }
    assert all(record["grad_norm"] > 0 for record in records)
    assert max(record["rollout_diff/max"] for record in records) < 1e-5
    ledger = run.read_ledger()
    assert [(step["dispatched"], step["trained"], step["carried"]) for step in ledger] == [(32, 32, [])] * 2
    for step in (1, 2):
        names = [episode.episode_id for episode in read_episodes(run, step=step)]
        assert len(names) == len(set(names)) == 32
        assert_advantages_are_ours(trainer, step)

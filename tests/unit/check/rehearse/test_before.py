"""What a rehearsal looks at before it starts a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnsmith.check.environment.checks.settings import check_space
from turnsmith.check.environment.subject import Subject
from turnsmith.check.rehearse.before import check_evaluation, checks_here, is_elsewhere, places_here
from turnsmith.config import ConfigStore, EnvironmentConfig
from turnsmith.env.examples import GuessNumber
from turnsmith.env.spec import EnvironmentSpec


class FewSeeds(GuessNumber):
    """Has levels for the seeds of training only."""

    def reset(self, seed: int = 0) -> str:
        if seed > 1_000_001:
            raise KeyError(f"no level {seed}")
        return super().reset(seed)


@pytest.mark.parametrize(
    ("environment", "every", "status", "saw"),
    [
        (GuessNumber, 5, "passed", "3 starts of an evaluation were opened."),
        (FewSeeds, 5, "failed", "1 of 3 starts of an evaluation fail, as seed 1000002:"),
        (FewSeeds, 0, "skipped", "evaluation.every=0"),
    ],
)
async def test_the_starts_of_an_evaluation_are_opened(environment: type, every: int, status: str, saw: str) -> None:
    config = ConfigStore()
    config.evaluation.every, config.evaluation.episodes = every, 3
    spec = EnvironmentSpec.of(environment, EnvironmentConfig(isolation="loop"))
    finding = await check_evaluation(Subject(environment=spec, config=config))
    assert (finding.status, finding.saw[: len(saw)]) == (status, saw)
    assert len(finding.episodes) == (status == "failed")


def test_a_folder_that_only_the_cluster_has_is_neither_used_nor_judged(tmp_path: Path) -> None:
    config = ConfigStore()
    config.checkpoint.output_dir = str(tmp_path / "shared")
    assert places_here(config) is config
    config.ray.address = "auto"
    here = places_here(config)
    assert (here.ray.address, here.checkpoint.output_dir) == (None, str(Path.cwd()))
    assert config.ray.address == "auto"
    assert is_elsewhere(config)
    assert check_space not in checks_here(config)
    (tmp_path / "shared").mkdir()
    assert places_here(config) is config
    assert check_space in checks_here(config)


def test_checks_that_need_neither_a_model_nor_minutes_are_made() -> None:
    codes = [check.code for check in checks_here(ConfigStore())]
    assert "template" in codes
    assert "many-at-once" not in codes

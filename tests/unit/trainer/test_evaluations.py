"""TrainingEvaluations between the steps of a run: when, what is kept, which checkpoint is the best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from turnsmith.config import ConfigStore
from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference import Chat, ScriptedEngine
from turnsmith.records.checkpoints import PendingCheckpoint, best_checkpoint, write_state
from turnsmith.records.episodes import read_episodes
from turnsmith.records.rewind import rewind
from turnsmith.records.run_folder import RunFolder
from turnsmith.rollout.evaluation.evaluate import FIRST_SEED, EvaluationPlan, evaluate
from turnsmith.rollout.evaluation.result import EvaluationResult
from turnsmith.trainer.validation import EvaluationSchedule, TrainingEvaluations, Validation


class Scripted:
    """Plays every episode with the same words."""

    def __init__(self, folder: str, *words: str) -> None:
        self.words, self.chat = words, Chat(AutoTokenizer.from_pretrained(folder))

    def evaluate(self, environment: EnvironmentSpec, plan: EvaluationPlan) -> EvaluationResult:
        return evaluate(environment, ScriptedEngine(list(self.words), self.chat), self.chat, plan)


def evaluating(every: int = 2, episodes: int = 8) -> EvaluationSchedule:
    config = ConfigStore()
    config.evaluation.every, config.evaluation.episodes, config.inference.max_turns = every, episodes, 1
    made = Validation.of(None, EnvironmentSpec.of(GuessNumber)).schedule(config)
    assert made is not None
    return made


@pytest.fixture(autouse=True)
def _own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "run")


def telling(run: RunFolder, told: list[tuple[str, Any]]) -> Any:
    """Keeps what is told, and evaluations in the run's folder, as the task runner does."""

    def emit(kind: str, content: Any) -> None:
        told.append((kind, content))
        if kind == "evaluation":
            run.append_evaluation(content)

    return emit


def save(run: RunFolder, step: int) -> None:
    draft = PendingCheckpoint(run.checkpoints_dir, step)
    write_state(draft.path, {"step": step})
    draft.seal()
    draft.commit()


def test_one_is_made_before_training_every_so_often_and_at_the_end(run: RunFolder) -> None:
    evaluations = TrainingEvaluations(evaluating(every=3), run, telling(run, []))
    due = [step for step in range(8) if evaluations.is_due(step, last=step == 7)]
    assert due == [0, 3, 6, 7]
    evaluations.report({"step": 0})
    assert not evaluations.is_due(0, last=False)
    assert not TrainingEvaluations(evaluating(), run, telling(run, [])).is_due(0, last=False)
    assert not TrainingEvaluations(None, run, telling(run, [])).is_due(0, last=True)


def test_episodes_and_numbers_are_kept_apart_from_training(run: RunFolder, tiny_folder: str) -> None:
    told: list[tuple[str, Any]] = []
    evaluations = TrainingEvaluations(evaluating(), run, telling(run, told))
    record = evaluations.make(2, Scripted(tiny_folder, "13"))
    evaluations.report(record)
    assert [kind for kind, _ in told] == ["phase", "evaluation"]
    assert run.read_evaluations() == [record]
    assert record["step"] == 2
    assert {"reward/mean", "success/mean", "success/low", "success/high", "time/evaluate"} <= record.keys()
    assert read_episodes(run) == []
    episodes = EvaluationResult.read(run, step=2).trajectories
    assert [episode.seed for episode in episodes] == list(range(FIRST_SEED, FIRST_SEED + 8))
    rewind(run, 1)
    assert run.read_evaluations() == list((run.path / "evaluations").iterdir()) == []


def test_an_evaluation_in_which_nothing_counts_is_told_and_never_the_best(run: RunFolder, tiny_folder: str) -> None:
    told: list[tuple[str, Any]] = []
    evaluations = TrainingEvaluations(evaluating(episodes=2), run, telling(run, told))
    record = evaluations.make(2, Scripted(tiny_folder))  # a script that says nothing is an engine that fails
    assert "No episode of the evaluation after step 2 could be counted (2 engine_failed)" in told[-1][1]
    assert not evaluations.is_best(record)
    save(run, 2)
    evaluations.saved(record)
    assert best_checkpoint(run.checkpoints_dir) is None


def test_the_best_checkpoint_is_that_of_the_highest_reward(run: RunFolder) -> None:
    evaluations = TrainingEvaluations(evaluating(), run, telling(run, []))
    for step, reward in ((2, 0.5), (4, 0.75), (6, 0.75)):
        record = {"step": step, "reward/mean": reward}
        assert evaluations.is_best(record) == (step != 6)
        evaluations.report(record)
        save(run, step)
        evaluations.saved(record)
    best = best_checkpoint(run.checkpoints_dir)
    assert best is not None
    assert (best.step, best.metric, best.value) == (4, "eval/reward/mean", 0.75)


def test_a_kill_before_the_mark_costs_nothing(run: RunFolder) -> None:
    run.append_evaluation({"step": 2, "reward/mean": 0.5})
    save(run, 2)
    TrainingEvaluations(evaluating(), run, telling(run, []))
    best = best_checkpoint(run.checkpoints_dir)
    assert best is not None
    assert best.step == 2


def test_a_best_of_steps_that_are_made_again_is_forgotten(run: RunFolder) -> None:
    evaluations = TrainingEvaluations(evaluating(), run, telling(run, []))
    for step in (2, 4):
        evaluations.report({"step": step, "reward/mean": step / 4})
        save(run, step)
        evaluations.saved({"step": step, "reward/mean": step / 4})
    rewind(run, 2)
    save(run, 4)
    assert best_checkpoint(run.checkpoints_dir) is None

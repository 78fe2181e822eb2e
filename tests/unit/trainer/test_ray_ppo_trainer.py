"""What the trainer does before anything is started; the rest is tested end to end, with Ray."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
from transformers import AutoTokenizer

from turnsmith.config import ConfigStore, Estimator, TrainingConfig
from turnsmith.config_sources import from_dict, to_dict
from turnsmith.env.base import BaseEnvironment
from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.errors import ConfigError, EnvironmentFailure, RecordError, TrainingFailure, TurnsmithError
from turnsmith.inference.chat.formats import FORMATS
from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer import CustomRayPPOTrainer, RayPPOTrainer, create_trainer
from turnsmith.trainer.advantages import get_estimator
from turnsmith.trainer.config.check import run_header
from turnsmith.trainer.config.layout import training_sampling
from turnsmith.trainer.dataset import CustomEnvironmentDataset
from turnsmith.trainer.quick_checks import run_quick_checks
from turnsmith.trainer.run_parts import TrainerCallback
from turnsmith.trajectory import Trajectory


def trainer(**settings: object) -> RayPPOTrainer:
    config = ConfigStore()
    for name, value in settings.items():
        section, _, leaf = name.partition("__")
        setattr(getattr(config, section), leaf, value)
    return RayPPOTrainer(config, GuessNumber)


def test_making_a_trainer_starts_nothing() -> None:
    made = trainer()
    assert made.metrics_history == []
    assert made.run is None
    made.cleanup()
    made.cleanup()


def test_settings_that_cannot_work_are_told_at_once() -> None:
    with pytest.raises(ConfigError, match=r"batch_size=30 is not a multiple .* Set batch_size to 24 or 32\."):
        trainer(training__batch_size=30)
    with pytest.raises(ConfigError, match=r"Set batch_size to 8\."):
        trainer(training__batch_size=3)
    with pytest.raises(ConfigError, match=r"inference\.backend must be one of"):
        trainer(inference__backend="vlm")


@pytest.mark.parametrize("environment", ["no.such.module:Env", "turnsmith.env.examples.guess_number:NoSuchEnv", 5])
def test_an_environment_that_is_none_is_told_at_once(environment: object) -> None:
    with pytest.raises(TurnsmithError):
        RayPPOTrainer(ConfigStore(), environment)


@pytest.mark.parametrize("environment", [GuessNumber, "turnsmith.env.examples.guess_number:GuessNumber"])
def test_an_environment_is_a_class_or_its_name(environment: object) -> None:
    made = RayPPOTrainer(ConfigStore(), environment).parts.environment
    assert made.name == "GuessNumber"
    assert isinstance(made.build(), BaseEnvironment)


def test_the_environment_gets_its_settings() -> None:
    config = ConfigStore()
    config.environment.max_steps = 3
    assert RayPPOTrainer(config, GuessNumber).parts.environment.build().max_steps == 3


def test_the_dataset_is_read_once_and_copied() -> None:
    tasks = [{"question": 1}, {"question": 2}]
    made = RayPPOTrainer(ConfigStore(), GuessNumber, dataset=iter(tasks))
    tasks[0]["question"] = 9
    assert [row["task"] for row in made.parts.dataset] == [{"question": 1}, {"question": 2}]
    assert RayPPOTrainer(ConfigStore(), GuessNumber).parts.dataset[3] == {"index": 3, "seed": 3}


def test_sampling_is_that_of_the_settings() -> None:
    made = trainer(inference__max_tokens=11, inference__temperature=0.5, inference__top_p=0.9, inference__top_k=5)
    sampling = training_sampling(made.config)
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (11, 0.5, 0.9, 5)


def test_the_header_says_what_is_trained_where() -> None:
    header = run_header(trainer(model__model_name="tiny", model__device="cpu").config, "GuessNumber")
    assert header == "GuessNumber · tiny · grpo, 32 episodes a step in groups of 8 · transformers on cpu"


def test_saving_before_training_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailure, match="nothing to save yet: call fit"):
        trainer().save_checkpoint(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_loading_what_is_not_there_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    made = trainer()
    with pytest.raises(RecordError, match="holds no checkpoint"):
        made.load_checkpoint(tmp_path)
    assert made.run is None


def test_the_models_own_tokenizer_is_taken_however_it_is_named(tiny_folder: str) -> None:
    config = ConfigStore()
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    for name, path in (("tiny", None), ("gone/gone", tiny_folder), ("gone/gone", f"{tiny_folder}/")):
        config.model.model_name, config.model.local_path = name, path
        assert create_trainer(config, GuessNumber, tokenizer=tokenizer).config is config
        RayPPOTrainer(config, GuessNumber, tokenizer=tokenizer)
    tokenizer.add_tokens("<mine>")
    with pytest.raises(ConfigError, match=r"has other tokens than that of the model .*: leave tokenizer out"):
        create_trainer(config, GuessNumber, tokenizer=tokenizer)


def test_a_tokenizer_with_another_chat_template_leads_to_the_setting(tiny_folder: str) -> None:
    config = ConfigStore()
    config.model.local_path = tiny_folder
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    tokenizer.chat_template = FORMATS["plain"]
    with pytest.raises(ConfigError, match=r"set model\.chat_template to its text"):
        RayPPOTrainer(config, GuessNumber, tokenizer=tokenizer)
    config.model.chat_template = "plain"
    RayPPOTrainer(config, GuessNumber, tokenizer=tokenizer)


def test_a_folder_may_be_a_path(tiny_folder: str) -> None:
    config = ConfigStore()
    config.model.local_path = Path(tiny_folder)  # type: ignore[assignment]
    RayPPOTrainer(config, GuessNumber)


def test_verls_names_of_the_datasets_are_taken() -> None:
    made = RayPPOTrainer(ConfigStore(), GuessNumber, train_dataset=[{"a": 1}], val_dataset=[{"a": 2}])
    assert made.parts.dataset[0]["task"] == {"a": 1}
    assert made.parts.validation.starts[0]["task"] == {"a": 2}
    with pytest.raises(ConfigError, match="dataset and train_dataset are two names for the same: pass one"):
        RayPPOTrainer(ConfigStore(), GuessNumber, dataset=[{"a": 1}], train_dataset=[{"a": 1}])


def test_the_environment_may_be_that_of_the_dataset() -> None:
    made = CustomRayPPOTrainer(config=ConfigStore(), train_dataset=CustomEnvironmentDataset(GuessNumber))
    assert made.parts.environment.name == "GuessNumber"
    with pytest.raises(ConfigError, match=r"no environment to train in: pass environment=\.\.\."):
        CustomRayPPOTrainer(config=ConfigStore(), train_dataset=[{"a": 1}])


def test_an_engine_of_the_users_is_refused_with_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"multi_turn_engine is not taken.*inference\.max_turns"):
        CustomRayPPOTrainer(..., multi_turn_engine=object())


def test_a_reward_function_for_verls_batches_is_refused_with_what_to_write() -> None:
    class DataProto:
        pass

    class CustomRewardManager:
        def __call__(self, data: DataProto) -> float:
            return 0.0

    def by_name(data: "verl.DataProto") -> float:  # noqa: F821, UP037
        return 0.0

    for reward_fn in (CustomRewardManager(), by_name):
        with pytest.raises(ConfigError, match=r"takes verl's DataProto.*write reward_fn\(trajectory\)"):
            RayPPOTrainer(ConfigStore(), GuessNumber, reward_fn=reward_fn)


def test_a_batch_asked_of_an_episode_leads_to_what_it_has() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'batch': .*DataProto\. Read trajectory\.actions"):
        _ = Trajectory().batch  # type: ignore[attr-defined]
    assert not hasattr(Trajectory(), "bach")


def test_without_an_annotation_it_is_found_by_the_checks_before_ray_starts(tiny_folder: str) -> None:
    made = RayPPOTrainer(ConfigStore(), GuessNumber, reward_fn=lambda data: len(data.batch["responses"]))
    with pytest.raises(EnvironmentFailure, match=r"no attribute 'batch': .*not verl's DataProto"):
        run_quick_checks(made.config, made.parts, tiny_folder, print)


@pytest.mark.parametrize("estimator", get_args(Estimator))
def test_groups_have_one_episode_where_none_are_compared(estimator: Estimator) -> None:
    config = ConfigStore()
    config.training.batch_size = 4
    config.training.adv_estimator = estimator
    usual = 8 if get_estimator(estimator).compares_groups else 1
    assert config.training.group_size == usual
    assert from_dict(to_dict(config)).training.group_size == copy.deepcopy(config).training.group_size == usual
    if usual == 1:
        RayPPOTrainer(config, GuessNumber)
    config.training.group_size = 2
    assert config.training.group_size == TrainingConfig(adv_estimator=estimator, group_size=2).group_size == 2


def test_a_held_out_set_that_is_never_used_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    config = ConfigStore()
    RayPPOTrainer(config, GuessNumber, dataset=[{"a": 1}], validation=[{"a": 2}])
    assert capsys.readouterr().out.count("evaluation.every is 0") == 1
    config.evaluation.every = 1
    RayPPOTrainer(config, GuessNumber, dataset=[{"a": 1}], validation=[{"a": 2}])
    RayPPOTrainer(ConfigStore(), GuessNumber)
    assert capsys.readouterr().out == ""


def test_create_trainer_passes_everything_on() -> None:
    def pay(trajectory: object) -> float:
        return 1.0

    made = create_trainer(ConfigStore(), GuessNumber, reward_fn=pay, dataset=[{"a": 1}])
    assert made.parts.reward_fn is pay
    assert made.parts.dataset[0]["task"] == {"a": 1}


def test_past_metrics_are_read_from_the_run_folder(tmp_path: Path) -> None:
    trainer = RayPPOTrainer(ConfigStore(), "turnsmith.env.examples:GuessNumber")
    assert trainer.metrics_history == trainer.evaluations == []
    trainer.run = RunFolder.create(tmp_path, "run")
    trainer.run.append_metrics({"step": 1, "reward/mean": 0.5})
    trainer.run.append_evaluation({"step": 1, "success": 1.0})
    trainer._show("step", {"step": 1, "reward/mean": 0.5})
    assert trainer.metrics_history == [{"step": 1, "reward/mean": 0.5}]
    assert trainer.evaluations == [{"step": 1, "success": 1.0}]


class Stops(TrainerCallback):
    """Keeps what it is told, and stops the run at once."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def on_step_end(self, trainer: RayPPOTrainer, metrics: dict[str, object]) -> None:
        self.told.append(metrics)
        trainer.stop()

    def on_evaluate(self, trainer: RayPPOTrainer, metrics: dict[str, object]) -> None:
        self.told.append(metrics)

    def on_save(self, trainer: RayPPOTrainer, folder: Path) -> None:
        self.told.append(folder)


def test_callbacks_are_told_of_steps_evaluations_and_checkpoints_in_order() -> None:
    asked: list[str] = []
    first, second = Stops(), Stops()
    made = RayPPOTrainer(ConfigStore(), GuessNumber, callbacks=[first, second])
    runner = SimpleNamespace(stop_soon=SimpleNamespace(remote=lambda: asked.append("stop")))
    made._session = SimpleNamespace(runner=runner)  # type: ignore[assignment]
    made._is_training = True
    made._show("evaluation", {"step": 0})
    made._show("step", {"step": 1, "reward/mean": 0.5})
    made._show("checkpoint", "runs/a/checkpoints/global_step_1")
    assert first.told == [{"step": 0}, {"step": 1, "reward/mean": 0.5}, Path("runs/a/checkpoints/global_step_1")]
    assert second.told == first.told
    assert asked == ["stop", "stop"]


def test_a_callback_may_neither_train_nor_save_nor_load_while_the_run_trains(tmp_path: Path) -> None:
    made = trainer()
    made._is_training = True
    for name, call in {
        "fit": made.fit,
        "save_checkpoint": lambda: made.save_checkpoint(tmp_path),
        "load_checkpoint": lambda: made.load_checkpoint(tmp_path),
    }.items():
        with pytest.raises(TrainingFailure, match=rf"A callback cannot call {name}\(\) while the run trains"):
            call()


def test_stopping_a_run_that_is_not_training_is_an_error_in_words() -> None:
    with pytest.raises(TrainingFailure, match="not training"):
        trainer().stop()

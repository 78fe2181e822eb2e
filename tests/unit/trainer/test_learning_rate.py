"""The learning rate that verl's own scheduler gives each step of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config.optimizer import build_optimizer
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

from turnsmith.config import ConfigStore
from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.errors import ConfigError
from turnsmith.trainer import RayPPOTrainer, session
from turnsmith.trainer.config.check import check


class Actor:
    """Stands where the task runner is: keeps what it was started with, and counts steps."""

    def __init__(self) -> None:
        self.started: Any = None
        self.at = 0

    def __getattr__(self, name: str) -> Any:
        return Method(self, name)


class Method:
    def __init__(self, actor: Actor, name: str) -> None:
        self.actor, self.name = actor, name

    def remote(self, *args: Any, **named: Any) -> Any:
        if self.name == "start":
            self.actor.started = args[0]
        elif self.name == "train_until":
            self.actor.at = args[0]
        return self.actor.at


class Cluster:
    """Stands where Ray is started."""

    is_local = False

    def __init__(self, *settings: Any) -> None:
        self.runner = Actor()

    def start(self, tell: Any) -> None:
        pass

    def actor(self, cls: type, *, threads: int) -> Actor:
        return self.runner

    def close(self) -> None:
        pass


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RayPPOTrainer:
    monkeypatch.setattr(session, "Cluster", Cluster)
    monkeypatch.setattr(RayPPOTrainer, "_watch", lambda self, reference: reference)
    config = ConfigStore()
    config.model.model_name, config.checkpoint.output_dir = "tiny", str(tmp_path)
    config.training.learning_rate, config.training.critic_learning_rate = 0.25, 0.5
    return RayPPOTrainer(config, GuessNumber)


def learning_rates(trainer: RayPPOTrainer, steps: int, part: str = "actor_rollout_ref.actor") -> list[float]:
    """What verl's FSDP engine would update with, step by step."""
    sent: Any = trainer._session.cluster.runner.started  # type: ignore[union-attr]
    settings = sent
    for name in part.split("."):
        settings = settings[name]
    settings.optim.total_training_steps = sent.trainer.total_training_steps  # as PPOTrainer._init_dataloader does
    engine: Any = object.__new__(FSDPEngine)
    engine.rank, engine.optimizer_config = 1, omega_conf_to_dataclass(settings.optim)
    optimizer = build_optimizer([torch.nn.Parameter(torch.zeros(1))], engine.optimizer_config)
    engine.optimizer, engine.lr_scheduler = optimizer, engine._build_lr_scheduler(optimizer)
    rates: list[float] = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        engine.lr_scheduler_step()
    return rates


def test_cosine_falls_over_the_steps_that_fit_is_asked_for(trainer: RayPPOTrainer) -> None:
    trainer.config.training.lr_schedule = "cosine"
    trainer.fit(2, 4)
    rates = learning_rates(trainer, 9)
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 0.25
    assert rates[4] == pytest.approx(0.125)
    assert rates[8] == pytest.approx(0.0)
    assert learning_rates(trainer, 9, "critic") == pytest.approx([2 * rate for rate in rates])


def test_a_warm_up_below_1_is_a_share_of_those_steps(trainer: RayPPOTrainer) -> None:
    training = trainer.config.training
    training.lr_schedule, training.warmup_steps = "cosine", 0.25
    training.num_epochs, training.steps_per_epoch = 2, 8
    trainer.fit()
    rates = learning_rates(trainer, 17)
    assert rates[:5] == [0.0, 0.0625, 0.125, 0.1875, 0.25]
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[16] == pytest.approx(0.0)


def test_a_constant_rate_warms_up_and_stays_also_in_a_second_fit(trainer: RayPPOTrainer) -> None:
    trainer.config.training.warmup_steps = 2
    trainer.fit(1, 3)
    assert learning_rates(trainer, 9) == [0.0, 0.125, *[0.25] * 7]
    trainer.fit(1, 3)
    assert trainer._runner.at == 6


def test_a_second_fit_past_the_end_of_a_cosine_is_refused_and_the_run_lives_on(trainer: RayPPOTrainer) -> None:
    trainer.config.training.lr_schedule = "cosine"
    trainer.fit(1, 5)
    with pytest.raises(ConfigError, match=r"ends at step 5, the last that its first fit.. was asked for, .* to step 8"):
        trainer.fit(1, 3)
    assert trainer._runner is not None


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"warmup_steps": -1}, r"training\.warmup_steps=-1 must be at least 0\."),
        ({"learning_rate": 1.0}, r"training\.learning_rate=1 must be above 0 and below 1; 1e-6 is usual"),
        ({"critic_learning_rate": 0.0}, r"training\.critic_learning_rate=0 must be above 0 and below 1\."),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], sentence: str) -> None:
    config = ConfigStore()
    for name, value in settings.items():
        setattr(config.training, name, value)
    with pytest.raises(ConfigError, match=sentence):
        check(config)

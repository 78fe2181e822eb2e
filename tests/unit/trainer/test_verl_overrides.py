"""The `verl:` section: what may be set there, and what is said about the rest."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from turnsmith.config import ConfigStore
from turnsmith.errors import ConfigError, MissingDependency
from turnsmith.trainer.config import verl_settings
from turnsmith.trainer.config.check import check, verl_config
from turnsmith.trainer.config.to_verl import keys_we_set
from turnsmith.trainer.config.verl_settings import fields_behind


def with_verl(section: Mapping[str, Any], device: str = "cpu") -> ConfigStore:
    config = ConfigStore()
    config.model.device = device
    config.verl = dict(section)
    return config


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("actor_rollout_ref.actor.optim.lr", "training.learning_rate"),
        ("critic.optim.lr", "training.critic_learning_rate"),
        ("actor_rollout_ref.rollout.n", "training.group_size"),
        ("data.train_batch_size", "training.batch_size"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", "training.mini_batch_size"),
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", "training.micro_batch_size"),
        ("actor_rollout_ref.rollout.name", "inference.backend"),
        ("actor_rollout_ref.rollout.max_model_len", "inference.max_prompt_tokens or inference.max_episode_tokens"),
        ("algorithm.adv_estimator", "training.adv_estimator or training.credit"),
        ("actor_rollout_ref.actor.optim.lr_warmup_steps_ratio", "training.warmup_steps"),
        ("trainer.logger", "logging.trackers"),
        ("trainer.nnodes", "ray.num_nodes"),
        ("algorithm.use_kl_in_reward", "training.use_kl_in_reward"),
        ("trainer.total_training_steps", "training.num_epochs or training.steps_per_epoch"),
        ("trainer.default_local_dir", "checkpoint.output_dir"),
        ("trainer.v1.sampler.max_off_policy_threshold", "training.max_staleness"),
        ("actor_rollout_ref.model.path", "model.model_name or model.local_path"),
    ],
)
def test_a_name_that_turnsmith_sets_is_refused_with_the_setting_behind_it(name: str, ours: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(with_verl({name: 1}))
    assert str(caught.value) == f"verl.{name} is set by turnsmith: use {ours} instead."


@pytest.mark.parametrize("name", ["data.shuffle", "actor_rollout_ref.actor.strategy", "trainer.resume_mode"])
def test_a_name_that_turnsmith_relies_on_cannot_be_changed(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"verl\.{name} is set by turnsmith, which relies on its value"):
        check(with_verl({name: 1}))


@pytest.mark.parametrize(
    "section",
    [
        {"actor_rollout_ref": {"actor": {"optim": {"lr": 1}}}},
        {"actor_rollout_ref.actor": {"optim": {"lr": 1}}},
        {"+actor_rollout_ref.actor.optim.lr": 1},
    ],
)
def test_another_spelling_of_the_name_is_no_way_round(section: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"use training\.learning_rate instead"):
        check(with_verl(section))


@pytest.mark.parametrize(
    ("name", "within"),
    [
        ("critic.optim", "critic.optim.lr"),
        ("+critic.fsdp.mixed_precision.param_dtype", "critic.fsdp.mixed_precision"),
    ],
)
def test_neither_is_a_section_around_it_or_a_part_of_it(name: str, within: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(with_verl({name: {}}))
    assert f"verl.{name} is set by turnsmith ({within})" in str(caught.value)


def test_what_is_only_set_on_a_cpu_is_free_on_a_gpu() -> None:
    eager = {"actor_rollout_ref.rollout.enforce_eager": True}
    with pytest.raises(ConfigError, match=r"use model\.device instead"):
        check(with_verl(eager))
    check(with_verl(eager, "cuda"))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("trainer.critic_warm", "Did you mean 'trainer.critic_warmup'?"),
        ("critic_warmup", "Did you mean 'trainer.critic_warmup'?"),
        (
            "actor_rollout_ref.actor.optm.lr",
            "Did you mean 'actor_rollout_ref.actor.optim.lr'? Then use training.learning_rate.",
        ),
        ("lr", "Did you mean 'actor_rollout_ref.actor.optim.lr'? Then use training.learning_rate."),
        ("trainer.critic_warmup.deeper", "Did you mean 'trainer.critic_warmup'?"),
        ("no_such_section.x", "`turnsmith train ... --dry-run` prints all of its settings."),
    ],
)
def test_a_name_that_verl_does_not_have_is_refused_with_the_closest_one(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(with_verl({name: 1}))
    assert str(caught.value).startswith(f"verl has no setting {name!r}. {hint}")


def test_what_is_left_reaches_verl() -> None:
    section = {"trainer": {"critic_warmup": 3}, "+actor_rollout_ref.model.override_config.rope_theta": 5}
    theirs = verl_config(with_verl(section))
    assert theirs.trainer.critic_warmup == 3
    assert theirs.trainer.nnodes == 1
    assert theirs.actor_rollout_ref.model.override_config.rope_theta == 5


def test_a_setting_that_verl_knows_twice_is_found_from_both() -> None:
    config = ConfigStore()
    for name in ("algorithm.kl_ctrl.kl_coef", "actor_rollout_ref.actor.kl_loss_coef"):
        assert fields_behind(name, config, keys_we_set) == ["training.kl_coef"]


def test_without_verl_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in (None, SimpleNamespace(submodule_search_locations=None)):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, spec=spec: spec)
        with pytest.raises(MissingDependency, match=r"verl is not installed: (uv )?pip install"):
            verl_settings.defaults.__wrapped__()

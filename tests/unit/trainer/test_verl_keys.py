"""Every setting of verl is set by turnsmith, refused, or passed on to code of verl that reads it."""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path

import pytest

from turnsmith.config import ConfigStore
from turnsmith.errors import ConfigError
from turnsmith.inference.models import resolve
from turnsmith.trainer.config.check import check, verl_config
from turnsmith.trainer.config.to_verl import keys_we_set
from turnsmith.trainer.config.verl_settings import _overlap, known_names, verl_key_table, what_becomes_of


def config_on(device: str, schedule: str = "sync") -> ConfigStore:
    config = ConfigStore()
    config.model.device, config.training.schedule = device, schedule  # type: ignore[assignment]
    return config


@cache
def left_to_users() -> list[str]:
    """Each setting of verl that turnsmith leaves alone on some device, sections not included."""
    names = known_names()
    sections = {name[:dot] for name in names for dot in range(len(name)) if name[dot] == "."}
    own = [
        keys_we_set(config_on(device, schedule))
        for device in ("cpu", "cuda")
        for schedule in ("sync", "colocate_async", "separate_async")
    ]
    leaves = [name for name in names if name not in sections]
    return [name for name in leaves if not all(_overlap(name, keys) for keys in own)]


@cache
def words_read(file: str) -> frozenset[str]:
    """The attributes and the strings that a file of verl reads; the fields of a dataclass are none."""
    beside = file.removeprefix("../")  # of another package
    package, _, path = beside.partition("/") if beside != file else ("verl", "", file)
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    tree = ast.parse((Path(spec.submodule_search_locations[0]) / path).read_text())
    found = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return frozenset(found.union(*(string.split(".") for string in strings if " " not in string)))


def test_each_setting_of_verl_is_ours_refused_or_passed_on() -> None:
    lost = [name for name in left_to_users() if not what_becomes_of(name)[0]]
    assert not lost, f"verl_keys.yaml does not say what becomes of {lost}"


def test_what_is_passed_on_is_read() -> None:
    unread: list[str] = []
    for name in left_to_users():
        kind, row = what_becomes_of(name)
        word = {"passed": name, "passed_whole": row}.get(kind, "").rpartition(".")[2]
        if word and not any(word in words_read(file) for file in verl_key_table()[kind][row]):
            unread.append(name)
    assert not unread, f"nothing that verl_keys.yaml names reads {unread}"


def test_every_row_of_the_table_is_about_a_setting_of_verl() -> None:
    without_default = "actor_rollout_ref.actor.checkpoint.save_lora_only"  # a field that verl's YAML files do not list
    used = {what_becomes_of(name) for name in (*known_names(), without_default)}
    rows = {(kind, row) for kind, names in verl_key_table().items() for row in names}
    assert rows <= used


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("model_engine", "has no effect: turnsmith trains with FSDP2 only."),
        ("reward.custom_reward_function.path", "has no effect: rewards come from the environment"),
        ("reward.reward_model.enable", "has no effect: rewards come from the environment"),
        ("+reward.reward_kwargs.overlong_buffer_cfg.enable", "has no effect: rewards come from the environment"),
        ("actor_rollout_ref.rollout.multi_turn.max_assistant_turns", "has no effect: .* use inference.max_turns"),
        ("actor_rollout_ref.rollout.router_config_path", "has no effect: turnsmith spreads episodes"),
        ("actor_rollout_ref.rollout.trace.backend", "has no effect: the run folder records every episode"),
        ("+data.apply_chat_template_kwargs.enable_thinking", "has no effect: use inference.thinking"),
        ("distillation.enabled", "has no effect: turnsmith starts no teacher"),
        ("trainer.balance_batch", "has no effect: verl's V1 trainer always balances"),
        ("critic.optim._target_", "names a class of verl's config"),
        # They were passed on, and broke the run at its first checkpoint, batch or lost server.
        ("actor_rollout_ref.actor.checkpoint.save_lora_only", "leaves out the weights"),
        ("trainer.v1.sampler.custom_sampler.path", "replaces turnsmith's replay buffer"),
        ("actor_rollout_ref.rollout.disaggregation.enabled", "starts servers of verl's that a run cannot lose"),
        ("actor_rollout_ref.rollout.data_parallel_size", "makes servers that turnsmith does not count"),
        ("actor_rollout_ref.rollout.expert_parallel_size", "makes servers that turnsmith does not count"),
        ("actor_rollout_ref.actor.use_dynamic_bsz", "is set by turnsmith: use .*training.micro_batch_tokens"),
    ],
)
def test_a_setting_without_effect_is_refused_with_what_to_do_instead(name: str, sentence: str) -> None:
    config = config_on("cuda")
    config.verl = {name: 1}
    with pytest.raises(ConfigError, match=rf"^verl\.{name.replace('+', '[+]')} {sentence}"):
        check(config)


@pytest.mark.parametrize(
    "name",
    [
        "actor_rollout_ref.actor.fsdp_config.param_offload",
        "actor_rollout_ref.rollout.max_num_batched_tokens",  # ours, but nothing relies on it
        "actor_rollout_ref.model.use_liger",
        "actor_rollout_ref.rollout.quantization",
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.decode_context_parallel_size",
        "algorithm.rollout_correction.rollout_rs",
        "global_profiler.steps",
    ],
)
def test_a_setting_with_an_effect_is_passed_on(name: str) -> None:
    config = config_on("cuda")
    config.verl = {name: 1}
    check(config)


def test_an_expert_is_never_blocked() -> None:
    config = config_on("cuda")
    config.verl_unchecked = {
        "actor_rollout_ref.actor.use_dynamic_bsz": False,  # set by us
        "actor_rollout_ref.rollout.disaggregation.enabled": True,  # refused
        "actor_rollout_ref.model.of_a_fork": 7,  # not verl's
    }
    check(config)
    theirs = verl_config(config, model_path=resolve("tiny"), run_dir="unused", steps=1)
    assert theirs.actor_rollout_ref.actor.use_dynamic_bsz is False
    assert theirs.actor_rollout_ref.rollout.disaggregation.enabled is True
    assert theirs.actor_rollout_ref.model.of_a_fork == 7

"""Our settings as verl's: what is refused in words, what is decided for the user, and the arithmetic of groups."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise.config import ConfigStore
from turnwise.config_sources import apply_overrides
from turnwise.errors import ConfigError
from turnwise.trainer.verl import config_mapping
from turnwise.trainer.verl.config_mapping import backend_of, check, device_of, dtype_of, verl_config


def settings(*overrides: str) -> ConfigStore:
    return apply_overrides(ConfigStore(), ["model.device=cpu", *overrides])


def test_the_defaults_are_fine() -> None:
    check(ConfigStore())


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["training.batch_size=30"], r"batch_size=30 is not a multiple of training\.group_size=8.*Set batch_size"),
        (["training.mini_batch_size=12"], r"mini_batch_size=12 must be a multiple of group_size=8"),
        (["training.mini_batch_size=24"], r"mini_batch_size=24 must .* divide batch_size=32"),
        (["model.dtype=fp32"], r"model\.dtype='fp32' is unknown: use one of auto, float32, bfloat16, float16"),
        (
            ["inference.backend=vlm"],
            r"inference\.backend='vlm' is unknown: use one of auto, transformers, vllm, sglang",
        ),
        (["model.device=gpu"], r"model\.device='gpu' is unknown: use one of auto, cpu, cuda"),
        (["training.adv_estimator=grop"], r"training\.adv_estimator='grop' is unknown: use one of grpo"),
        (["training.adv_estimator=gae"], r"training\.adv_estimator='gae' is unknown"),
        (["training.group_size=0"], r"training\.group_size=0 must be at least 1"),
        (["training.batch_size=0"], r"training\.batch_size=0 must be at least 1"),
        (["training.micro_batch_size=0"], r"micro_batch_size=0 must be at least 1"),
        (["ray.gpus_per_node=0"], r"ray\.gpus_per_node=0 must be at least 1"),
        (["inference.backend=sglang"], r"SGLang has no CPU build"),
        (["model.tensor_parallel_size=2"], r"does not split a model: set model\.tensor_parallel_size=1"),
    ],
)
def test_settings_that_cannot_work_together_are_told_in_words(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(settings(*overrides))


def test_verl_config_checks_first() -> None:
    with pytest.raises(ConfigError, match="batch_size=30"):
        verl_config(settings("training.batch_size=30"))


@pytest.mark.parametrize(
    ("device", "backend", "dtype"), [("cpu", "transformers", "float32"), ("cuda", "vllm", "bfloat16")]
)
def test_engine_and_dtype_follow_the_device(device: str, backend: str, dtype: str) -> None:
    config = settings(f"model.device={device}")
    assert (device_of(config), backend_of(config), dtype_of(config)) == (device, backend, dtype)


def test_what_the_user_says_wins() -> None:
    config = settings("model.device=cuda", "inference.backend=transformers", "model.dtype=float16")
    assert (device_of(config), backend_of(config), dtype_of(config)) == ("cuda", "transformers", "float16")


def test_the_device_is_a_gpu_only_where_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(config_mapping.Path, "exists", lambda path, there=there: there)
        assert device_of(ConfigStore()) == device


def test_a_cluster_is_taken_to_have_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_mapping.Path, "exists", lambda path: False)
    assert device_of(apply_overrides(ConfigStore(), ["ray.address=auto"])) == "cuda"


def keys_of(*overrides: str) -> dict[str, Any]:
    """The keys that we set; quicker than composing the whole config."""
    return config_mapping.overrides(settings(*overrides), model_path="/m", run_dir="/r", starts="/s", steps=1)


@pytest.fixture(scope="module")
def on_cpu() -> Any:
    return verl_config(settings("training.micro_batch_size=2"), model_path="/m", run_dir="/runs/one", steps=7)


def test_a_batch_of_episodes_is_so_many_groups_of_verl(on_cpu: Any) -> None:
    # verl counts prompts and samples each of them n times; we count episodes.
    assert on_cpu.data.train_batch_size == 4
    assert on_cpu.actor_rollout_ref.rollout.n == 8
    assert on_cpu.actor_rollout_ref.actor.ppo_mini_batch_size == 4
    assert on_cpu.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 2


def test_a_mini_batch_of_episodes_is_so_many_groups_of_verl() -> None:
    keys = keys_of("training.mini_batch_size=16", "training.group_size=4")
    assert keys["data.train_batch_size"] == 8
    assert keys["actor_rollout_ref.rollout.n"] == 4
    assert keys["actor_rollout_ref.actor.ppo_mini_batch_size"] == 4


def test_paths_and_steps(on_cpu: Any) -> None:
    assert on_cpu.actor_rollout_ref.model.path == "/m"
    assert on_cpu.data.train_files == "/runs/one/starts.json"
    assert on_cpu.trainer.default_local_dir == "/runs/one/checkpoints"
    assert on_cpu.trainer.experiment_name == "one"
    assert on_cpu.trainer.total_training_steps == 7


def test_steps_default_to_all_epochs() -> None:
    theirs = verl_config(settings("training.num_epochs=3", "training.steps_per_epoch=5"))
    assert theirs.trainer.total_training_steps == 15


def test_a_cpu_run_asks_for_nothing_that_needs_a_gpu(on_cpu: Any) -> None:
    model, actor, rollout = (on_cpu.actor_rollout_ref[part] for part in ("model", "actor", "rollout"))
    assert on_cpu.trainer.device == "cpu"
    assert model.override_config.attn_implementation == "sdpa"
    assert (model.use_remove_padding, actor.use_torch_compile) == (False, False)
    assert actor.fsdp_config.mixed_precision == {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    assert (rollout.enforce_eager, rollout.enable_sleep_mode, rollout.dtype) == (True, False, "float32")
    assert on_cpu.transfer_queue.backend.SimpleStorage.num_data_storage_units == 1


def test_a_gpu_run_keeps_the_defaults_of_verl_for_what_is_about_the_device() -> None:
    keys = keys_of("model.device=cuda")
    about_the_device = ("remove_padding", "attn_implementation", "eager", "torch_compile", "sleep_mode", "precision")
    assert [name for name in keys if any(word in name for word in about_the_device)] == []
    assert keys["trainer.device"] == "cuda"
    assert keys["actor_rollout_ref.rollout.name"] == "vllm"


def test_the_longest_episode_fits_into_the_engine() -> None:
    keys = keys_of("inference.max_prompt_tokens=9000", "inference.max_episode_tokens=500")
    assert (keys["data.max_prompt_length"], keys["data.max_response_length"]) == (9000, 500)
    assert keys["actor_rollout_ref.rollout.max_model_len"] == 9500
    # vLLM refuses a prompt longer than this.
    assert keys["actor_rollout_ref.rollout.max_num_batched_tokens"] >= 9500


@pytest.mark.parametrize(("kept", "saved"), [("true", True), ("false", False)])
def test_a_checkpoint_holds_a_plain_model_unless_told_otherwise(kept: str, saved: bool) -> None:
    contents = keys_of(f"checkpoint.save_model={kept}")["actor_rollout_ref.actor.checkpoint.save_contents"]
    assert ("hf_model" in contents) is saved
    assert {"model", "optimizer", "extra"} <= set(contents)


def test_settings_of_verl_itself_win_over_ours() -> None:
    theirs = verl_config(settings("verl.trainer.test_freq=5", "verl.actor_rollout_ref.rollout.n=2"))
    assert theirs.trainer.test_freq == 5
    assert theirs.actor_rollout_ref.rollout.n == 2


@pytest.mark.parametrize("key", ["trainer.no_such_setting", "no_such_section.x", "trainer.test_freq.deeper"])
def test_a_setting_that_verl_does_not_have_is_an_error_with_its_name(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"verl has no setting '{key}'.*--dry-run"):
        verl_config(settings(f"verl.{key}=1"))


def test_a_plus_adds_a_setting_that_the_files_of_verl_do_not_name() -> None:
    config = settings()
    config.verl["+actor_rollout_ref.model.override_config.rope_theta"] = 5
    assert verl_config(config).actor_rollout_ref.model.override_config.rope_theta == 5

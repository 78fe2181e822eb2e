"""Our settings as verl's: what is refused in words, what is decided for the user, and the arithmetic of groups."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from turnsmith.config import ConfigStore, LossAggregation
from turnsmith.config_sources import apply_overrides
from turnsmith.errors import ConfigError, MissingDependency
from turnsmith.inference.engine import Sampling
from turnsmith.trainer.config import to_verl
from turnsmith.trainer.config.check import check, run_header, verl_config
from turnsmith.trainer.config.layout import (
    RayDemand,
    episode_workers,
    resolve_backend,
    resolve_device,
    resolve_dtype,
    training_sampling,
)
from turnsmith.trainer.config.to_verl import keys_we_set
from turnsmith.trainer.config.verl_settings import compose


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
        (["model.dtype=fp32"], r"model\.dtype must be one of auto, float32, bfloat16, float16, not 'fp32'"),
        (
            ["inference.backend=vlm"],
            r"inference\.backend must be one of auto, transformers, .* not 'vlm'\. Did you mean vllm",
        ),
        (["model.device=gpu"], r"model\.device must be one of auto, cpu, cuda, not 'gpu'"),
        (["training.adv_estimator=grop"], r"must be one of grpo, .* not 'grop'\. Did you mean grpo"),
        (["training.credit=turns"], r"must be one of episode, turn, anchored, not 'turns'\. Did you mean turn"),
        (["training.adv_estimator=no_such_module:mine"], r"There is no module 'no_such_module'"),
        (["training.adv_estimator=pathlib:Path"], r"is not an estimator: decorate the function with"),
        (["inference.backend=my_module:MyEngine"], r"is for evaluation only: use transformers, vllm or sglang"),
        (["inference.backend=openai"], r"'openai' is for evaluation only"),
        (["logging.warnings=[no_such_module:check]"], r"There is no module 'no_such_module'"),
        (["training.adv_estimator=gae", "training.credit=anchored"], r"credit='anchored' does not go with"),
        (["training.policy_loss=dpo"], r"policy_loss must be one of ppo, gspo, cispo, not 'dpo'"),
        (["training.rollout_correction=all"], r"rollout_correction must be one of auto, none, token, sequence"),
        (["training.group_size=0"], r"training\.group_size=0 must be at least 1"),
        (["training.batch_size=0"], r"training\.batch_size=0 must be at least 1"),
        (["training.micro_batch_size=0"], r"micro_batch_size=0 must be at least 1"),
        (["ray.gpus_per_node=0"], r"ray\.gpus_per_node=0 must be at least 1"),
        (["inference.backend=sglang"], r"SGLang has no CPU build"),
        (["training.loss_aggregation=mean"], r"loss_aggregation must be one of token-mean, token-sum, .* not 'mean'"),
        (["training.schedule=async"], r"schedule must be one of sync, colocate_async, separate_async, not 'async'"),
        (["training.schedule=separate_async"], r"separate_async needs GPUs that only generate: set ray\.rollout_gpus"),
        (
            ["ray.rollout_gpus_per_node=1"],
            r"rollout_gpus_per_node=1 is for training\.schedule=separate_async; in 'sync'",
        ),
        (["ray.rollout_nodes=2"], r"rollout_nodes=2 is for training\.schedule=separate_async; in 'sync' the GPUs that"),
        (["training.group_size=1"], r"all advantages would be 0\. Set training\.group_size to 2 or more"),
        (["training.learning_rate=-1"], r"training\.learning_rate=-1 must be above 0"),
        (["inference.temperature=0"], r"inference\.temperature=0 samples the same tokens each time"),
        (["model.model_name=tinny"], r"There is no model 'tinny'.*Did you mean tiny"),
        (["training.filter_groups=true", "training.adv_estimator=gae"], r"adv_estimator=gae .* have a gradient: leave"),
        (["training.filter_groups=true", "training.credit=turn"], r"credit=turn they have a gradient: leave it out"),
        (["ray.use_ray=false"], r"ray\.use_ray=false is not possible: verl trains on Ray"),
        (["ray.num_actors=-1"], r"ray\.num_actors=-1 must be at least 0"),
        (
            ["logging.trackers=[wandbb]"],
            r"must be one of tensorboard, wandb, .* not 'wandbb'\. Did you mean wandb",
        ),
        (["ray.gpus_per_node=3"], r"batch_size=32 episodes .* over 3 ranks .*set it to a multiple of 24"),
        (
            ["ray.gpus_per_node=4", "ray.num_nodes=2", "training.mini_batch_size=4", "training.group_size=4"],
            r"mini_batch_size=4 episodes .* over 8 ranks \(ray.num_nodes=2 x .*=4\).* multiple of 8 that",
        ),
        (["model.sequence_parallel_size=2"], r"sequence_parallel_size=2 needs GPUs.*Set it to 1 on a CPU"),
        (["model.tensor_parallel_size=2"], r"does not shard a model: set model\.tensor_parallel_size=1"),
    ],
)
def test_settings_that_cannot_work_together_are_told_in_words(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(settings(*overrides))


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["model.sequence_parallel_size=3"], r"sequence_parallel_size=3 does not divide the 16 GPUs that train"),
        (["inference.backend=transformers"], r"the transformers engine runs on CPUs only, and would be given no GPU"),
        (["model.tensor_parallel_size=3"], r"does not fit 2 nodes of 8 GPUs: .* Use one of 1, 2, 4, 8, 16\."),
        (["model.tensor_parallel_size=32"], r"tensor_parallel_size=32 does not fit 2 nodes"),
        (["model.tensor_parallel_size=16", "training.batch_size=8"], r"batch_size=8 episodes .* over 16 ranks"),
    ],
)
def test_layouts_that_gpus_cannot_have_are_told_in_words(overrides: list[str], sentence: str) -> None:
    two_nodes = ["model.device=cuda", "ray.num_nodes=2", "ray.gpus_per_node=8"]
    with pytest.raises(ConfigError, match=sentence):
        check(settings(*two_nodes, *overrides))


def test_a_tracker_that_is_not_installed_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="has 'mlflow', but its package is not installed: pip install mlflow"):
        check(settings("logging.trackers=mlflow"))


def test_verl_config_checks_first() -> None:
    with pytest.raises(ConfigError, match="batch_size=30"):
        verl_config(settings("training.batch_size=30"))


@pytest.mark.parametrize(
    ("device", "backend", "dtype"), [("cpu", "transformers", "float32"), ("cuda", "vllm", "bfloat16")]
)
def test_engine_and_dtype_follow_the_device(device: str, backend: str, dtype: str) -> None:
    config = settings(f"model.device={device}")
    assert (resolve_device(config), resolve_backend(config), resolve_dtype(config)) == (device, backend, dtype)


def test_what_the_user_says_wins() -> None:
    config = settings("model.device=cuda", "inference.backend=sglang", "model.dtype=float16")
    assert (resolve_device(config), resolve_backend(config), resolve_dtype(config)) == ("cuda", "sglang", "float16")


def test_a_cluster_is_taken_to_have_gpus() -> None:
    assert resolve_device(apply_overrides(ConfigStore(), ["ray.address=auto"])) == "cuda"


def keys_of(*overrides: str) -> dict[str, Any]:
    """The keys that we set; quicker than composing the whole config."""
    return to_verl.verl_keys(settings(*overrides), model_path="/m", run_dir="/r", starts="/s", steps=1)


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


def test_a_cpu_run_turns_off_what_only_gpus_have() -> None:
    keys = keys_of()
    switched = {name: value for name, value in keys.items() if name in to_verl._cpu(ConfigStore())}
    rollout = "actor_rollout_ref.rollout"
    assert [name for name, value in switched.items() if value is True] == [f"{rollout}.enforce_eager"]
    assert switched[f"{rollout}.max_num_batched_tokens"] == 8192  # a prompt that is not split has to fit
    assert len(switched) == 12
    assert keys["trainer.device"] == "cpu"


AT_LEAST_1 = [
    "training.batch_size",
    "training.group_size",
    "training.micro_batch_size",
    "training.updates_per_batch",
    "training.num_epochs",
    "training.steps_per_epoch",
    "training.max_staleness",
    "evaluation.episodes",
    "ray.num_nodes",
    "ray.gpus_per_node",
    "model.tensor_parallel_size",
    "model.sequence_parallel_size",
]
AT_LEAST_0 = ["failures.stall_seconds", "ray.num_actors", "checkpoint.save_interval", "training.warmup_steps"]
AT_LEAST_0 += ["model.lora_rank", "evaluation.every", "evaluation.temperature"]


@pytest.mark.parametrize(("name", "least"), [*((name, 1) for name in AT_LEAST_1), *((name, 0) for name in AT_LEAST_0)])
def test_a_number_below_its_smallest_is_told_and_the_smallest_is_fine(name: str, least: int) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}={least - 1}(\.0)? must be at least {least}\.$"):
        check(settings(f"{name}={least - 1}"))
    check(settings("training.group_size=1", "training.adv_estimator=reinforce_plus_plus", f"{name}={least}"))


@pytest.mark.parametrize(
    ("overrides", "nodes", "gpus", "cpus", "total"),
    [
        (["ray.num_nodes=2", "ray.gpus_per_node=8"], 2, 8, 25, (16, 55)),
        (
            ["ray.gpus_per_node=8", "training.schedule=separate_async", "ray.rollout_gpus_per_node=4"],
            1,
            12,
            33,
            (12, 36),
        ),
        (["ray.gpus_per_node=8", "training.schedule=separate_async", "ray.rollout_nodes=2"], 1, 8, 25, (24, 66)),
    ],
)
def test_what_a_layout_asks_of_ray(
    overrides: list[str], nodes: int, gpus: int, cpus: int, total: tuple[int, int]
) -> None:
    demand = RayDemand.of(settings("model.device=cuda", *overrides))
    assert (demand.nodes, demand.gpus, demand.cpus) == (nodes, gpus, cpus)
    assert (demand.total_gpus, demand.total_cpus) == total


@pytest.mark.parametrize(
    ("overrides", "workers"),
    [
        (["model.device=cpu"], 0),
        (["model.device=cpu", "ray.num_nodes=2"], 2),
        (["model.device=cpu", "ray.num_actors=3"], 3),
        (["model.device=cuda", "ray.num_actors=0"], 0),
        (["model.device=cuda"], 2),
        (["model.device=cuda", "ray.gpus_per_node=8"], 4),
        (["model.device=cuda", "ray.gpus_per_node=8", "training.batch_size=512"], 4),
        (["model.device=cuda", "ray.num_nodes=2", "ray.gpus_per_node=8", "training.batch_size=512"], 8),
        (["model.device=cuda", "ray.num_nodes=2", "ray.gpus_per_node=8", "training.batch_size=48"], 6),
    ],
)
def test_episodes_run_in_as_many_processes_as_the_gpus_keep_busy(overrides: list[str], workers: int) -> None:
    assert episode_workers(settings(*overrides)) == workers


@pytest.mark.parametrize("rank", [0, 1])
def test_an_adapter_is_merged_before_weights_are_sent(rank: int) -> None:
    theirs = verl_config(settings(f"model.lora_rank={rank}"), model_path="/m", run_dir="/runs/one", steps=7)
    assert theirs.actor_rollout_ref.model.lora.merge is bool(rank)
    assert not theirs.actor_rollout_ref.actor.checkpoint.get("save_lora_only")


def test_or_it_is_sent_and_saved_alone() -> None:
    chosen = settings("model.lora_rank=4", "model.lora_merge=false", "inference.backend=vllm")
    theirs = verl_config(chosen, model_path="/m", run_dir="/runs/one", steps=7).actor_rollout_ref
    assert theirs.model.lora.merge is False
    assert theirs.actor.checkpoint.save_lora_only is True


def test_a_list_or_dict_replaces_the_one_of_verl() -> None:
    changed = compose({"trainer.logger": ["console"], "algorithm.kl_ctrl": {"type": "fixed"}})
    assert changed.trainer.logger == ["console"]
    assert changed.algorithm.kl_ctrl == {"type": "fixed"}


def test_only_the_transformers_engine_is_given_a_seed() -> None:
    chosen = ["inference.max_tokens=9", "inference.temperature=0.5", "inference.top_p=0.9", "inference.top_k=7"]
    sampling = training_sampling(settings("training.seed=5", *chosen))
    assert sampling == Sampling(seed=5, max_tokens=9, temperature=0.5, top_p=0.9, top_k=7)
    assert training_sampling(settings("model.device=cuda", "training.seed=5")).seed is None


def test_the_header_of_a_run_says_what_is_trained_and_how() -> None:
    header = run_header(settings("model.model_name=tiny"), "Game")
    assert header == "Game · tiny · grpo, 32 episodes a step in groups of 8 · transformers on cpu"
    assert "· /models/mine ·" in run_header(settings("model.local_path=/models/mine"), "Game")


def test_a_gpu_run_keeps_the_defaults_of_verl_for_what_is_about_the_device() -> None:
    keys = keys_of("model.device=cuda")
    about_the_device = ("eager", "torch_compile", "sleep_mode", "precision")
    assert [name for name in keys if any(word in name for word in about_the_device)] == []
    assert keys["trainer.device"] == "cuda"
    assert keys["actor_rollout_ref.rollout.name"] == "vllm"


def test_the_longest_episode_fits_into_the_engine() -> None:
    keys = keys_of("inference.max_prompt_tokens=9000", "inference.max_episode_tokens=500")
    assert (keys["data.max_prompt_length"], keys["data.max_response_length"]) == (9000, 500)
    assert keys["actor_rollout_ref.rollout.max_model_len"] == 9500
    # vLLM refuses a prompt longer than this, and on a CPU cannot split one.
    assert keys["actor_rollout_ref.rollout.max_num_batched_tokens"] >= 9500
    assert keys["actor_rollout_ref.rollout.enable_chunked_prefill"] is False


def test_verl_writes_what_it_loads_again_and_no_model_folder() -> None:
    keys = keys_of()
    for part in ("actor_rollout_ref.actor", "critic"):
        contents = keys[f"{part}.checkpoint.save_contents"]
        assert contents == keys[f"{part}.checkpoint.load_contents"] == ["model", "optimizer", "extra"]


@pytest.mark.parametrize(
    ("overrides", "micro"),
    [
        ([], 8),
        (["ray.gpus_per_node=8"], 4),  # a rank has 4 of 32
        (["training.batch_size=24"], 8),
        (["training.batch_size=24", "training.group_size=6", "training.mini_batch_size=12"], 6),
        (["training.batch_size=14", "training.group_size=2", "ray.gpus_per_node=2"], 7),
    ],
)
def test_a_forward_pass_takes_as_many_episodes_as_divide_a_share(overrides: list[str], micro: int) -> None:
    keys = keys_of(*overrides)
    names = [name for name in keys if name.endswith("micro_batch_size_per_gpu")]
    assert len(names) == 4
    assert {keys[name] for name in names} == {micro}


def test_half_precision_is_half_precision_in_the_trainer_too() -> None:
    keys = keys_of("model.device=cuda", "model.dtype=float16")
    assert keys["actor_rollout_ref.rollout.dtype"] == "float16"
    for place in ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp"):
        assert keys[f"{place}.dtype"] == "float16"
        assert keys[f"+{place}.mixed_precision"]["param_dtype"] == "fp16"


def test_a_sync_schedule_trains_on_the_newest_weights_only() -> None:
    keys = keys_of()
    assert keys["trainer.v1.trainer_mode"] == "sync"
    assert not [name for name in keys if "async" in name]


@pytest.mark.parametrize("schedule", ["colocate_async", "separate_async"])
def test_an_asynchronous_schedule_waits_for_what_would_be_too_old(schedule: str) -> None:
    keys = keys_of(f"training.schedule={schedule}", "training.max_staleness=3")
    assert keys["trainer.v1.trainer_mode"] == schedule
    # verl counts versions of the weights: the one an episode began with, and three more.
    assert keys["trainer.v1.sampler.max_off_policy_threshold"] == 4
    assert keys["trainer.v1.sampler.max_off_policy_strategy"] == "wait"
    ahead = {"colocate_async": 1, "separate_async": 3}[schedule]
    assert keys[f"trainer.v1.{schedule}.num_warmup_batches"] == ahead


def test_asynchronous_schedules_correct_for_older_weights_unless_told_otherwise() -> None:
    name = "algorithm.rollout_correction.rollout_is"
    assert keys_of()[name] is None
    for schedule in ("colocate_async", "separate_async"):
        assert keys_of(f"training.schedule={schedule}")[name] == "token"
        assert keys_of(f"training.schedule={schedule}", "training.rollout_correction=none")[name] is None


def test_separate_rollout_nodes_get_weights_once_a_batch() -> None:
    keys = keys_of("training.schedule=separate_async", "training.mini_batch_size=8", "ray.rollout_nodes=2")
    assert keys["trainer.v1.separate_async.parameter_sync_step"] == 4
    assert keys["actor_rollout_ref.hybrid_engine"] is False
    assert keys["actor_rollout_ref.rollout.nnodes"] == 2
    engine = "actor_rollout_ref.rollout.checkpoint_engine"
    assert keys[f"{engine}.backend"] == "turnsmith"
    assert keys[f"+{engine}.engine_kwargs.turnsmith.torch_backend"] == "gloo"
    keys = keys_of("training.schedule=separate_async", "ray.rollout_nodes=2", "model.device=cuda")
    assert keys[f"{engine}.backend"] == "turnsmith"
    assert keys[f"+{engine}.engine_kwargs.turnsmith.torch_backend"] == "nccl"


def test_the_warm_up_counts_steps_however_many_updates_they_have() -> None:
    updates = ("training.warmup_steps=5", "training.mini_batch_size=8")
    name = "actor_rollout_ref.actor.optim.lr_warmup_steps"
    assert keys_of(*updates)[name] == 5  # verl moves the learning rate once a batch
    assert keys_of("training.schedule=separate_async", *updates)[name] == 20  # once a mini-batch


def test_the_names_of_loss_aggregations_are_those_of_algo() -> None:
    file = Path(to_verl.__file__).parents[2] / "algo/reference/aggregation.py"
    text = file.read_text()  # importing it takes seconds
    named = re.search(r"Aggregation = Literal\[(.+)\]", text)
    assert named is not None
    assert sorted(ast.literal_eval(f"[{named[1]}]")) == sorted(get_args(LossAggregation))


def test_transfer_queue_takes_more_than_100_000_episodes(on_cpu: Any) -> None:
    from transfer_queue.storage.simple_storage import StorageUnitData

    size = on_cpu.transfer_queue.backend.SimpleStorage.total_storage_size
    keys = list(range(100_001))
    unit = StorageUnitData(size)
    unit.put_data({"uid": keys}, keys)
    assert unit.get_data(["uid"], keys[-1:]) == {"uid": keys[-1:]}


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("inference.max_episode_tokens=131072", {"rollout.max_num_batched_tokens": 8192}),
        ("training.schedule=sync", {"rollout.gpu_memory_utilization": 0.5, "actor.use_dynamic_bsz": True}),
        ("ray.rollout_nodes=1 training.schedule=separate_async", {"rollout.gpu_memory_utilization": 0.85}),
        ("inference.gpu_memory_utilization=0.7", {"rollout.gpu_memory_utilization": 0.7}),
        ("model.lora_rank=8", {"actor.optim.lr": 1e-5}),
        ("training.learning_rate=2e-6", {"actor.optim.lr": 2e-6}),
        (
            "training.offload=optimizer",
            {"actor.fsdp_config.optimizer_offload": True, "actor.fsdp_config.param_offload": False},
        ),
        ("training.offload=all", {"ref.fsdp_config.param_offload": True}),
        (
            "inference.max_episode_tokens=40000",
            {"actor.ppo_max_token_len_per_gpu": 42048, "rollout.log_prob_max_token_len_per_gpu": 42048},
        ),
        (
            "training.micro_batch_tokens=0 training.micro_batch_size=2",
            {"actor.use_dynamic_bsz": False, "actor.ppo_micro_batch_size_per_gpu": 2},
        ),
    ],
)
def test_defaults_of_a_gpu(setting: str, expected: dict[str, object]) -> None:
    keys = keys_we_set(apply_overrides(ConfigStore(), ["model.device=cuda", *setting.split()]))
    assert {name: keys[f"actor_rollout_ref.{name}"] for name in expected} == expected


def test_a_micro_batch_that_is_shorter_than_an_episode_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"micro_batch_tokens=4000 is less than the longest episode of 4096 tokens"):
        check(apply_overrides(ConfigStore(), ["model.device=cuda", "training.micro_batch_tokens=4000"]))

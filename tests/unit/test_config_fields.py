"""Every setting changes something that can be seen, is described in the docs, and is found again when misspelt.

What can be seen: a key of the config that verl gets, or something else that leaves the user's process when a run starts
(what the task runner is sent, Ray's arguments, environment variables, the run's folder), or a refusal in words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from docs.hooks.config_reference import config_reference
from omegaconf import OmegaConf

import turnsmith
from turnsmith.check.plan.forecast import StepForecast
from turnsmith.check.plan.gpu import GpuLayout, Hardware
from turnsmith.check.plan.report import gpu_finding
from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides, known_keys, load
from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.errors import ConfigError
from turnsmith.trainer import RayPPOTrainer, session
from turnsmith.trainer.checkpoints.contents import CheckpointPolicy
from turnsmith.trainer.config import check as check_module
from turnsmith.trainer.config.check import check, verl_config
from turnsmith.trainer.config.peak_memory import PeakMemory
from turnsmith.trainer.config.to_verl import keys_we_set
from turnsmith.trainer.driver import cluster
from turnsmith.trainer.driver.local_ray import environment_variables


def walk(kind: Any = ConfigStore, prefix: str = "") -> list[str]:
    """The dotted names of all fields, section by section."""
    hints = get_type_hints(kind)
    names: list[str] = []
    for item in fields(kind):
        inner = hints[item.name]
        names += walk(inner, f"{prefix}{item.name}.") if is_dataclass(inner) else [f"{prefix}{item.name}"]
    return names


@dataclass
class Seen:
    """How a field shows: set to `value`, `look` sees something else than before, with `given` set in both cases."""

    value: Any
    look: Callable[[ConfigStore], Any]
    given: tuple[str, ...] = ()


def key(name: str) -> Callable[[ConfigStore], Any]:
    """A key of the config that verl gets."""
    return lambda config: keys_we_set(config).get(name)


def too_large(config: ConfigStore) -> str:
    """What `check --plan` says of a trainer that does not fit by far."""
    peak = PeakMemory(1, 1, 2, 2**37, 4, 3, {}, 8, 1.0)
    own = GpuLayout({}, 1, StepForecast("sync", 1.0, {}, 0.0), {"needed": 2.0**37, "fits": 0.0}, peak)
    return gpu_finding(own, Hardware.named("H100"), force=config.ray.force).status


class RecordedActor:
    """Stands where the task runner's handle is, and keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: dict[str, Any] = {}

    def __getattr__(self, method: str) -> Any:
        return RecordedMethod(self.sent, method)


class RecordedMethod:
    def __init__(self, sent: dict[str, Any], method: str) -> None:
        self.sent, self.method = sent, method

    def remote(self, *args: Any, **named: Any) -> None:
        self.sent[self.method] = (args, named)


class RecordedCluster:
    """Stands where Ray is started, and keeps what it would be started with."""

    is_local = False

    def __init__(self, config: ConfigStore, device: str, more: object = None) -> None:
        self.variables = environment_variables(config, device)
        self.arguments = cluster._init_arguments(config, device)

    def start(self, tell: object) -> None:
        pass

    def actor(self, cls: type, *, threads: int) -> RecordedActor:
        return RecordedActor()

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session, "Cluster", RecordedCluster)
    monkeypatch.setattr(RayPPOTrainer, "_watch", lambda self, reference: True)  # also: the last step was reached
    # The keys alone, without the hundreds that verl has besides: a tenth of the time.
    monkeypatch.setattr(check_module, "compose", OmegaConf.create)
    monkeypatch.chdir(tmp_path)


def started(config: ConfigStore) -> RayPPOTrainer:
    """A trainer that has sent everything off."""
    trainer = RayPPOTrainer(config, GuessNumber)
    trainer.fit()
    return trainer


def plan(look: Callable[[Any], Any]) -> Callable[[ConfigStore], Any]:
    """Something of the plan that every process which runs episodes gets."""
    return lambda config: look(started(config)._runner.sent["start"][0][1])


def rollout(look: Callable[[Any], Any]) -> Callable[[ConfigStore], Any]:
    """Something of the `RolloutSpec` in that plan."""
    return plan(lambda sent: look(sent.rollout))


def evaluating(config: ConfigStore) -> Any:
    """When and what the task runner evaluates."""
    return started(config)._runner.sent["start"][0][2]


def last_step(config: ConfigStore) -> Any:
    return started(config)._runner.sent["train_until"]


def variable(name: str) -> Callable[[ConfigStore], Any]:
    """An environment variable of every process of the run."""
    return lambda config: started(config)._session.cluster.variables[name]


def thinking(config: ConfigStore) -> Any:
    try:
        return plan(lambda it: it.config.inference.thinking)(config)
    except ConfigError as error:  # the tiny model's template has no switch for it
        return str(error)


def folder(config: ConfigStore) -> Path:
    run = started(config).run
    assert run is not None
    return run.path


def checks_said(config: ConfigStore) -> bool:
    """Whether the quick checks were run."""
    said: list[str] = []
    trainer = RayPPOTrainer(config, GuessNumber)
    trainer._view.note = said.append
    trainer.fit()
    return any(line.startswith("checked in ") for line in said)


def refusal(config: ConfigStore) -> str:
    try:
        check(config)
    except ConfigError as error:
        return str(error)
    return ""


GPU = ("model.device=cuda",)
APART = (*GPU, "training.schedule=separate_async", "ray.rollout_nodes=1")
MEASURED = ("evaluation.every=3",)
ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"

OBSERVED = {
    "model.model_name": Seen("smollm2", key(f"{MODEL}.path")),
    "model.local_path": Seen("/weights", key(f"{MODEL}.path")),
    "model.dtype": Seen("bfloat16", key(f"{ROLLOUT}.dtype")),
    "model.device": Seen("cuda", key("trainer.device")),
    "model.attn_implementation": Seen("eager", key(f"+{MODEL}.override_config.attn_implementation")),
    "model.tensor_parallel_size": Seen(2, key(f"{ROLLOUT}.tensor_model_parallel_size"), GPU),
    "model.sequence_parallel_size": Seen(2, key(f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size"), GPU),
    "model.lora_rank": Seen(4, key(f"{MODEL}.lora_rank")),
    "model.lora_merge": Seen(False, key(f"{MODEL}.lora.merge"), ("model.lora_rank=4",)),
    "model.lora_alpha": Seen(4, key(f"{MODEL}.lora_alpha")),
    "model.chat_template": Seen("plain", plan(lambda it: it.config.model.chat_template), ("model.model_name=tiny",)),
    "model.trust_remote_code": Seen(True, key(f"{MODEL}.trust_remote_code")),
    "inference.backend": Seen("vllm", key(f"{ROLLOUT}.name")),
    "inference.max_tokens": Seen(9, rollout(lambda it: it.sampling.max_tokens)),
    "inference.max_prompt_tokens": Seen(9000, rollout(lambda it: it.limits.prompt_tokens)),
    "inference.max_episode_tokens": Seen(9, rollout(lambda it: it.limits.tokens)),
    "inference.max_turns": Seen(9, rollout(lambda it: it.limits.turns)),
    "inference.max_tool_calls": Seen(9, rollout(lambda it: it.limits.tool_calls)),
    "inference.max_seconds": Seen(9.0, rollout(lambda it: it.limits.seconds)),
    "inference.tool_format": Seen("json", plan(lambda it: it.config.inference.tool_format)),
    "inference.thinking": Seen(False, thinking, ("model.model_name=tiny",)),
    "inference.multi_turn": Seen(False, rollout(lambda it: it.limits.turns)),
    "inference.temperature": Seen(0.5, rollout(lambda it: it.sampling.temperature)),
    "inference.top_p": Seen(0.5, rollout(lambda it: it.sampling.top_p)),
    "inference.top_k": Seen(5, rollout(lambda it: it.sampling.top_k)),
    "inference.gpu_memory_utilization": Seen(0.9, key(f"{ROLLOUT}.gpu_memory_utilization")),
    "inference.cpu_cache_gib": Seen(4.0, variable("VLLM_CPU_KVCACHE_SPACE")),
    "inference.max_concurrency": Seen(9, key(f"{ROLLOUT}.max_num_seqs")),
    "training.adv_estimator": Seen("gae", key("algorithm.adv_estimator")),
    "training.credit": Seen("anchored", key("algorithm.adv_estimator")),
    "training.learning_rate": Seen(0.5, key(f"{ACTOR}.optim.lr")),
    "training.critic_learning_rate": Seen(0.5, key("critic.optim.lr")),
    "training.batch_size": Seen(64, key("data.train_batch_size")),
    "training.group_size": Seen(4, key(f"{ROLLOUT}.n")),
    "training.filter_groups": Seen(True, plan(lambda it: it.filtered_group_size)),
    "training.mini_batch_size": Seen(16, key(f"{ACTOR}.ppo_mini_batch_size")),
    "training.micro_batch_tokens": Seen(8000, key("actor_rollout_ref.actor.ppo_max_token_len_per_gpu")),
    "training.offload": Seen("all", refusal),  # On a CPU; of GPUs test_to_verl.py has it.
    "training.micro_batch_size": Seen(4, key(f"{ACTOR}.ppo_micro_batch_size_per_gpu")),
    "training.updates_per_batch": Seen(2, key(f"{ACTOR}.ppo_epochs")),
    "training.num_epochs": Seen(3, last_step),
    "training.steps_per_epoch": Seen(3, last_step),
    "training.gamma": Seen(0.5, key("algorithm.gamma")),
    "training.lam": Seen(0.5, key("algorithm.lam")),
    "training.policy_loss": Seen("gspo", key(f"{ACTOR}.policy_loss.loss_mode")),
    "training.clip_ratio": Seen(0.3, key(f"{ACTOR}.clip_ratio")),
    "training.clip_ratio_high": Seen(0.3, key(f"{ACTOR}.clip_ratio_high")),
    "training.loss_aggregation": Seen("token-sum", key(f"{ACTOR}.loss_agg_mode")),
    "training.entropy_coef": Seen(0.1, key(f"{ACTOR}.entropy_coeff")),
    "training.use_kl_in_reward": Seen(True, key("algorithm.use_kl_in_reward")),
    "training.use_kl_loss": Seen(True, key(f"{ACTOR}.use_kl_loss")),
    "training.kl_coef": Seen(0.1, key("algorithm.kl_ctrl.kl_coef")),
    "training.rollout_correction": Seen("token", key("algorithm.rollout_correction.rollout_is")),
    "training.lr_schedule": Seen("cosine", key(f"{ACTOR}.optim.lr_scheduler_type")),
    "training.max_grad_norm": Seen(0.5, key(f"{ACTOR}.optim.clip_grad")),
    "training.weight_decay": Seen(0.5, key(f"{ACTOR}.optim.weight_decay")),
    "training.warmup_steps": Seen(5.0, key(f"{ACTOR}.optim.lr_warmup_steps")),
    "training.schedule": Seen("colocate_async", key("trainer.v1.trainer_mode")),
    "training.max_staleness": Seen(2, key("trainer.v1.sampler.max_off_policy_threshold"), APART),
    "training.check": Seen(False, checks_said),
    "training.seed": Seen(7, rollout(lambda it: it.sampling.seed)),
    "environment": Seen({"max_steps": 3}, rollout(lambda it: it.environment.build().max_steps)),
    "evaluation.every": Seen(3, evaluating),
    "evaluation.episodes": Seen(5, lambda config: evaluating(config).plan.episodes, MEASURED),
    "evaluation.temperature": Seen(0.0, lambda config: evaluating(config).plan.sampling, MEASURED),
    "failures.environment": Seen("mask", rollout(lambda it: it.failures.environment)),
    "failures.tool": Seen("mask", rollout(lambda it: it.failures.tool)),
    "failures.parse": Seen("mask", rollout(lambda it: it.failures.parse)),
    "failures.limit": Seen("mask", rollout(lambda it: it.failures.limit)),
    "failures.engine": Seen("drop", key("trainer.v1.sampler.sync_refill_failed_groups")),
    "failures.worker": Seen("mask", rollout(lambda it: it.failures.worker)),
    "failures.internal": Seen("mask", rollout(lambda it: it.failures.internal)),
    "failures.stall_seconds": Seen(9.0, lambda config: started(config)._session.watchdog.seconds),
    "checkpoint.output_dir": Seen("elsewhere", lambda config: folder(config).parent),
    "checkpoint.run_name": Seen("mine", lambda config: folder(config).name),
    "checkpoint.save_interval": Seen(3, plan(lambda it: CheckpointPolicy.of(it.config))),
    "checkpoint.save_minutes": Seen(5.0, plan(lambda it: CheckpointPolicy.of(it.config))),
    "checkpoint.keep_last_n": Seen(5, plan(lambda it: CheckpointPolicy.of(it.config))),
    "checkpoint.grace_seconds": Seen(9.0, lambda config: load(folder(config) / "config.yaml").checkpoint.grace_seconds),
    "checkpoint.save_model": Seen(False, plan(lambda it: CheckpointPolicy.of(it.config))),
    "ray.address": Seen(
        "10.0.0.1:6379", lambda config: started(config)._session.cluster.arguments, ("model.device=cpu",)
    ),
    "ray.num_nodes": Seen(2, key("trainer.nnodes")),
    "ray.gpus_per_node": Seen(2, key("trainer.n_gpus_per_node")),
    "ray.rollout_nodes": Seen(2, key(f"{ROLLOUT}.nnodes"), APART),
    "ray.rollout_gpus_per_node": Seen(2, key(f"{ROLLOUT}.n_gpus_per_node"), APART),
    "ray.num_actors": Seen(2, plan(lambda it: it.num_actors)),
    "ray.force": Seen(True, too_large),
    "ray.use_ray": Seen(False, refusal),  # Kept for the seeds, which set it to true.
    "logging.trackers": Seen(["tensorboard"], key("trainer.logger")),
    "logging.project": Seen("letters", key("trainer.project_name")),
    "logging.warnings": Seen(["statistics:mean"], lambda config: load(folder(config) / "config.yaml").logging.warnings),
    "players": Seen({"user": "frozen"}, rollout(lambda it: it.players.settings)),
    "verl_unchecked": Seen(
        {"trainer.v1.trainer_mode": "mine"}, lambda config: verl_config(config).get("trainer.v1.trainer_mode")
    ),
    "verl": Seen({"trainer.critic_warmup": 5}, lambda config: verl_config(config).get("trainer.critic_warmup")),
}


def base(given: tuple[str, ...]) -> ConfigStore:
    return apply_overrides(ConfigStore(), ["model.model_name=tiny", "model.device=cpu", *given])


@cache
def before(name: str) -> Any:
    return OBSERVED[name].look(base(OBSERVED[name].given))


def put(config: ConfigStore, name: str, value: Any) -> None:
    """Set a field as a script does."""
    section, _, field = name.partition(".")
    if field:
        setattr(getattr(config, section), field, value)
    elif section == "environment":
        config.environment = turnsmith.EnvironmentConfig(**value)
    else:
        setattr(config, section, value)


@pytest.mark.parametrize("name", walk())
def test_a_field_changes_what_is_stated(name: str) -> None:
    if name not in OBSERVED:
        pytest.fail(
            f"No test says what {name} changes. Add it to OBSERVED in {Path(__file__).name} with what can be seen when "
            "it is set; if nothing can, wire the field or remove it.",
            pytrace=False,
        )
    seen = OBSERVED[name]
    config = base(seen.given)
    put(config, name, seen.value)
    assert seen.look(config) != before(name)


def test_nothing_is_stated_of_fields_that_are_gone() -> None:
    assert sorted(OBSERVED.keys() - set(walk())) == []


@pytest.mark.parametrize("name", known_keys())
def test_a_misspelt_name_is_refused_with_the_right_one(name: str) -> None:
    section, _, field = name.partition(".")
    for wrong in (field[:2] + field[1:], field[1:], field + "s"):
        if f"{section}.{wrong}" in known_keys() or section == "environment":
            continue
        with pytest.raises(ConfigError, match=rf"There is no setting {section}\.{wrong}\. Did you mean {name}\?"):
            apply_overrides(ConfigStore(), [f"{section}.{wrong}=1"])


def test_the_page_of_all_settings_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    command = "python -m docs.hooks.config_reference > docs/configuration.md"
    assert page.read_text() == config_reference(), f"run: {command}"


def test_every_field_is_described() -> None:
    bare = [line for line in config_reference().splitlines() if line.startswith("- **`") and line.endswith("<br>")]
    assert bare == []

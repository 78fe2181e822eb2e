"""Seams under the trainer: the plugin, the platform, engines, rollout servers, the config."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

from turnsmith.trainer.verl.seams.base import LOADED_BY_VERL, UNCHOSEN, holds, parameters, same, seam


@seam("All of trainer/verl, written for 0.9.1,")
def version() -> None:
    """verl's version should be 0.9.1"""
    import verl

    same(verl.__version__, "0.9.1")


@seam("trainer/verl/plugin.py")
def entry_point_loads_every_part() -> None:
    """`import verl` alone should load the entry points of the group verl.plugins"""
    holds("turnsmith.trainer.verl.plugin" in LOADED_BY_VERL)
    from turnsmith.trainer.verl.plugin import LOADED

    same(LOADED, ["rollouts", "platform", "ports", "cpu"])


@seam("trainer/verl/plugin.py", UNCHOSEN)
def entry_point_chooses_nothing_unasked() -> None:
    """Without VERL_PLATFORM the plugin should only register, and `import verl` choose no platform of ours"""
    import importlib.metadata

    from verl.plugin.platform import platform_manager
    from verl.utils import distributed
    from verl.workers.engine import EngineRegistry

    from turnsmith.trainer.verl.plugin import LOADED

    same(LOADED, ["rollouts", "platform"])
    holds(not type(platform_manager._current_platform).__module__.startswith("turnsmith"))
    same(distributed.initialize_global_process_group_ray.__module__, "verl.utils.distributed")
    holds("cpu" not in EngineRegistry._engines["language_model"]["fsdp2"])
    same(importlib.metadata.version.__module__, "importlib.metadata")


@seam("trainer/verl/cpu/platform.py", UNCHOSEN)
def platform_registry_never_detects_cpu() -> None:
    """verl should ask `is_platform_available` when it looks for a platform, and so never find our CPU by itself"""
    from verl.plugin.platform import platform_manager

    holds("cpu" in platform_manager.PlatformRegistry.registered_names())
    holds(platform_manager._detect_platform_name() != "cpu")


@seam("trainer/verl/cpu/platform.py")
def platform_is_chosen_by_environment_variable() -> None:
    """VERL_PLATFORM=cpu should make get_platform() return our CpuPlatform"""
    from verl.plugin.platform import get_platform
    from verl.utils.device import get_device_name

    from turnsmith.trainer.verl.cpu.platform import CpuPlatform

    same(type(get_platform()), CpuPlatform)
    same(get_device_name(), "cpu")


@seam("CpuPlatform in trainer/verl/cpu/platform.py")
def platform_base_abstract_methods() -> None:
    """PlatformBase should ask for no method that we lack, and for the parameters we know"""
    from verl.plugin.platform import PlatformBase

    from turnsmith.trainer.verl.cpu.platform import CpuPlatform

    same(sorted(CpuPlatform.__abstractmethods__), [])
    for name in PlatformBase.__abstractmethods__:
        theirs, ours = getattr(PlatformBase, name), getattr(CpuPlatform, name)
        if not isinstance(theirs, property):
            same((name, parameters(ours)), (name, parameters(theirs)))


@seam("register_with_verl in trainer/verl/plugin.py (it leaves that module out to start sooner)")
def hccl_checkpoint_engine_may_be_missing() -> None:
    """verl.checkpoint_engine should import hccl_checkpoint_engine in a `try` that a missing module cannot break"""
    from verl import checkpoint_engine

    body = ast.parse(Path(checkpoint_engine.__file__).read_text()).body
    guarded = [ast.unparse(node) for node in body if isinstance(node, ast.Try)]
    holds(any(".hccl_checkpoint_engine import" in text and "except ImportError" in text for text in guarded))


@seam("_register_fsdp_engines in trainer/verl/cpu/patches.py")
def engine_registry() -> None:
    """EngineRegistry should find verl's own FSDP engines for fsdp2 on the CPU, for both model types"""
    from verl.workers.engine import EngineRegistry

    found = {kind: EngineRegistry.get_engine_cls(kind, "fsdp2").__name__ for kind in ("language_model", "value_model")}
    same(found, {"language_model": "SharedPromptEngine", "value_model": "FSDPEngineWithValueHead"})


@seam("SharedPromptEngine in trainer/verl/cpu/shared_prompts.py")
def a_micro_batch_is_laid_out_in_two_methods() -> None:
    """FSDPEngineWithLMHead should call the model between prepare_model_inputs and prepare_model_outputs"""
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from turnsmith.trainer.verl.cpu.shared_prompts import SharedPromptEngine

    for method in ("prepare_model_inputs", "prepare_model_outputs"):
        same(parameters(getattr(SharedPromptEngine, method)), parameters(getattr(FSDPEngineWithLMHead, method)))
    source = inspect.getsource(FSDPEngineWithLMHead)
    holds('output_args = {"temperature_is_one": temperature_is_one}' in source)
    holds('output_args["temperature"] = temperature' in source)
    same(parameters(FSDPEngineWithLMHead.forward_step), ["micro_batch", "loss_function", "forward_only"])


@seam("_accept_gloo_alone in trainer/verl/cpu/patches.py")
def initialize_global_process_group_ray() -> None:
    """Process groups should be made by initialize_global_process_group_ray(timeout_second, backend), found as ours"""
    from verl.utils import distributed
    from verl.workers import engine_workers

    ours = distributed.initialize_global_process_group_ray
    original = inspect.getclosurevars(ours).nonlocals["original"]
    same(parameters(original), ["timeout_second", "backend"])
    holds(engine_workers.initialize_global_process_group_ray is ours)


@seam("_load_value_heads_with_the_chosen_attention in trainer/verl/plugin.py")
def load_valuehead_model() -> None:
    """The critic should be loaded by load_valuehead_model(local_path, torch_dtype, model_config, trust_remote_code)"""
    from transformers import AutoConfig
    from verl.utils import model
    from verl.workers.engine.fsdp import transformer_impl

    from turnsmith.models import resolve

    source = Path(model.__file__).read_text()
    holds("def load_valuehead_model(local_path, torch_dtype, model_config, trust_remote_code)" in source)
    holds('attn_implementation="flash_attention_2"' in source)
    # Looked up at call time, so that ours is found.
    holds("from verl.utils.model import load_valuehead_model" in Path(transformer_impl.__file__).read_text())
    holds(not hasattr(transformer_impl, "load_valuehead_model"))
    same(model.load_valuehead_model.__module__, "turnsmith.trainer.verl.plugin")
    critic = model.load_valuehead_model(str(folder := resolve("tiny")), None, AutoConfig.from_pretrained(folder), False)
    holds(critic.config._attn_implementation in ("sdpa", "eager"))


@seam("_shard_a_fused_head_with_the_whole_model in trainer/verl/plugin.py")
def fused_head() -> None:
    """FSDP2 should ask _select_fsdp2_wrap_targets(model, classes) what to shard apart, and a fused forward be noted"""
    from verl.models.transformers import dense_common, monkey_patch
    from verl.utils import fsdp_utils

    same(fsdp_utils._select_fsdp2_wrap_targets.__module__, "turnsmith.trainer.verl.plugin")
    holds("_select_fsdp2_wrap_targets(model, fsdp" in inspect.getsource(fsdp_utils.apply_fsdp2))
    patch = inspect.getsource(monkey_patch.patch_forward_with_backends)
    holds("model._verl_fused_kernels_backend = fused_kernels_backend" in patch)
    holds("vocab_weights=self.lm_head.weight" in inspect.getsource(dense_common.forward_with_torch_backend))


@seam("trainer/verl/plugin.py and transformers/replica.py")
def rollout_registries() -> None:
    """Both registries of rollouts should give our classes for the name `transformers`, with no method missing"""
    from verl.workers.rollout.base import get_rollout_class
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    adapter, replica = get_rollout_class("transformers", "async"), RolloutReplicaRegistry.get("transformers")
    same([adapter.__name__, replica.__name__], ["TransformersAdapter", "TransformersReplica"])
    same(sorted(adapter.__abstractmethods__ | replica.__abstractmethods__), [])
    same(adapter.__bases__[0].__name__, "BaseRollout")


@seam("trainer/verl/transformers/server.py and server_pool.py")
def token_output_fields() -> None:
    """A rollout server should answer with the fields of TokenOutput that our server has"""
    from dataclasses import fields

    from verl.workers.rollout.replica import TokenOutput

    from turnsmith.trainer.verl.transformers.server import ServerOutput

    same(sorted(TokenOutput.model_fields), sorted(item.name for item in fields(ServerOutput)))


@seam("PooledServerManager in trainer/verl/server_pool.py")
def llm_server_manager() -> None:
    """LLMServerManager should make its balancer and its client in these two methods, from `server_handles`"""
    from verl.workers.rollout.llm_server import LLMServerManager

    same(parameters(LLMServerManager._init_global_load_balancer), [])
    same(parameters(LLMServerManager.get_client), ["client_cls", "kwargs"])
    holds("self.server_handles" in inspect.getsource(LLMServerManager))


def both_configs() -> list[dict[str, Any]]:
    """The keys we set, on a CPU and on a GPU."""
    from turnsmith.config import ConfigStore
    from turnsmith.trainer.config.to_verl import verl_keys

    keys: list[dict[str, Any]] = []
    for device in ("cpu", "cuda"):
        config = ConfigStore()
        config.model.device = device
        keys.append(verl_keys(config, model_path="m", run_dir="r", starts="s", steps=1))
    return keys


@seam("verl_keys in trainer/config/to_verl.py")
def config_keys() -> None:
    """Every key that we set should exist in the config that verl composes"""
    from omegaconf import OmegaConf

    from turnsmith.trainer.config.verl_defaults import compose

    known = OmegaConf.to_container(compose({}), resolve=False)
    missing: set[str] = set()
    for name in {name for keys in both_configs() for name in keys if not name.startswith("+")}:
        place: Any = known
        for part in name.split("."):
            place = place[part] if isinstance(place, dict) and part in place else missing.add(name)
    same(sorted(missing), [])


@seam("verl_keys in trainer/config/to_verl.py")
def config_keys_that_we_add() -> None:
    """Every key that we add should be a field of the dataclass it ends up in"""
    from dataclasses import fields

    from hydra.utils import get_class
    from omegaconf import OmegaConf

    from turnsmith.trainer.config.verl_defaults import compose

    added = {name[1:] for keys in both_configs() for name in keys if name.startswith("+")}
    # These are plain mappings, in which verl's HFModelConfig looks for the name.
    free = {f"{part}.model.override_config.attn_implementation" for part in ("actor_rollout_ref", "critic")}
    free.add("transfer_queue.backend.SimpleStorage.required_node_resource")  # `cpus_of_ray` looks for it
    missing = sorted(free - added)
    base = compose({})
    for name in added - free:
        parent, _, leaf = name.rpartition(".")
        owner = get_class(OmegaConf.select(base, f"{parent}._target_"))
        missing += [] if leaf in {item.name for item in fields(owner)} else [name]
    same(missing, [])
    source = inspect.getsource(get_class(base.actor_rollout_ref.model._target_))
    holds('self.override_config.get("attn_implementation"' in source)


@seam("trainer/verl/vllm_replica.py")
def weights_of_vllm_are_sent_and_answered() -> None:
    """ServerAdapter should look BucketedWeightSender up in its module, and that wait in socket.recv for every answer"""
    import verl

    # Read, not imported: vLLM may not be installed, and takes seconds.
    folder = Path(verl.__file__).parent / "workers" / "rollout" / "vllm_rollout"
    adapter = (folder / "vllm_rollout.py").read_text()
    same(adapter.count("sender = BucketedWeightSender("), 2)
    holds('actor_name = f"{prefix}server_{self.replica_rank}_{self.node_rank}"' in adapter)
    sender = (folder / "bucketed_weight_transfer.py").read_text().partition("class BucketedWeightReceiver")[0]
    used = {
        line.partition("self.socket.")[2].partition("(")[0] for line in sender.splitlines() if "self.socket." in line
    }
    same(used, {"bind", "send_pyobj", "recv", "close"})
    server = (folder / "vllm_async_server.py").read_text()
    holds("self.server_class = ray.remote(vLLMHttpServer)" in server)
    holds("        self.engine = engine_client\n" in server)

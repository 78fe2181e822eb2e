"""verl's training worker with padded episodes and plain log-probs, with packed episodes, and as on a GPU (packed,
fused, micro-batches by tokens), for tiny random models of many families, on two ranks with FSDP2:
`python -m tests.unit.trainer.fused_families FOLDER TOKENIZER FAMILY ...`

Prints, for each family with all weights trained and with LoRA, how far the others are from the first.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

os.environ.update(VERL_PLATFORM="cpu", TURNSMITH_RUN="1", TURNSMITH_SHARED_PROMPTS="0", OMP_NUM_THREADS="1")

import torch
import verl  # noqa: F401  (its plugins load first)
from tests.unit.trainer.optimizer_steps import batch
from transformers import AutoConfig, AutoModelForCausalLM
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import TrainingWorkerConfig
from verl.workers.utils.losses import ppo_loss

from turnsmith import ConfigStore
from turnsmith.trainer.config.check import verl_config
from turnsmith.trainer.config.log_probs import PACKED_FAMILIES
from turnsmith.trainer.verl.ranks import Rank

RANKS = 2
PATHS = ("plain", "packed", "gpu")
TOKENS = 90
"""Of a micro-batch on the path of a GPU; the longest episode has 49, and all of them 276."""
WITHOUT_SDPA = {"gpt_oss"}
WITHOUT_LORA = {"phimoe", "glm4_moe", "dots1", "minimax_m2", "deepseek_v3"}
"""PEFT cannot train the router or the experts of these, with either kind of log-probs."""
SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "sliding_window": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # mixtures of experts
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    # latent attention
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    # linear attention
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}


def tiny_model(family: str) -> Any:
    """A random model of the family, with no norm of 1 and no bias of 0; `smollm2` is a llama whose head is tied."""
    tied = {"tie_word_embeddings": True} if family == "smollm2" else {}
    family = "llama" if tied else family
    usual: Any = AutoConfig.for_model(family)
    sizes = {name: value for name, value in SIZES.items() if getattr(usual, name, None) is not None}
    unset = ("head_dim", "num_key_value_heads", "num_experts_per_tok", "n_routed_experts", "n_shared_experts")
    sizes |= {name: SIZES[name] for name in unset if hasattr(usual, name)}
    if "kv_lora_rank" in sizes:
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    if getattr(usual, "layer_types", None):  # of the kinds of layers, the last two
        sizes["layer_types"] = usual.layer_types[-2:]
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(family, **sizes, **tied), attn_implementation=attention(family, "plain")
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.02 * torch.randn_like(weight)
    return model


def attention(family: str, path: str) -> str:
    if family in WITHOUT_SDPA:
        return "eager"
    return "packed_sdpa" if path != "plain" and family in {*PACKED_FAMILIES, "smollm2"} else "sdpa"


def worker(folder: Path, lora: int, path: str) -> Any:
    """verl's worker, as a run of ours would have it."""
    config = ConfigStore()
    config.model.local_path, config.model.device, config.model.lora_rank = str(folder), "cpu", lora
    config.model.attn_implementation = attention(folder.name, path)
    if path == "gpu":
        config.inference.max_prompt_tokens, config.inference.max_episode_tokens = 40, 9
        config.training.micro_batch_tokens = TOKENS
    config.training.entropy_coef, config.ray.gpus_per_node = 0.01, RANKS
    theirs = copy.deepcopy(verl_config(config, model_path=str(folder), run_dir="unused", steps=1).actor_rollout_ref)
    theirs.actor.optim.total_training_steps = 1
    theirs.model.use_fused_kernels = path == "gpu"  # not by a setting of ours, which is refused where this would show
    actor, model = (omega_conf_to_dataclass(part) for part in (theirs.actor, theirs.model))
    # As verl's worker of actor and rollout does before it makes this one.
    actor.engine.use_dynamic_bsz = actor.use_dynamic_bsz
    actor.engine.max_token_len_per_gpu = actor.ppo_max_token_len_per_gpu
    actor.engine.infer_max_token_len_per_gpu = theirs.rollout.log_prob_max_token_len_per_gpu
    parts = {"model_config": model, "engine_config": actor.engine, "optimizer_config": actor.optim}
    made: Any = Rank(TrainingWorkerConfig(model_type="language_model", checkpoint_config=actor.checkpoint, **parts))
    made.reset()
    made.set_loss_fn(partial(ppo_loss, config=actor))
    return made


def numbers(folder: Path, lora: int, path: str) -> dict[str, torch.Tensor]:
    """Log-probs and entropy of all response tokens, and the gradient of an update with several micro-batches."""
    made = worker(folder, lora, path)
    assert (getattr(made.engine.module, "_verl_fused_kernels_backend", None) == "torch") is (path == "gpu")
    data = batch(concatenated=False)
    tu.assign_non_tensor(data, temperature=0.7, global_token_num=data["input_ids"].offsets().diff().tolist())
    for name in ("use_remove_padding", *(("use_dynamic_bsz",) if path == "gpu" else ())):
        data.pop(name)  # the worker says, as whether log-probs are fused
    data["advantages"] = data["advantages"] * (1 + made.rank)  # each rank has a gradient of its own
    asked = data.copy()
    tu.assign_non_tensor(asked, compute_loss=False)
    found = made.infer_batch(asked)
    gradient: list[torch.Tensor] = []

    def note() -> float:
        trained = [weight for weight in made.engine.module.parameters() if weight.requires_grad]
        grads = [0 * weight if weight.grad is None else weight.grad for weight in trained]
        gradient.extend(one.full_tensor().flatten() for one in grads)
        return 0.0

    made.engine.optimizer_step = note
    made.train_batch(data)
    prompts = data["prompts"].offsets().diff().tolist()
    said = {
        name: torch.cat([one[prompt - 1 : -1] for one, prompt in zip(found[name].unbind(), prompts, strict=True)])
        for name in ("log_probs", "entropy")
    }
    return said | {"gradient": torch.cat(gradient)}


def family_differences(folder: Path, tokenizer: Path, family: str, rank: int) -> dict[str, dict[str, float]]:
    """With all weights trained and with LoRA, the largest difference of each number from the plain path's."""
    if rank == 0:
        shutil.copytree(tokenizer, folder, ignore=shutil.ignore_patterns("config.json", "*.safetensors"))
        tiny_model(family).save_pretrained(folder)
    torch.distributed.barrier()
    # In this order: verl's fused forward replaces that of the model's class.
    kind: Any = type(tiny_model(family))
    usual = kind.forward
    ranks_of = {"full": 0} if family in WITHOUT_LORA or "TURNSMITH_NO_LORA" in os.environ else {"full": 0, "lora": 4}
    made = {path: [numbers(folder, size, path) for size in ranks_of.values()] for path in PATHS}
    found: dict[str, dict[str, float]] = {}
    for path in PATHS[1:]:
        for name, one, other in zip(ranks_of, made["plain"], made[path], strict=True):
            far = {key: float((one[key] - other[key]).abs().max()) for key in ("log_probs", "entropy")}
            norm = one["gradient"].norm()
            far |= {"gradient": float((one["gradient"] - other["gradient"]).norm() / norm), "norm": float(norm)}
            found[f"{name} {path}"] = far
    kind.forward = usual
    return found


def as_rank(folder: Path, tokenizer: Path, families: list[str], rank: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # not used: the ranks meet in a file
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    for family in families:
        found = family_differences(folder / family, tokenizer, family, rank)
        if rank == 0:
            print("FOUND", json.dumps({family: found}), flush=True)


def main(folder: Path, tokenizer: Path, families: list[str]) -> None:
    forked = multiprocessing.get_context("fork")
    ranks = [forked.Process(target=as_rank, args=(folder, tokenizer, families, rank)) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    sys.exit(any(rank.exitcode != 0 for rank in ranks))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])

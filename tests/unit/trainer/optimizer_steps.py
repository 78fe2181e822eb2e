"""One optimizer step of verl's FSDP2 engine on the same batch through four forward passes, in one process of its own:
`python -m tests.unit.trainer.optimizer_steps MODEL`. Prints how far gradient and loss of each are from verl's padded.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import socket
import sys
import tempfile
from functools import partial
from typing import Any

os.environ.update(VERL_PLATFORM="cpu", TURNSMITH_RUN="1", RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")

import torch
import verl  # noqa: F401  (its plugins load first)
from tests.unit.trainer.prompt_groups import micro_batch
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss

from turnsmith import ConfigStore
from turnsmith.trainer.config.check import verl_config
from turnsmith.trainer.verl.cpu.shared_prompts import SharedPromptEngine
from turnsmith.trainer.verl.engines import LanguageModelEngine

GROUPS = [(40, (4, 6, 2, 9)), (25, (3, 8, 5, 7))]
# The kind of engine, whether episodes are concatenated, and whether log-probs are fused: the last, because verl then
# replaces the forward pass of the model's class.
PATHS: dict[str, tuple[type, bool, bool]] = {
    "padded": (LanguageModelEngine, False, False),
    "concatenated": (LanguageModelEngine, True, False),
    "shared": (SharedPromptEngine, False, False),
    "fused": (SharedPromptEngine, False, True),
}


def batch(concatenated: bool) -> Any:
    """Two groups with advantages and old log-probs."""
    data = micro_batch(GROUPS, 1.0, concatenated=concatenated)
    lengths = (data["input_ids"].offsets().diff() - data["prompts"].offsets().diff()).tolist()
    torch.manual_seed(0)

    def nested(make: Any) -> torch.Tensor:
        return torch.nested.as_nested_tensor([make(length) for length in lengths], layout=torch.jagged)

    ids = zip(data["input_ids"].unbind(), lengths, strict=True)
    data["responses"] = torch.nested.as_nested_tensor([one[-length:] for one, length in ids], layout=torch.jagged)
    data["response_mask"] = nested(lambda length: torch.ones(length, dtype=torch.long))
    data["loss_mask"] = data["response_mask"]
    data["advantages"] = nested(torch.randn)
    data["old_log_probs"] = nested(lambda length: -4 - torch.rand(length))
    more = {"global_batch_size": len(lengths), "micro_batch_size_per_gpu": 4, "use_dynamic_bsz": False}
    tu.assign_non_tensor(data, **more, calculate_entropy=True)
    return data


def step(kind: type, concatenated: bool, fused: bool, theirs: Any) -> tuple[torch.Tensor, float]:
    """Gradient and loss of an optimizer step."""
    theirs = copy.deepcopy(theirs)
    theirs.model.use_remove_padding, theirs.model.use_fused_kernels = concatenated, fused
    actor, model = (omega_conf_to_dataclass(part) for part in (theirs.actor, theirs.model))
    actor.engine.use_remove_padding = concatenated
    engine: Any = kind(
        model_config=model,
        engine_config=actor.engine,
        optimizer_config=actor.optim,
        checkpoint_config=actor.checkpoint,
    )
    engine.initialize()
    data = batch(concatenated)
    tu.assign_non_tensor(data, use_fused_kernels=fused)
    before = [one.full_tensor().clone() for one in engine.module.parameters()]
    with engine.train_mode():
        output = engine.train_batch(data, partial(ppo_loss, config=actor))
        gradient = torch.cat([one.grad.full_tensor().flatten() for one in engine.module.parameters()])
    after = [one.full_tensor() for one in engine.module.parameters()]
    assert not all(map(torch.equal, after, before))
    return gradient, float(sum(output["loss"]))


def untie(model: str, folder: str) -> str:
    """The same model with a head of its own, as large models have it: FSDP2 then shards it apart."""
    from transformers import AutoModelForCausalLM

    shutil.copytree(model, folder, dirs_exist_ok=True)
    one: Any = AutoModelForCausalLM.from_pretrained(model)
    one.config.tie_word_embeddings = False
    one.lm_head.weight = torch.nn.Parameter(one.lm_head.weight + 0.01)
    one.save_pretrained(folder)
    return folder


def main(model: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    torch.distributed.init_process_group("gloo")
    config = ConfigStore()
    config.model.model_name, config.model.device = "tiny", "cpu"
    config.training.entropy_coef = 0.01
    theirs = verl_config(config, model_path=model, run_dir="unused", steps=1).actor_rollout_ref
    theirs.actor.optim.total_training_steps = 1
    with tempfile.TemporaryDirectory() as folder:
        theirs.model.path = untie(model, folder)
        found = {name: step(*path, theirs) for name, path in PATHS.items()}
    wanted, loss = found["padded"]
    print(
        json.dumps(
            {
                name: {
                    "gradient": float((gradient - wanted).norm() / wanted.norm()),
                    "loss": abs(one - loss),
                    "norm": float(gradient.norm()),
                }
                for name, (gradient, one) in found.items()
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])

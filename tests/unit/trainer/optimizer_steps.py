"""One optimizer step of verl's FSDP2 engine on the same batch through three forward passes, in one process of its own:
`python -m tests.unit.trainer.optimizer_steps MODEL`. Prints how far gradient and loss of each are from verl's padded.
"""

from __future__ import annotations

import copy
import json
import os
import socket
import sys
from functools import partial
from typing import Any

os.environ.update(VERL_PLATFORM="cpu", TURNSMITH_RUN="1", RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")

import torch
import verl  # noqa: F401  (its plugins load first)
from tests.unit.trainer.prompt_groups import micro_batch
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.utils.losses import ppo_loss

from turnsmith import ConfigStore
from turnsmith.trainer.config.build import verl_config
from turnsmith.trainer.verl.cpu.shared_prompts import SharedPromptEngine

GROUPS = [(40, (4, 6, 2, 9)), (25, (3, 8, 5, 7))]
PATHS: dict[str, tuple[type, bool]] = {
    "padded": (FSDPEngineWithLMHead, False),
    "concatenated": (FSDPEngineWithLMHead, True),
    "shared": (SharedPromptEngine, False),
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
    tu.assign_non_tensor(data, **more, use_fused_kernels=False, calculate_entropy=True)
    return data


def step(kind: type, concatenated: bool, theirs: Any) -> tuple[torch.Tensor, float]:
    """Gradient and loss of an optimizer step."""
    theirs = copy.deepcopy(theirs)
    theirs.model.use_remove_padding = concatenated
    actor, model = (omega_conf_to_dataclass(part) for part in (theirs.actor, theirs.model))
    actor.engine.use_remove_padding = concatenated
    engine: Any = kind(
        model_config=model,
        engine_config=actor.engine,
        optimizer_config=actor.optim,
        checkpoint_config=actor.checkpoint,
    )
    engine.initialize()
    before = [one.full_tensor().clone() for one in engine.module.parameters()]
    with engine.train_mode():
        output = engine.train_batch(batch(concatenated), partial(ppo_loss, config=actor))
        gradient = torch.cat([one.grad.full_tensor().flatten() for one in engine.module.parameters()])
    after = [one.full_tensor() for one in engine.module.parameters()]
    assert not all(map(torch.equal, after, before))
    return gradient, float(sum(output["loss"]))


def main(model: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    torch.distributed.init_process_group("gloo")
    config = ConfigStore()
    config.model.model_name, config.model.device = "tiny", "cpu"
    theirs = verl_config(config, model_path=model, run_dir="unused", steps=1).actor_rollout_ref
    theirs.actor.optim.total_training_steps = 1
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

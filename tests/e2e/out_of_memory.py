"""An environment that makes the ranks of its run fail as a GPU does that is out of memory."""

from __future__ import annotations

from typing import Any

import ray

from tests.e2e.three_letters import ThreeLetters


def plant(_: Any, where: str, most: int, before: int) -> None:
    """In a rank: from the update after `before` on, more than `most` tokens in a micro-batch are out of memory."""
    import torch
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine, FSDPEngineWithLMHead

    if hasattr(FSDPEngine, "planted"):
        return
    FSDPEngine.planted = True
    state = {"updates": 0, "tokens": 0}
    forward, optimizer = FSDPEngineWithLMHead.forward_step, FSDPEngine.optimizer_step

    def fail() -> None:
        if state["updates"] >= before and state["tokens"] > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def forward_step(self: Any, micro_batch: Any, *args: Any, **kwargs: Any) -> Any:
        tokens = int(micro_batch["input_ids"].offsets()[-1])
        if torch.is_grad_enabled():
            state["tokens"] = max(state["tokens"], tokens)
        if where == "forward":
            fail()
        loss, output = forward(self, micro_batch, *args, **kwargs)
        if where == "backward" and loss.requires_grad:
            loss.register_hook(lambda _: fail())
        return loss, output

    def optimizer_step(self: Any) -> Any:
        if where == "optimizer":
            fail()
        state["updates"] += 1
        return optimizer(self)

    FSDPEngineWithLMHead.forward_step, FSDPEngine.optimizer_step = forward_step, optimizer_step


class OutOfMemory(ThreeLetters):
    """`environment.where`, `most` and `before` are those of `plant`."""

    planted = False

    def reset(self) -> str:
        if ray.is_initialized() and not OutOfMemory.planted:
            OutOfMemory.planted, found = True, ray.util.list_named_actors(all_namespaces=True)
            ranks = [ray.get_actor(**one) for one in found if "WorkerDict" in one["name"]]
            assert ranks
            what = (self.config.where, self.config.most, self.config.before)
            ray.get([rank.__ray_call__.remote(plant, *what) for rank in ranks])
        return super().reset()

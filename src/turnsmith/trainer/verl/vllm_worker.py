"""What runs in each of vLLM's workers besides verl's own: it sees whether the first weights that arrive are all."""

from __future__ import annotations

from typing import Any

from verl.workers.rollout.vllm_rollout.utils import VLLM_LORA_INT_ID, vLLMColocateWorkerExtension
from vllm.model_executor.models.utils import WeightsMapper

from turnsmith.inference.weights import forget_weights, never_loaded

# What verl 0.9.1 calls when it loads an adapter; vLLM 0.29 gave it another name.
WeightsMapper.get_unstacked_mapper = WeightsMapper.get_rename_mapper  # pyright: ignore[reportAttributeAccessIssue]


class VllmWorker(vLLMColocateWorkerExtension):
    """verl's extension of vLLM's workers, which finds parameters that no weight of the trainer's reaches."""

    turnsmith_missing: list[str] | None = None

    def update_weights_from_ipc(
        self, peft_config: Any = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        """Take weights, or an adapter, from the trainer, and note what is missing of the first weights."""
        runner: Any = self.model_runner  # pyright: ignore[reportAttributeAccessIssue]
        config = runner.vllm_config
        # Quantised weights are not what was sent; and what vLLM has read from files may stay.
        is_comparable = config.quant_config is None and config.load_config.load_format == "dummy"
        checks = self.turnsmith_missing is None and is_comparable and not (peft_config and base_sync_done)
        if checks:
            forget_weights(runner.model)
        super().update_weights_from_ipc(peft_config, base_sync_done, use_shm)
        if checks:
            self.turnsmith_missing = never_loaded(runner.model)

    def turnsmith_missing_weights(self) -> list[str]:
        """The parameters that the first weights did not reach, and adapters that vLLM has not taken."""
        runner: Any = self.model_runner  # pyright: ignore[reportAttributeAccessIssue]
        adapters: Any = getattr(getattr(runner, "lora_manager", None), "_adapter_manager", None)
        adapter = adapters and adapters.get_adapter(VLLM_LORA_INT_ID)
        unused = sorted(adapter.loras.keys() - adapters.modules.keys()) if adapter else []
        return [*(self.turnsmith_missing or ()), *(f"{name} (adapter)" for name in unused)]

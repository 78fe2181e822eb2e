"""An extension of vLLM's worker that replaces the weights in place. Runs in vLLM's own processes."""

from __future__ import annotations

from typing import Any

from turnsmith.inference.weights import read_weights


class WeightLoader:
    """Mixed into vLLM's worker class through its setting `worker_extension_cls`."""

    def turnsmith_load_weights(self, folder: str, complete: bool) -> None:
        """Copy the weights in a folder over the model's.

        Uses `load_weights`, which copies in place: on a CPU, vLLM's own `reload_weights` silently leaves a tied output
        head at its old value. There, `load_weights` needs linear layers that kept their weights, which
        `trainer.verl.cpu.vllm` ensures in every vLLM process.

        Args:
            folder: Holds safetensors, under the names of the model's checkpoint.
            complete: Whether every weight of the model must be among them.
        """
        worker: Any = self
        if worker.model_config.quantization is not None:
            raise ValueError("the weights of a quantised model cannot be replaced in place")
        model = worker.get_model()
        loaded = model.load_weights(read_weights(folder))
        missing = {name for name, _ in model.named_parameters()} - loaded if complete and loaded is not None else set()
        if missing:
            raise ValueError(f"the new weights are incomplete: {min(missing)!r} is missing")

"""What turnsmith adds to vLLM's worker: replacing the weights in place. Runs in vLLM's own processes."""

from __future__ import annotations

from typing import Any

from turnsmith.inference.weights import read_weights


class WeightLoader:
    """vLLM makes its worker inherit from this (its setting `worker_extension_cls`)."""

    def turnsmith_load_weights(self, folder: str, whole: bool) -> None:
        """Copy the weights in a folder over the model's.

        Plain `load_weights`, which copies in place: vLLM's own `reload_weights` leaves a tied output head at its old
        value on a CPU, without an error. There it needs linear layers that kept their weights; `trainer.verl.vllm_cpu`
        sees to that in every vLLM process.

        Args:
            folder: Holds safetensors, under the names of the model's checkpoint.
            whole: Whether every weight of the model must be among them.
        """
        worker: Any = self
        if worker.model_config.quantization is not None:
            raise ValueError("the weights of a quantised model cannot be replaced in place")
        model = worker.get_model()
        loaded = model.load_weights(read_weights(folder))
        missing = {name for name, _ in model.named_parameters()} - loaded if whole and loaded is not None else set()
        if missing:
            raise ValueError(f"the new weights are not all there: {min(missing)!r} is missing")

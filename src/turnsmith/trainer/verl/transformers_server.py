"""The Ray actor that serves the `transformers` engine to episodes. Imports no verl, so that it starts sooner."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.inference.weights import check_arrived
from turnsmith.trainer.config.layout import resolve_backend, resolve_dtype, rollout_layout

_MOST_RESTARTS = 20


def server_name(replica_rank: int) -> str:
    """Name of the Ray actor of a replica."""
    return f"transformers_server_{replica_rank}_0"


def start_server(
    replica_rank: int, node_id: str, *, model_path: str, dtype: str, max_concurrency: int, trust_remote_code: bool
) -> Any:
    """Start a replica's server on a node, or return the one that is already running."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return (
        ray.remote(TransformersServer)
        .options(
            name=server_name(replica_rank),
            get_if_exists=True,
            num_cpus=0,
            max_restarts=_MOST_RESTARTS,
            max_concurrency=max(1000, max_concurrency + 16),
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        .remote(model_path, dtype, max_concurrency, trust_remote_code)
    )


def start_servers_early(config: ConfigStore, cluster: Any, model_path: str) -> list[Any]:
    """Start the servers of a run on this machine while the trainer's processes still import verl.

    Keep what is returned: an actor ends with its last handle.
    """
    if resolve_backend(config) != "transformers" or not cluster.is_local:
        return []
    return [
        start_server(
            rank,
            cluster.node_id(),
            model_path=model_path,
            dtype=resolve_dtype(config),
            max_concurrency=config.inference.max_concurrency,
            trust_remote_code=config.model.trust_remote_code,
        )
        for rank in range(prod(rollout_layout(config)))
    ]


@dataclass
class ServerOutput:
    """The attributes that verl's client expects of a rollout server."""

    token_ids: list[int]
    log_probs: list[float]
    stop_reason: str
    num_preempted: int = 0
    routed_experts: Any = None
    extra_fields: dict[str, Any] = field(default_factory=dict)


class TransformersServer:
    """A Ray actor around one `TransformersEngine`, with the methods that verl calls on a rollout server."""

    def __init__(self, model_path: str, dtype: str, max_concurrency: int, trust_remote_code: bool) -> None:
        import asyncio

        import ray

        from turnsmith.inference.engines.transformers_engine import TransformersEngine
        from turnsmith.records.stacks import enable_stack_dump

        enable_stack_dump("rollout server")
        self._has_weights = asyncio.Event()
        # After a restart it has the initial weights, and must not generate with them.
        if not ray.get_runtime_context().was_current_actor_reconstructed:
            self._has_weights.set()
        self.engine = TransformersEngine(
            model_path, dtype=dtype, max_concurrency=max_concurrency, trust_remote_code=trust_remote_code
        )
        self._never_loaded = {name for name, _ in self.engine.model.named_parameters()}  # a tied head by one name

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **unused: Any
    ) -> ServerOutput:
        """Continue `prompt_ids` with verl's sampling parameters."""
        from turnsmith.inference.engine import Sampling

        await self._has_weights.wait()
        eos = self.engine.model.generation_config.eos_token_id
        stop = sampling_params.get("stop_token_ids") or ([eos] if isinstance(eos, int) else eos or [])
        sampling = Sampling(
            max_tokens=sampling_params.get("max_tokens", 256),
            temperature=sampling_params.get("temperature", 1.0),
            top_p=sampling_params.get("top_p", 1.0),
            top_k=sampling_params.get("top_k", -1),
            stop_token_ids=tuple(stop),
            seed=sampling_params.get("seed"),
        )
        generation = await self.engine.generate(prompt_ids, sampling, session=request_id)
        return ServerOutput(
            token_ids=list(generation.token_ids),
            log_probs=list(generation.log_probs),
            stop_reason="completed",
            extra_fields={"global_steps": generation.weights_version, "swaps": generation.swaps},
        )

    async def load_weights(self, weights: list[tuple[str, Any]], version: int | None) -> None:
        """Replace weights by name; the last bucket carries the `version`. The first ones have to be all."""
        import asyncio

        await asyncio.to_thread(self.engine.load_weights, weights, version)
        self._never_loaded -= {name for name, _ in weights}
        if version is not None:
            check_arrived("the engine", sorted(self._never_loaded))
            self._has_weights.set()

    async def lacks_weights(self) -> bool:
        """Whether this server was restarted and waits for the current weights."""
        return not self._has_weights.is_set()

    async def set_global_steps(self, global_steps: int) -> None:
        """Set the version of the weights."""
        self.engine.weights_version = global_steps

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """Pause every request until `resume_generation`, so that weights can be replaced."""
        import asyncio

        await asyncio.to_thread(self.engine.pause)

    async def resume_generation(self) -> None:
        """Continue the paused requests."""
        import asyncio

        await asyncio.to_thread(self.engine.resume)

    async def sleep(self) -> None:
        """Nothing to free."""

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Nothing was freed."""

    async def clear_kv_cache(self) -> None:
        """No cache outlives a request."""

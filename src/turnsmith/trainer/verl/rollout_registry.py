"""Tells verl about our rollout server and our agent loop, by name; nothing heavy is imported until verl asks."""

from __future__ import annotations

from typing import Any

TRANSFORMERS = "transformers"
"""The name under which verl knows our rollout server."""
AGENT_LOOP = "turnsmith"
"""The name under which verl knows our agent loop."""


def register_rollouts() -> None:
    """Register the `transformers` rollout and the episode agent loop with verl."""
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    def load_replica() -> Any:
        from turnsmith.trainer.verl.transformers.replica import TransformersReplica

        return TransformersReplica

    RolloutReplicaRegistry.register(TRANSFORMERS, load_replica)
    _ROLLOUT_REGISTRY[(TRANSFORMERS, "async")] = "turnsmith.trainer.verl.transformers.replica.TransformersAdapter"

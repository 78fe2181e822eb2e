"""Asks verl itself whether it accepts the config of a run, without starting any of its processes.

A program of its own, because verl chooses its platform when it is imported:
`python -m turnsmith.trainer.verl.validate CONFIG.yaml MODEL` prints what verl says against it, or nothing.
"""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Any

MARK = "verl refuses this config: "
"""Marks the reason, because other packages print too."""


def accept(config: Any) -> dict[str, Any]:
    """Do what verl does with a config before any worker starts; return its parts as dataclasses."""
    from omegaconf import OmegaConf, open_dict
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.trainer.ppo.v1 import get_trainer_cls
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    has_critic, has_reference = need_critic(config), need_reference_policy(config)
    OmegaConf.resolve(config)
    with contextlib.redirect_stdout(io.StringIO()):
        validate_config(config=config, use_reference_policy=has_reference, use_critic=has_critic)
    get_trainer_cls(config.trainer.v1.trainer_mode)(config)
    parts = config.actor_rollout_ref
    with open_dict(parts.ref):  # as ActorRolloutRefWorker.init_model has it
        parts.ref.ppo_mini_batch_size = parts.actor.ppo_mini_batch_size
        for name in ("micro_batch_size", "micro_batch_size_per_gpu", "max_token_len_per_gpu"):
            parts.ref[f"ppo_{name}"] = parts.ref.pop(f"log_prob_{name}")
        parts.ref.use_dynamic_bsz = parts.ref.pop("log_prob_use_dynamic_bsz")
    sections = {name: parts[name] for name in ("actor", "rollout", "model", *(["ref"] if has_reference else []))}
    sections |= {"algorithm": config.algorithm, **({"critic": config.critic} if has_critic else {})}
    return {name: omega_conf_to_dataclass(section) for name, section in sections.items()}


def report_refusal(file: str, model_path: str) -> None:
    """Print verl's objections to the settings in a file."""
    import verl  # noqa: F401  # pyright: ignore[reportUnusedImport]  (its plugins must load before anything of ours is imported)

    from turnsmith.config_sources import load
    from turnsmith.trainer.config.check import verl_config

    try:
        accept(verl_config(load(file), model_path=model_path))
    except Exception as error:  # noqa: BLE001  (verl has asserts, ValueErrors and more)
        sys.stdout.write(f"{MARK}{type(error).__name__}: {error}")


if __name__ == "__main__":
    report_refusal(*sys.argv[1:])

"""What `import verl` loads in every process, through the entry-point group `verl.plugins`.

It only registers. The CPU is chosen nowhere but where `VERL_PLATFORM=cpu` asks for it, so a GPU machine and a user's
own verl run as if this package were not installed.

verl swallows any error a plugin raises. So the task runner calls `check_loaded()` and fails with a sentence instead.
"""

from __future__ import annotations

import importlib
import os
import sys

from turnsmith.records.stacks import enable_stack_dump

LOADED: list[str] = []
"""Names of the parts that were registered in this process."""


def asked_for_cpu() -> bool:
    """Whether this process was told to run verl on the CPU."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"


def register_with_verl() -> None:
    """Register everything of ours with verl. Idempotent."""
    if "rollouts" not in LOADED:
        from turnsmith.trainer.verl.rollout_registry import register_rollouts

        register_rollouts()
        LOADED.append("rollouts")
    if "estimators" not in LOADED:
        from turnsmith.trainer.verl.estimators import register_estimators

        register_estimators()
        LOADED.append("estimators")
    if "platform" not in LOADED:
        importlib.import_module("turnsmith.trainer.verl.cpu.platform")  # registers itself
        LOADED.append("platform")
    if os.environ.get("TURNSMITH_RUN"):
        # For Ascend NPUs only, but where vLLM is installed it costs every process two seconds to find that out.
        sys.modules.setdefault("verl.checkpoint_engine.hccl_checkpoint_engine", None)  # type: ignore[arg-type]
        enable_stack_dump("process that holds the model", is_guess=True)
    if asked_for_cpu() and "cpu" not in LOADED:
        from turnsmith.trainer.verl.cpu.patches import make_verl_run_on_cpu

        make_verl_run_on_cpu()
        LOADED.append("cpu")


def check_loaded() -> None:
    """Raise with a sentence if verl did not take the plugin (it hides the reason)."""
    from turnsmith.errors import TrainingFailure

    wanted = ["rollouts", "estimators", "platform"] + (["cpu"] if asked_for_cpu() else [])
    missing = [part for part in wanted if part not in LOADED]
    if missing:
        register_with_verl()  # raises the true reason, which verl swallowed
        raise TrainingFailure(
            f"verl did not load turnsmith's plugin ({', '.join(missing)} missing). Install turnsmith with pip so that "
            "its entry point is found, and unset VERL_USE_EXTERNAL_PLUGINS."
        )


register_with_verl()

"""Trackers answer without a prompt, and the folder of the run can be written to, from every node."""

from __future__ import annotations

import netrc
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

from turnsmith.check.finding import Check, Finding
from turnsmith.check.subject import Subject
from turnsmith.records.files import why_not_writable

_MODULES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "trackio": "trackio"}
_WANDB_HOST = "api.wandb.ai"


async def check_places(subject: Subject) -> Finding:
    """Look at what the trackers need, and write a file to the output folder."""
    config = subject.config
    trackers = [str(name) for name in config.logging.trackers]
    for name in trackers:
        if name in _MODULES and find_spec(_MODULES[name]) is None:
            saw = f"The tracker {name} is not installed."
            return Finding("failed", saw, f"Take it out of logging.trackers, or pip install {name}.")
    if "wandb" in trackers and not _has_wandb_key():
        saw = "Weights & Biases has no key on this machine: it would ask for one, and nobody is there to answer."
        return Finding("failed", saw, "Set WANDB_API_KEY, or WANDB_MODE=offline.")
    folder = Path(config.checkpoint.output_dir).expanduser().absolute()
    if reason := why_not_writable(folder):
        saw = f"checkpoint.output_dir={folder} cannot be written to: {reason}."
        return Finding("failed", saw, "Set checkpoint.output_dir to a folder of your own.")
    if config.ray.address and any(folder.is_relative_to(local) for local in (tempfile.gettempdir(), "/tmp")):
        saw = f"The run joins a cluster, and checkpoint.output_dir={folder} is local to this machine."
        return Finding("failed", saw, "Set checkpoint.output_dir to a folder that all nodes share.")
    told = f"trackers {', '.join(trackers)}; " if trackers else ""
    return Finding("passed", f"{told}{folder} can be written to.")


def _has_wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun"):
        return True
    try:
        return netrc.netrc().authenticators(_WANDB_HOST) is not None
    except (OSError, netrc.NetrcParseError):
        return False


PLACES = Check(
    "trackers and folders",
    "Looks for the trackers' packages and keys, and writes a file to the output folder.",
    "A tracker that asks for a key, or a folder that other nodes do not see, stops a queued run at its start.",
    check_places,
    quick=True,
    plays=False,
)

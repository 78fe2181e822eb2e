"""Exports the model in a run's checkpoint as a folder that transformers and vLLM load."""

from __future__ import annotations

import shutil
from pathlib import Path

from turnsmith import config_sources
from turnsmith.errors import ConfigError
from turnsmith.records.checkpoints import Warn, choose_checkpoint
from turnsmith.records.run_folder import RunFolder


def export_model(
    run_folder: str | Path,
    step: int | str = "last",
    out: str | Path | None = None,
    *,
    adapter: bool = False,
    dtype: str | None = None,
    warn: Warn = lambda sentence: None,
) -> Path:
    """Write the model of a run as a Hugging Face folder of safetensors with a model card, and return that folder.

    Other people's checkpoints can be exported as well: only weights are read, by a loader that runs no code.

    Args:
        run_folder: The run's folder.
        step: A step that has a checkpoint, `"last"` or `"best"`.
        out: A new folder; None: `exports/step-N` in the run's folder.
        adapter: Write only the LoRA adapter, as PEFT and vLLM load it, instead of merging it into the model.
        dtype: `float32`, `bfloat16` or `float16`; None: as it was trained.
        warn: Called with a sentence about a damaged checkpoint that was skipped.

    Raises:
        RecordError: The run has no such checkpoint, or it is damaged.

    Example:
        >>> export_model("runs/gone")
        Traceback (most recent call last):
        turnsmith.errors.RecordError: There is no run folder runs/gone.
    """
    run = RunFolder.open(run_folder)
    checkpoint = choose_checkpoint(run.checkpoints_dir, step, warn=warn)
    config = config_sources.load(run.path / "config.yaml")
    model = config.model
    usual = run.path / "exports" / (f"step-{checkpoint.step}" + ("-adapter" if adapter else ""))
    target = (usual if out is None else Path(out).expanduser()).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} already exists and is not an empty folder; choose another with --out.")
    from turnsmith.models import resolve
    from turnsmith.trainer.checkpoints.hub import model_card
    from turnsmith.trainer.checkpoints.hugging_face import write_adapter, write_model

    beside = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        if adapter:
            write_adapter(checkpoint.path / "actor", beside, base_model=resolve(model.model_name, model.local_path))
        else:
            # This setting comes from the folder as well: honour it only where the folder is our own.
            remote_code = model.trust_remote_code and checkpoint.signed
            write_model(checkpoint.path / "actor", beside, dtype=dtype, trust_remote_code=remote_code)
        card = model_card(run, config, checkpoint.step, adapter=adapter)
        (beside / "README.md").write_text(card, encoding="utf-8")
        beside.replace(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target

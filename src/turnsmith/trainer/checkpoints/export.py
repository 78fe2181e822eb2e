"""How a model leaves its run: exported as a folder that transformers and vLLM load, with a model card, and uploaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from turnsmith import __version__, config_sources
from turnsmith.config import ConfigStore
from turnsmith.errors import ConfigError, TurnsmithError
from turnsmith.records.checkpoints import Warn, choose_checkpoint
from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer.config.layout import learning_rate


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
    from turnsmith.inference.models import resolve
    from turnsmith.trainer.checkpoints.export import model_card
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


def model_card(run: RunFolder, config: ConfigStore, step: int, *, adapter: bool = False) -> str:
    """The README of a model: from what, where and how it was trained, and what it scored on held-out starts.

    Args:
        run: The run.
        config: Its settings.
        step: The step of the checkpoint.
        adapter: Whether only the LoRA adapter is exported.
    """
    from huggingface_hub import EvalResult, ModelCardData

    environment = _environment(run)
    training, base = config.training, config.model.model_name
    is_on_hub = config.model.local_path is None and base.count("/") == 1 and not base.startswith((".", "/", "~"))
    rows = [record for record in run.read_evaluations() if record["step"] <= step]
    scores = [
        EvalResult(
            task_type="reinforcement-learning",
            dataset_type=environment,
            dataset_name=environment,
            metric_type=kind,
            metric_value=rows[-1][f"{kind}/mean"],
        )
        for kind in ("success", "reward")
        if rows and f"{kind}/mean" in rows[-1]
    ]
    about = ModelCardData(
        model_name=run.name,
        base_model=base if is_on_hub else None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["reinforcement-learning", "turnsmith", training.adv_estimator],
        eval_results=scores or None,
    )
    model = base if is_on_hub else Path(base).name
    told = f"""---
{about.to_yaml()}
---

# {run.name}

{"A LoRA adapter of" if adapter else "The model"} `{model}`, trained with reinforcement learning by turnsmith
{__version__} in the environment `{environment}`: {training.adv_estimator}, {step} steps of {training.batch_size}
episodes in groups of {training.group_size}, learning rate {learning_rate(config):g}, credit by {training.credit}.
What the reward does not measure was not trained: evaluate the model on what you need it for.
"""
    return told + (f"\n## On held-out starts\n\n{_table(rows)}\n" if rows else "")


def push_folder(folder: Path, repository: str, *, public: bool = False) -> str:
    """Upload an exported folder to the Hugging Face hub, and return its address there.

    Args:
        folder: The folder.
        repository: `owner/name` on the hub; made if it does not exist.
        public: Whether a repository that is made can be seen by all.

    Raises:
        TurnsmithError: The hub refused it, or could not be reached.
    """
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    hub = HfApi(library_name="turnsmith", library_version=__version__)
    try:
        address = str(hub.create_repo(repository, private=not public, exist_ok=True))
        hub.upload_folder(folder_path=folder, repo_id=repository, commit_message=f"turnsmith export: {folder.name}")
    except (HfHubHTTPError, LocalTokenNotFoundError, httpx.HTTPError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise TurnsmithError(
            f"The model is in {folder}, but was not pushed to {repository}: {reason}. Log in with `hf auth login` or "
            f"set HF_TOKEN, then `hf upload {repository} {folder}`."
        ) from error
    return address


def check_repository(name: str) -> None:
    """Refuse what cannot be a repository's name, before a long export.

    Example:
        >>> check_repository("my chess")
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: 'my chess' is not a repository of the Hugging Face hub: write owner/name.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        raise ConfigError(f"{name!r} is not a repository of the Hugging Face hub: write owner/name.") from None


def _environment(run: RunFolder) -> str:
    """The environment's class, as far as the run folder names it."""
    named = json.loads(run.read_bytes("resume.json") or b"{}").get("environment")
    return str(named).rpartition(":")[2] if named else run.name


def _table(rows: list[dict[str, Any]]) -> str:
    lines = ["| step | success | reward | episodes |", "| --- | --- | --- | --- |"]
    for row in rows:
        cells = [_cell(row, "success", ".0%"), _cell(row, "reward", ".3g")]
        lines.append(f"| {row['step']} | {cells[0]} | {cells[1]} | {row['episodes/total']} |")
    return "\n".join([*lines, "", "In brackets: the 95 % interval."])


def _cell(row: dict[str, Any], kind: str, form: str) -> str:
    if f"{kind}/mean" not in row:
        return ""
    bounds = [row.get(f"{kind}/{end}") for end in ("low", "high")]
    interval = f" ({bounds[0]:{form}} to {bounds[1]:{form}})" if None not in bounds else ""
    return f"{row[f'{kind}/mean']:{form}}{interval}"

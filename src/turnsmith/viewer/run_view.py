"""A run folder read into one object: everything but its episodes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec

from turnsmith.errors import RecordError
from turnsmith.records.json_records import ResumeFile, parse_object
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_state import EventKind, RunState, state_of
from turnsmith.records.run_warnings import RunWarning, warnings_in
from turnsmith.records.yaml_text import YamlProblem, parse_yaml

_DEFAULT_NAME = re.compile(r"(?:eval-|play-|serve-)?(.+?)-\d{8}-\d{6}(?:-\d+)?")


@dataclass(frozen=True)
class RunView:
    """One run, as its folder was when it was read."""

    run: RunFolder
    state: RunState
    environment: str
    """Name of the environment; empty if the folder does not record it."""
    model: str
    metrics: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    evaluations: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Records of the evaluations during training."""
    ledger: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """What became of the episodes of each step."""
    warnings: list[RunWarning] = field(default_factory=list[RunWarning])
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """The content of config.yaml."""
    is_evaluation: bool = False
    is_serving: bool = False
    """Whether its episodes are conversations of `turnsmith serve`."""
    planned_steps: int | None = None
    error: str = ""
    """The error that ended the run, if one did."""
    created: float | None = None
    last_write: float | None = None
    """Time of the last write to the folder, in seconds since 1970."""

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run.name

    @property
    def steps(self) -> int:
        """The last completed step; 0 before the first."""
        return int(max(self.values("step"), default=0))

    @property
    def seconds(self) -> float | None:
        """Seconds from the run's creation to its last write."""
        return None if self.created is None or self.last_write is None else max(0.0, self.last_write - self.created)

    @property
    def algorithm(self) -> str:
        """Advantage estimator and batch size, for a training run with recorded settings."""
        if self.is_evaluation or self.is_serving or not self.settings:
            return ""
        size, group = self.setting("training", "batch_size"), self.setting("training", "group_size")
        return f"{self.setting('training', 'adv_estimator')}, {size} episodes a step in groups of {group}"

    @property
    def active_warnings(self) -> int:
        """How many warnings have not ended."""
        return sum(warning.until is None for warning in self.warnings)

    def progress(self, separator: str) -> str:
        """Completed steps, with the planned number after the separator if it differs."""
        is_partial = self.planned_steps is not None and self.planned_steps != self.steps
        return f"{self.steps}{separator}{self.planned_steps}" if is_partial else str(self.steps)

    def values(self, metric: str) -> list[float]:
        """All numbers recorded for a metric, oldest first."""
        return [record[metric] for record in self.metrics if _is_number(record.get(metric))]

    def last(self, metric: str) -> float | None:
        """The newest value of a metric, or None."""
        return next(reversed(self.values(metric)), None)

    def setting(self, section: str, name: str) -> Any:
        """One setting of the run, or None."""
        values = self.settings.get(section)
        return cast("dict[str, Any]", values).get(name) if isinstance(values, dict) else None


def read_run(folder: RunFolder | str | Path) -> RunView:
    """Read a run folder.

    Raises:
        RecordError: There is no run, or its records are damaged.

    Example:
        >>> import tempfile
        >>> run = RunFolder.create(tempfile.mkdtemp(), "Game-20260101-120000")
        >>> run.append_metrics({"step": 1, "reward/mean": 0.5})
        >>> run.append_event(EventKind.FINISHED)
        >>> view = read_run(run.path)
        >>> view.environment, view.state.value, view.steps, view.last("reward/mean")
        ('Game', 'finished', 1, 0.5)
    """
    run = folder if isinstance(folder, RunFolder) else RunFolder.open(folder)
    events, settings = run.read_events(), _read_settings(run)
    kinds = (EventKind.EVALUATION, EventKind.SERVING)
    begun: Mapping[str, Any] = next((event for event in events if event.get("kind") in kinds), {})
    recipe = _read_parts(run)
    last_write = _last_write(run.path)
    return RunView(
        run=run,
        state=state_of(events, last_write),
        environment=str(begun.get("environment") or _environment(recipe) or _environment_in(run.name)),
        model=str(begun.get("model") or _model(settings)),
        metrics=run.read_metrics(),
        evaluations=run.read_evaluations(),
        ledger=run.read_ledger(),
        warnings=warnings_in(events),
        settings=settings,
        is_evaluation=begun.get("kind") == EventKind.EVALUATION,
        is_serving=begun.get("kind") == EventKind.SERVING,
        planned_steps=recipe.get("steps") or None,
        error=_error(events),
        created=run.read_about().get("created"),
        last_write=last_write,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _error(events: Sequence[Mapping[str, Any]]) -> str:
    """The last failure, unless the run continued after it."""
    error = ""
    for event in events:
        if event.get("kind") == EventKind.FAILED:
            error = str(event.get("content", ""))
        elif event.get("kind") in (EventKind.TRAINING, EventKind.RESUMED, EventKind.FINISHED):
            error = ""
    return re.sub(r"\x1b\[[0-9;]*m", "", error)


def _last_write(path: Path) -> float | None:
    files = [file for name in ("metrics.jsonl", "events.jsonl") if (file := path / name).is_file()]
    return max((file.stat().st_mtime for file in files), default=None)


def _environment(recipe: Mapping[str, Any]) -> str:
    """The class name in `module:Name`; for an environment that cannot be imported by name, what describes it."""
    if isinstance(recipe.get("mix"), dict):
        return f"mix of {', '.join(map(str, recipe['mix']))}"
    name = str(recipe.get("environment") or "").rpartition(":")[2]
    return name or recipe.get("nameless", {}).get("environment", "")


def _environment_in(run_name: str) -> str:
    match = _DEFAULT_NAME.fullmatch(run_name)
    return match[1] if match else ""


def _model(settings: Mapping[str, Any]) -> str:
    model: Any = settings.get("model")
    return str(model.get("local_path") or model.get("model_name") or "") if isinstance(model, dict) else ""


def _read_settings(run: RunFolder) -> dict[str, Any]:
    try:
        content = parse_yaml(run.read_bytes("config.yaml").decode())
        return msgspec.convert(content, dict[str, Any])
    except (UnicodeDecodeError, YamlProblem, msgspec.ValidationError):
        return {}


def _read_parts(run: RunFolder) -> dict[str, Any]:
    try:
        return parse_object(run.read_bytes("resume.json"), ResumeFile, "resume.json")
    except RecordError:  # missing, or only `resume` can read it
        return {}

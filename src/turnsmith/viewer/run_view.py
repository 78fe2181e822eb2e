"""What a run folder says about its run as a whole, in one object: everything but the episodes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_state import RunState, state_of
from turnsmith.records.run_warnings import RunWarning, warnings_in
from turnsmith.records.yaml_text import YamlProblem, parse_yaml

_NAMED_BY_TIME = re.compile(r"(?:eval-)?(.+?)-\d{8}-\d{6}(?:-\d+)?")


@dataclass(frozen=True)
class RunView:
    """One run, as its folder tells it at the moment of reading."""

    run: RunFolder
    state: RunState
    environment: str
    """The environment's name; empty if the folder does not say."""
    model: str
    metrics: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    evaluations: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Those that were made in training."""
    warnings: list[RunWarning] = field(default_factory=list[RunWarning])
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """config.yaml as it stands."""
    is_evaluation: bool = False
    planned_steps: int | None = None
    error: str = ""
    """What stopped the run, if something did."""
    created: float | None = None
    last_write: float | None = None
    """When the run last wrote anything, in seconds since 1970."""

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run.name

    @property
    def steps(self) -> int:
        """The last step that was made; 0 if none was."""
        return max((int(record["step"]) for record in self.metrics if _is_number(record.get("step"))), default=0)

    @property
    def seconds(self) -> float | None:
        """From the run's beginning to the last that it wrote."""
        return None if self.created is None or self.last_write is None else max(0.0, self.last_write - self.created)

    def last(self, name: str) -> float | None:
        """The newest value of a metric, or None."""
        return next((float(one[name]) for one in reversed(self.metrics) if _is_number(one.get(name))), None)

    def setting(self, section: str, name: str) -> Any:
        """A setting of the run, or None."""
        found = self.settings.get(section)
        return cast("dict[str, Any]", found).get(name) if isinstance(found, dict) else None


def read_run(folder: RunFolder | str | Path) -> RunView:
    """Read a run folder.

    Raises:
        RecordError: There is no run there, or its records are damaged.

    Example:
        >>> import tempfile
        >>> run = RunFolder.create(tempfile.mkdtemp(), "Game-20260101-120000")
        >>> run.append_metrics({"step": 1, "reward/mean": 0.5})
        >>> run.append_event("finished")
        >>> view = read_run(run.path)
        >>> view.environment, view.state.value, view.steps, view.last("reward/mean")
        ('Game', 'finished', 1, 0.5)
    """
    run = folder if isinstance(folder, RunFolder) else RunFolder.open(folder)
    events, settings = run.read_events(), _settings(run.path)
    begun = next((event for event in events if event.get("kind") == "evaluation"), {})
    recipe = _json(run.path / "resume.json")
    last_write = _last_write(run.path)
    return RunView(
        run=run,
        state=state_of(events, last_write),
        environment=str(begun.get("environment") or _environment(recipe) or _from_name(run.name)),
        model=str(begun.get("model") or _model(settings)),
        metrics=run.read_metrics(),
        evaluations=run.read_evaluations(),
        warnings=warnings_in(events),
        settings=settings,
        is_evaluation=bool(begun),
        planned_steps=int(recipe["steps"]) if _is_number(recipe.get("steps")) and recipe["steps"] > 0 else None,
        error=_error(events),
        created=_json(run.path / "run.json").get("created"),
        last_write=last_write,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _error(events: Sequence[Mapping[str, Any]]) -> str:
    """The last failure, unless the run went on after it."""
    error = ""
    for event in events:
        if event.get("kind") == "failed":
            error = str(event.get("content", ""))
        elif event.get("kind") in ("training", "resumed", "finished"):
            error = ""
    return re.sub(r"\x1b\[[0-9;]*m", "", error)


def _last_write(path: Path) -> float | None:
    times = [file.stat().st_mtime for name in ("metrics.jsonl", "events.jsonl") if (file := path / name).exists()]
    return max(times, default=None)


def _environment(recipe: Mapping[str, Any]) -> str:
    """`module:Name` without the module; for an environment that has no name to import, what it is called."""
    named = str(recipe.get("environment") or "").rpartition(":")[2]
    nameless: Any = recipe.get("nameless")
    return named or (str(nameless.get("environment", "")) if isinstance(nameless, dict) else "")


def _from_name(name: str) -> str:
    found = _NAMED_BY_TIME.fullmatch(name)
    return found[1] if found else ""


def _model(settings: Mapping[str, Any]) -> str:
    model: Any = settings.get("model")
    return str(model.get("local_path") or model.get("model_name") or "") if isinstance(model, dict) else ""


def _settings(path: Path) -> dict[str, Any]:
    try:
        found = parse_yaml((path / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YamlProblem):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}

"""How far a run has come, read from its folder while it is under way."""

from __future__ import annotations

from pathlib import Path

from turnsmith.records.run_folder import RunFolder


def steps_made(folder: Path) -> int:
    """How many steps of a run are on record."""
    return len(RunFolder.open(folder).read_metrics()) if (folder / "metrics.jsonl").exists() else 0


def has_told_since(folder: Path, content: str, began: float) -> bool:
    """Whether a run has come to this phase since then."""
    events = RunFolder.open(folder).read_events() if (folder / "events.jsonl").exists() else []
    return any(event["time"] > began and event.get("content") == content for event in events)

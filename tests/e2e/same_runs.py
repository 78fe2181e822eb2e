"""Whether two runs are the same to the last bit: metrics, episodes, weights, optimizer and what else a resume needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from turnsmith.records.checkpoints import newest_checkpoint, read_state
from turnsmith.records.episodes import read_episodes
from turnsmith.records.run_folder import RunFolder
from turnsmith.trajectory import Decision

_TIMES = ("time/", "perf/")
_FAULTS = ("failures/",)


def differences(one: RunFolder, other: RunFolder, *, had_faults: bool = False, ranks: int = 1) -> list[str]:
    """What differs, in words; times are not compared, nor what was counted of faults if there were any.

    The runs are those of a test, so checkpoints are trusted: a host of this machine signs them with a key of its own.
    """
    ignored = _TIMES + _FAULTS if had_faults else _TIMES
    found: list[str] = []
    for left, right in zip(one.read_metrics(), other.read_metrics(), strict=True):
        found += [f"step {left['step']}: {name}" for name in _unlike(left, right, ignored)]
    for left, right in zip(one.read_evaluations(), other.read_evaluations(), strict=False):
        found += [f"evaluation {left['step']}: {name}" for name in _unlike(left, right, ignored)]
    found += [] if _episodes(one) == _episodes(other) else ["episodes"]
    ours, theirs = (newest_checkpoint(run.checkpoints_dir, trust=True).path for run in (one, other))
    found += [] if read_state(ours) == read_state(theirs) else ["trainer state"]
    files = {str(file.relative_to(ours)) for file in ours.rglob("*.pt")}
    parts = {f"actor/{kind}_world_size_{ranks}_rank_{rank}.pt" for kind in ("model", "optim") for rank in range(ranks)}
    assert files >= {"data.pt", *parts}
    return found + [name for name in sorted(files) if not _same(_load(ours / name), _load(theirs / name))]


def _unlike(left: dict[str, Any], right: dict[str, Any], ignored: tuple[str, ...]) -> list[str]:
    names = [name for name in left.keys() | right.keys() if not name.startswith(ignored)]
    return [name for name in sorted(names) if left.get(name) != right.get(name)]


def _episodes(run: RunFolder) -> dict[str, Any]:
    return {
        one.episode_id: ([(list(part.ids), list(part.log_probs)) for part in (one.tokens, *one.branches)], one.rewards)
        for one in read_episodes(run)
        if one.decision is not Decision.RETRIED
    }


def _load(file: Path) -> Any:
    import torch

    content = torch.load(file, weights_only=False)
    if file.name.startswith("extra_state"):
        # Libraries draw from Python's and numpy's global generators as they like. Training does not: sampling has
        # seeds of its own, and no model here has dropout.
        del content["rng"]
    return content


def _same(left: Any, right: Any) -> bool:
    import torch

    if isinstance(left, torch.Tensor):
        left, right = (getattr(one, "to_local", lambda one=one: one)() for one in (left, right))
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[name], right[name]) for name in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right) if not hasattr(left, "shape") else bool((left == right).all())

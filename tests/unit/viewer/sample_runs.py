"""Run folders for the viewer's tests, written by the functions that training uses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from turnsmith import ConfigStore, Outcome, RunFolder, TokenBuffer, Trajectory, TurnRecord
from turnsmith.config_sources import to_dict
from turnsmith.records.advantages import StepAdvantages, write_advantages
from turnsmith.records.episodes import write_episodes
from turnsmith.records.run_state import this_process
from turnsmith.records.run_warnings import RunWarning


def episode(name: str, rewards: tuple[float, ...] = (0.0, 1.0), **more: Any) -> Trajectory:
    """One turn of two tokens for each reward."""
    tokens = TokenBuffer()
    tokens.open([1, 2, 3])
    turns: list[TurnRecord] = []
    messages = [{"role": "system", "content": "Play."}, {"role": "user", "content": "Begin."}]
    for place in range(len(rewards)):
        turns.append(TurnRecord(*tokens.append_model([5, 6], [-0.1, -0.2]), "stop" if place else "length", 0))
        tokens.append_context([7])
        messages += [{"role": "assistant", "content": f"move {place}"}, {"role": "user", "content": "Go on."}]
    values: dict[str, Any] = {
        "states": ["?"] * len(rewards),
        "actions": ["a"] * len(rewards),
        "rewards": list(rewards),
        "dones": [False] * len(rewards),
        "infos": [{}] * len(rewards),
        "messages": messages,
        "turns": turns,
        "tokens": tokens,
        "outcome": Outcome.COMPLETED,
        "episode_id": name,
        "group_id": name.partition("-")[0],
    }
    return Trajectory(**{**values, **more})


def record(step: int, **more: Any) -> dict[str, Any]:
    return {
        "step": step,
        "reward/mean": step / 10,
        "reward/min": 0.0,
        "reward/max": 1.0,
        "entropy": 2.0 / step,
        "kl": 0.0,
        "grad_norm": 0.5,
        "episodes/total": 4,
        "episodes/completed": 4,
        "time/step": 2.0,
        "time/generate": 1.5,
        "time/update_actor": 0.5,
        **more,
    }


def training_run(parent: Path, steps: int = 4, name: str = "Game-20260101-120000") -> RunFolder:
    """A finished run with a warning that has ended, one that is active, and an episode of each kind."""
    run = RunFolder.create(parent, name)
    run.write_config(to_dict(ConfigStore()))
    (run.path / "resume.json").write_text(json.dumps({"steps": steps, "environment": "games.board:Board"}))
    run.append_event("training", steps=steps, **this_process())
    for step in range(1, steps + 1):
        run.append_metrics(record(step, **({"grad_norm": 0.0, "policy_loss": math.nan} if step == steps else {})))
        episodes = [episode(f"{step}-{place}", (0.0, place / 3)) for place in range(4)]
        if step == 2:
            episodes[3] = episode("2-3", (), outcome=Outcome.ENVIRONMENT_FAILED, error="KeyError: 'door'")
        write_episodes(run, step, episodes)
        write_advantages(
            run,
            step,
            StepAdvantages(
                advantages={trajectory.episode_id: [0.5, 0.5, 0.0, -1.5, -1.5, 0.0] for trajectory in episodes}
            ),
        )
    cut = RunWarning("cut_turns", 1, "Turns were cut.", "They stop.", "Raise it.", ("1-2",))
    zero = RunWarning(
        "zero_gradient", steps, "The gradient is zero: all the same.", "No.", "Play.", (f"{steps}-1", "x")
    )
    for warning in (cut, zero, cut.ended(3)):
        run.append_event("warning", content=warning.content())
    run.append_event("finished", step=steps)
    return run

"""Processes of a run are killed at random moments: it survives, or stops in words and resumes; every step is right."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.chaos import FATAL, RAYS_OWN, SURVIVED, WHOLE, Chaos
from tests.e2e.shaken_run import ShakenRun, same_metrics
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_state import RunState
from turnsmith.viewer.run_view import read_run

FULL = "TURNSMITH_CHAOS_SEED" in os.environ
"""Whether this is the long form, with a seed that was drawn for it: every kind of process is killed."""
SEED = int(os.environ.get("TURNSMITH_CHAOS_SEED", "13"))
KILLS, LIVES = (30, 5) if FULL else (8, 2)
pytestmark = [pytest.mark.e2e, *([pytest.mark.nightly] if FULL else [])]


@pytest.fixture(scope="module")
def chaos(tmp_path_factory: pytest.TempPathFactory) -> Chaos:
    """Some lives of one run, with kills in each; in the long form three more end in their start; the last one ends by
    itself.
    """
    print(f"TURNSMITH_CHAOS_SEED={SEED}")
    made = Chaos(tmp_path_factory.mktemp("chaos"), SEED, KILLS)
    ends = made.random.sample(FATAL, len(FATAL) if FULL else 1)
    young = [kind for kind in ends if kind not in RAYS_OWN][: len(ends) - LIVES + 1]
    for place, end in enumerate(kind for kind in ends if kind not in young):
        made.live(end, also=SURVIVED[1:] if place == 0 else ())
        if place < len(young):
            made.die_young(young[place])
    made.live(more_steps=6 if FULL else 2, also=())
    for life in [*made.lives, *made.young]:
        print(dict(life.killed), f"ended with {life.code} after {life.seconds_to_end:.1f} s")
    return made


def test_every_kind_was_killed(chaos: Chaos) -> None:
    kinds = sum((life.killed for life in [*chaos.lives, *chaos.young]), Counter[str]())
    assert kinds.keys() >= {*SURVIVED}
    assert len(kinds.keys() & {*FATAL}) == (len(FATAL) if FULL else 1)
    assert len(chaos.lives) == LIVES
    assert all(life.killed.total() >= KILLS for life in chaos.lives)


def test_a_run_that_cannot_go_on_says_so_and_leaves_no_process(chaos: Chaos) -> None:
    for life in [*chaos.lives[:-1], *chaos.young]:
        if WHOLE in life.killed:
            assert life.code == -9
        else:
            assert life.code == 2
            assert " was lost" in life.told or "out of reach" in life.told
            assert f"`turnsmith resume {chaos.path}` continues from step " in life.told
        assert life.seconds_to_end < 60
        assert life.left_over == []


def test_the_last_one_ends_well(chaos: Chaos) -> None:
    life = chaos.lives[-1]
    assert (life.code, life.left_over) == (0, [])
    assert read_run(chaos.path).state is RunState.FINISHED


def test_every_step_is_there_once_and_as_if_nothing_had_been_killed(chaos: Chaos, shaken: ShakenRun) -> None:
    run = RunFolder.open(Path(chaos.path))
    metrics = run.read_metrics()
    assert [step["step"] for step in metrics] == list(range(1, len(metrics) + 1))
    for ours, theirs in zip(metrics, shaken.clean, strict=False):
        assert same_metrics(ours, theirs) == []
    assert all(step["episodes/completed"] == step["episodes/total"] == 16 for step in metrics)
    assert [step["step"] for step in run.read_ledger()] == [step["step"] for step in metrics]
    assert all(step["dispatched"] == step["trained"] == 16 for step in run.read_ledger())

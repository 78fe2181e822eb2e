"""Faults under the default failure policy, not the patient one of test_faults.py."""

from __future__ import annotations

import pytest

from tests.e2e.shaken_run import ShakenRun, same_metrics
from tests.e2e.shaky import WAYS

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
EPISODES = 16
_FAULTS = {"environment_failed", "environment_timeout", "worker_lost"}


def test_one_step_call_in_ten_fails(tmp_path_factory: pytest.TempPathFactory) -> None:
    shaken = ShakenRun(tmp_path_factory.mktemp("default"), policy="")
    assert all(shaken.hits(way) for way in WAYS), "a way to go wrong was not tried"
    masked = [step["masked"] for step in shaken.faulty_ledger]
    print(f"masked in each step: {masked}")
    for step in shaken.faulty_ledger:
        assert step["dispatched"] == step["trained"] + step["masked"] == EPISODES
        assert step["dropped"] == 0
        assert set(step["given_up"]) <= _FAULTS
    assert sum(masked) <= len(masked), "retries are used up far more often than by chance"
    # A step is as if nothing had failed, until one in which an episode used up its retries.
    for clean, faulty, missing in zip(shaken.clean[1:], shaken.faulty, masked, strict=True):
        if missing:
            break
        assert same_metrics(clean, faulty) == []
    named = [one["episode"] for step in shaken.faulty_ledger for one in step["episodes"] if one["decision"] == "masked"]
    assert len(named) == sum(masked)

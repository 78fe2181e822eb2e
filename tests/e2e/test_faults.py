"""An environment that goes wrong in ten ways inside a real training run: nothing of it shows in what is learnt."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.e2e.shaken_run import STEPS, ShakenRun, same_metrics
from tests.e2e.shaky import WAYS
from turnsmith import read_episodes
from turnsmith.records.checkpoints import newest_checkpoint
from turnsmith.viewer.ledger_totals import LedgerTotals
from turnsmith.viewer.report import report_html
from turnsmith.viewer.summary import show_run

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
EPISODES = 16


def test_steps_with_faults_equal_those_without_to_the_last_bit(shaken: ShakenRun) -> None:
    assert all(shaken.hits(way) for way in WAYS), "a way to go wrong was not tried"
    assert len(shaken.faulty) == STEPS
    for clean, faulty in zip(shaken.clean[1:], shaken.faulty, strict=True):
        assert same_metrics(clean, faulty) == []
        assert faulty["episodes/completed"] == EPISODES
    assert sum(step.get("failures/retried", 0) for step in shaken.faulty) >= len(WAYS)


def test_the_ledger_balances_at_every_step(shaken: ShakenRun) -> None:
    for step in shaken.ledger:
        assert step["dispatched"] == step["trained"] + step["masked"] + step["dropped"] == EPISODES
        assert sum(step["outcomes"].values()) == EPISODES
        assert step["carried"] == []
    assert [step["trained"] for step in shaken.ledger] == [EPISODES] * (len(shaken.ledger) - 1) + [0]
    given_up = sum((Counter(step["given_up"]) for step in shaken.ledger[:-1]), Counter[str]())
    # One process that dies takes other environments with it; a call in the same moment may be counted as either. But
    # of four ways to raise, four to end the process and two to hang, not all come in such a moment.
    assert given_up.keys() == {"environment_failed", "environment_timeout", "worker_lost"}
    assert min(given_up.values()) > 0
    assert given_up.total() == sum(step.get("failures/retried", 0) for step in shaken.faulty)


def test_attempts_that_were_given_up_are_recorded_under_names_of_their_own(shaken: ShakenRun) -> None:
    episodes = read_episodes(shaken.run, step=shaken.last_step + 1)
    assert len({episode.episode_id for episode in episodes}) == len(episodes)
    last = [episode for episode in episodes if episode.decision.value != "retried"]
    assert len(last) == EPISODES
    assert {episode.decision.value for episode in last} == {"masked"}


def test_a_step_in_which_nothing_works_stops_the_run_in_words_and_saves_what_there_is(shaken: ShakenRun) -> None:
    assert f"Step {shaken.last_step + 1}: none of {EPISODES} episodes can be trained on" in shaken.told
    assert "Shaky.step raised KeyError: 'sword'" in shaken.told
    assert f"`turnsmith resume {shaken.run.path}` continues from step {shaken.last_step}." in shaken.told
    assert newest_checkpoint(shaken.run.checkpoints_dir).step == shaken.last_step


def test_the_views_tell_it(shaken: ShakenRun) -> None:
    shown = show_run(shaken.run)
    totals = LedgerTotals.of(shaken.ledger)
    assert totals.balances
    assert f"{totals.dispatched} dispatched = {totals.decisions['trained']} trained + {EPISODES} masked" in shown
    assert f"Step {shaken.last_step + 1} had nothing to train on: of {EPISODES} episodes" in shown
    assert "retried: " in shown
    assert "Failed and retried episodes" in report_html(shaken.run)


def test_no_process_is_left_over(shaken: ShakenRun) -> None:
    assert shaken.left_over == []

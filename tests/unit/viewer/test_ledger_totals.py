"""The ledger in `turnsmith runs show`, in the report, and in the explanation of a zero gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.viewer.sample_runs import record

from turnsmith import RunFolder
from turnsmith.viewer.ledger_totals import LedgerTotals
from turnsmith.viewer.report import report_html
from turnsmith.viewer.run_view import read_run
from turnsmith.viewer.summary import show_run
from turnsmith.viewer.zero_gradient import explain_zero_gradient


def step(number: int, **more: Any) -> dict[str, Any]:
    return {
        "step": number,
        "dispatched": 4,
        "trained": 4,
        "masked": 0,
        "dropped": 0,
        "filtered": 0,
        "carried": [],
        "outcomes": {"completed": 4},
        "given_up": {},
        "tokens": {"kept": 90},
        "episodes": [],
        **more,
    }


MASKED = {
    "episode": "7-1",
    "decision": "masked",
    "attempts": [["worker_lost", 5, 1.0], ["environment_failed", 5, 1.0]],
    "cause": "environment",
    "error": "Game.step raised <KeyError>: 'door'\nmore",
}
SHORT = step(2, trained=3, masked=1, given_up={"worker_lost": 1}, tokens={"kept": 85, "retried": 5}, episodes=[MASKED])


def run_with(folder: Path, *steps: dict[str, Any], **metrics: Any) -> RunFolder:
    run = RunFolder.create(folder, "Game-20260101-120000")
    for ledger in steps:
        run.append_ledger(ledger)
        if ledger["trained"]:
            run.append_metrics(record(ledger["step"], **metrics))
    return run


def test_a_run_without_faults_has_one_line_and_no_section(tmp_path: Path) -> None:
    run = run_with(tmp_path, step(1), step(2))
    assert "ledger         8 dispatched = 8 trained\n" in show_run(run)
    assert "Failed and retried episodes" not in report_html(run)


def test_failed_and_retried_episodes_are_shown(tmp_path: Path) -> None:
    run = run_with(tmp_path, step(1), SHORT)
    shown = show_run(run)
    assert "8 dispatched = 7 trained + 1 masked" in shown
    assert "not trained on: 1 environment_failed" in shown
    assert "retried: 1 worker_lost, 2.8% of all tokens" in shown
    page = report_html(run)
    assert "Failed and retried episodes" in page
    assert "worker_lost, 5 tokens, 1.0 s; environment_failed, 5 tokens, 1.0 s" in page
    assert "&lt;KeyError&gt;" in page


def test_episodes_in_flight_are_part_of_the_balance() -> None:
    ahead = LedgerTotals.of([step(1, trained=2, carried=["a", "b"])])
    assert ahead.balances
    assert list(ahead.lines()) == ["4 dispatched = 2 trained + 2 in flight"]
    assert not LedgerTotals.of([step(1, trained=2)]).balances
    assert list(LedgerTotals.of([]).lines()) == []


def test_a_zero_gradient_is_explained_by_the_episodes_not_trained_on(tmp_path: Path) -> None:
    view = read_run(run_with(tmp_path, SHORT, grad_norm=0.0))
    answer = explain_zero_gradient(view)
    assert answer[-1] == (
        "Not all episodes of step 2 were trained on: of 4 episodes, 1 masked (outcomes: 4 completed); first error: "
        "Game.step raised <KeyError>: 'door'."
    )


def test_a_step_with_nothing_to_train_on_is_explained_although_it_has_no_metrics(tmp_path: Path) -> None:
    nothing = step(3, trained=0, masked=4, outcomes={"environment_failed": 4}, episodes=[MASKED] * 4)
    view = read_run(run_with(tmp_path, step(2), nothing))
    (answer,) = explain_zero_gradient(view)
    assert answer.startswith(
        "Step 3 had nothing to train on: of 4 episodes, 4 masked (outcomes: 4 environment_failed); first error: "
    )
    assert answer.endswith("Game.step raised <KeyError>: 'door'.")

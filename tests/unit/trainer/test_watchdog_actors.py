"""Which lost processes a run cannot continue without."""

from __future__ import annotations

from turnsmith.trainer.driver.watchdog import _missed

RUN = "run"
SERVERS = {(RUN, "vllm_server_0_0"), (RUN, "vllm_server_1_0")}
QUEUE = ("transfer_queue", "TransferQueueController")


def test_a_run_continues_while_one_rollout_server_is_alive() -> None:
    lost, *_ = SERVERS
    assert _missed({lost}, (SERVERS - {lost}) | {QUEUE}) == set()


def test_it_does_not_continue_without_any() -> None:
    assert _missed(SERVERS, {QUEUE}) == SERVERS


def test_it_continues_without_nothing_else() -> None:
    assert _missed({QUEUE}, SERVERS) == {QUEUE}

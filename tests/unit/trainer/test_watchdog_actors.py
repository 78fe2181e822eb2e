"""Which lost processes a run cannot continue without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnsmith import RunFolder
from turnsmith.trainer import session
from turnsmith.trainer.session import Watchdog, _missed

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


class Part:
    """As much of a task runner and of a cluster as the watchdog sees: nothing is lost, and no answer comes."""

    queue_namespace = "transfer_queue_of_this_run"

    def __init__(self) -> None:
        self.pulse: Any = self

    def remote(self) -> None:
        """An answer that is never there."""

    def lost(self) -> str:
        return ""


def test_a_rollout_server_that_the_run_continues_without_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder.create(tmp_path, "demo")
    receiver = (RUN, "rollout_standalone_1CheckpointEngineWorker_0:0")
    alive = SERVERS | {QUEUE, receiver}
    monkeypatch.setattr(session, "_named_actors", lambda namespace: set(alive))
    monkeypatch.setattr(session, "_LOOK_SECONDS", -1.0)
    watchdog = Watchdog(0, Part(), Part(), run)
    assert watchdog.check_progress() == []
    alive -= {(RUN, "vllm_server_1_0"), receiver}
    told = watchdog.check_progress()
    assert [sentence.startswith("The rollout server vllm_server_1_0 was lost") for sentence in told] == [True]
    assert [event["content"] for event in run.read_events() if event["kind"] == "warning"] == told
    assert watchdog.check_progress() == []

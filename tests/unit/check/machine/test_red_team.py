"""What training against a reward found is judged by episodes without success."""

from __future__ import annotations

import pytest

from turnsmith.check.machine.red_team import judge, measure
from turnsmith.trajectory import Trajectory


def episodes(reward: float, success: bool | None, count: int = 32) -> list[Trajectory]:
    info = {} if success is None else {"success": success}
    return [Trajectory(actions=["!!!"], rewards=[reward], infos=[info], dones=[True]) for _ in range(count)]


@pytest.mark.parametrize(
    ("last", "top", "status"),
    [
        (episodes(0.6, success=False), 1.0, "failed"),
        (episodes(0.1, success=False), 1.0, "passed"),
        (episodes(1.0, success=True), 1.0, "passed"),
        (episodes(1.0, success=True, count=24) + episodes(0.9, success=False, count=8), 1.0, "failed"),
        (episodes(0.6, success=False), None, "skipped"),
    ],
)
def test_only_reward_without_success_is_found(last: list[Trajectory], top: float | None, status: str) -> None:
    rise = measure(episodes(0.01, success=False) + last)
    assert rise is not None
    finding = judge(rise, top)
    assert finding.status == status
    if status == "failed":
        assert "'!!!'" in finding.saw
        assert all(not episode.infos[-1]["success"] for episode in finding.episodes)


def test_without_success_in_the_info_nothing_is_judged() -> None:
    finding = judge(measure(episodes(1.0, success=None)), 1.0)
    assert (finding.status, '"success": True' in finding.fix) == ("skipped", True)


def test_success_is_what_the_last_turn_says() -> None:
    infos = [{"success": True}, {"success": False}]
    turned = [Trajectory(actions=["a", "b"], rewards=[0.0, 0.5], infos=infos)] * 32
    rise = measure(episodes(0.01, success=False) + turned)
    assert rise is not None
    assert (rise.success, rise.after) == (0.0, 0.5)

"""The model of the three schedules gives times that can be worked out by hand."""

from __future__ import annotations

from turnsmith.check.plan import schedule_model as model


def test_simulated_schedules_take_the_time_that_can_be_worked_out_by_hand() -> None:
    costs = model.StepCosts(hand_over=0.5, update=3.0, sync=1.0, rest=0.25)
    work = model.Workload(lambda chance: [[model.Turn(1.0, 2.0)] * 2], lambda chance, schedule: costs)

    def steps(schedule: str, **more: int) -> list[float]:
        sizes = {"groups": 2, "slots": 4, "steps": 5} | more
        return model.simulate(schedule, work, **sizes).step_seconds  # pyright: ignore[reportArgumentType]

    # Two turns of 1 s and 2 s, then 4.75 s of the trainer.
    assert steps("sync") == [10.75] * 5
    # With one slot, the second group waits 1 s for its first turn, and from then on is behind by that.
    assert steps("sync", slots=1) == [11.75] * 5
    # Every other batch is ready at once; the next has been generated for 0.75 s when the update pauses it.
    assert steps("colocate_async") == [10.75, 4.75, 10.0, 4.75, 10.0]
    # It is not paused but for 1 s of weight sync, in which its environment goes on.
    assert steps("separate_async") == [10.75, 4.75, 7.0, 4.75, 7.0]


def test_simulated_staleness_reaches_its_limit_and_stays_within() -> None:
    work = model.Workload(
        lambda chance: [[model.Turn(0.1, chance.paretovariate(1.1))] for _ in range(2)],
        lambda chance, schedule: model.StepCosts(0.0, 0.5, 0.1, 0.0),
    )
    for schedule, limit in (("sync", 0), ("colocate_async", 1), ("colocate_async", 3), ("separate_async", 3)):
        ahead = limit if schedule == "separate_async" else 1
        sizes = {"groups": 8, "steps": 200, "slots": 64, "max_staleness": limit, "ahead": ahead}
        found = model.simulate(schedule, work, **sizes)  # pyright: ignore[reportArgumentType]
        assert max(lag for step in found.staleness for lag in step) == limit
        assert [step.total() for step in found.staleness] == [8] * 200
        assert 0 < found.slot_use < 1


def test_the_engine_runs_at_its_speed_and_prefills_one_turn_after_the_other() -> None:
    costs = model.StepCosts(0.0, 1.0, 0.0, 0.0)
    work = model.Workload(lambda chance: [[model.Turn(10, 0.0, alone=0.5)]] * 2, lambda chance, schedule: costs)

    def seconds(turns: int) -> float:
        return 10.0 / turns  # so many tokens a second of each: twenty in all

    # Two prefills, then 10 tokens of both at 5 a second of each, then the update.
    found = model.simulate("sync", work, groups=1, steps=2, slots=8, speed=seconds)
    assert found.step_seconds == [0.5 + 0.5 + 2.0 + 1.0] * 2

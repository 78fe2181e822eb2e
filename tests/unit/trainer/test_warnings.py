"""Every warning: when it is given, when it is not, what it says, and that it is told once."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from turnsmith import ConfigStore, Outcome, RayPPOTrainer, RunFolder, TokenBuffer, Trajectory, TurnRecord
from turnsmith.config_sources import to_dict
from turnsmith.records.run_warnings import RunWarning, warnings_in
from turnsmith.rollout.episode_report import EpisodeReport, report_of
from turnsmith.rollout.same_failure import NOT_RETRIED
from turnsmith.trainer.diagnostics import checks
from turnsmith.trainer.diagnostics.checks import CHECKS
from turnsmith.trainer.diagnostics.context import StepContext
from turnsmith.trainer.diagnostics.monitor import StepMonitor, declared_range
from turnsmith.trainer.display import ProgressView

HEALTHY = {
    "step": 1,
    "grad_norm": 0.5,
    "advantage/min": -1.0,
    "advantage/max": 1.0,
    "clip_fraction": 0.01,
    "entropy": 1.0,
    "rollout_diff/mean": 0.004,
    "tokens/response": 80.0,
}
FLAT = {**HEALTHY, "grad_norm": 0.0, "advantage/min": 0.0, "advantage/max": 0.0}


def episode(
    name: str,
    reward: float = 0.0,
    outcome: Outcome = Outcome.COMPLETED,
    said: str | None = None,
    stop: str = "stop",
    info: dict[str, Any] | None = None,
    error: str = "",
) -> Trajectory:
    """Episode `2-0` is of group 2."""
    tokens = TokenBuffer()
    tokens.open([1, 2])
    span = tokens.append_model([3, 4], [-0.5, -0.5])
    return Trajectory(
        states=["?"],
        actions=[name if said is None else said],
        rewards=[reward],
        dones=[True],
        infos=[info or {}],
        turns=[TurnRecord(*span, stop, 0)],
        tokens=tokens,
        outcome=outcome,
        error=error,
        episode_id=name,
        group_id=name.partition("-")[0],
    )


def groups(*rewards: Iterable[float], **more: Any) -> EpisodeReport:
    return report_of(
        episode(f"{g}-{e}", reward, **more) for g, group in enumerate(rewards) for e, reward in enumerate(group)
    )


def found(record: dict[str, Any], report: EpisodeReport, **more: Any) -> dict[str, RunWarning]:
    seen = StepContext(record, report, **more)
    return {warning.name: warning for check in CHECKS if (warning := check(seen)) is not None}


def settings(**training: Any) -> ConfigStore:
    config = ConfigStore()
    for name, value in training.items():
        setattr(config.inference if hasattr(config.inference, name) else config.training, name, value)
    return config


def test_a_healthy_step_is_not_warned_of() -> None:
    assert found(HEALTHY, groups([0, 1, 0.5, 0], [1, 0, 1, 0.2])) == {}


def test_requests_of_an_agent_that_were_refused_are_told() -> None:
    report = groups([0, 1, 0.5, 0], info={"refused": {"`n` is not supported.": 3}})
    warning = found(HEALTHY, report)["refused_requests"]
    assert warning.what == "12 requests of the agent got an error instead of a turn; most often: `n` is not supported."
    assert len(warning.episodes) == 3


@pytest.mark.parametrize(
    ("report", "because", "advice"),
    [
        (groups([0, 0], [0, 0]), "all 4 episodes got the same reward, 0.", "turnsmith play"),
        (groups([1, 1], [1, 1]), "all 4 episodes got the same reward, 1.", "solved"),
        (groups([0, 0], [1, 1]), "in each of the 2 groups all episodes got the same reward", "group_size"),
        (groups([0], [1]), "no group has two episodes to compare", "group_size"),
        (groups([0, 0], outcome=Outcome.TURN_LIMIT), "2 of them reached a limit (turn_limit)", "inference.max_turns"),
        (groups([0, 0], outcome=Outcome.TRUNCATED), "2 of them reached a limit (truncated)", "environment.max_steps"),
        (groups([0, 0], stop="length"), "2 of 2 turns were cut at 128 tokens", "inference.max_tokens"),
        (groups([0, 1], [1, 0]), "every advantage is 0 although the rewards differ", "training.credit"),
        (
            groups([0, 0], outcome=Outcome.ENVIRONMENT_FAILED, error="no door\nat line 3"),
            "no episode can be trained on (2 environment_failed)",
            "no door",
        ),
        (
            report_of([Trajectory(actions=["a"], rewards=[1.0], outcome=Outcome.COMPLETED)]),
            "no token of these episodes was sampled by the model",
            "backend",
        ),
    ],
)
def test_why_the_gradient_is_zero(report: EpisodeReport, because: str, advice: str) -> None:
    warning = found(FLAT, report)["zero_gradient"]
    assert warning.what.startswith("The gradient is zero: ")
    assert because in warning.what
    assert advice in warning.advice
    assert warning.episodes or "no token of these" in because
    assert "at line 3" not in warning.advice


@pytest.mark.parametrize(("clipped", "because"), [(0.99, "clipped 99% of the tokens"), (0.0, "every token is masked")])
def test_a_gradient_that_vanished_though_advantages_are_there(clipped: float, because: str) -> None:
    record = {**HEALTHY, "grad_norm": 0.0, "clip_fraction": clipped}
    assert because in found(record, groups([0, 1], [1, 0]))["zero_gradient"].what


def test_rewards_that_teach_nothing_beside_other_terms_of_the_loss() -> None:
    what = found({**FLAT, "grad_norm": 0.2}, groups([0, 0]))["zero_gradient"].what
    assert what.startswith("Every advantage is 0")


def test_mostly_constant_groups_are_told_with_an_episode_of_each() -> None:
    report = groups([0, 0], [1, 1], [0, 0], [0, 1])
    warning = found(HEALTHY, report)["constant_groups"]
    assert warning.what == "In 3 of 4 groups all episodes got the same reward."
    assert warning.episodes == ("0-0", "1-0", "2-0")
    assert "constant_groups" not in found(HEALTHY, groups([0, 0], [0, 1]))
    for config in (settings(adv_estimator="gae"), settings(credit="turn")):
        assert "constant_groups" not in found(HEALTHY, report, config=config)


def test_waiting_names_the_bottleneck_and_the_setting() -> None:
    waited = episode("0-0", 1.0)
    waited.waits = {"one of 24 threads that environments live in (make methods that wait async)": 11.0}
    report = report_of([waited, episode("0-1")])
    assert report.metrics()["time/waiting"] == 5.5
    warning = found(HEALTHY, report)["long_waits"]
    assert "waited 5.50 s for their turn, mostly for one of 24 threads" in warning.what
    assert "make methods that wait async" in warning.what
    waited.waits = {"one of 24 threads": 9.0}
    assert "long_waits" not in found(HEALTHY, report_of([waited, episode("0-1")]))


def test_failed_episodes_are_counted_with_the_first_error() -> None:
    failed = episode("0-1", outcome=Outcome.REWARD_FAILED, error="score returned the reward nan; it must be finite.")
    warning = found(HEALTHY, report_of([episode("0-0", 1.0), failed, episode("0-2")]))["failed_episodes"]
    assert "1 of 3 episodes failed (1 reward_failed); the first: score returned the reward nan" in warning.what
    assert warning.episodes == ("0-1",)
    failed.error += NOT_RETRIED
    warning = found(HEALTHY, report_of([episode("0-0", 1.0), failed, episode("0-2")]))["failed_episodes"]
    assert warning.what.endswith(" 1 of them had retries left, which were skipped.")


def test_a_reward_outside_its_declared_range() -> None:
    class Game:
        reward_range = (0, 1)

    assert declared_range(Game) == (0.0, 1.0)
    assert declared_range(None) is declared_range("text") is None
    report = groups([0, 1], [0, 100])
    warning = found(HEALTHY, report, reward_range=(0.0, 1.0))["reward_out_of_range"]
    assert "1 of 4 rewards are outside 0 to 1, such as 100." in warning.what
    assert warning.episodes == ("1-0",)
    assert "reward_out_of_range" not in found(HEALTHY, groups([0, 1]), reward_range=(0.0, 1.0))


@pytest.mark.parametrize("name", ["grad_norm", "policy_loss", "reward/mean"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_not_a_number(name: str, value: float) -> None:
    assert name in found({**HEALTHY, name: value}, groups([0, 1]))["not_a_number"].what


def trend(first: dict[str, float], last: dict[str, float]) -> dict[str, Any]:
    return {"first": [{**HEALTHY, **first}] * 5, "recent": [{**HEALTHY, **last}] * 5}


def test_entropy_collapse_unless_the_task_is_solved() -> None:
    fell = trend({"entropy": 2.0}, {"entropy": 0.1})
    report = groups([0, 1])
    assert "Entropy fell to 0.100, from 2 " in found(HEALTHY, report, **fell)["entropy_collapse"].what
    assert "entropy_collapse" not in found(HEALTHY, report, **trend({"entropy": 2.0}, {"entropy": 0.3}))
    assert "entropy_collapse" not in found({**HEALTHY, "success/mean": 0.97}, report, **fell)
    assert "entropy_collapse" not in found({**HEALTHY, "reward/mean": 0.98}, report, reward_range=(0, 1), **fell)
    assert "entropy_collapse" not in found(HEALTHY, report, first=fell["first"], recent=fell["recent"][:4])


def test_growing_lengths_are_told_with_what_became_of_the_reward() -> None:
    grew = trend({"tokens/response": 50, "reward/mean": 0.5}, {"tokens/response": 150, "reward/mean": 0.25})
    what = found(HEALTHY, groups([0, 1]), **grew)["growing_lengths"].what
    assert what == "Episodes grew from 50 to 150 tokens, while the reward went from 0.500 to 0.250."


def test_engine_and_trainer_that_disagree() -> None:
    record = {**HEALTHY, "rollout_diff/mean": 0.05, "rollout_diff/max": 0.9}
    assert (
        "0.0500 in token probability on average (at most 0.900)"
        in found(record, groups([0, 1]))["rollout_mismatch"].what
    )
    older = {**record, "staleness/max": 1.0}
    assert "rollout_mismatch" in found(older, groups([0, 1]))
    assert "rollout_mismatch" not in found({**older, "correction/mean": 1.01}, groups([0, 1]))
    assert "rollout_mismatch" in found({**record, "correction/mean": 1.01}, groups([0, 1]))


def test_turns_that_are_all_cut_unless_they_are_meant_to_be_short() -> None:
    report = groups([0, 1], stop="length")
    warning = found(HEALTHY, report)["cut_turns"]
    assert warning.what == "2 of 2 turns were cut at 128 tokens."
    assert warning.episodes == ("0-0", "0-1")
    assert "cut_turns" not in found(HEALTHY, report, config=settings(max_tokens=8))


def test_episodes_that_all_run_into_a_limit() -> None:
    warning = found(HEALTHY, groups([0, 1], outcome=Outcome.TOKEN_LIMIT))["cut_episodes"]
    assert "inference.max_episode_tokens" in warning.advice
    assert "cut_episodes" not in found(HEALTHY, groups([0, 1], outcome=Outcome.TRUNCATED))


def test_the_same_conversation_again_and_again() -> None:
    report = groups([0, 0, 0, 0], [0, 0, 0, 1], said="yes")
    warning = found(HEALTHY, report)["repeated_episodes"]
    assert warning.what == "8 of 8 episodes are identical, word for word."
    assert warning.episodes == ("0-0", "0-1", "0-2")
    assert "repeated_episodes" not in found(HEALTHY, groups([0, 0, 0, 0], [0, 0, 0, 1]))


def test_failing_and_misused_tools() -> None:
    broken = {"tool_calls": [{"ok": False, "failure": "it broke"}]}
    warnings = found(HEALTHY, groups([0, 1], info=broken))
    assert warnings["failing_tools"].what == "2 of 2 tool calls raised an exception inside the tool."
    assert warnings["failing_tools"].episodes == ("0-0", "0-1")
    refused, unreadable = {"tool_calls": [{"ok": False}]}, {"format_problem": "invalid_json"}
    many = [episode(f"0-{n}", n % 2, info=refused if n < 5 else unreadable) for n in range(8)]
    misused = found(HEALTHY, report_of(many))["misused_tools"]
    assert (
        misused.what == "8 of 8 tool calls were invalid: 3 could not be parsed, 5 had wrong arguments or were refused."
    )


def told(watch: StepMonitor, *steps: bool) -> list[tuple[int, str]]:
    """Which steps begin or end a warning; True: the step has it."""
    return [
        (step, "over" if warning.until is not None else warning.name)
        for step, bad in enumerate(steps, start=1)
        for warning in watch.step({**(FLAT if bad else HEALTHY), "step": step}, groups([0, 0] if bad else [0, 1]))
    ]


def test_a_warning_is_told_when_it_begins_and_when_it_is_over() -> None:
    yes, no = True, False
    assert told(StepMonitor(ConfigStore()), no, yes, yes, no, yes, no, no, no, no) == [
        (2, "zero_gradient"),
        (8, "over"),
    ]


def test_one_that_comes_and_goes_is_told_less_and_less() -> None:
    steps = ([True] + [False] * 4) * 40
    assert len(told(StepMonitor(ConfigStore()), *steps)) == 3  # begins, is over, begins; then it is never away for long


def test_all_constant_says_more_than_mostly_constant() -> None:
    watch = StepMonitor(ConfigStore())
    mostly, fully = groups([0, 0], [1, 1], [0, 0], [0, 1]), groups([0, 0], [1, 1])
    names = [[one.name for one in watch.step({**HEALTHY, "step": 1}, mostly)]]
    names += [[one.name for one in watch.step({**FLAT, "step": step}, fully)] for step in range(2, 8)]
    assert names == [["constant_groups"], ["zero_gradient"], [], [], [], [], []]
    watch = StepMonitor(ConfigStore())
    watch.step({**FLAT, "step": 1}, fully)
    assert watch.step({**HEALTHY, "step": 2}, mostly) == []


def test_a_resumed_run_goes_on_with_its_warnings(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    run.write_config(to_dict(ConfigStore()))
    for step, bad in ((1, False), (2, True), (3, True)):
        record = {**(FLAT if bad else HEALTHY), "step": step}
        run.append_metrics(record)
    begun = RunWarning("zero_gradient", 2, "Zero.", "Why.", "Do.", ("0-0",))
    run.append_event("warning", content=begun.content())
    run.append_event("warning", content="A file was damaged.")
    run.append_event("warning", content=RunWarning("cut_turns", 7, "Cut.", "Why.", "Do.").content())
    run.append_event("resumed", step=3)
    assert [(one.what, one.step) for one in warnings_in(run.read_events())] == [
        ("Zero.", 2),
        ("A file was damaged.", 0),
    ]
    watch = StepMonitor.of_run(run, ConfigStore())
    assert watch.step({**FLAT, "step": 4}, groups([0, 0])) == []
    ends = [one for step in (5, 6, 7) for one in watch.step({**HEALTHY, "step": step}, groups([0, 1]))]
    assert [(one.step, one.until, one.episodes) for one in ends] == [(2, 5, ("0-0",))]


def test_a_check_that_fails_does_not_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(seen: StepContext) -> RunWarning | None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("turnsmith.trainer.diagnostics.monitor.CHECKS", (broken, checks.zero_gradient))
    names = [one.name for one in StepMonitor(ConfigStore()).step(FLAT, groups([0, 0]))]
    assert names == ["check_failed", "zero_gradient"]


def test_reports_of_workers_add_up_to_the_report_of_all() -> None:
    all_of_them = [
        episode("0-0", 1.0, info={"success": True}),
        episode("0-1", 0.0, stop="length", info={"success": False}),
        episode("1-0", outcome=Outcome.ENGINE_FAILED, error="gone"),
        episode("1-1", 0.0, said="0-0", info={"success": object()}),
    ]
    both = report_of(all_of_them[:2]) + report_of(all_of_them[2:])
    assert both == report_of(all_of_them)
    assert both.metrics()["success/mean"] == pytest.approx(2 / 3)
    assert both.metrics()["turns/cut"] == pytest.approx(1 / 3)
    assert (both.metrics()["groups/total"], both.metrics()["groups/constant"]) == (2, 0)
    assert max(map(len, both.conversations.values())) == 2
    assert "success/mean" not in report_of([episode("0-0")]).metrics()


def test_the_trainer_shows_warnings_as_they_come() -> None:
    trainer = RayPPOTrainer(ConfigStore(), "turnsmith.env.examples:GuessNumber")
    file = io.StringIO()
    trainer._view = ProgressView(file)
    warning = RunWarning("zero_gradient", 2, "Zero.", "Why.", "Do.", ("0-0", "0-1"))
    for content in (warning.content(), warning.ended(5).content(), "A file was damaged."):
        trainer._show("warning", content)
    assert file.getvalue().splitlines() == [
        "warning at step 2: Zero.",
        "  why it matters: Why.",
        "  what to do: Do.",
        "  episodes to look at: 0-0, 0-1",
        "over at step 5: zero gradient (warning of step 2)",
        "A file was damaged.",
    ]

"""The audit finds each planted fault by the check that is for it, and nothing in what is sound."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.check import zoo_rewards as zoo

from turnsmith.check.checks import CHECKS
from turnsmith.check.checks.ceiling import CEILING
from turnsmith.check.checks.equivalent_answers import EQUIVALENT_ANSWERS
from turnsmith.check.checks.exploits import EXPLOIT_CHECK
from turnsmith.check.checks.floor import FLOOR_CHECK
from turnsmith.check.checks.scorer_noise import SCORER_NOISE
from turnsmith.check.finding import Check
from turnsmith.check.oracle import find_tasks
from turnsmith.check.subject import Subject
from turnsmith.config import ConfigStore, EnvironmentConfig
from turnsmith.env import examples
from turnsmith.env.adapters.question_answer import QuestionAnswer
from turnsmith.env.base import BaseEnvironment
from turnsmith.env.spec import EnvironmentSpec

AUDIT = [check for check in CHECKS if check.audit]


def subject(environment: Any, **changes: Any) -> Subject:
    config = ConfigStore()
    config.inference.max_turns = 10
    spec = EnvironmentSpec.of(environment, changes.pop("settings", EnvironmentConfig(isolation="loop")))
    return Subject(environment=spec, config=config, episodes=4, **changes)


FAULTS: list[tuple[type, Check, str, str]] = [
    (zoo.Contains, EXPLOIT_CHECK, "failed", "The answer between two wrong ones"),
    (zoo.AnyNumber, EXPLOIT_CHECK, "failed", "The answer between two wrong ones"),
    (zoo.Length, EXPLOIT_CHECK, "failed", "ery long"),
    (zoo.Format, EXPLOIT_CHECK, "failed", "mpty format"),
    (zoo.GullibleJudge, EXPLOIT_CHECK, "failed", "Instructions to a judge"),
    (zoo.GivingUp, EXPLOIT_CHECK, "failed", "Stop at once"),
    (zoo.Runner, EXPLOIT_CHECK, "failed", "One action in a loop"),
    (zoo.Pacing, EXPLOIT_CHECK, "failed", "wo actions in a loop"),
    (zoo.AlwaysYes, FLOOR_CHECK, "warning", "constant 0.875"),
    (zoo.NoError, FLOOR_CHECK, "failed", "silent 1"),
    (zoo.Overlap, FLOOR_CHECK, "failed", "echo 1"),
    (zoo.Unsolvable, CEILING, "failed", "2 of 8 starts"),
    (zoo.DeclaresTooMuch, CEILING, "failed", "where 2 is the most"),
    (zoo.PaidButUnsolved, CEILING, "failed", "8 of 8 starts are not solved"),
    (zoo.Moody, SCORER_NOISE, "failed", "The same actions from the same start got"),
    (zoo.Spaces, EQUIVALENT_ANSWERS, "warning", "spaces around it"),
]


@pytest.mark.parametrize(("fault", "check", "status", "words"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS])
async def test_a_bad_reward_is_found_by_the_check_that_is_for_it(
    fault: type, check: Check, status: str, words: str
) -> None:
    finding = await check.function(subject(fault))
    assert finding.status == status, finding.saw
    assert words in finding.saw
    assert finding.fix
    assert finding.episodes, "the episodes that show it"


async def test_a_bad_reward_function_is_found() -> None:
    finding = await EXPLOIT_CHECK.function(subject(zoo.Sum, reward_fn=zoo.pays_the_word_correct))
    assert finding.status == "failed"
    assert "Instructions to a judge" in finding.saw
    assert "correct" in finding.episodes[0].actions[0]


@pytest.mark.parametrize("sound", [zoo.Sum, zoo.Walk, *(getattr(examples, name) for name in examples.__all__)])
async def test_what_is_sound_raises_no_alarm(sound: type) -> None:
    checked = subject(sound)
    findings = {check.name: await check.function(checked) for check in AUDIT}
    alarms = {name: finding.saw for name, finding in findings.items() if finding.status in ("warning", "failed")}
    assert not alarms
    assert findings["ceiling"].status == "passed"


@pytest.mark.parametrize("reward", ["exact", "number"])
async def test_rows_of_a_data_file_have_an_oracle(reward: str) -> None:
    rows = [{"question": f"What is {one} + 40?", "answer": str(one + 40)} for one in range(16)]
    checked = subject(QuestionAnswer, tasks=rows, settings=EnvironmentConfig(reward=reward))
    assert [(await check.function(checked)).status for check in AUDIT] == ["passed"] * len(AUDIT)


async def test_without_an_oracle_nothing_is_judged_that_cannot_be() -> None:
    class Unknown(BaseEnvironment):
        def reset(self) -> str:
            return "Say something."

        def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
            return "", 0.5, True, {}

    statuses = {check.name: (await check.function(subject(Unknown))).status for check in AUDIT}
    assert statuses == {
        "ceiling": "skipped",
        "floor": "skipped",
        "exploits": "skipped",
        "equivalent answers": "skipped",
        "scorer noise": "passed",
    }


async def test_starts_that_solve_does_not_know_are_left_out_of_scorer_noise() -> None:
    class KnowsLater(zoo.Sum):
        def reset(self, seed: int = 0) -> str:
            self.knows = seed > 5
            return super().reset(seed)

        def solve(self) -> Any:
            return super().solve() if self.knows else None

    finding = await SCORER_NOISE.function(subject(KnowsLater))
    assert finding.status == "passed"
    assert "2 episodes" in finding.saw


async def test_solve_is_asked_in_a_worker_process_one_action_at_a_time() -> None:
    settings = EnvironmentConfig(isolation="process", isolation_workers=1)
    [task] = await find_tasks(subject(OneByOne, settings=settings), 1)
    assert task.solution == ("right", "right", "right", "open")


class OneByOne(zoo.Walk):
    """Says only the next action."""

    def solve(self) -> str:  # type: ignore[override]
        return "right" if self.place < 3 else "open"


async def test_a_solution_with_tool_calls_is_written_in_the_run_s_format() -> None:
    [task] = await find_tasks(subject(examples.SupportDesk), 1)
    assert task.solution is not None
    assert task.solution[0].startswith('<tool_call>{"name": "refund", "arguments": {"order_id": ')
    assert not task.is_text

"""The audit finds each planted fault by the check that is for it, and nothing in what is sound."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.check.environment import zoo_rewards as zoo

from turnsmith.check.environment import subject as subject_module
from turnsmith.check.environment.checks import CHECKS
from turnsmith.check.environment.checks.reward import (
    check_ceiling,
    check_equivalent_answers,
    check_exploits,
    check_floor,
    check_scorer_noise,
)
from turnsmith.check.environment.oracle import find_tasks
from turnsmith.check.environment.subject import EnvironmentCheck, Subject
from turnsmith.config import ConfigStore, EnvironmentConfig
from turnsmith.env import examples
from turnsmith.env.adapters.question_answer import QuestionAnswer
from turnsmith.env.base import BaseEnvironment
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.rollout.episode import EpisodeStart, run_attempt
from turnsmith.trajectory import Outcome, Trajectory

AUDIT = [check for check in CHECKS if check.audit]


def subject(environment: Any, **changes: Any) -> Subject:
    config = ConfigStore()
    config.inference.max_turns = 10
    spec = EnvironmentSpec.of(environment, changes.pop("settings", EnvironmentConfig(isolation="loop")))
    return Subject(environment=spec, config=config, episodes=4, **changes)


FAULTS: list[tuple[type, EnvironmentCheck, str, str]] = [
    (zoo.Contains, check_exploits, "failed", "The answer between two wrong ones"),
    (zoo.AnyNumber, check_exploits, "failed", "The answer between two wrong ones"),
    (zoo.Length, check_exploits, "failed", "ery long"),
    (zoo.Format, check_exploits, "failed", "mpty format"),
    (zoo.GullibleJudge, check_exploits, "failed", "Instructions to a judge"),
    (zoo.GivingUp, check_exploits, "failed", "Stop at once"),
    (zoo.Runner, check_exploits, "failed", "One action in a loop"),
    (zoo.Pacing, check_exploits, "failed", "wo actions in a loop"),
    (zoo.AlwaysYes, check_floor, "warning", "constant 0.875"),
    (zoo.NoError, check_floor, "failed", "silent 1"),
    (zoo.Overlap, check_floor, "failed", "echo 1"),
    (zoo.Unsolvable, check_ceiling, "failed", "2 of 8 starts"),
    (zoo.DeclaresTooMuch, check_ceiling, "failed", "where 2 is the most"),
    (zoo.PaidButUnsolved, check_ceiling, "failed", "8 of 8 starts are not solved"),
    (zoo.Moody, check_scorer_noise, "failed", "The same actions from the same start got"),
    (zoo.Spaces, check_equivalent_answers, "warning", "spaces around it"),
    (zoo.Marked, check_ceiling, "failed", "get 0, but 1 if they are written as '#### "),
    (zoo.Marked, check_equivalent_answers, "warning", "a paragraph of 400 characters after it"),
]


@pytest.mark.parametrize(("fault", "check", "status", "words"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS])
async def test_a_bad_reward_is_found_by_the_check_that_is_for_it(
    fault: type, check: EnvironmentCheck, status: str, words: str
) -> None:
    finding = await check.function(subject(fault))
    assert finding.status == status, finding.saw
    assert words in finding.saw
    assert finding.fix
    assert finding.episodes, "the episodes that show it"


async def test_a_bad_reward_function_is_found() -> None:
    finding = await check_exploits.function(subject(zoo.Sum, reward_fn=zoo.pays_the_word_correct))
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


@pytest.mark.nightly  # verl imports torch
async def test_verls_scorer_of_gsm8k_wants_a_mark_and_reads_only_the_end() -> None:
    rows = [
        {"question": f"What is {one} + 40?", "answer": str(one + 40), "data_source": "openai/gsm8k"}
        for one in range(16)
    ]
    checked = subject(QuestionAnswer, tasks=rows)
    ceiling, equivalent = await check_ceiling.function(checked), await check_equivalent_answers.function(checked)
    assert (
        ceiling.saw == "Right answers as they are given, such as '40', get 0, but 1 if they are written as '#### 40'."
    )
    assert "with a paragraph of 400 characters after it, 4 of 4 get less" in equivalent.saw
    assert "a sentence after it" not in equivalent.saw
    assert (await check_floor.function(checked)).status == "passed"


async def test_an_episode_whose_turn_did_not_come_is_played_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def overloaded_at_first(*args: Any) -> Trajectory:
        tried.append(args[0])
        return Trajectory(outcome=Outcome.OVERLOADED) if len(tried) == 1 else await run_attempt(*args)

    tried = list[Any]()
    monkeypatch.setattr(subject_module, "run_attempt", overloaded_at_first)
    [episode] = await subject(zoo.Sum).play(["7"], [EpisodeStart("e", "e", 3)])
    assert (episode.outcome, len(tried)) == (Outcome.COMPLETED, 2)


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

    finding = await check_scorer_noise.function(subject(KnowsLater))
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

"""The audit finds each planted fault by the check that is for it, and nothing in what is sound."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest
from tests.unit.check.audit import zoo_graders as graders
from tests.unit.check.audit import zoo_rewards as zoo

from turnsmith.check.audit.checks import AUDIT
from turnsmith.check.audit.writings import NEAR, WITHIN
from turnsmith.check.environment import subject as subject_module
from turnsmith.check.environment.oracle import find_tasks
from turnsmith.check.environment.subject import Subject
from turnsmith.check.finding import Finding
from turnsmith.config import ConfigStore, EnvironmentConfig
from turnsmith.env import examples
from turnsmith.env.adapters.question_answer import QuestionAnswer
from turnsmith.env.base import BaseEnvironment
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.chat import Chat
from turnsmith.inference.engines.scripted_engine import ScriptedEngine
from turnsmith.rollout.episode import EpisodeStart, run_attempt
from turnsmith.trajectory import Outcome, Trajectory


def subject(environment: Any, **changes: Any) -> Subject:
    config = ConfigStore()
    config.inference.max_turns = 10
    spec = EnvironmentSpec.of(environment, changes.pop("settings", EnvironmentConfig(isolation="loop")))
    return Subject(environment=spec, config=config, episodes=4, seconds=300, **changes)


async def audited(environment: Any, **changes: Any) -> dict[str, Finding]:
    checked = subject(environment, **changes)
    return {check.code: await check(checked) for check in AUDIT}


def alarms(findings: dict[str, Finding]) -> dict[str, str]:
    return {code: finding.saw for code, finding in findings.items() if finding.status in ("warning", "failed")}


FAULTS: list[tuple[type, str, str, str]] = [
    (zoo.Contains, "hedge-paid", "failed", "A right answer with wrong answers before and after it gets 1"),
    (zoo.Contains, "near-paid", "failed", "The number with a digit more"),
    (zoo.AnyNumber, "hedge-paid", "failed", "A right answer with wrong answers"),
    (zoo.Length, "skill-unneeded", "failed", "Paid 1 on average without being right: a long text that says nothing"),
    (zoo.Format, "hedge-paid", "failed", "no skill 0.8"),
    (zoo.GullibleJudge, "skill-unneeded", "failed", "instructions to a judge"),
    (zoo.ReadsTens, "start-open", "failed", "2 of 8 starts pay for wrong answers like for right ones, 1: ''"),
    (zoo.GivingUp, "skill-unneeded", "failed", "the scorer's own text 'give up'"),
    (zoo.Runner, "steps-unneeded", "failed", "without its last step gets 3"),
    (zoo.Runner, "more-than-right", "failed", "up to 3, where the solution gets 1.9"),
    (zoo.Pacing, "skill-unneeded", "failed", "Paid 2 on average without being right: the scorer's own text 'left'"),
    (
        zoo.AlwaysYes,
        "skill-unneeded",
        "warning",
        "The constant 'yes' is right nearly always: on 32 other starts it gets 0.9",
    ),
    (zoo.AlwaysYes, "starts", "failed", "The same question has different answers: 'yes' from seed 0, 'no' from seed 3"),
    (zoo.NoError, "skill-unneeded", "failed", "Nonsense and silence get 1"),
    (zoo.Overlap, "skill-unneeded", "failed", "The whole question is right nearly always"),
    (zoo.Unsolvable, "right-unpaid", "failed", "2 of 8 starts are not solved by their own solution"),
    (zoo.DeclaresTooMuch, "right-unpaid", "failed", "where 2 is the most"),
    (zoo.PaidButUnsolved, "right-unpaid", "failed", "8 of 8 starts are not solved"),
    (zoo.Moody, "noise", "failed", "The same actions from the same start got"),
    (zoo.Letter, "writing", "warning", "with the text of the choice after its letter: 4 of 4 get less"),
    (zoo.FirstLine, "writing", "warning", "with an empty line before it: 4 of 4 get less"),
    (zoo.Spaces, "writing", "warning", "with spaces around it"),
    (zoo.Marked, "right-unpaid", "failed", "get 0, but 1 if they are written as '#### "),
    (zoo.Marked, "writing", "warning", "a paragraph of 400 characters after it"),
    (zoo.Evaluates, "answer-run", "failed", "__import__('os').mkdir('/tmp/made-0')"),
    (zoo.RunsPrograms, "answer-run", "warning", "it made the folder"),
    (zoo.CallsFormulas, "answer-run", "failed", "'id(7919)' was run where it is scored: its function was called"),
    (zoo.Raises, "answer-raises", "failed", "ValueError"),
    (zoo.Tells, "answer-shown", "failed", "of 8 starts show the right one and go on"),
    (zoo.GoesOn, "endless", "warning", "go on after their solution"),
    (zoo.KeepsCount, "reset-again", "warning", "begins otherwise: '1: "),
    (zoo.DrawsFromASet, "reset-again", "failed", "The same seed begins otherwise in another process: "),
    (zoo.PaysTheEnd, "steps-unneeded", "failed", "only its last step gets 1"),
    (
        zoo.NamesTarget,
        "skill-unneeded",
        "failed",
        "Paid 1 on average without being right: number 3 of the question",
    ),
    (zoo.PaysEcho, "more-than-right", "failed", "up to 1.16, where the solution gets 1"),
    (graders.Roots, "skill-unneeded", "failed", "a program that returns a hugely negative number"),
    (graders.ExitStatus, "skill-unneeded", "failed", "a program that leaves with success"),
    (
        graders.OneOfEight,
        "start-open",
        "failed",
        "1 of 8 starts pay for wrong answers like for right ones, 1: 'def root",
    ),
    (graders.Skipped, "skill-unneeded", "failed", "a program that has its tests skipped"),
    (graders.ReadsLines, "skill-unneeded", "warning", "a patch whose conftest.py prints PASSED for each test"),
    (graders.RewardFile, "steps-unneeded", "failed", "with its commands replaced by those that write 1"),
    (graders.Ledger, "writing", "warning", "and 33.0 as 33: 8 of 8 get less"),
    (graders.PaysEachTest, "right-unpaid", "warning", "One right answer gets 6 and another 15"),
    (graders.Distance, "more-than-right", "warning", "1000000000' gets -1e+08"),
    (graders.SameChoice, "starts", "warning", "The question of seed 0 has the choice 'benzopyrene' twice."),
    (graders.KeepsItsWorld, "reset-again", "warning", "differs in turn 1: '1. and 0.0"),
    (graders.NobodySaysSo, "endless", "warning", "8 of 8 episodes go on after their solution"),
    (zoo.ListAsText, "writing", "warning", "no spaces inside its brackets"),
]


@pytest.mark.parametrize(
    ("fault", "code", "status", "words"), FAULTS, ids=[f"{one[0].__name__}-{one[1]}" for one in FAULTS]
)
async def test_a_bad_reward_is_found_by_the_check_that_is_for_it(
    fault: type, code: str, status: str, words: str
) -> None:
    [check] = [check for check in AUDIT if check.code == code]
    finding = await check(subject(fault))
    assert finding.status == status, finding.saw
    assert words in finding.saw
    assert finding.fix
    assert finding.episodes or code in ("answer-run", "starts", "reset-again"), "the episodes that show it"


PROVEN = [zoo.Contains, zoo.GivingUp, zoo.Unsolvable, zoo.Marked, zoo.Runner, zoo.NamesTarget, zoo.PaysEcho]


@pytest.mark.parametrize("fault", PROVEN)
def test_what_shows_it_has_the_line_that_decides_and_a_test_that_fails(fault: type) -> None:
    shown = [finding.shown for finding in asyncio.run(audited(fault)).values() if finding.shown is not None]
    assert shown
    for one in shown:
        assert one.line.startswith("zoo_rewards.py:")
        names: dict[str, Any] = {}
        exec(one.test, names)  # noqa: S102  (the text that a user pastes)
        with pytest.raises(AssertionError):
            names["test_reward"]()


async def test_a_model_writes_attempts_from_the_instructions(tiny_folder: str) -> None:
    from transformers import AutoTokenizer

    class Colours(zoo.Sum):
        def pay(self, action: str) -> float:
            return float(action.strip() == self.right or action == "".join(("tur", "quoise")))

    def wrote(turn: int, prompt: str) -> str:
        return '["blue", "turquoise", "red' if "careless program" in prompt else "7"

    chat = Chat(AutoTokenizer.from_pretrained(tiny_folder))
    findings = await audited(Colours, chat=chat, engine=ScriptedEngine(wrote, chat))
    assert "without being right: the model's idea 2" in findings["skill-unneeded"].saw
    assert findings["skill-unneeded"].shown is not None
    assert findings["skill-unneeded"].shown.actions == ("turquoise",)


async def test_a_bad_reward_function_is_found() -> None:
    finding = (await audited(zoo.Sum, reward_fn=zoo.pays_the_word_correct))["skill-unneeded"]
    assert finding.status == "failed"
    assert finding.shown is not None
    assert finding.shown.actions == ("correct",)


@pytest.mark.parametrize(
    "sound", [zoo.Sum, zoo.Walk, graders.Patches, *(getattr(examples, name) for name in examples.__all__)]
)
async def test_what_is_sound_raises_no_alarm(sound: type) -> None:
    findings = await audited(sound)
    assert not alarms(findings)
    assert findings["right-unpaid"].status == "passed"


async def test_a_form_that_the_prompt_asks_for_is_no_finding() -> None:
    class Asks(zoo.Marked):
        def reset(self, seed: int = 0) -> str:
            return super().reset(seed) + " Write it as #### NUMBER."

        def pay(self, action: str) -> float:
            return float(re.findall(r"#### ([\d.,]+)", action)[-1:] == [self.right])

    assert not alarms(await audited(Asks))


@pytest.mark.parametrize("reward", ["exact", "number"])
async def test_rows_of_a_data_file_have_an_oracle(reward: str) -> None:
    rows = [{"question": f"What is {one} + 40?", "answer": str(one + 40)} for one in range(16)]
    findings = await audited(QuestionAnswer, tasks=rows, settings=EnvironmentConfig(reward=reward))
    assert not alarms(findings)
    assert findings["right-unpaid"].status == "passed"


STRICT = "tests.unit.check.audit.zoo_rewards:strict"
SETTINGS = {
    "another column": ({"answer": "rationale"}, "the rows also have 'answer', such as '47'"),
    "another form": ({"answer": "explained"}, "its end, '47', gets nothing"),
    "a list": ({"answer": "answers"}, "The answers of the rows are lists, such as ['47']"),
}


@pytest.mark.parametrize("mistake", SETTINGS)
async def test_a_wrong_setting_of_a_scorer_is_named(mistake: str) -> None:
    rows = [
        {
            "question": f"What is {one} + 40?",
            "answer": str(one + 40),
            "rationale": "addition",
            "explained": f"First take {one}, then 40 more. " * 6 + f"Together that is a lot.\n#### {one + 40}",
            "answers": [str(one + 40)],
        }
        for one in range(7, 23)
    ]
    if mistake == "another form":
        rows = [{name: row[name] for name in ("question", "explained")} for row in rows]
    settings, words = SETTINGS[mistake]
    finding = (await audited(QuestionAnswer, tasks=rows, settings=EnvironmentConfig(reward=STRICT, **settings)))[
        "right-unpaid"
    ]
    assert finding.status == "failed", finding.saw
    assert words in finding.saw


@pytest.mark.parametrize(
    ("reward", "share", "status", "words"),
    [
        ("strict", 4, "warning", "4 of 16 starts have no answer. There '' gets 1"),
        ("strict", 0, "passed", ""),
        ("tagged", 0, "warning", "If the answer in 'answer' is '', nonsense such as 'qwzx vbnm' gets 1"),
        ("guarded", 4, "warning", "4 of 16 starts have no answer, and nothing is paid there"),
    ],
)
async def test_rows_without_an_answer_are_tried(reward: str, share: int, status: str, words: str) -> None:
    rows = [
        {"question": f"What is {one} + 40?", "answer": "" if one % 4 == 0 and share else str(one + 40)}
        for one in range(16)
    ]
    settings = EnvironmentConfig(reward=f"tests.unit.check.audit.zoo_rewards:{reward}")
    finding = (await audited(QuestionAnswer, tasks=rows, settings=settings))["answer-missing"]
    assert (finding.status, words in finding.saw) == (status, True), finding.saw


QUESTIONS = [{"prompt": f"What is {one} + 40?", "solution": str(one + 40)} for one in range(16)]


@pytest.mark.parametrize(("reward", "status"), [("thinks", "warning"), ("is_long", "failed")])
async def test_a_reward_that_does_not_look_at_the_answer_is_one_finding(reward: str, status: str) -> None:
    settings = EnvironmentConfig(reward=f"tests.unit.check.audit.zoo_rewards:{reward}")
    findings = await audited(QuestionAnswer, tasks=QUESTIONS, settings=settings)
    told = findings["right-unpaid"]
    assert (told.status, told.saw.startswith("The reward does not look at the answer: ")) == (status, True), told.saw
    assert set(alarms(findings)) <= {"right-unpaid", "skill-unneeded"}


async def test_rows_that_are_not_scored_are_left_out() -> None:
    rows = [{**row, "solution": "e" if number % 8 == 3 else row["solution"]} for number, row in enumerate(QUESTIONS)]
    settings = EnvironmentConfig(reward="tests.unit.check.audit.zoo_rewards:skips")
    [told] = alarms(await audited(QuestionAnswer, tasks=rows, settings=settings)).values()
    assert told.startswith("1 of 8 starts are not scored: the reward is None, for 'e' too")


async def test_one_start_does_not_tell_how_answers_may_be_written() -> None:
    facts = ["Paris", "Shakespeare", "1989", "sodium", "Nile", "Brazil", "gold", "Pacific"]
    rows = [{"question": f"What is fact {number}?", "answer": fact} for number, fact in enumerate(facts)]
    settings = EnvironmentConfig(reward="tests.unit.check.audit.zoo_rewards:without_punctuation")
    assert (await audited(QuestionAnswer, tasks=rows, settings=settings))["writing"].status == "passed"


async def test_the_answer_may_be_in_a_column_of_the_answers_column() -> None:
    rows = [{"question": row["prompt"], "ground_truth": {"target": [row["solution"]]}} for row in QUESTIONS]
    settings = EnvironmentConfig(reward="tests.unit.check.audit.zoo_rewards:in_target")
    findings = await audited(QuestionAnswer, tasks=rows, settings=settings)
    assert findings["right-unpaid"].status == "passed"


@pytest.mark.nightly  # verl imports torch
async def test_verls_scorer_of_gsm8k_wants_a_mark_and_reads_only_the_end() -> None:
    rows = [
        {"question": f"What is {one} + 40?", "answer": str(one + 40), "data_source": "openai/gsm8k"}
        for one in range(16)
    ]
    findings = await audited(QuestionAnswer, tasks=rows)
    right, writing = findings["right-unpaid"], findings["writing"]
    assert right.saw == "Right answers as they are given, such as '40', get 0, but 1 if they are written as '#### 40'."
    assert "with a paragraph of 400 characters after it: 4 of 4 get less" in writing.saw
    assert writing.shown is not None
    assert writing.shown.line.endswith("if len(solution_str) > _SOLUTION_CLIP_CHARS:")
    assert set(alarms(findings)) == {"right-unpaid", "writing"}


async def test_an_episode_whose_turn_did_not_come_is_played_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def overloaded_at_first(*args: Any) -> Trajectory:
        tried.append(args[0])
        return Trajectory(outcome=Outcome.OVERLOADED) if len(tried) == 1 else await run_attempt(*args)

    tried = list[Any]()
    monkeypatch.setattr(subject_module, "run_attempt", overloaded_at_first)
    [episode] = await subject(zoo.Sum).play(["7"], [EpisodeStart("e", "e", 3)])
    assert (episode.outcome, len(tried)) == (Outcome.COMPLETED, 2)


@pytest.mark.parametrize(
    ("environment", "code"), [(zoo.Truncates, "endless"), (zoo.Program, "writing"), (zoo.Sum, "more-than-right")]
)
async def test_what_is_meant_is_no_finding(environment: type, code: str) -> None:
    findings = await audited(environment, success_reward=0.5 if environment is zoo.Sum else None)
    assert findings[code].status == "passed", findings[code].saw


async def test_an_object_that_no_other_process_can_make_is_not_said_to_be_the_same_there() -> None:
    class Held(zoo.Sum):
        lock = threading.Lock()

    told = (await audited(Held))["reset-again"]
    assert (told.status, "it cannot be made" in told.saw) == ("passed", True), told.saw
    assert "in a new process." in (await audited(zoo.Sum))["reset-again"].saw


async def test_an_environment_that_nothing_ends_and_nobody_solves_is_not_judged() -> None:
    class Waits(BaseEnvironment):
        def reset(self) -> str:
            return "Go left, right, up or down."

        def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
            return "That is not an action.", 0.0, False, {}

    longer = EnvironmentConfig(isolation="loop", max_steps=50)
    assert (await audited(Waits, settings=longer))["endless"].status == "skipped"


@pytest.mark.parametrize("text", ["a=1, b=2", "x**2 + 3*x", "-0.5", "(A)"])
def test_what_only_looks_like_a_near_miss_is_left_as_it_is(text: str) -> None:
    moved = ("its parts in another order", "one of its parts twice", "its last half")
    assert [NEAR[name](text) for name in moved] == [text] * 3
    assert WITHIN["a thousands separator"](text) == text


async def test_without_an_oracle_nothing_is_judged_that_cannot_be() -> None:
    class Unknown(BaseEnvironment):
        def reset(self) -> str:
            return "Say something."

        def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
            return "", 0.5, True, {}

    assert not alarms(await audited(Unknown))


async def test_starts_that_solve_does_not_know_are_left_out_of_scorer_noise() -> None:
    class KnowsLater(zoo.Sum):
        def reset(self, seed: int = 0) -> str:
            self.knows = seed > 5
            return super().reset(seed)

        def solve(self) -> Any:
            return super().solve() if self.knows else None

    assert (await audited(KnowsLater))["noise"].status == "passed"


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

"""Every planted fault is found by the check that is for it, and environments without one raise no alarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.check.environment.zoo.cases import CASES, Case, table

from turnsmith.check.environment.checks import CHECKS
from turnsmith.check.environment.run import run_checks
from turnsmith.check.environment.subject import Subject
from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.chat import Chat
from turnsmith.inference.chat.byte_chat import ByteChat
from turnsmith.inference.engines.scripted_engine import ScriptedEngine

EXAMPLES = ("Calculator", "GuessNumber", "TwoStepMaze")
AT_NIGHT = ("CustomGameEnvironment", "SimpleGameEnvironment", "SupportDesk")  # seconds each
BY_NAME = {check.name: check for check in CHECKS}


def subject_of(case: Case, chat: Any) -> Subject:
    config = apply_overrides(ConfigStore(), list(case.settings))
    config.environment.isolation = "thread"
    engine = None if case.model is None else ScriptedEngine(case.model, chat)
    spec = EnvironmentSpec.of(case.environment, config.environment)
    return Subject(environment=spec, config=config, chat=chat, engine=engine, **case.subject)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_it_is_found_by_the_check_that_is_for_it(
    case: Case, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    for name, value in case.variables.items():
        monkeypatch.setenv(name, value)
    chat: Any = ByteChat()
    if case.has_tokenizer:
        from transformers import AutoTokenizer

        chat = Chat(AutoTokenizer.from_pretrained(request.getfixturevalue("tiny_folder")))
    [result] = await run_checks(subject_of(case, chat), [BY_NAME[case.check]])
    assert result.finding.status == case.status, result.finding
    assert result.finding.saw
    assert result.finding.fix


@pytest.mark.parametrize("name", [*EXAMPLES, *(pytest.param(name, marks=pytest.mark.nightly) for name in AT_NIGHT)])
async def test_examples_raise_no_false_alarm(name: str) -> None:
    config = ConfigStore()
    subject = Subject(environment=EnvironmentSpec.of(f"turnsmith.env.examples:{name}"), config=config)
    results = await run_checks(subject, CHECKS)
    alarms = [(result.check.name, result.finding.saw) for result in results if result.finding.status not in QUIET]
    assert not alarms
    assert sum(result.finding.status == "passed" for result in results) >= 9


QUIET = ("passed", "skipped")


def test_the_table_in_the_docs_is_that_of_the_zoo() -> None:
    page = Path(__file__).parents[4] / "docs" / "check.md"
    told = "python -c 'from tests.unit.check.environment.zoo.cases import table; print(table())'"
    assert table() in page.read_text(), told


def test_there_are_faults_for_every_check_without_a_panel() -> None:
    assert {check.name for check in CHECKS if not check.audit} <= {case.check for case in CASES} | ELSEWHERE
    assert len(CASES) >= 30


ELSEWHERE = {"template", "stop token", "call format", "sampling"}
"""Checks whose faults have tests of their own."""

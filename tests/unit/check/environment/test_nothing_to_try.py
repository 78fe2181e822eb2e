"""A check that found nothing to try says so: it is never "ok"."""

from __future__ import annotations

import re
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from turnsmith import BaseEnvironment, tool
from turnsmith.check.audit.checks import AUDIT
from turnsmith.check.environment.checks import CHECKS
from turnsmith.check.environment.run import run_checks
from turnsmith.check.environment.subject import Subject
from turnsmith.config import ConfigStore, EnvironmentConfig
from turnsmith.config_sources import apply_overrides
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.chat import Chat
from turnsmith.inference.chat.byte_chat import ByteChat
from turnsmith.inference.engines.scripted_engine import ScriptedEngine

BY_NAME = {check.name: check for check in [*CHECKS, *AUDIT]}
NO_SKILL, HEDGES, WRITING, NOISE = (
    "no skill is not paid",
    "several answers at once are not paid",
    "right answers may be written differently",
    "the same actions get the same reward",
)


class Game(BaseEnvironment):
    def reset(self, seed: int = 0) -> str:
        return "Say 1"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "", float(action == "1"), True, {}


class NeverOpens(Game):
    def reset(self, seed: int = 0) -> str:
        raise ConnectionError("no server")


class Long(Game):
    def reset(self, seed: int = 0) -> str:
        return "word " * 3000


class Raises(Game):
    def step(self, action: str) -> Any:
        raise KeyError("missing")

    def solve(self) -> list[str]:
        return ["1"]


class Unpaid(Game):
    def step(self, action: str) -> Any:
        return "", 0.0, True, {}

    def solve(self) -> str:
        return "1"


class Sealed(Game):
    """Its methods cannot be replaced."""

    def __setattr__(self, name: str, value: Any) -> None:
        if callable(value):
            raise AttributeError(f"{name} is sealed")
        super().__setattr__(name, value)


class Vouchers(Game):
    """Its tool takes a code that is no program."""

    @tool
    def redeem(self, code: str) -> str:
        """Redeem a voucher.

        Args:
            code: The code that is printed on it.
        """
        return "It is worth nothing."


class TwoArguments(Game):
    """Its tool runs what it gets, if it gets a language as well."""

    @tool
    def run(self, code: str, language: str) -> str:
        """Run a program.

        Args:
            code: The program.
            language: Its language.
        """
        try:
            return str(eval(code, {"print": lambda value: value, "open": open}))  # noqa: S307
        except Exception as error:
            return repr(error)


class Swallow(Game):
    """Pays 0 if its database fails, and cannot be closed before it was reset."""

    def reset(self, seed: int = 0) -> str:
        self.database = sqlite3.connect(":memory:")
        return "Say 1"

    def step(self, action: str) -> Any:
        try:
            reward = float(self.database.execute("select ?", (action,)).fetchone()[0] == "1")
        except Exception:
            reward = 0.0
        return "", reward, True, {}

    def close(self) -> None:
        self.database.close()


def subject(environment: type, *settings: str, chat: Any = None, **changes: Any) -> Subject:
    chat = chat or ByteChat()
    config = apply_overrides(ConfigStore(), list(settings))
    spec = EnvironmentSpec.of(environment, EnvironmentConfig(isolation="thread"))
    if model := changes.pop("model", None):
        changes["engine"] = ScriptedEngine(model, chat)
    return Subject(environment=spec, config=config, chat=chat, **changes)


@pytest.fixture
def tiny_chat(tiny_folder: str) -> Chat:
    from transformers import AutoTokenizer

    return Chat(AutoTokenizer.from_pretrained(tiny_folder))


WITHOUT_EPISODES = {"trackers and folders", "disk for the whole run", "sampling"}


@pytest.mark.parametrize(
    ("environment", "what", "fix"),
    [
        (NeverOpens, "No episode opens, from none of 8 starts: NeverOpens.reset raised ConnectionError: no server", ""),
        (Long, "8 of 8 starts do not fit into max_prompt_tokens=", "Set inference.max_prompt_tokens="),
    ],
)
async def test_if_no_episode_opens_that_is_said_once_and_first(
    environment: type, what: str, fix: str, tiny_chat: Chat
) -> None:
    played = subject(environment, "evaluation.every=5", chat=tiny_chat, model=lambda turn, prompt: "1")
    results = await run_checks(played, CHECKS)
    first, *others = [result.finding for result in results]
    assert (results[0].check.name, first.status) == ("an episode opens", "failed")
    assert first.saw.startswith(what)
    assert first.fix.startswith(fix)
    assert {finding.status for finding in others} == {"skipped", "passed"}
    assert {result.check.name for result in results if result.finding.status == "passed"} == WITHOUT_EPISODES
    assert not [finding.saw for finding in others if "nan" in finding.saw or "0 episodes" in finding.saw]


async def one(name: str, played: Subject) -> tuple[str, str]:
    [result] = await run_checks(played, [BY_NAME[name]])
    return result.finding.status, result.finding.saw


ALL_FAULTS = "ended without a fault"
NOTHING: list[tuple[str, Subject, str]] = [
    ("same actions, same episode", subject(Raises), "took a turn without a fault"),
    ("episodes do not disturb others", subject(Raises), "took a turn without a fault"),
    ("many at once, nothing left", subject(Raises), "took a turn without a fault"),
    ("faults are not rewards", subject(Sealed), "No fault could be planted"),
    ("code tools are closed", subject(Vouchers), "No sum of two numbers"),
    ("held-out starts are held out", subject(Game, validation_tasks=[{"q": "1"}]), "none of training"),
    (NO_SKILL, subject(Raises), ALL_FAULTS),
    (HEDGES, subject(Raises), ALL_FAULTS),
    (NOISE, subject(Raises), ALL_FAULTS),
    (WRITING, subject(Raises), ALL_FAULTS),
    (NO_SKILL, subject(Unpaid), "no more than no skill"),
    (HEDGES, subject(Unpaid), "no more than no skill"),
    (WRITING, subject(Unpaid), "no more than no skill"),
]


@pytest.mark.parametrize(
    ("name", "played", "why"), NOTHING, ids=[f"{name}-{played.environment.name}" for name, played, _ in NOTHING]
)
async def test_a_check_without_anything_to_try_is_skipped_with_the_reason(name: str, played: Subject, why: str) -> None:
    status, saw = await one(name, played)
    assert (status, why in saw) == ("skipped", True), saw


async def test_faults_of_every_episode_of_the_model_are_no_success_of_nan() -> None:
    played = subject(TwoArgumentsRaises, model=lambda turn, prompt: "1")
    status, saw = await one("tools are called", played)
    assert (status, ALL_FAULTS in saw) == ("skipped", True), saw


class TwoArgumentsRaises(TwoArguments):
    def step(self, action: str) -> Any:
        raise KeyError("missing")


async def test_solutions_that_are_paid_like_no_skill_are_found() -> None:
    status, saw = await one("right answers are paid", subject(Unpaid))
    assert (status, "get 0 on average, no more than no skill" in saw) == ("failed", True)


async def test_a_tool_that_needs_more_than_code_gets_it() -> None:
    assert (await one("code tools are closed", subject(TwoArguments)))[0] == "failed"


class Analyst(BaseEnvironment):
    """A database that reads files, as DuckDB does."""

    def reset(self) -> str:
        return "Which country sold most?"

    def step(self, action: str) -> Any:
        return "", 0.0, True, {}

    @tool
    def run_sql(self, sql: str) -> str:
        """Run a query."""
        file = re.search(r"read_text\('(.+)'\)", sql)
        return Path(file[1]).read_text() if file else str(sum(map(int, re.findall(r"\d+", sql))))


async def test_a_tool_that_takes_sql_is_asked_for_a_file_too() -> None:
    status, saw = await one("code tools are closed", subject(Analyst))
    assert (status, "run_sql read a file of this machine: SELECT content FROM read_text(" in saw) == ("failed", True)


class Closed(Analyst):
    @tool
    def run_sql(self, sql: str) -> str:
        """Run a query."""
        return "there are no files" if "read_text" in sql else str(sum(map(int, re.findall(r"\d+", sql))))


async def test_a_tool_that_reads_no_file_is_closed() -> None:
    assert await one("code tools are closed", subject(Closed)) == (
        "passed",
        "Code given to run_sql did not reach a file outside.",
    )


class Pool(Game):
    """Starts the threads of a pool in its 50th episode, and keeps them."""

    opened, closing = 0, threading.Event()

    def reset(self, seed: int = 0) -> str:
        Pool.opened += 1
        if Pool.opened == 50:
            for _ in range(12):
                threading.Thread(target=Pool.closing.wait, daemon=True).start()
        return "Say 1"


async def test_threads_that_are_started_once_are_not_left_behind_by_episodes() -> None:
    try:
        status, saw = await one("many at once, nothing left", subject(Pool))
        assert (status, Pool.opened > 90) == ("passed", True), saw
    finally:
        Pool.closing.set()


class Half(Game):
    """Pays half a point for a right answer, and nothing for any other."""

    def step(self, action: str) -> Any:
        return "", 0.5 * (action == "right"), True, {}

    def solve(self) -> list[str]:
        return ["right"]


async def test_a_reward_of_less_than_a_point_is_not_nothing() -> None:
    assert (await one(NO_SKILL, subject(Half)))[0] != "skipped"


class Customer(Game):
    def reset(self, seed: int = 0) -> str:
        return self.ask("customer", f"You are customer {seed}.")


async def test_an_opening_that_another_player_says_is_one() -> None:
    assert (await one("same start, same opening", subject(Customer, "players.customer=self")))[0] == "passed"


async def test_close_after_a_planted_fault_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    await one("faults are not rewards", subject(Swallow))
    assert not caplog.records


async def test_a_database_of_sqlite_is_broken_too_and_close_is_not_called_before_reset() -> None:
    status, saw = await one("faults are not rewards", subject(Swallow))
    assert status == "warning"
    assert "an exception in Swallow.database was caught" in saw


@pytest.mark.parametrize("limit", [1, 2])
async def test_turns_that_were_cut_have_no_end_token_to_look_for(limit: int, tiny_chat: Chat) -> None:
    status, saw = await one("stop token", subject(Game, f"inference.max_tokens={limit}", chat=tiny_chat))
    assert (status, saw) == (
        "skipped",
        f"No turn ended by itself: inference.max_tokens={limit} cut each one.",
    )


async def test_odd_texts_that_were_cut_are_not_said_to_have_been_answered(tiny_chat: Chat) -> None:
    status, saw = await one("any text is answered", subject(Game, "inference.max_tokens=1", chat=tiny_chat))
    assert (status, saw) == ("passed", "15 odd texts were all answered, 2 of them whole.")

"""Whatever a model writes, its answer is scored in linear time, or where it can be stopped."""

from __future__ import annotations

import asyncio
import http.server
import importlib
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.unit.env.adapters.hostile_answers import worst

from turnsmith.concurrency.clocks import Clock
from turnsmith.env.adapters import linear_patterns, scoring_process
from turnsmith.env.adapters.answers import choice_answer, exact_answer, json_answer, number_answer, regex_answer
from turnsmith.env.adapters.final_answers import MOST_CHARACTERS, code_in, final_answer
from turnsmith.env.adapters.question_answer import QuestionAnswer
from turnsmith.errors import ConfigError

CATASTROPHE = r"(?!x)(\w+\s?)+\."
"""Exponential with `re`; re2 does not take it, since it looks ahead."""
HOSTILE = "a" * 40 + "!"


def test_an_answer_is_scored_in_linear_time() -> None:
    for answer in worst(10_000):
        before = time.thread_time()
        for scorer, right in ((exact_answer, "x"), (number_answer, "1"), (choice_answer, "A")):
            scorer(answer, right)
        code_in(answer)
        assert time.thread_time() - before < 0.3, answer[:20]  # 0.02 s; with a pattern that looks again 2 to 20 s


def test_a_final_answer_has_a_largest_length() -> None:
    assert exact_answer("a" * MOST_CHARACTERS, "a" * MOST_CHARACTERS) == 1.0
    assert exact_answer("a" * (MOST_CHARACTERS + 1), "a" * (MOST_CHARACTERS + 1)) == 0.0
    assert exact_answer("thought " * MOST_CHARACTERS + "#### 5", 5) == 1.0
    assert final_answer("<answer>" * 20_000) == "<answer>" * 20_000


async def test_a_slow_regular_expression_is_worth_0_and_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring_process, "ANSWER_SECONDS", 0.1)
    hostile = [regex_answer(HOSTILE, CATASTROPHE) for _ in range(2)]
    assert await asyncio.gather(*hostile, regex_answer("a b.", CATASTROPHE)) == [0.0, 0.0, 1.0]
    told = [record.getMessage() for record in caplog.records if "too long" in record.getMessage()]
    assert len(told) == 1
    assert repr(CATASTROPHE) in told[0]


def test_the_warning_says_where_re2_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_patterns, "find_spec", lambda name: None)
    assert "[re2]" in scoring_process.remedy("regex", r"(\w+\s?)+\.")
    for kind, right in (("regex", CATASTROPHE), ("json_schema", "{}"), ("math", "1")):
        assert scoring_process.remedy(kind, right) == "a simpler one would not"


async def test_a_slow_pattern_of_a_json_schema_is_worth_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring_process, "ANSWER_SECONDS", 0.1)
    schema = {"type": "string", "pattern": rf"^{CATASTROPHE}$"}
    assert await json_answer(f'"{HOSTILE}"', schema) == 0.0
    assert await json_answer('"a b."', schema) == 1.0


async def test_waiting_for_a_process_that_scores_is_not_working(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring_process, "ANSWER_SECONDS", 0.3)
    processes = scoring_process.PROCESSES

    async def innocent() -> tuple[float, float]:
        async with Clock(30) as clock:
            return await regex_answer("a b.", CATASTROPHE), clock.waited

    hostile = [asyncio.create_task(regex_answer(HOSTILE, CATASTROPHE)) for _ in range(processes)]
    await asyncio.sleep(0)
    reward, waited = await innocent()
    assert reward == 1.0
    assert waited > 0.2
    assert await asyncio.gather(*hostile) == [0.0] * processes


@pytest.mark.nightly
def test_processes_that_score_die_with_the_one_that_started_them() -> None:
    code = f"""
import asyncio, os, signal, threading, time
from turnsmith.env.adapters import linear_patterns, scoring_process
scoring_process.ANSWER_SECONDS = 3600.0

def die():
    time.sleep(4)
    me = os.getpid()
    mine = [me]
    for one in mine:
        for task in os.listdir(f"/proc/{{one}}/task"):
            mine += map(int, open(f"/proc/{{one}}/task/{{task}}/children").read().split())
    print(*mine[1:], flush=True)
    os.kill(me, signal.SIGKILL)

threading.Thread(target=die).start()
asyncio.run(scoring_process.judge_elsewhere("regex", {CATASTROPHE!r}, {HOSTILE!r}))
"""
    output = subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.PIPE, text=True).stdout
    processes = [Path("/proc") / number for number in output.split()]
    assert len(processes) == 2  # one that scores, and its child, which holds a core
    due = time.monotonic() + 10
    while any(process.exists() for process in processes) and time.monotonic() < due:
        time.sleep(0.05)
    assert not [process for process in processes if process.exists()]


def test_a_schema_is_never_fetched(tmp_path: Path) -> None:
    seen: list[str] = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)

    server = http.server.HTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "schema.json").write_text('{"type": "integer"}')
    for address in (f"http://127.0.0.1:{server.server_port}/secret", f"file://{tmp_path}/schema.json", "#/nowhere"):
        row = {"question": "?", "answer": {"items": {"anyOf": [{"$ref": address}]}}}
        with pytest.raises(
            ConfigError, match=f"Row 0 of the data: .* refers to '{address}', which does not stand in it"
        ):
            QuestionAnswer(reward="json_schema").check_tasks([row])
    server.shutdown()
    server.server_close()
    assert seen == []


@pytest.mark.parametrize(
    ("reward", "answer", "sentence"),
    [
        ("number", "none", "has no number"),
        ("choice", "all", "not one letter"),
        ("regex", "(", "not a regular expression"),
        ("json_schema", "{", "is not a JSON schema"),
        ("json_schema", 5, "'5' is not a JSON schema: it is neither an object nor true or false"),
        ("json_schema", '["type"]', "is not a JSON schema: it is neither"),
        ("json_schema", {"$schema": []}, "is not a JSON schema"),
        ("json_schema", {"$id": 5}, "is not a JSON schema: 5 is not of type 'string'"),
    ],
)
def test_rows_that_cannot_be_compared_with_are_refused_before_any_episode(
    reward: str, answer: object, sentence: str
) -> None:
    good = {"number": "1", "choice": "A"}.get(reward, "{}")
    with pytest.raises(ConfigError, match=f"Row 1 of the data: .*{sentence}"):
        QuestionAnswer(reward=reward).check_tasks([{"question": "?", "answer": one} for one in (good, answer)])


def test_the_benchmark_misses_with_any_changed_episode_and_with_a_late_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[4]))
    misses = importlib.import_module("benchmarks.hostile_answers").misses
    figures = {"played": 9, "changed": 0, "delay_ratio": 3.0}
    assert misses("regex", figures) == []
    assert misses("regex", {**figures, "changed": 1}) == ["regex: 1 of 9 innocent episodes changed"]
    assert len(misses("regex", {**figures, "delay_ratio": 3.1})) == 1

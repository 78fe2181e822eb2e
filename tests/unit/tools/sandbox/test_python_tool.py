"""The tool: what the model is told, and what happens where there is no sandbox."""

from __future__ import annotations

import logging
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnsmith.errors import ConfigError, MissingDependency
from turnsmith.tools.definition import ToolCall
from turnsmith.tools.registry import FAILED, ToolRegistry
from turnsmith.tools.sandbox import PythonTool, SandboxLimits, availability, command, run_python


@pytest.fixture(scope="module")
def registry() -> ToolRegistry:
    return ToolRegistry([PythonTool(SandboxLimits(seconds=1))])


DIVISION = """Traceback (most recent call last):
  File "main.py", line 3, in <module>
    f()
  File "main.py", line 2, in f
    return 1 / 0
           ~~^~~
ZeroDivisionError: division by zero
"""

TOLD = {
    "print(1 + 1)": (True, "2\n"),
    "pass": (True, "[The program printed nothing.]"),
    "print('é', '\\ud800')": (True, "é \\ud800\n"),
    "import sys; print('a'); print('b', file=sys.stderr); print('c')": (True, "a\nb\nc\n"),
    "if __name__ == '__main__': print(__file__)": (True, "main.py\n"),
    "print('partly'); exit(3)": (False, "partly\n"),
    "exit('too bad')": (False, "too bad\n"),
    "import sys; sys.exit(2)": (False, "[The program ended with exit code 2.]"),
    "print(input())": (False, "EOFError"),
    "def f():\n    return 1 / 0\nf()": (False, DIVISION),
    "print('a'\n": (False, "File \"main.py\", line 1\n    print('a'\n         ^\nSyntaxError: '(' was never closed\n"),
    "print('began')\nwhile True: pass": (
        False,
        "began\n[The program was stopped: it took longer than 1 s.]",
    ),
    "import ctypes; ctypes.string_at(0)": (
        False,
        "[The program was killed: it crashed, or used too much memory or CPU time.]",
    ),
    "x = bytearray(8 << 30)": (False, "MemoryError"),
}


@pytest.mark.parametrize("code", TOLD)
async def test_model_is_told(registry: ToolRegistry, code: str) -> None:
    result = await registry.call(ToolCall("python", {"code": code}))
    ok, text = TOLD[code]
    assert result.ok is ok
    assert text in result.text
    assert not result.failure
    assert "turnsmith" not in result.text
    assert str(Path.home()) not in result.text


async def test_common_modules_work(registry: ToolRegistry) -> None:
    code = """
import asyncio, collections, contextlib, csv, dataclasses, datetime, decimal, fractions, functools, hashlib, heapq, io
import itertools, json, math, os, pathlib, random, re, shutil, sqlite3, statistics, string, tempfile, textwrap, typing
import unittest, uuid, zlib
async def work():
    await asyncio.sleep(0)
    return await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))
print(asyncio.run(work()))
with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
    print("not seen")
with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, "a").write_text("text")
    print(sqlite3.connect(f"{folder}/db").execute("select 1 + 1").fetchone())
@dataclasses.dataclass
class Point:
    x: int
print(Point(1), hashlib.sha256(b"").hexdigest()[:4], datetime.datetime(2026, 1, 2).strftime("%A"))
"""
    result = await run_python(code)
    assert result.output == "[1, 2]\n(2,)\nPoint(x=1) e3b0 Friday\n"


async def test_long_programs_and_long_outputs_pass() -> None:
    code = "x = 0\n" + "x += 1\n" * 40_000 + "print(x, 'y' * 200_000)"
    result = await run_python(code)
    assert result.output == f"40000 {'y' * 200_000}\n"


async def test_output_is_cut_to_the_tool_s_limit(registry: ToolRegistry) -> None:
    result = await registry.call(ToolCall("python", {"code": "print('x' * 100_000)"}))
    assert result.ok
    assert result.cut
    assert len(result.text) <= 1024 * 4


def test_tool_says_what_it_is() -> None:
    definition = PythonTool().definition
    assert definition.name == "python"
    assert list(definition.parameters["properties"]) == definition.parameters["required"] == ["code"]
    assert PythonTool(name="run").definition.name == "run"


def test_tool_reaches_other_processes() -> None:
    tool = pickle.loads(pickle.dumps(PythonTool(SandboxLimits(seconds=3))))  # noqa: S301
    assert tool.limits.seconds == 3
    assert ToolRegistry([tool]).execute_tool("python", code="print(5)") == (True, "5\n")


@pytest.fixture
def fresh_check() -> Iterator[None]:
    """Forget what was found out about this machine, before and after."""
    for cached in (availability._prove, command.command_for):
        cached.cache_clear()
    yield
    for cached in (availability._prove, command.command_for):
        cached.cache_clear()


@pytest.mark.usefixtures("fresh_check")
def test_without_bubblewrap_it_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match=r"needs bubblewrap, which is not installed\. Install it"):
        PythonTool()


@pytest.mark.usefixtures("fresh_check")
def test_where_user_namespaces_are_forbidden_it_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrapper = tmp_path / "bwrap"
    wrapper.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match=r"does not start \(bwrap: setting up uid map: Permission denied\)"):
        PythonTool()


@pytest.mark.usefixtures("fresh_check")
def test_elsewhere_than_on_linux_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(MissingDependency, match="the sandbox needs Linux"):
        PythonTool()


@pytest.mark.usefixtures("fresh_check")
async def test_sandbox_that_is_lost_later_runs_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    registry = ToolRegistry([PythonTool(SandboxLimits(seconds=1.25))])
    availability._prove.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    witness = tmp_path / "witness"
    result = await registry.call(ToolCall("python", {"code": f"open({str(witness)!r}, 'w')"}))
    assert (result.ok, result.text) == (False, FAILED)
    assert "needs bubblewrap" in result.failure
    assert not witness.exists()


def test_running_without_a_sandbox_must_be_spelled_out(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    with caplog.at_level(logging.WARNING):
        bare = ToolRegistry([PythonTool(SandboxLimits(seconds=0.5), run_without_sandbox=True)])
    assert "runs model-written code without a sandbox" in caplog.text
    assert bare.execute_tool("python", code=f"open({str(witness)!r}, 'w'); print(1)") == (True, "1\n")
    assert witness.exists()
    ok, text = bare.execute_tool("python", code="while True: pass")
    assert not ok
    assert "longer than 0.5 s" in text


@pytest.mark.parametrize(
    "wrong",
    [
        {"seconds": 0},
        {"seconds": float("nan")},
        {"memory": 1},
        {"disk": 0},
        {"output": 0},
        {"output": 1 << 40},
        {"files": 1},
    ],
)
def test_impossible_limits_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="SandboxLimits\\."):
        SandboxLimits(**wrong)  # type: ignore[arg-type]

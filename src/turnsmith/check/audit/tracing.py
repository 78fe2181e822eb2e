"""Which lines of a user's code decide about a reward, and the texts and patterns that stand in them.

An episode is played in this process, with Python's own hook for executed lines; only the user's package is looked at.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from turnsmith.check.environment.oracle import Task
from turnsmith.check.environment.subject import Subject
from turnsmith.check.finding import Finding, Result
from turnsmith.env.adapters.question_answer import QuestionAnswer
from turnsmith.env.host import open_host
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.rollout.attempt import in_mix
from turnsmith.rollout.turn import EpisodeTools, apply_action
from turnsmith.tools.parsing import FunctionCallingParser

_MOST_LINES = 200_000
_MOST_LITERALS, _LONGEST = 40, 60
_LIBRARIES = {"builtins", "numpy", "torch", "datasets", "pandas", "pyarrow", "pydantic"}
"""Packages whose objects environments hold, and which decide about no reward."""
_ACCEPTED = re.compile(r"#\s*turnsmith:\s*accepted\s+([a-z-]+)\s*(.*)")


@dataclass(frozen=True)
class Trace:
    """The lines that an episode executed in the user's package, in their order."""

    lines: tuple[tuple[str, int], ...]
    codes: frozenset[CodeType]


async def trace(subject: Subject, task: Task, actions: Sequence[str]) -> Trace:
    """Play these actions in this thread, and note the lines of the user's package."""
    await play_here(subject, task, actions)
    return await _play(subject, task, actions, is_traced=True)


async def play_here(subject: Subject, task: Task, actions: Sequence[str]) -> None:
    """Play these actions in this thread, once for a subject: what a scorer imports when it is called takes minutes if
    it is traced.
    """
    if play_here not in subject.played:
        subject.played[play_here] = await _play(subject, task, actions, is_traced=False)


async def _play(subject: Subject, task: Task, actions: Sequence[str], *, is_traced: bool) -> Trace:
    start, spec, _ = in_mix(task.start, subject.rollout())
    lines, codes, folders = list[tuple[str, int]](), set[CodeType](), tuple[str, ...]()

    def on_line(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and len(lines) < _MOST_LINES:
            lines.append((frame.f_code.co_filename, frame.f_lineno))
        return on_line

    def on_call(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(folders):
            return None
        codes.add(frame.f_code)
        return on_line

    host, before = open_host(replace(spec.environment, isolation="loop")), sys.gettrace()
    try:
        await host.reset(start.seed, start.task)
        folders = user_folders(host.environment)
        tools = EpisodeTools(host, spec.tools, subject.parser or FunctionCallingParser()) or None
        sys.settrace(on_call if is_traced else before)
        for action in actions:
            if (await apply_action(action, host, tools)).done:
                break
    finally:
        sys.settrace(before)
        await host.close()
    return Trace(tuple(lines), frozenset(codes))


def user_folders(made: Any) -> tuple[str, ...]:
    """The folders of the packages, or the files, of an environment, of its scorers, and of what it holds and plays."""
    held = [getattr(one, "unwrapped", one) for one in vars(made).values()]
    objects: list[Any] = [type(made), *(one if inspect.ismodule(one) else type(one) for one in held)]
    if isinstance(made, QuestionAnswer):
        objects += [inspect.unwrap(scorer.function) for scorer in getattr(made, "scoring", made.scorers)]
    files = set[str]()
    for one in objects:
        name = one.__name__ if inspect.ismodule(one) else getattr(one, "__module__", "")
        package = name.partition(".")[0]
        is_ours = package == "turnsmith" and (one is not type(made) or name.startswith("turnsmith.env.adapters"))
        if is_ours or package in _LIBRARIES or package in sys.stdlib_module_names:
            continue
        module = sys.modules.get(name if package == "turnsmith" else package)
        file = Path(str(getattr(module, "__file__", None) or ""))
        if file.name:
            files.add(str(file.parent if file.name == "__init__.py" and package != "turnsmith" else file))
    return tuple(sorted(files))


def deciding_line(paid: Trace, unpaid: Trace) -> str:
    """The line after which two episodes went different ways, as `file:line: code`; empty if none was executed.

    Where they never part, one expression decides: then it is the last line of both.
    """
    if not paid.lines or not unpaid.lines:
        return ""
    parted = next(
        (n for n, (one, other) in enumerate(zip(paid.lines, unpaid.lines, strict=False)) if one != other),
        min(len(paid.lines), len(unpaid.lines)),
    )
    file, line = paid.lines[max(0, parted - 1)]
    return f"{Path(file).name}:{line}: {linecache.getline(file, line).strip()}"


def literals(codes: frozenset[CodeType]) -> list[str]:
    """The texts that stand in executed functions, the short ones first; no docstrings."""
    found = set[str]()
    for code in codes:
        found.update(_texts_in(code.co_consts))
        if code.co_consts and isinstance(code.co_consts[0], str):
            found.discard(code.co_consts[0])  # the docstring
    usable = [text for text in found if text.strip() and len(text) <= _LONGEST and text.isprintable()]
    return sorted(usable, key=lambda text: (len(text), text))[:_MOST_LITERALS]


def _texts_in(constants: Sequence[Any]) -> list[str]:
    texts = [one for one in constants if isinstance(one, str)]
    nested = [one for one in constants if isinstance(one, (tuple, frozenset))]
    return [*texts, *(text for some in nested for text in _texts_in(list(some)))]


def patterns(codes: frozenset[CodeType]) -> list[str]:
    """The regular expressions of executed functions: arguments of `re`, and compiled ones that they name."""
    found = list[str]()
    for code in sorted(codes, key=lambda one: (one.co_filename, one.co_firstlineno)):
        module = next(
            (one for one in list(sys.modules.values()) if getattr(one, "__file__", "") == code.co_filename), None
        )
        for name in code.co_names:
            value = getattr(module, name, None)
            if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                found.append(value.pattern)
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
        except (OSError, SyntaxError, TypeError):
            continue
        found += [text for node in ast.walk(tree) if isinstance(node, ast.Call) for text in _pattern_in(node)]
    return list(dict.fromkeys(found))


def _pattern_in(call: ast.Call) -> list[str]:
    """The first argument of a call such as `re.search("...", text)`."""
    match call:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="re" | "regex")), args=[ast.Constant(value=str() as pattern), *_]
        ):
            return [pattern]
        case _:
            return []


def form_of(pattern: str) -> str:
    """The shortest text that a pattern matches, with X for its last group; empty if that cannot be told.

    Example:
        >>> form_of(r"#### (\\-?[0-9\\.\\,]+)"), form_of(r"<answer>(.*?)</answer>"), form_of(r"\\d+")
        ('#### X', '<answer>X</answer>', '')
    """
    from re import _parser  # pyright: ignore[reportAttributeAccessIssue]

    try:
        parsed = _parser.parse(pattern)
        groups = parsed.state.groups - 1
        return _written(parsed, groups) if groups else ""
    except Exception:  # noqa: BLE001  (a pattern of another library, or one that has no short text)
        return ""


def _written(parsed: Any, last: int) -> str:
    text = ""
    for kind, value in parsed:
        name = str(kind)
        if name == "LITERAL":
            text += chr(value)
        elif name == "IN":
            text += _member(value)
        elif name == "ANY":
            text += " "
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            text += _written(value[2], last) * value[0]
        elif name == "SUBPATTERN":
            text += "X" if value[0] == last else _written(value[3], last)
        elif name == "BRANCH":
            text += _written(value[1][0], last)
        elif name != "AT" and not name.startswith("ASSERT"):
            raise ValueError(name)
    return text


def _member(options: Any) -> str:
    for kind, value in options:
        name = str(kind)
        if name == "LITERAL":
            return chr(value)
        if name == "RANGE":
            return chr(value[0])
        if name == "CATEGORY":
            return {"CATEGORY_DIGIT": "1", "CATEGORY_WORD": "a"}.get(str(value), " ")
    raise ValueError("a negated set")


def without_accepted(results: Sequence[Result], spec: EnvironmentSpec) -> list[Result]:
    """The results, with those passed that a comment in the user's code accepts: `# turnsmith: accepted CODE REASON`."""
    if not any(result.finding.status in ("failed", "warning") for result in results):
        return list(results)
    reasons = _accepted([folder for one in spec.each() for folder in user_folders(one.build())])

    def passed(result: Result) -> Result:
        code, finding = result.check.code, result.finding
        if code not in reasons or finding.status not in ("failed", "warning"):
            return result
        return replace(result, finding=Finding("passed", f"Accepted ({reasons[code]}): {finding.saw}"))

    return list(map(passed, results))


def _accepted(files: Sequence[str]) -> dict[str, str]:
    found = dict[str, str]()
    for file in files:
        for path in [Path(file)] if Path(file).is_file() else sorted(Path(file).rglob("*.py"))[:2000]:
            text = path.read_text(encoding="utf-8", errors="replace")
            if "turnsmith:" in text:
                found.update({one[1]: one[2] or "no reason given" for one in _ACCEPTED.finditer(text)})
    return found

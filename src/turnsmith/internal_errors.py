"""Tells a bug of turnsmith from what the user's code, an engine or the machine raised.

What the user's code raises is the user's, whatever of ours it went through. Where no code of the user's was running, an
exception that nobody raised on purpose is a bug.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from turnsmith.errors import EnvironmentFailure, InternalError, TurnsmithError, describe_failure

_PACKAGE = str(Path(__file__).parent) + os.sep
_OF_OTHERS = (
    *(
        f"env/adapters/{name}"
        for name in ("gymnasium", "openenv", "pettingzoo", "reasoning_gym", "spaces", "textarena")
    ),
    "env/examples/",
    "env/isolation/codec.py",
    "inference/engines/openai_protocol.py",
    "inference/engines/scripted_engine.py",
    "inference/engines/sglang_protocol.py",
    "tools/mcp.py",
)
"""What reads the data of others, in which it fails if these are wrong; and environments as a user writes them."""
_PYTHON = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_LIBRARIES = ("jinja2", "msgspec", "numpy", "orjson", "pyarrow", "pydantic", "pydantic_core", "transformers", "yaml")
"""They call nobody but us: what goes wrong in them, we have asked for."""
_RAISED_BY = frozenset(("builtins", "turnsmith", *_LIBRARIES, *sys.stdlib_module_names))
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)')
_MOST_TRACEBACK = 16_000


class _Frame(NamedTuple):
    file: str
    line: int
    function: str

    @property
    def is_ours(self) -> bool:
        path = self.file.removeprefix(_PACKAGE)
        return path != self.file and not path.startswith(_OF_OTHERS)

    @property
    def is_neutral(self) -> bool:
        """Whether it is in Python itself, or in a library that turnsmith alone calls."""
        if self.file.startswith("<"):  # what dataclasses generate, and the import system
            return self.file == "<string>" or self.file.startswith("<frozen ")
        installed = re.search(r"[/\\](?:site|dist)-packages[/\\](\w+)", self.file)
        if installed is not None:
            return installed[1] in _LIBRARIES
        return self.file.startswith(_PYTHON) or self.file.partition("/")[0] in _LIBRARIES  # pyarrow/error.pxi

    def __str__(self) -> str:
        module = self.file.removeprefix(_PACKAGE).removesuffix(".py").replace(os.sep, ".").removesuffix(".__init__")
        return f"turnsmith.{module}:{self.function}:{self.line}"


def is_bug(error: BaseException) -> bool:
    """Whether nobody raised this on purpose, and the machine did not run out of anything.

    Example:
        >>> is_bug(KeyError("sword")), is_bug(ConnectionError()), is_bug(MemoryError()), is_bug(InternalError("a bug"))
        (True, False, False, True)
    """
    if isinstance(error, InternalError):
        return True
    if not isinstance(error, Exception) or isinstance(error, (TurnsmithError, OSError, MemoryError)):
        return False
    if isinstance(error, ImportError):  # an optional package is missing
        return (error.name or "").startswith("turnsmith")
    return not (isinstance(error, RuntimeError) and str(error).startswith("can't start new thread"))


def is_ours(error: BaseException, callers: int = 1) -> bool:
    """Whether an exception that was caught around code of the user's, or an engine, is a bug of turnsmith.

    It is if every frame below the one that caught it is turnsmith's or Python's, and one at least is turnsmith's; so is
    what a process of Ray's raised, if it was raised in turnsmith's code.

    Args:
        error: What was raised.
        callers: Frames of ours, from the one that caught it on, of which the last one calls the user's code.

    Example:
        >>> try:
        ...     {}["sword"]
        ... except KeyError as error:
        ...     print(is_ours(error))
        False
    """
    if isinstance(error, InternalError):
        return True
    remote = getattr(error, "traceback_str", None)  # of a RayTaskError
    if isinstance(remote, str):
        cause = getattr(error, "cause", None)
        return isinstance(cause, Exception) and is_bug(cause) and where_in(remote) != ""
    if not is_bug(error) or type(error).__module__.partition(".")[0] not in _RAISED_BY:
        return False
    frames, cause = _frames(error)[callers:], error.__cause__
    if cause is not None and (not isinstance(cause, Exception) or not all(map(_is_known, _frames(cause)))):
        return False  # the user's exception, or exit, in other words
    return any(frame.is_ours for frame in frames) and all(map(_is_known, frames))


def internal_error(error: BaseException) -> InternalError:
    """Say of a bug where it is and what to do, and keep its traceback.

    Example:
        >>> str(internal_error(KeyError("sword")))
        "turnsmith failed with KeyError: 'sword'. This is a bug of turnsmith: please report it with its traceback, in \
an issue of its repository"
    """
    if isinstance(error, InternalError):
        return getattr(error, "cause", None) or error  # Ray's error of one has it as its cause
    remote = getattr(error, "traceback_str", None)
    text = remote if isinstance(remote, str) else "".join(traceback.format_exception(error))
    cause = getattr(error, "cause", None) or error
    ours = [frame for frame in (_read(text) if isinstance(remote, str) else _frames(error)) if frame.is_ours]
    return _described(f"{ours[-1]}" if ours else "", f"{type(cause).__name__}: {_message(cause)}", text)


@contextmanager
def bugs_named() -> Generator[None]:
    """Raise a bug of ours inside of it as an `InternalError`, and everything else as it is.

    Example:
        >>> with bugs_named():
        ...     {}["sword"]
        Traceback (most recent call last):
        KeyError: 'sword'
    """
    try:
        yield
    except Exception as error:
        if is_ours(error, callers=0):
            raise internal_error(error) from error
        raise


def user_failure(name: str, error: BaseException, callers: int = 1) -> EnvironmentFailure | InternalError:
    """What to raise for an exception that was caught around the user's code `name`; `callers` as for `is_ours`.

    Example:
        >>> user_failure("Game.step", KeyError("sword"))
        EnvironmentFailure("Game.step raised KeyError: 'sword'")
    """
    return internal_error(error) if is_ours(error, callers) else EnvironmentFailure(describe_failure(name, error))


def internal_error_of(text: str, kind: str) -> InternalError | None:
    """The same for what only its printed traceback is left of; None if it was not raised in turnsmith's code."""
    where = where_in(text)
    return _described(where, kind, text) if where else None


def where_in(text: str) -> str:
    """Where in turnsmith the exception of a printed traceback was raised; empty: elsewhere.

    Example:
        >>> where_in(f'  File "{_PACKAGE}rollout/turn.py", line 12, in apply_action\\nKeyError: 1')
        'turnsmith.rollout.turn:apply_action:12'
        >>> where_in('  File "/home/me/game.py", line 3, in step')
        ''
    """
    frames = [frame for frame in _read(text) if not frame.is_neutral]
    return str(frames[-1]) if frames and frames[-1].is_ours else ""


def _described(where: str, what: str, text: str) -> InternalError:
    place = f" at {where}" if where else ""
    return InternalError(
        f"turnsmith failed{place} with {what}. This is a bug of turnsmith: please report it with its traceback, in an "
        "issue of its repository",
        text[-_MOST_TRACEBACK:],
    )


def _message(error: BaseException) -> str:
    try:
        return " ".join(str(error)[:300].encode("utf-8", "backslashreplace").decode().split())
    except Exception:
        return ""


def _is_known(frame: _Frame) -> bool:
    return frame.is_ours or frame.is_neutral


def _frames(error: BaseException) -> Sequence[_Frame]:
    walked = traceback.walk_tb(error.__traceback__)
    return [_Frame(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walked]


def _read(text: str) -> Sequence[_Frame]:
    return [_Frame(file, int(line), function) for file, line, function in _FRAME.findall(text)]

"""The errors that turnsmith raises on purpose.

    TurnsmithError
    ├── ConfigError              a setting is unknown, unused or invalid
    ├── MissingDependency        an optional package is not installed
    ├── EnvironmentFailure       the user's environment raised, or returned something invalid
    │   ├── EnvironmentTimeout   a call to the environment timed out
    │   ├── Overloaded           a call to the environment or a tool never got its turn
    │   └── WorkerLost           the process that ran the environment died
    ├── EngineFailure            the inference engine could not generate
    ├── TextRefused              a text would become control tokens of the model
    ├── TrainingFailure          the run stopped before its last step
    │   └── UpdateOutOfMemory    a GPU was out of memory while it trained
    ├── Preempted                a scheduler asked the run to stop; it can be resumed
    ├── SandboxFailure           the sandbox for model-written code could not start
    ├── RecordError              a run folder is missing, damaged or in an unknown format
    ├── InternalError            turnsmith itself failed: a bug, with the place and the traceback
    └── ToolError                a tool refuses a call; the only error whose text the model reads

Each message says in one or two sentences what happened, why, and what to do. All errors can be pickled, because they
cross process boundaries.
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
from typing import NamedTuple, Self


class TurnsmithError(Exception):
    """Base class of all errors that turnsmith raises on purpose; catch it to catch them all.

    Example:
        >>> issubclass(ConfigError, TurnsmithError)
        True
    """


class ConfigError(TurnsmithError):
    """A setting is unknown, unused or invalid.

    Example:
        >>> from turnsmith.config_sources import from_dict
        >>> try:
        ...     from_dict({"training": {"batch_sise": 16}})
        ... except ConfigError as error:
        ...     print(error)
        There is no setting training.batch_sise. Did you mean training.batch_size?
    """


class MissingDependency(TurnsmithError):
    """An optional package is not installed.

    Example:
        >>> raise MissingDependency("Reading a Hugging Face dataset needs datasets: pip install datasets.")
        Traceback (most recent call last):
        turnsmith.errors.MissingDependency: Reading a Hugging Face dataset needs datasets: pip install datasets.
    """


class EnvironmentFailure(TurnsmithError):
    """The user's environment raised, or returned something invalid, such as no observation.

    Example:
        >>> issubclass(EnvironmentTimeout, EnvironmentFailure) and issubclass(WorkerLost, EnvironmentFailure)
        True
    """


class EnvironmentTimeout(EnvironmentFailure):
    """A call to the environment timed out.

    Example:
        >>> str(EnvironmentTimeout("Game.step took longer than 60 s."))
        'Game.step took longer than 60 s.'
    """


class Overloaded(EnvironmentFailure):
    """A call to the environment or a tool waited too long for its turn, so it was never made."""


class WorkerLost(EnvironmentFailure):
    """The process that ran the environment died: it was killed, crashed, or ran out of memory.

    Example:
        >>> import pickle
        >>> pickle.loads(pickle.dumps(WorkerLost("The worker of Game was killed.")))
        WorkerLost('The worker of Game was killed.')
    """


class EngineFailure(TurnsmithError):
    """The inference engine could not generate.

    Example:
        >>> issubclass(EngineFailure, TurnsmithError), issubclass(EngineFailure, EnvironmentFailure)
        (True, False)
    """


class TextRefused(TurnsmithError, ValueError):
    """The text of a message, or of a tool's description, would be encoded as control tokens of the model."""


class TrainingFailure(TurnsmithError):
    """The run stopped before its last step.

    Example:
        >>> def train() -> None:
        ...     raise TrainingFailure("The run stopped at step 12: the disk is full.")
        >>> try:
        ...     train()
        ... except TrainingFailure as error:
        ...     print("resume it later:", error)
        resume it later: The run stopped at step 12: the disk is full.
    """


class UpdateOutOfMemory(TrainingFailure):
    """A GPU was out of memory while it trained, so that smaller micro-batches help.

    Example:
        >>> isinstance(UpdateOutOfMemory("A GPU is out of memory."), TrainingFailure)
        True
    """


class Preempted(TurnsmithError, SystemExit):
    """A scheduler asked the run to stop, with SIGTERM or SIGUSR1; the message says where `turnsmith resume` continues.

    In a script that does not catch it, the process ends with exit status 75, "try again later", without a traceback.

    Example:
        >>> Preempted("Preempted by SIGTERM.").code
        75
    """

    code = 75


class SandboxFailure(TurnsmithError):
    """The sandbox for model-written code could not start, so no code was run.

    Example:
        >>> issubclass(SandboxFailure, TurnsmithError)
        True
    """


class RecordError(TurnsmithError):
    """A run folder is missing, damaged or in an unknown format.

    Example:
        >>> from turnsmith import RunFolder
        >>> try:
        ...     RunFolder.open("runs/none")
        ... except RecordError as error:
        ...     print(error)
        There is no run folder runs/none.
    """


class InternalError(TurnsmithError):
    """turnsmith itself failed: a bug of ours. What the user's code raises is never one.

    Args:
        sentence: Where it is, and what to do.
        traceback: Its traceback, as it is printed.

    Example:
        >>> bug = InternalError("turnsmith failed at turnsmith.concurrency.clocks:resume:9.", "Traceback ...")
        >>> InternalError.read(bug.text).traceback
        'Traceback ...'
    """

    def __init__(self, sentence: str, traceback: str = "") -> None:
        super().__init__(sentence, traceback)
        self.traceback = traceback

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def text(self) -> str:
        """The sentence and the traceback, as records keep them."""
        return f"{self}\n{self.traceback}".rstrip("\n")

    @classmethod
    def read(cls, text: str) -> Self:
        """The error of such a text."""
        sentence, _, traceback = text.partition("\n")
        return cls(sentence, traceback)


class ToolError(TurnsmithError):
    """Raise this in a tool to tell the model what it did wrong. The model never reads the text of any other exception.

    Example:
        >>> def refund(order: int) -> str:
        ...     raise ToolError(f"There is no order {order}.")
    """


def describe_failure(name: str, error: BaseException) -> str:
    """Describe an exception in one sentence: what raised it, its type and text, and the line of code.

    What turnsmith's own code says of an environment is such a sentence already.

    Example:
        >>> describe_failure("Game.step", KeyError("sword"))
        "Game.step raised KeyError: 'sword'"
    """
    try:
        message = (
            str(error)[:500].encode("utf-8", "backslashreplace").decode()
        )  # half a surrogate pair could not be sent
    except Exception:
        message = ""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = str(trace.tb_frame.f_globals.get("__name__")) if trace is not None else ""
    if isinstance(error, EnvironmentFailure) and module.startswith("turnsmith."):
        return message
    sentence = f"{name} raised {type(error).__name__}" + (f": {message}" if message else "")
    if trace is None:
        return sentence
    code = trace.tb_frame.f_code
    return f"{sentence} (in {code.co_name}, {code.co_filename.rpartition('/')[2]} line {trace.tb_lineno})"


# Bugs of turnsmith, told from what the user's code, an engine or the machine raised
#
# What the user's code raises is the user's, whatever of ours it went through. Where no code of the user's was running,
# an exception that nobody raised on purpose is a bug.

_PACKAGE = str(Path(__file__).parent) + os.sep
_OF_OTHERS = (
    *(
        f"env/adapters/{name}"
        for name in ("gymnasium", "openenv", "pettingzoo", "reasoning_gym", "spaces", "textarena")
    ),
    "env/examples/",
    "env/isolation/serialization.py",
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
    if is_ours(error, callers):
        return internal_error(error)
    kind = type(error) if isinstance(error, EnvironmentFailure) else EnvironmentFailure  # a server's may be a time-out
    return kind(describe_failure(name, error))


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

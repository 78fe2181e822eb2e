"""Every error turnsmith raises on purpose.

    TurnsmithError
    ├── ConfigError          a setting is unknown, unused or impossible
    ├── MissingDependency    an optional package is not installed
    ├── EnvironmentFailure   the user's environment raised or broke its contract
    │   ├── EnvironmentTimeout   a call of the environment did not come back in time
    │   └── WorkerLost           the process that ran the environment is gone
    ├── EngineFailure        the engine could not generate
    ├── TrainingFailure      the run stopped before its last step
    ├── SandboxFailure       the sandbox for model-written code could not be started
    ├── RecordError          a run folder is missing, damaged or of another format
    └── ToolError            a tool's own word to the model; the only error text a model ever sees

Messages say what happened, why, and what to do, in one or two sentences. All of them survive pickling, because they
cross process borders.
"""

from __future__ import annotations


class TurnsmithError(Exception):
    """Base of all errors that turnsmith raises on purpose.

    Example:
        >>> issubclass(ConfigError, TurnsmithError)
        True
    """


class ConfigError(TurnsmithError):
    """A setting is unknown, unused or impossible."""


class MissingDependency(TurnsmithError):
    """An optional package is not installed."""


class EnvironmentFailure(TurnsmithError):
    """The user's environment raised, or broke its contract (wrong types, no observation)."""


class EnvironmentTimeout(EnvironmentFailure):
    """A call of the environment did not come back in time."""


class WorkerLost(EnvironmentFailure):
    """The process that ran the environment is gone: killed, crashed, or out of memory."""


class EngineFailure(TurnsmithError):
    """The engine could not generate."""


class TrainingFailure(TurnsmithError):
    """The run stopped before its last step."""


class SandboxFailure(TurnsmithError):
    """The sandbox for model-written code could not be started; nothing was run."""


class RecordError(TurnsmithError):
    """A run folder is missing, damaged or of another format."""


class ToolError(TurnsmithError):
    """Raised by a tool to tell the model what it did wrong; any other exception is a failure the model never reads.

    Example:
        >>> def refund(order: int) -> str:
        ...     raise ToolError(f"There is no order {order}.")
    """


def describe_failure(name: str, error: BaseException) -> str:
    """One sentence: what raised, the error, and the line it came from.

    Example:
        >>> describe_failure("Game.step", KeyError("sword"))
        "Game.step raised KeyError: 'sword'"
    """
    try:
        message = str(error)
    except Exception:
        message = ""
    sentence = f"{name} raised {type(error).__name__}" + (f": {message[:500]}" if message else "")
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return sentence
    code = trace.tb_frame.f_code
    return f"{sentence} (in {code.co_name}, {code.co_filename.rpartition('/')[2]} line {trace.tb_lineno})"

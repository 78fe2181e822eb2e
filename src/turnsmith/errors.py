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
    ├── Preempted                a scheduler asked the run to stop; it can be resumed
    ├── SandboxFailure           the sandbox for model-written code could not start
    ├── RecordError              a run folder is missing, damaged or in an unknown format
    ├── InternalError            turnsmith itself failed: a bug, with the place and the traceback
    └── ToolError                a tool refuses a call; the only error whose text the model reads

Each message says in one or two sentences what happened, why, and what to do. All errors can be pickled, because they
cross process boundaries.
"""

from __future__ import annotations

from typing import Self


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
        >>> bug = InternalError("turnsmith failed at turnsmith.clocks:resume:9.", "Traceback ...")
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

"""The protocol between an episode's process and a worker: typed messages, validated when read, never pickled.

Each request and its single reply have the number of the call. Fields that hold the user's own data (`info`, a
tool's schema) travel packed inside the message, so that their size is known before they are unpacked.
"""

from __future__ import annotations

from typing import Any, Literal

from turnsmith.env.opening import Speaker
from turnsmith.errors import EnvironmentFailure, MissingDependency

try:
    import msgspec
except ImportError as error:
    raise MissingDependency("Running environments in worker processes needs msgspec: pip install msgspec.") from error

MAX_USER_DATA_BYTES = 2**20
"""Limit on the user's own data in one message, because one byte can unpack to a hundred."""


class Message(msgspec.Struct, array_like=True, gc=False):
    """Base of all messages."""

    call: int
    """Which call this is, or replies to."""


# Requests.


class Define(Message, tag=1):
    """Define `number` as this class and config, or this function. Has no reply; errors appear on use."""

    number: int
    name: str
    """`module:Name` or `path/to/file.py:Name`; empty if it is pickled."""
    folders: list[str]
    """Folders to add to the import path."""
    pickled: bytes = b""
    config: bytes = b""
    """Settings of a class, packed as a dict, or as one pickle."""
    config_is_pickled: bool = False
    call_seconds: float = 0.0


class Reset(Message, tag=2):
    """Build environment `environment` from definition `number` and start its episode."""

    environment: int
    number: int
    seed: int
    task: dict[str, Any] | None = None


class Step(Message, tag=3):
    """Do one action."""

    environment: int
    action: str


class IsOver(Message, tag=4):
    """Ask whether the task is over."""

    environment: int


class UseTool(Message, tag=5):
    """Call one of the environment's own tools."""

    environment: int
    name: str
    arguments: str
    """As JSON, which has integers of any length."""
    episode: str


class Score(Message, tag=6):
    """Call reward function `number` with the trajectory and the environment."""

    environment: int
    number: int
    trajectory: bytes
    seconds: float


class Close(Message, tag=7):
    """Close and forget the environment after its current call."""

    environment: int


class Ping(Message, tag=8):
    """Ask for any reply at all."""


class Solve(Message, tag=10):
    """Ask for the environment's own solution."""

    environment: int


class Answer(Message, tag=11):
    """A player's answer to the `Ask` with this number of call `call`, or why there is none."""

    number: int
    text: str
    failure: str = ""


# Replies.


class Ready(Message, tag=20):
    """The first message of a worker."""


class ResetReply(Message, tag=21):
    """The episode has begun."""

    observation: str
    prefix: str
    tools: msgspec.Raw
    """A list of `ToolInfo`."""
    examples: tuple[tuple[Speaker, str], ...] = ()
    """The messages between these two, with their roles."""


class StepReply(Message, tag=22):
    """The result of a step."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: msgspec.Raw


class ToolReply(Message, tag=23):
    """A tool's result, or its error."""

    text: str
    ok: bool
    failure: str = ""
    is_late: bool = False
    is_stuck: bool = False
    """Whether the call still runs in its thread."""


class ScoreReply(Message, tag=24):
    """The reward function's result; as text if it is not a number."""

    reward: float | str
    shares: dict[str, float]


class BoolReply(Message, tag=25):
    """Yes or no, or only that the request was done."""

    yes: bool = True


class ErrorReply(Message, tag=26):
    """The user's code raised, broke its contract or timed out."""

    sentence: str
    is_late: bool = False
    is_stuck: bool = False
    is_overload: bool = False
    is_internal: bool = False
    """Whether it is a bug of turnsmith; the sentence then ends with its traceback."""


class ExitReport(Message, tag=27):
    """The last message, sent by the worker's supervisor: the exit code."""

    code: int


class Waiting(Message, tag=30):
    """Not a reply: the call has begun or stopped waiting for its turn in the worker."""

    yes: bool
    what: str = ""
    advice: str = ""


class SolveReply(Message, tag=31):
    """The environment's own solution."""

    solution: msgspec.Raw


class Ask(Message, tag=32):
    """Not a reply: during the call, the environment asks another player."""

    number: int
    player: str
    messages: list[dict[str, str]]


Wear = Literal["files", "threads", "memory", "folder", "locale", "signals"]
"""A resource of the process that environments can use up or change for all others."""


class UsedUp(Message, tag=33):
    """Not a reply: the worker should get no more environments."""

    what: Wear
    used: int = 0
    limit: int = 0
    """The limit on the count; 0 if an error showed that nothing is left."""


class ToolInfo(msgspec.Struct, array_like=True):
    """One of the environment's tools, as the model sees it."""

    name: str
    description: str
    parameters: dict[str, Any]
    time_limit: float
    max_output_tokens: int
    is_step: bool
    """Whether its calls are steps."""


Request = Define | Reset | Step | IsOver | UseTool | Score | Close | Ping | Solve | Answer
Reply = (
    Ready
    | ResetReply
    | StepReply
    | ToolReply
    | ScoreReply
    | BoolReply
    | ErrorReply
    | ExitReport
    | Waiting
    | SolveReply
    | Ask
    | UsedUp
)

encode = msgspec.msgpack.Encoder().encode
read_request = msgspec.msgpack.Decoder(Request).decode
read_reply = msgspec.msgpack.Decoder(Reply).decode
read_tools = msgspec.msgpack.Decoder(list[ToolInfo]).decode
read_any = msgspec.msgpack.Decoder().decode
read_dict = msgspec.msgpack.Decoder(dict[str, Any]).decode
BadMessage = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The readers' errors for bytes that are not a message: wrong types, invalid UTF-8, or too deep nesting."""


def pack(what: str, value: Any) -> msgspec.Raw:
    """The user's own data as bytes.

    Raises:
        EnvironmentFailure: It is not plain data, or too large; `what` begins the sentence.

    Example:
        >>> read_dict(pack("Game.step: info", {"lives": 3}))
        {'lives': 3}
        >>> pack("Game.step: info", {"socket": object()})
        Traceback (most recent call last):
        turnsmith.errors.EnvironmentFailure: Game.step: info cannot leave its process: object is not plain data. \
Return strings, numbers, lists and dicts.
    """
    try:
        packed = _packer.encode(value)
    except (Exception, RecursionError) as error:
        raise EnvironmentFailure(
            f"{what} cannot leave its process: {str(error)[:200].removesuffix('.') or type(error).__name__}. "
            "Return strings, numbers, lists and dicts."
        ) from None
    if len(packed) > MAX_USER_DATA_BYTES:
        raise EnvironmentFailure(f"{what} takes {len(packed):,} bytes; the limit is {MAX_USER_DATA_BYTES:,}.")
    return msgspec.Raw(packed)


def _to_plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):  # pydantic
        return value.model_dump(mode="json")
    if hasattr(value, "tolist"):  # NumPy
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not plain data")


_packer = msgspec.msgpack.Encoder(enc_hook=_to_plain)

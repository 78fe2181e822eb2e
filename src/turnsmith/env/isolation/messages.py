"""What the two sides of a worker say to each other: typed, checked when read, never pickled.

A request has the number of its call, and so has its one answer. Fields that hold the user's own data (`info`, a tool's
schema) travel packed inside the message, so that they can be measured before they are unpacked.
"""

from __future__ import annotations

from typing import Any

from turnsmith.errors import EnvironmentFailure, MissingDependency

try:
    import msgspec
except ImportError as error:
    raise MissingDependency("Environments in processes of their own need msgspec: pip install msgspec.") from error

PROTOCOL = 1
"""Goes up when messages change; both sides must have the same."""
MOST_FREE = 2**20
"""Bytes of the user's own data in one message: a byte can unpack to a hundred."""


class Message(msgspec.Struct, array_like=True, gc=False):
    """Something that one side says."""

    call: int
    """Which call this is, or answers."""


# What the worker is asked.


class Define(Message, tag=1):
    """From now on `number` is this class with this config, or this function. Not answered; a fault shows on use."""

    number: int
    name: str
    """`module:Name` or `path/to/file.py:Name`; empty if it is pickled."""
    folders: list[str]
    """Where to look for the module besides the import path."""
    pickled: bytes = b""
    config: bytes = b""
    """Of a class: its settings, packed as a dict, or as one pickle."""
    config_is_pickled: bool = False
    call_seconds: float = 0.0


class Reset(Message, tag=2):
    """Build environment `environment` as `number` says, and start its episode."""

    environment: int
    number: int
    seed: int
    task: dict[str, Any] | None = None


class Step(Message, tag=3):
    """Do one action."""

    environment: int
    action: str


class IsOver(Message, tag=4):
    """Say whether the task is over."""

    environment: int


class UseTool(Message, tag=5):
    """Call one of the environment's own tools."""

    environment: int
    name: str
    arguments: str
    """As JSON, which has whole numbers of any length."""
    episode: str


class Score(Message, tag=6):
    """Call reward function `number` with the episode and the environment."""

    environment: int
    number: int
    trajectory: bytes
    seconds: float


class Close(Message, tag=7):
    """Close the environment and forget it, when what it still does has ended."""

    environment: int


class Ping(Message, tag=8):
    """Say that you can still answer."""


# What it answers.


class Ready(Message, tag=20):
    """The first thing a worker says."""

    protocol: int = PROTOCOL


class ResetReply(Message, tag=21):
    """The episode has begun."""

    observation: str
    prefix: str
    tools: msgspec.Raw
    """A list of `ToolInfo`."""


class StepReply(Message, tag=22):
    """What a step gave."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: msgspec.Raw


class ToolReply(Message, tag=23):
    """What a tool returned, or why it did not."""

    text: str
    ok: bool
    failure: str = ""
    is_late: bool = False
    is_stuck: bool = False
    """Whether the call still runs in its thread."""


class ScoreReply(Message, tag=24):
    """What the reward function paid; as text, if it is no number."""

    paid: float | str
    shares: dict[str, float]


class BoolReply(Message, tag=25):
    """Yes, or no; or just that it was done."""

    yes: bool = True


class ErrorReply(Message, tag=26):
    """The user's code raised, broke its contract or took too long."""

    sentence: str
    is_late: bool = False
    is_stuck: bool = False


class ExitReport(Message, tag=27):
    """The last thing that is said, by the worker's keeper: how it exited, and who was doing something then."""

    code: int
    busy: list[int]


class ToolInfo(msgspec.Struct, array_like=True):
    """What is known of one of the environment's tools."""

    name: str
    description: str
    parameters: dict[str, Any]
    time_limit: float
    max_output_tokens: int


Request = Define | Reset | Step | IsOver | UseTool | Score | Close | Ping
Reply = Ready | ResetReply | StepReply | ToolReply | ScoreReply | BoolReply | ErrorReply | ExitReport

encode = msgspec.msgpack.Encoder().encode
read_request = msgspec.msgpack.Decoder(Request).decode
read_reply = msgspec.msgpack.Decoder(Reply).decode
read_tools = msgspec.msgpack.Decoder(list[ToolInfo]).decode
read_dict = msgspec.msgpack.Decoder(dict[str, Any]).decode
BadMessage = msgspec.MsgspecError


def pack(what: str, value: Any) -> msgspec.Raw:
    """The user's own data as bytes, or a sentence why it cannot travel.

    Example:
        >>> read_dict(pack("Game.step: info", {"lives": 3}))
        {'lives': 3}
        >>> pack("Game.step: info", {"socket": object()})
        Traceback (most recent call last):
        turnsmith.errors.EnvironmentFailure: Game.step: info cannot leave its process: object is not plain data. \
Return texts, numbers, lists and dicts.
    """
    try:
        packed = _packer.encode(value)
    except (Exception, RecursionError) as error:
        raise EnvironmentFailure(
            f"{what} cannot leave its process: {str(error)[:200].removesuffix('.') or type(error).__name__}. "
            "Return texts, numbers, lists and dicts."
        ) from None
    if len(packed) > MOST_FREE:
        raise EnvironmentFailure(f"{what} takes {len(packed):,} bytes; {MOST_FREE:,} are the most.")
    return msgspec.Raw(packed)


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):  # pydantic
        return value.model_dump(mode="json")
    if hasattr(value, "tolist"):  # NumPy
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not plain data")


_packer = msgspec.msgpack.Encoder(enc_hook=_plain)

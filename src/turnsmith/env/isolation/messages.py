"""The protocol between an episode's process and a worker: typed messages, validated when read, never pickled.

Each request has the number of its call, and so has its one reply. Fields that hold the user's own data (`info`, a
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

PROTOCOL = 8
"""Version of these messages; both sides must have the same."""
MAX_USER_DATA_BYTES = 2**20
"""Limit on the user's own data in one message: one byte can unpack to a hundred."""


class Message(msgspec.Struct, array_like=True, gc=False):
    """Base of all messages."""

    call: int
    """Which call this is, or replies to."""


# Requests.


class Define(Message, tag=1):
    """Let `number` stand for this class and config, or this function. Has no reply; a fault shows on use."""

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
    """Close the environment and forget it, once its current call has ended."""

    environment: int


class Ping(Message, tag=8):
    """Ask for any reply at all."""


class Proof(Message, tag=9):
    """The answer to `Hello`: that the client knows the token of an environment server."""

    proof: bytes


class Solve(Message, tag=10):
    """Ask for the environment's own solution."""

    environment: int


class Answer(Message, tag=11):
    """What a player says, to the `Ask` with this number of call `call`; or why there is no answer."""

    number: int
    text: str
    failure: str = ""


# Replies.


class Ready(Message, tag=20):
    """The first message of a worker."""

    protocol: int = PROTOCOL


class ResetReply(Message, tag=21):
    """The episode has begun."""

    observation: str
    prefix: str
    tools: msgspec.Raw
    """A list of `ToolInfo`."""
    examples: tuple[tuple[Speaker, str], ...] = ()
    """The messages between these two, by who speaks."""


class StepReply(Message, tag=22):
    """The result of a step."""

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
    """What the reward function returned; as text, if it is not a number."""

    reward: float | str
    shares: dict[str, float]


class BoolReply(Message, tag=25):
    """Yes or no; or just that it was done."""

    yes: bool = True


class ErrorReply(Message, tag=26):
    """The user's code raised, broke its contract or timed out."""

    sentence: str
    is_late: bool = False
    is_stuck: bool = False
    is_overload: bool = False
    is_internal: bool = False
    """Whether it is a bug of turnsmith; then the sentence ends with its traceback."""


class ExitReport(Message, tag=27):
    """The last message, sent by the worker's supervisor: the exit code."""

    code: int


class Hello(Message, tag=28):
    """The first message of an environment server, before it starts a worker."""

    nonce: bytes
    needs_token: bool
    protocol: int = PROTOCOL


class Busy(Message, tag=29):
    """An environment server has no worker left."""

    workers: int
    """How many it may have."""


class Waiting(Message, tag=30):
    """No reply yet: the call has begun to wait for its turn in the worker, or has ended to do so."""

    yes: bool
    what: str = ""
    advice: str = ""


class SolveReply(Message, tag=31):
    """The environment's own solution."""

    solution: msgspec.Raw


class Ask(Message, tag=32):
    """No reply yet: during the call, the environment asks another player something."""

    number: int
    player: str
    messages: list[dict[str, str]]


Wear = Literal["files", "threads", "memory", "folder", "locale", "signals"]
"""What environments can use up, or change, for all others in their process."""


class UsedUp(Message, tag=33):
    """No reply: the worker should get no further environments."""

    what: Wear
    used: int = 0
    limit: int = 0
    """Of what is counted; 0: an error said that there is no more."""


class ToolInfo(msgspec.Struct, array_like=True):
    """One of the environment's tools, as the model is told about it."""

    name: str
    description: str
    parameters: dict[str, Any]
    time_limit: float
    max_output_tokens: int
    is_step: bool
    """Whether a call of it is a step."""


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
    | Busy
    | Waiting
    | SolveReply
    | Ask
    | UsedUp
)

encode = msgspec.msgpack.Encoder().encode
read_request = msgspec.msgpack.Decoder(Request).decode
read_reply = msgspec.msgpack.Decoder(Reply).decode
read_hello = msgspec.msgpack.Decoder(Hello).decode
read_proof = msgspec.msgpack.Decoder(Proof).decode
read_tools = msgspec.msgpack.Decoder(list[ToolInfo]).decode
read_any = msgspec.msgpack.Decoder().decode
read_dict = msgspec.msgpack.Decoder(dict[str, Any]).decode
BadMessage = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What the readers raise for bytes that are no message: wrong types, no UTF-8, or nested too deeply."""


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

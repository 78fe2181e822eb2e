"""Plain data between the two sandboxes of the reward `tests`, in lines of JSON.

These files are passed as text, like `tools/sandbox/inside.py`, so they cannot import turnsmith: `plain_data` with
`answer_side` to the answer's sandbox, with `tests_side` to that of the tests.
"""

from __future__ import annotations

import io
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes 10 ms to import
    from collections.abc import Callable
    from typing import Any

    Named = Callable[[Any], Any]
    Found = Callable[[str, Any], Any]

MOST_BYTES = 4 * 1024 * 1024
"""A longer line ends the tests."""
CONTAINERS: dict[str, type] = {"t": tuple, "s": set, "z": frozenset}


class NotPlain(Exception):
    """A value that cannot be sent to the other side."""


class Line:
    """The pipes to the other side; the program under test gets other ones as input and output."""

    def __init__(self) -> None:
        self.input, self.output = os.fdopen(os.dup(0), "rb"), os.dup(1)
        nothing, end = os.pipe()
        os.close(end)
        null = os.open(".null", os.O_WRONLY | os.O_APPEND)
        for descriptor, target in ((nothing, 0), (null, 1), (null, 2)):
            os.dup2(descriptor, target)
        sys.stdout = sys.stderr = Nowhere()

    def say(self, kind: str, message: Any) -> None:
        """Send one line; the tests send `?` to the answer, or a verdict."""
        line = (kind + json.dumps(message) + "\n").encode()
        if len(line) > MOST_BYTES:
            raise NotPlain("more than 4 MiB")
        while line:
            line = line[os.write(self.output, line) :]

    def hear(self) -> Any:
        """The next line; at the end of the input, this process ends."""
        line = self.input.readline()
        if not line:
            os._exit(0)
        return json.loads(line)


class Nowhere(io.TextIOBase):
    """What the programs print."""

    def write(self, text: str) -> int:
        """Discard it."""
        return len(text)


def encode(value: Any, name: Named, own: str = "") -> Any:
    """Plain data as JSON; `name` writes other values, and those of classes of the module `own`."""
    if type(value).__module__ == own:
        return name(value)
    if isinstance(value, list):
        return [encode(item, name, own) for item in list(value)]
    if isinstance(value, dict):
        return {"d": [[encode(key, name, own), encode(one, name, own)] for key, one in dict(value).items()]}
    for tag, container in CONTAINERS.items():
        if isinstance(value, container):
            return {tag: [encode(item, name, own) for item in value]}
    return encode_scalar(value, name)


def encode_scalar(value: Any, name: Named) -> Any:
    """`encode` for values that contain no others."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (str, float)):
        return str(value) if isinstance(value, str) else float(value)
    if isinstance(value, int):
        return int(value) if -(2**53) < value < 2**53 else {"i": hex(value)}
    if isinstance(value, complex):
        return {"c": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {"b" if isinstance(value, bytes) else "B": bytes(value).hex()}
    return name(value)


def decode(given: Any, find: Found) -> Any:
    """The value that `encode` wrote, of builtin types; `find` reads other values."""
    if isinstance(given, list):
        return [decode(item, find) for item in given]
    if not isinstance(given, dict):
        return given
    ((tag, inside),) = given.items()
    if tag in CONTAINERS:
        return CONTAINERS[tag]([decode(item, find) for item in inside])
    if tag == "d":
        return {decode(key, find): decode(one, find) for key, one in inside}
    if tag == "i":
        return int(inside, 16)
    if tag == "c":
        return complex(*map(float, inside))
    if tag in "bB":
        return bytes.fromhex(inside) if tag == "b" else bytearray.fromhex(inside)
    return find(tag, inside)

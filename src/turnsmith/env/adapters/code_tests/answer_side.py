"""The answer's sandbox: its code, its objects by number, and the tests' requests for them.

The code could write anything into the pipe. But it can only send values: it cannot read the tests or give a verdict.
"""

from __future__ import annotations

import builtins
import operator
import sys

from turnsmith.env.adapters.code_tests.plain_data import Line, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, *args, **options: function(*args, **options),
    "getattr": getattr,
    "setattr": setattr,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "len": len,
    "iter": iter,
    "next": next,
    "bool": bool,
    "str": str,
    "plain": lambda value: plain(value),
}
"""The operations on an object of the answer; equality is not among them."""


def plain(value: Any) -> Any:
    """Converts an object of a class derived from a builtin one to the builtin class, to compare it."""
    kinds: tuple[Any, ...] = (int, float, str, list, tuple, dict, set, frozenset, bytes, bytearray, complex)
    return next(kind(value) for kind in kinds if isinstance(value, kind))


class AskedCode:
    """The answer's code, and its objects by number."""

    def __init__(self, code: str) -> None:
        self.line = Line()
        self.objects: list[Any] = []
        self.module = type(sys)("__main__")
        sys.modules["__main__"] = self.module
        exec(compile(code, "answer.py", "exec"), self.module.__dict__)  # noqa: S102

    def serve(self) -> None:
        """Answer the requests of the tests until they end."""
        while True:
            self.reply(self.line.hear())

    def reply(self, request: Any) -> None:
        """Do what the tests request, and send the result."""
        try:
            message = self.outcome(request)
        except Exception as error:
            message = self.describe(error)
        self.line.say("", message)

    def outcome(self, request: Any) -> Any:
        """The result of an operation, and its changed arguments."""
        given = request["args"], request["options"]
        args, options = decode(given[0], self.find), {name: decode(one, self.find) for name, one in given[1].items()}
        if request["do"] == "name":
            value = self.module.__dict__[args[0]]
        else:
            value = OPERATIONS[request["do"]](*args, **options)
        after = (
            [self.encode(value) for value in args],
            {name: self.encode(one) for name, one in options.items()},
        )
        changes = {} if after == given else {"args": after[0], "options": after[1]}
        return {"value": self.encode(value), **changes}

    def describe(self, error: Exception) -> Any:
        """An exception: the names of its builtin classes, and its message."""
        names = [base.__name__ for base in type(error).__mro__ if base.__module__ == "builtins"]
        try:
            return {"raised": names, "args": self.encode(error.args)}
        except Exception:
            return {"raised": names, "args": {"t": []}}

    def encode(self, value: Any) -> Any:
        """A value for the tests; objects of its own classes stay here, those derived from builtin ones too."""
        return encode(value, self.name, "__main__")

    def name(self, value: Any) -> Any:
        """Keep an object, and give it a number."""
        if isinstance(value, Callback):
            return {"f": value.number}
        self.objects.append(value)
        return {"r": len(self.objects) - 1}

    def find(self, tag: str, number: Any) -> Any:
        """The object of a number, a builtin, or a function of the tests."""
        if tag == "r":
            return self.objects[number]
        return getattr(builtins, number) if tag == "n" else Callback(self, number)


class Callback:
    """A function of the tests that was passed to the answer."""

    def __init__(self, answer: AskedCode, number: int) -> None:
        self.answer, self.number = answer, number

    def __call__(self, *args: Any) -> Any:
        """Ask the tests to call it."""
        answer = self.answer
        answer.line.say("", {"callback": self.number, "args": [answer.encode(value) for value in args]})
        while "do" in (heard := answer.line.hear()):  # the function asks for something itself
            answer.reply(heard)
        return decode(heard["value"], answer.find)

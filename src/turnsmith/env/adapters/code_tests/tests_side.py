"""The sandbox of the tests: their program, and its requests to the answer.

The tests only compare objects that were rebuilt here from builtin types, so no method of the answer can claim equality.
Other objects of the answer stay in its sandbox; the tests hold a `ForeignObject`, which sends requests.
"""

from __future__ import annotations

import builtins
import operator
import os
import sys

from turnsmith.env.adapters.code_tests.plain_data import Line, NotPlain, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn


class Tests:
    """The program of tests, and its requests to the answer."""

    def __init__(self) -> None:
        self.line, self.asked = Line(), 0
        self.functions: list[Callable[..., Any]] = []
        self.module = type(sys)("__main__")
        sys.modules["__main__"] = self.module

    def run(self, program: str, names: tuple[str, ...], modules: tuple[str, ...]) -> None:
        """Run the program; its end decides."""
        namespace = self.module.__dict__
        namespace.update((module, __import__(module)) for module in modules)
        for name in names:
            try:
                namespace[name] = self.ask("name", name)
            except KeyError:  # using it raises a NameError
                pass
        self.asked = 0
        try:
            exec(compile(program, "tests.py", "exec"), namespace)  # noqa: S102
        except SystemExit as end:  # as unittest.main() ends
            self.end("passed" if not end.code else "failed")
        except BaseException:
            self.end("failed")
        self.end("passed")

    def ask(self, do: str, *args: Any, **options: Any) -> Any:
        """Send a request to the answer. A malformed reply ends the tests, because they could catch an exception."""
        try:
            self.line.say("?", {"do": do, "args": [*map(self.encode, args)], "options": self.encode_each(options)})
            while "callback" in (reply := self.line.hear()):
                self.call_back(reply)
            self.asked += 1
            if "raised" not in reply:
                self.take_changes(args, options, reply)
                return decode(reply["value"], self.find)
            error = self.error(do, reply)
        except Exception as problem:
            self.end("refused", f"{type(problem).__name__}: {problem}")
        raise error

    def call_back(self, reply: Any) -> None:
        """Call a function that was passed to the answer."""
        value = self.functions[reply["callback"]](*(decode(one, self.find) for one in reply["args"]))
        self.line.say("?", {"value": self.encode(value)})

    def error(self, do: str, reply: Any) -> Exception:
        """The exception that the answer raised, of a builtin class."""
        kinds = [getattr(builtins, name, None) for name in reply["raised"]]
        kinds = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception)]
        kind = kinds[0] if kinds else Exception
        if issubclass(kind, (StopIteration, StopAsyncIteration)) and do != "next":
            kind = RuntimeError  # a call must not end a loop of the tests, as map() would
        args = decode(reply["args"], self.find)
        try:
            return kind(*args)
        except TypeError:  # UnicodeDecodeError needs five
            return kind.__new__(kind)

    def take_changes(self, args: tuple[Any, ...], options: dict[str, Any], reply: Any) -> None:
        """Change the arguments as the answer changed its copies."""
        for before, after in zip(args, reply.get("args", ()), strict=False):
            change(before, decode(after, self.find))
        for name, after in reply.get("options", {}).items():
            change(options[name], decode(after, self.find))

    def encode(self, value: Any) -> Any:
        """A value for the answer."""
        return encode(value, self.name)

    def encode_each(self, options: dict[str, Any]) -> dict[str, Any]:
        """Keyword arguments for the answer."""
        return {name: self.encode(one) for name, one in options.items()}

    def name(self, value: Any) -> Any:
        """A value that is not plain data: an object of the answer, a builtin, or a function."""
        if type(value) is ForeignObject:
            return {"r": object.__getattribute__(value, "_number")}
        if getattr(builtins, getattr(value, "__name__", ""), self) is value:
            return {"n": value.__name__}
        if not callable(value) or isinstance(value, type):
            raise NotPlain(f"an argument of type {type(value).__name__}")
        self.functions.append(value)
        return {"f": len(self.functions) - 1}

    def find(self, tag: str, number: Any) -> Any:
        """An object of the answer, or a function that it was given."""
        return self.functions[number] if tag == "f" else ForeignObject(self, number)

    def end(self, verdict: str, reason: str = "") -> NoReturn:
        """Send the verdict, and end."""
        self.line.say("!", {"verdict": verdict, "reason": reason[:200], "asked": self.asked})
        os._exit(0)


def change(before: Any, after: Any) -> None:
    """Make a container, and those in it, equal to another of the same type."""
    if type(before) is not type(after) or before is after:
        return
    if isinstance(before, (list, tuple)):
        same = len(before) == len(after)
        merged = [merge(*pair) for pair in zip(before, after, strict=True)] if same else after
        if isinstance(before, list):
            before[:] = merged
    elif isinstance(before, dict):
        merged = {key: merge(before.get(key), one) for key, one in after.items()}
        before.clear()
        before.update(merged)
    elif isinstance(before, set):
        before.intersection_update(after)
        before.update(after)
    elif isinstance(before, bytearray):
        before[:] = after


def merge(before: Any, after: Any) -> Any:
    """The old container with new contents, or its replacement."""
    if type(after) is ForeignObject and callable(before):  # a builtin in a list, which comes back as an object
        return before
    if type(before) is type(after) and isinstance(before, (list, dict, set, bytearray, tuple)):
        change(before, after)
        return before if not isinstance(before, tuple) or before == after else after
    return after


class ForeignObject:
    """An object in the answer's sandbox; every operation except equality is a request."""

    __slots__ = ("_number", "_tests")
    _tests: Tests

    def __init__(self, tests: Tests, number: int) -> None:
        object.__setattr__(self, "_tests", tests)
        object.__setattr__(self, "_number", number)

    def __enter__(self) -> Any:
        """As `with` does."""
        return self._tests.ask("call", self._tests.ask("getattr", self, "__enter__"))

    def __exit__(self, *error: object) -> None:
        """As `with` does; the exception stays with the tests."""
        self._tests.ask("call", self._tests.ask("getattr", self, "__exit__"), None, None, None)


def asking(do: str) -> Callable[..., Any]:
    """A method that makes the answer do the same with its object."""

    def method(self: ForeignObject, *args: Any, **options: Any) -> Any:
        return object.__getattribute__(self, "_tests").ask(do, self, *args, **options)

    return method


def comparing(compare: str) -> Callable[..., Any]:
    """A method that compares the object here, as its builtin class; other objects end the tests."""

    def method(self: ForeignObject, *other: object) -> Any:
        tests: Tests = object.__getattribute__(self, "_tests")
        try:
            value = tests.ask("plain", self)
        except Exception:
            tests.end("refused", "the tests compare an object of the answer")
        return getattr(operator, compare)(value, *other) if other else hash(value)

    return method


for _method, _do in (
    *(("__call__", "call"), ("__getattr__", "getattr"), ("__setattr__", "setattr"), ("__getitem__", "getitem")),
    *(("__setitem__", "setitem"), ("__delitem__", "delitem"), ("__len__", "len"), ("__iter__", "iter")),
    *(("__next__", "next"), ("__bool__", "bool"), ("__str__", "str"), ("__repr__", "str")),
):
    setattr(ForeignObject, _method, asking(_do))
for _method in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__"):
    setattr(ForeignObject, _method, comparing(_method))

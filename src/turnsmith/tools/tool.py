"""Ways to write a tool: a class with `execute`, a typed function, or a method of an environment."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from turnsmith.concurrency.environment_threads import EnvironmentThread, EventLoopThread
from turnsmith.errors import ConfigError
from turnsmith.tools.definition import ToolDefinition
from turnsmith.tools.execution import current_episode
from turnsmith.tools.schema import Signature, require_self, signature_of, warn_if_incomplete, what_is_untold

__all__ = ["Tool", "current_episode", "tool", "tools_of"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")


class Tool:
    """Base class of tools. Subclasses write `execute`, plain (it runs in a thread, so it may block) or `async`.

    The name comes from the class, the description and the arguments from `execute`'s type hints and docstring; set
    `definition` to write them by hand. Raise `ToolError` to tell the model what it did wrong; any other exception is
    recorded as a failure of the tool.

    Example:
        >>> class Add(Tool):
        ...     def execute(self, a: int, b: int) -> int:
        ...         '''Add two numbers.'''
        ...         return a + b
        >>> Add().definition.name, Add().definition.description
        ('add', 'Add two numbers.')
    """

    time_limit: float = 30.0
    """Timeout of one call in seconds, from when it begins."""
    grace: float = 0.0
    """Seconds that the caller waits longer than the time limit, for a tool that keeps the limit itself."""
    max_output_tokens: int = 1024
    """Longer results are shortened to this many tokens before the model sees them."""
    thread: EnvironmentThread | EventLoopThread | None = None
    """Where calls of an environment's method run. None: a plain one in any thread, an async one on the event loop."""
    is_step: bool = False
    """Whether a call is a step of the environment: `execute` returns a `StepResult`."""

    def __init__(self, definition: ToolDefinition | None = None) -> None:
        if definition is not None:
            self.definition = definition

    @cached_property
    def definition(self) -> ToolDefinition:
        """Name, description and argument schema, as the model sees them."""
        signature = self.signature
        description = signature.description or inspect.cleandoc(type(self).__doc__ or "").partition("\n")[0]
        name = _snake_case(type(self).__name__)
        warn_if_incomplete(name, description, type(self).execute)
        return ToolDefinition(name, description, signature.parameters)

    @property
    def signature(self) -> Signature:
        """The signature of `execute`."""
        return signature_of(type(self).execute, bound=True)

    @property
    def function(self) -> Callable[..., Any]:
        """The function that a call runs."""
        return self.execute

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Run the tool. Arguments are passed by name, validated; returns text, numbers, lists, dicts or None."""
        raise NotImplementedError(f"{type(self).__name__} has no execute method.")


@dataclass(frozen=True, slots=True)
class _Options:
    name: str
    description: str
    time_limit: float
    max_output_tokens: int


class FunctionTool(Tool, Generic[P, R]):
    """A function or a bound method as a tool; calling it calls the function. Created by `@tool` and `tools_of`."""

    def __init__(self, function: Callable[P, R], options: _Options) -> None:
        self._function = function
        self._options = options
        self.time_limit = options.time_limit
        self.max_output_tokens = options.max_output_tokens
        if not inspect.ismethod(function):
            update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    if TYPE_CHECKING:  # a marked method stays a plain function; this lets type checkers see it bound

        def __get__(
            self: FunctionTool[Concatenate[Any, Q], R], instance: object, owner: type | None = None
        ) -> Callable[Q, R]: ...

    def __reduce__(self) -> Any:
        # Ray sends tools to other processes, which read the signature again.
        return type(self), (self._function, self._options)

    @cached_property
    def definition(self) -> ToolDefinition:
        """Name, description and argument schema, as the model sees them."""
        signature, options = self.signature, self._options
        return ToolDefinition(options.name, options.description or signature.description, signature.parameters)

    @property
    def signature(self) -> Signature:
        """The signature of the function."""
        bound = inspect.ismethod(self._function)
        function = cast(Any, self._function).__func__ if bound else self._function
        return signature_of(function, bound=bound)

    @property
    def function(self) -> Callable[..., Any]:
        """The function that a call runs."""
        return self._function

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return cast(Any, self._function)(*args, **kwargs)


_MARK = "__turnsmith_tool__"


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...
@overload
def tool(
    *, name: str = "", description: str = "", time_limit: float = 30.0, max_output_tokens: int = 1024
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(
    function: Any = None,
    /,
    *,
    name: str = "",
    description: str = "",
    time_limit: float = 30.0,
    max_output_tokens: int = 1024,
) -> Any:
    """Make a tool of a typed function, or of a method of an environment.

    A function becomes a `Tool` that can still be called. A method stays a method and is marked, so that `tools_of`
    finds it. Docstrings may be in Google, NumPy, Sphinx or Epydoc style.

    Args:
        function: The function, when used without parentheses.
        name: The tool's name; by default the function's name.
        description: Shown to the model; by default the first paragraph of the docstring.
        time_limit: Timeout of one call in seconds.
        max_output_tokens: Longer results are shortened to this many tokens before the model sees them.

    Example:
        >>> @tool(time_limit=2)
        ... def weather(city: str, days: int = 1) -> str:
        ...     '''The weather forecast.'''
        ...     return f"Sun in {city} for {days} days."
        >>> weather("Rome")
        'Sun in Rome for 1 days.'
        >>> weather.definition.parameters["properties"]["days"]
        {'type': 'integer', 'default': 1}
    """
    if not (math.isfinite(time_limit) and time_limit > 0 and max_output_tokens > 0):
        raise ConfigError("The time_limit and the max_output_tokens of a tool must be more than zero.")

    def decorate(target: Any) -> Any:
        plain = target.__func__ if isinstance(target, (staticmethod, classmethod)) else target
        if not callable(plain) or not hasattr(plain, "__name__"):
            raise ConfigError(f"@tool is for functions and methods, not for {type(target).__name__}.")
        options = _Options(name or plain.__name__, description, float(time_limit), int(max_output_tokens))
        if _is_in_class(plain):  # `untold_tools` warns about it, once its class is used
            setattr(plain, _MARK, options)
            return target
        warn_if_incomplete(options.name, description or plain.__doc__, plain)
        return FunctionTool(plain, options)

    return decorate if function is None else decorate(function)


def _is_in_class(function: Any) -> bool:
    """Whether a function is defined in the body of a class: `Shop.refund`, not `refund` or `f.<locals>.refund`."""
    owner = getattr(function, "__qualname__", "").rpartition(".")[0]
    return bool(owner) and not owner.endswith("<locals>")


def tools_of(environment: object) -> list[Tool]:
    """The methods of an environment that are marked with `@tool`, bound to it, in the order they are defined.

    Example:
        >>> class Shop:
        ...     def __init__(self):
        ...         self.sold = 0
        ...
        ...     @tool
        ...     def sell(self, pieces: int) -> str:
        ...         '''Sell something.'''
        ...         self.sold += pieces
        ...         return f"{self.sold} sold so far."
        >>> shop = Shop()
        >>> [sell] = tools_of(shop)
        >>> sell.definition.name, sell.execute(pieces=3), shop.sold
        ('sell', '3 sold so far.', 3)
    """
    return [FunctionTool(getattr(environment, name), options) for name, options in _marked(type(environment))]


def tool_methods(environment: type) -> list[str]:
    """The names of the methods that `tools_of` finds in an object of this class.

    Example:
        >>> tool_methods(object)
        []
    """
    return [name for name, _ in _marked(environment)]


def untold_tools(environment: type) -> list[str]:
    """What the model is not told about the tools of a class, in sentences.

    Example:
        >>> class Shop:
        ...     @tool
        ...     def sell(self, pieces):
        ...         '''Sell something.'''
        >>> untold_tools(Shop)
        ['The parameter pieces of the tool sell has no type hint: the model is told nothing about its type, and any \
value is accepted.']
    """
    found: list[str] = []
    for name, options in _marked(environment):
        function = inspect.unwrap(getattr(environment, name))
        function = getattr(function, "__func__", function)
        found += what_is_untold(options.name, options.description or function.__doc__, function)
    return found


@lru_cache(maxsize=256)
def _marked(owner: type) -> tuple[tuple[str, _Options], ...]:
    marks: dict[str, _Options] = {}
    for base in reversed(owner.__mro__):
        for name, member in vars(base).items():
            options = getattr(getattr(member, "__func__", member), _MARK, None)
            if options is not None:
                marks[name] = options
                require_self(base, member)
    # A subclass that overrides a method need not mark it again; one that sets it to None removes the tool.
    return tuple((name, options) for name, options in marks.items() if callable(getattr(owner, name)))


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()

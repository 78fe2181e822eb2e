"""Classes, functions and methods as tools."""

import time
import warnings
from typing import Any

import cloudpickle
import pytest

from turnsmith.concurrency.loop_thread import run_blocking
from turnsmith.errors import ConfigError, EnvironmentFailure, ToolError
from turnsmith.tools.definition import ToolCall, ToolDefinition
from turnsmith.tools.registry import ToolRegistry
from turnsmith.tools.step_result import StepResult
from turnsmith.tools.step_tool import EnvironmentStepTool
from turnsmith.tools.tool import Tool, tool, tools_of, untold_tools


@tool
def search(query: str, limit: int = 5) -> str:
    """Search the catalogue.

    Args:
        query: What to look for.
    """
    return f"{limit} results for {query}"


class MyTool(Tool):
    """Does nothing much."""

    def execute(self, param: str) -> str:
        return param.upper()


def test_a_function_stays_callable_and_keeps_its_name() -> None:
    assert search("pens", limit=2) == "2 results for pens"
    assert search.__name__ == "search"
    assert isinstance(search, Tool)


def test_the_openai_form() -> None:
    assert search.definition.as_openai() == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the catalogue.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"description": "What to look for.", "type": "string"},
                    "limit": {"default": 5, "type": "integer"},
                },
                "required": ["query"],
            },
        },
    }


def test_options_of_the_decorator() -> None:
    @tool(name="other", description="Something else.", time_limit=1.5, max_output_tokens=7)
    async def original(x: int) -> int:
        """Not told."""
        return x

    assert original.definition == ToolDefinition(
        "other",
        "Something else.",
        {"properties": {"x": {"type": "integer"}}, "required": ["x"], "type": "object"},
    )
    assert (original.time_limit, original.max_output_tokens) == (1.5, 7)


def test_impossible_options_are_refused() -> None:
    for options in ({"time_limit": 0}, {"time_limit": float("nan")}, {"max_output_tokens": 0}):
        with pytest.raises(ConfigError, match="more than zero"):
            tool(**options)
    with pytest.raises(ConfigError, match="functions and methods"):
        tool(3)  # type: ignore[call-overload]


def test_a_class_is_named_and_described_by_itself() -> None:
    assert MyTool().definition == ToolDefinition(
        "my_tool",
        "Does nothing much.",
        {"properties": {"param": {"type": "string"}}, "required": ["param"], "type": "object"},
    )
    registry = ToolRegistry()
    registry.register(MyTool())
    assert registry.execute_tool("my_tool", param="value") == (True, "VALUE")


def test_a_definition_of_ones_own_and_arguments_by_schema() -> None:
    class Free(Tool):
        definition = ToolDefinition(
            "free", "Anything goes.", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        )

        def execute(self, **arguments: Any) -> Any:
            return arguments

    registry = ToolRegistry([Free()])
    assert registry.execute_tool("free", n=3) == (True, {"n": 3})
    assert registry.execute_tool("free") == (False, "The argument n is missing.")
    assert registry.execute_tool("free", n="3") == (False, "The argument n must be of type integer, not '3'.")
    assert registry.execute_tool("free", n=True) == (False, "The argument n must be of type integer, not True.")
    assert registry.execute_tool("free", n=1, m=2) == (False, "There is no argument m; the arguments are n.")


def test_a_definition_given_to_the_constructor() -> None:
    assert MyTool(ToolDefinition("shout")).definition.name == "shout"


class Desk:
    def __init__(self) -> None:
        self.refunded: list[int] = []

    @tool
    def refund(self, order: int) -> str:
        """Give the money back."""
        if order in self.refunded:
            raise ToolError(f"Order {order} was refunded before.")
        self.refunded.append(order)
        return "Refunded."

    @tool(name="orders")
    async def list_orders(self) -> list[int]:
        """List orders."""
        return [1, 2]

    @staticmethod
    @tool
    def rate() -> float:
        """Rate."""
        return 0.19

    def not_a_tool(self) -> None: ...


class StrictDesk(Desk):
    def refund(self, order: int) -> str:
        return "No refunds."

    rate = None  # type: ignore[assignment]


def test_methods_work_on_the_state_of_their_own_object() -> None:
    first, second = Desk(), Desk()
    registry = ToolRegistry(tools_of(first))
    other = ToolRegistry(tools_of(second))
    assert registry.names == ["refund", "orders", "rate"]
    assert registry.execute_tool("refund", order="7") == (True, "Refunded.")
    assert registry.execute_tool("refund", order=7) == (False, "Order 7 was refunded before.")
    assert other.execute_tool("refund", order=7) == (True, "Refunded.")
    assert registry.execute_tool("orders") == (True, [1, 2])
    assert first.refunded == second.refunded == [7]


def test_a_marked_method_stays_a_plain_method() -> None:
    assert Desk().refund(3) == "Refunded."
    assert not isinstance(Desk.refund, Tool)


def test_subclasses_keep_the_marks_and_can_take_them_away() -> None:
    tools = tools_of(StrictDesk())
    assert [each.definition.name for each in tools] == ["refund", "orders"]
    assert tools[0].execute(order=1) == "No refunds."


def test_an_object_without_tools_has_none() -> None:
    assert tools_of(object()) == []


def test_a_tool_survives_the_way_to_another_process() -> None:
    search.definition  # noqa: B018  # what was read before must not travel
    copy = cloudpickle.loads(cloudpickle.dumps(search))
    assert copy.definition == search.definition
    assert copy("x") == "5 results for x"


def test_a_tool_without_docstring_or_type_hints_is_warned_about_where_it_is_defined() -> None:
    with pytest.warns(UserWarning, match="undocumented") as caught:

        @tool
        def undocumented(city, days: int = 1, *, unit="C", **rest):  # type: ignore[no-untyped-def]
            return city

    untyped = "has no type hint: the model is told nothing about its type, and any value is accepted."
    assert [str(warning.message) for warning in caught] == [
        "The tool undocumented has no docstring: the model is told nothing about what it does.",
        f"The parameter city of the tool undocumented {untyped}",
        f"The parameter unit of the tool undocumented {untyped}",
    ]
    assert {warning.filename for warning in caught} == {__file__}
    assert ToolRegistry([undocumented]).execute_tool("undocumented", city="Rome") == (True, "Rome")


def test_a_method_a_class_and_a_plain_function_are_warned_about_too() -> None:
    class Shop:  # not before its class is used: a file may have many
        @tool(description="Give the money back.")
        def refund(self, order) -> None: ...  # type: ignore[no-untyped-def]

        @staticmethod
        @tool
        def count() -> int: ...

    assert [sentence.partition(":")[0] for sentence in untold_tools(Shop)] == [
        "The parameter order of the tool refund has no type hint",
        "The tool count has no docstring",
    ]

    class Undocumented(Tool):
        def execute(self, param) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.warns(UserWarning, match="tool undocumented has no") as caught:
        assert Undocumented().definition.name == "undocumented"
    assert len(caught) == 2

    def look() -> None: ...

    with pytest.warns(UserWarning, match=r"The tool look has no docstring") as caught:
        ToolRegistry([look])
    assert caught[0].filename == __file__


def test_functions_written_in_c_and_described_tools_are_not_warned_about() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tool(description="The time.")(time.time)
        tool(description="Any.")(lambda: 1)
        assert tools_of(Desk())


def test_a_marked_method_without_self_is_refused() -> None:
    class Empty:
        @tool
        def look() -> str:  # type: ignore[misc]
            """Look around."""
            return ""

    class Shifted:
        @tool
        def look(place: str) -> str:  # type: ignore[misc]  # noqa: N805
            """Look somewhere."""
            return place

    for broken in (Empty, Shifted):
        with pytest.raises(ConfigError, match=rf"{broken.__name__}\.look has no parameter `self`; add it, or mark"):
            tools_of(broken())


def test_a_method_behind_a_decorator_and_a_class_method_are_tools() -> None:
    def logged(function: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        wrapper.__qualname__ = function.__qualname__
        return wrapper

    class Shop:
        @tool(name="look", description="Look around.")
        @logged
        def look(self) -> str:
            return "A shop."

        @classmethod
        @tool
        def kind(cls) -> str:
            """The kind of shop."""
            return cls.__name__

    registry = ToolRegistry(tools_of(Shop()))
    assert registry.execute_tool("look") == (True, "A shop.")
    assert registry.execute_tool("kind") == (True, "Shop")


class Door:
    def __init__(self) -> None:
        self.steps = 0

    def step(self, action: str) -> Any:
        self.steps += 1
        if action == "five":
            return "A corridor.", 0.5, False, True, {}
        return f"You {action}.", 0.25, self.steps > 2, {}


class AsyncDoor(Door):
    async def step(self, action: str) -> Any:
        return super().step(action)


@pytest.mark.parametrize("door", [Door, AsyncDoor])
def test_an_environments_step_as_a_tool(door: type[Door]) -> None:
    step = EnvironmentStepTool(door())
    registry = ToolRegistry([step])
    assert registry.names == ["environment_step"]
    assert registry.definitions()[0].parameters["required"] == ["action"]
    assert registry.execute_tool("environment_step", action="push") == (True, "You push.")
    result = run_blocking(registry.call(ToolCall("environment_step", {"action": "five"})))
    assert (result.text, result.step) == ("A corridor.", StepResult("A corridor.", 0.5, truncated=True))


def test_a_step_that_returns_nonsense_is_a_failure() -> None:
    class Broken:
        def step(self, action: str) -> Any:
            return 3, 0.0, False, {}

    with pytest.raises(EnvironmentFailure, match=r"Broken.step returned an observation of type int; it must be"):
        ToolRegistry([EnvironmentStepTool(Broken())]).execute_tool("environment_step", action="x")

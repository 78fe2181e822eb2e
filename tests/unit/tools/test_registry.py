"""What is in a registry, and what the model is told of its mistakes and of long results."""

import time

import pytest

from turnsmith.errors import ConfigError
from turnsmith.tools.definition import ToolCall
from turnsmith.tools.registry import ToolRegistry
from turnsmith.tools.tool import Tool, tool


@tool
def fine(x: int = 1) -> str:
    """Fine."""
    return f"fine {x}"


def test_names_definitions_and_lookup() -> None:
    def plain(x: int) -> int:
        """A plain function."""
        return x

    registry = ToolRegistry([fine])
    registered = registry.register(plain)
    assert registry.names == ["fine", "plain"]
    assert [each.description for each in registry.definitions()] == ["Fine.", "A plain function."]
    assert registry.get("plain") is registered
    assert registry.get("none") is None
    assert "fine" in registry
    assert len(registry) == 2
    registry.remove("fine")
    registry.remove("fine")
    assert registry.names == ["plain"]


def test_what_cannot_be_registered() -> None:
    class Odd(Tool):
        def execute(self) -> str:
            return ""

    registry = ToolRegistry([fine])
    with pytest.raises(ConfigError, match="already a tool named 'fine'"):
        registry.register(fine)
    with pytest.raises(ConfigError, match=r"register\(Odd\(\)\)"):
        registry.register(Odd)
    with pytest.raises(ConfigError, match="cannot be a tool's name"):
        registry.register(tool(name="<|im_start|>", description="A special token.")(lambda: 1))


def test_an_argument_may_be_called_name() -> None:
    @tool
    def greet(name: str, self: str = "") -> str:
        """Greet."""
        return f"Hello {name}"

    assert ToolRegistry([greet]).execute_tool("greet", name="Ann") == (True, "Hello Ann")


async def test_mistakes_of_the_model_are_sentences_and_no_failures() -> None:
    registry = ToolRegistry([fine])
    for call, sentence in [
        (ToolCall("fin", {}), "There is no tool fin. Did you mean fine?"),
        (ToolCall("\ud800" * 500, {}), f"There is no tool {chr(0xFFFD) * 80}. The tools are fine."),
        (ToolCall(None, {}), "There is no tool of that name. The tools are fine."),  # type: ignore[arg-type]
        (ToolCall(["x"], {}), "There is no tool of that name. The tools are fine."),  # type: ignore[arg-type]
        (ToolCall("fine", {"x": "many"}), "The argument x must be a valid integer, not 'many'."),
        (ToolCall("fine", {"x": 10**5000}), "A number in the arguments has more than 64 digits."),
        (ToolCall("fine", "x=1"), "The arguments must be an object with one entry for each argument."),  # type: ignore[arg-type]
    ]:
        result = await registry.call(call)
        assert (result.ok, result.text, result.failure) == (False, sentence, "")


async def test_fifty_megabytes_cost_one_cut_result() -> None:
    @tool(max_output_tokens=100)
    def huge() -> str:
        """Huge."""
        return "first " + "x" * 50_000_000 + "\ud800 last"

    began = time.process_time()  # not the wall clock: other work shares the machine
    result = await ToolRegistry([huge]).call(ToolCall("huge", {}))
    assert time.process_time() - began < 10
    assert result.ok
    assert result.cut
    assert result.value is None
    assert result.text.startswith("first x")
    assert result.text.endswith("x\ufffd last")
    assert " characters left out] " in result.text
    assert len(result.text) <= 400


async def test_the_output_is_measured_with_the_models_tokenizer() -> None:
    @tool(max_output_tokens=50)
    async def says(length: int) -> str:
        """Says."""
        return "x" * length

    def count(text: str) -> list[int]:  # one token for each character
        return [ord(character) for character in text]

    registry = ToolRegistry([says])
    assert not (await registry.call(ToolCall("says", {"length": 50}), count=count)).cut
    result = await registry.call(ToolCall("says", {"length": 51}), count=count)
    assert result.cut
    assert len(result.text) <= 50

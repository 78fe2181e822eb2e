"""What a model is told about a function, and what it is told when it calls it wrongly."""

import enum
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic
import pytest

from turnsmith.errors import ConfigError
from turnsmith.tools.arguments import BadArguments
from turnsmith.tools.error_messages import check_schema
from turnsmith.tools.schema import signature_of


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Size:
    width: int
    height: int = 1


class Order(pydantic.BaseModel):
    title: str
    pieces: int = pydantic.Field(1, ge=1, description="How many.")


def everything(
    text: str,
    number: int,
    share: float,
    flag: bool,
    unit: Literal["cm", "inch"],
    colour: Colour,
    names: list[str],
    prices: dict[str, float],
    size: Size,
    order: Order,
    note: str | None = None,
    json: Annotated[int, "A name that a pydantic model could not have."] = 3,
    anything: Any = (),
) -> str:
    """Do everything,
    all at once.

    A second paragraph is for the reader of the code.

    Args:
        text: What to write,
            in full.
        number (int): How often.

    Returns:
        Nothing of use.
    """
    return ""


def test_the_schema_of_every_kind_of_type() -> None:
    signature = signature_of(everything)
    assert signature.description == "Do everything, all at once."
    size = {
        "additionalProperties": False,
        "properties": {"width": {"type": "integer"}, "height": {"default": 1, "type": "integer"}},
        "required": ["width"],
        "type": "object",
    }
    order = {
        "properties": {
            "title": {"type": "string"},
            "pieces": {"default": 1, "description": "How many.", "minimum": 1, "type": "integer"},
        },
        "required": ["title"],
        "type": "object",
    }
    assert signature.parameters == {
        "$defs": {"Colour": {"enum": ["red", "blue"], "type": "string"}, "Order": order, "Size": size},
        "properties": {
            "text": {"description": "What to write, in full.", "type": "string"},
            "number": {"description": "How often.", "type": "integer"},
            "share": {"type": "number"},
            "flag": {"type": "boolean"},
            "unit": {"enum": ["cm", "inch"], "type": "string"},
            "colour": {"$ref": "#/$defs/Colour"},
            "names": {"items": {"type": "string"}, "type": "array"},
            "prices": {"additionalProperties": {"type": "number"}, "type": "object"},
            "size": {"$ref": "#/$defs/Size"},
            "order": {"$ref": "#/$defs/Order"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "json": {
                "default": 3,
                "description": "A name that a pydantic model could not have.",
                "type": "integer",
            },
            "anything": {"default": []},
        },
        "required": ["text", "number", "share", "flag", "unit", "colour", "names", "prices", "size", "order"],
        "type": "object",
    }


GOOGLE = """Find orders
of one customer.

A second paragraph is for the reader of the code.

Args:
    customer (str): Who bought,
        by name: the family name first.
    limit (int, optional): How many.

Returns:
    list: The orders.
"""
NUMPY = """Find orders
of one customer.

A second paragraph is for the reader of the code.

Parameters
----------
customer : str
    Who bought,
    by name: the family name first.
limit : int, optional
    How many.

Returns
-------
list
    The orders.
"""
SPHINX = """Find orders
of one customer.

A second paragraph is for the reader of the code.

:param str customer: Who bought,
    by name: the family name first.
:param limit: How many.
:type limit: int
:returns: The orders.
"""
EPYDOC = """Find orders
of one customer.

A second paragraph is for the reader of the code.

@param customer: Who bought,
    by name: the family name first.
@type customer: str
@param limit: How many.
@return: The orders.
"""


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX, EPYDOC], ids=["Google", "NumPy", "Sphinx", "Epydoc"])
def test_every_docstring_style_describes_the_tool_and_its_arguments(docstring: str) -> None:
    def find(customer: str, limit: int = 5) -> None: ...

    find.__doc__ = docstring
    signature = signature_of(find)
    assert signature.description == "Find orders of one customer."
    assert signature.parameters["properties"] == {
        "customer": {"description": "Who bought, by name: the family name first.", "type": "string"},
        "limit": {"default": 5, "description": "How many.", "type": "integer"},
    }


@pytest.mark.parametrize(
    "docstring", [None, "", "Find orders.", "Find orders.\n\nArgs:\n    not an entry\n", "Find: @:"]
)
def test_a_docstring_without_argument_descriptions_is_accepted(docstring: str | None) -> None:
    def find(customer: str) -> None: ...

    find.__doc__ = docstring
    signature = signature_of(find)
    assert signature.description == (docstring or "").partition("\n")[0]
    assert signature.parameters["properties"] == {"customer": {"type": "string"}}


def test_a_description_beside_the_type_gives_way_to_the_docstring() -> None:
    def find(customer: Annotated[str, "From the type."], limit: Annotated[int, "How many."] = 5) -> None:
        """Find orders.

        Args:
            customer: From the docstring.
        """

    properties = signature_of(find).parameters["properties"]
    assert properties["customer"]["description"] == "From the docstring."
    assert properties["limit"]["description"] == "How many."


def good() -> dict[str, Any]:
    return {
        "text": "t",
        "number": "7",
        "share": 1,
        "flag": True,
        "unit": "cm",
        "colour": "blue",
        "names": ["a"],
        "prices": {"a": 1},
        "size": {"width": 2},
        "order": {"title": "pen"},
    }


def test_arguments_get_their_declared_types() -> None:
    checked = signature_of(everything).check(good())
    assert checked["number"] == 7
    assert checked["colour"] is Colour.BLUE
    assert checked["size"] == Size(2, 1)
    assert checked["order"] == Order(title="pen", pieces=1)
    assert "note" not in checked  # the function's own default


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"number": "seven"}, "The argument number must be a valid integer, not 'seven'."),
        ({"number": None}, "The argument number must be a valid integer, not None."),
        ({"text": 5}, "The argument text must be a valid string, not 5."),
        ({"unit": "mile"}, "The argument unit must be 'cm' or 'inch', not 'mile'."),
        ({"colour": "green"}, "The argument colour must be 'red' or 'blue', not 'green'."),
        ({"names": ["a", 3]}, "The argument names.1 must be a valid string, not 3."),
        ({"prices": {"a": "free"}}, "The argument prices.a must be a valid number, not 'free'."),
        ({"size": {}}, "The argument size.width is missing."),
        (
            {"order": {"title": "x", "pieces": 0}},
            "The argument order.pieces must be greater than or equal to 1, not 0.",
        ),
        ({"note": 3}, "The argument note must be of type string or null, not 3."),
    ],
)
def test_a_wrong_argument_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadArguments) as raised:
        signature_of(everything).check(good() | change)
    assert str(raised.value) == sentence


def test_a_missing_and_an_unknown_argument() -> None:
    def find(query: str, limit: int = 5) -> None: ...

    with pytest.raises(BadArguments, match=r"^The argument query is missing\.$"):
        signature_of(find).check({})
    both = r"^The argument query is missing\. There is no argument qury; the arguments are query, limit\.$"
    with pytest.raises(BadArguments, match=both):
        signature_of(find).check({"qury": "a"})
    with pytest.raises(BadArguments, match=both):
        check_schema({"qury": "a"}, signature_of(find).parameters)
    with pytest.raises(BadArguments, match=r"^There is no argument qury; the arguments are query, limit\.$"):
        signature_of(find).check({"query": "x", "qury": "x"})


def test_long_values_and_names_are_shortened_and_no_web_address_is_shown() -> None:
    def find(limit: int) -> None: ...

    for wrong in ({"limit": "x" * 60_000}, {"limit": 1, "y" * 60_000: 2}, {"limit": ["z"] * 4000}):
        with pytest.raises(BadArguments) as raised:
            signature_of(find).check(wrong)
        assert len(str(raised.value)) < 200
        assert "http" not in str(raised.value)


def test_a_number_given_as_very_long_text_is_no_crash() -> None:
    def find(limit: int) -> None: ...

    with pytest.raises(BadArguments, match="The argument limit"):
        signature_of(find).check({"limit": "9" * 60_000})


def test_not_a_number_is_refused() -> None:
    def find(share: float) -> None: ...

    with pytest.raises(BadArguments, match="finite"):
        signature_of(find).check({"share": "nan"})


def test_a_validator_of_the_users_own_is_heard() -> None:
    def positive(value: int) -> int:
        if value < 1:
            raise ValueError("take at least one")
        return value

    def buy(pieces: Annotated[int, pydantic.AfterValidator(positive)]) -> None: ...

    with pytest.raises(BadArguments, match=r"^The argument pieces is not valid: take at least one\.$"):
        signature_of(buy).check({"pieces": 0})


def test_a_function_that_no_model_could_call_is_refused() -> None:
    def by_place(x: int, /) -> None: ...
    def many(*values: int) -> None: ...
    def odd(stream: type(sys)) -> None: ...  # type: ignore[valid-type]
    def unknown(value: "NoSuchType") -> None: ...  # noqa: F821

    for function, word in [(by_place, "by name"), (many, "by name"), (odd, "no JSON Schema"), (unknown, "NoSuchType")]:
        with pytest.raises(ConfigError, match=word):
            signature_of(function)


def test_any_further_arguments_are_passed_on_where_the_function_takes_them() -> None:
    def open_ended(first: int, **rest: Any) -> None: ...

    assert signature_of(open_ended).check({"first": 1, "second": "x"}) == {"first": 1, "second": "x"}


def test_it_is_read_once() -> None:
    assert signature_of(everything) is signature_of(everything)

"""What `reset` may return: a text, Gymnasium's pair, or messages; and what is refused, in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from turnsmith.env.opening import Opening, read_opening
from turnsmith.errors import EnvironmentFailure


def said(role: str, content: Any = "x", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


@pytest.mark.parametrize(
    ("returned", "opening"),
    [
        ("a door", Opening("a door")),
        (("a door", {"k": 1}), Opening("a door")),
        (["a door", {}], Opening("a door")),
        ([said("user", "a door")], Opening("a door")),
        (([said("user", "a door")], {"k": 1}), Opening("a door")),
        ([said("system", "be brief"), said("user", "a door")], Opening("a door", "be brief")),  # no Gymnasium pair
        ([said("developer", "be brief"), said("user", "a door")], Opening("a door", "be brief")),
        (
            [said("system", "s"), said("user", "1"), said("assistant", "one"), said("user", "2")],
            Opening("2", "s", (("user", "1"), ("assistant", "one"))),
        ),
        ([said("assistant", "Hello."), said("user", "2")], Opening("2", "", (("assistant", "Hello."),))),
        ([said("user", [{"type": "text", "text": "a "}, {"type": "text", "text": "door"}])], Opening("a door")),
        ([said("user", "a door", name=None, tool_calls=[])], Opening("a door")),
        ([said("user", "a\ud800b")], Opening("a\ufffdb")),
    ],
)
def test_what_may_be_an_opening(returned: Any, opening: Opening) -> None:
    assert read_opening("Game.reset", returned) == opening


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (None, "Game.reset returned an observation of type NoneType; it must be a string, or a list of messages"),
        ([], "an observation of type list"),
        ({"role": "user", "content": "x"}, "an observation of type dict"),
        ([said("user"), "x"], "an observation of type dict"),
        ([said("user"), said("assistant")], "the last is the assistant's; it must be the user's"),
        ([said("system")], "the last is the system's"),
        ([said("user"), said("system"), said("user")], "a system message that is not the first"),
        ([said("user"), said("tool"), said("user")], "the role 'tool'; an episode begins with messages of the system"),
        ([said("assistant", None, tool_calls=[{"id": 1}]), said("user")], "a message with tool_calls, which no model"),
        ([said("user", [{"type": "image_url", "image_url": {}}])], "a part of type image_url; models here read texts"),
        ([said("user", ["x"])], "a part of type str"),
        ([said("user", [{"type": "text"}])], "a part of type text that has no text"),
        ([said("user", 3)], "a message whose content is of type int; it must be a string"),
        ([said("user", "x" * 2**21)] * 3, "messages of more than 4,194,304 characters"),
    ],
)
def test_what_is_none_is_told_in_a_sentence(returned: Any, sentence: str) -> None:
    with pytest.raises(EnvironmentFailure) as caught:
        read_opening("Game.reset", returned)
    assert sentence in str(caught.value)

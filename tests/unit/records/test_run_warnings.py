"""Warnings among the events of a run."""

from __future__ import annotations

import json

import pytest

from turnsmith.errors import RecordError
from turnsmith.records.json_text import to_json
from turnsmith.records.run_warnings import RunWarning, warnings_in

WARNING = RunWarning("cut_turns", 3, "Turns were cut.", "They end early.", "Allow more tokens.", ("e1", "e2"))


def event(content: object) -> dict[str, object]:
    return json.loads(to_json({"kind": "warning", "content": content}))


def test_a_warning_comes_back_from_its_event() -> None:
    assert warnings_in([event(WARNING.content())]) == [WARNING]


def test_fields_of_a_newer_version_are_ignored() -> None:
    assert warnings_in([event({**WARNING.content(), "colour": "red"})]) == [WARNING]


def test_the_end_of_a_warning_replaces_its_beginning() -> None:
    again = RunWarning("cut_turns", 12, "Turns were cut.", "They end early.", "Allow more tokens.")
    events = [event(warning.content()) for warning in (WARNING, WARNING.ended(9), again)]
    assert [(warning.step, warning.until) for warning in warnings_in(events)] == [(3, 9), (12, None)]


def test_a_plain_sentence_is_a_warning_of_no_step() -> None:
    (warning,) = warnings_in([event("A file was damaged."), {"kind": "checkpoint", "content": "no warning"}])
    assert (warning.step, str(warning)) == (0, "warning: A file was damaged.")


def test_resuming_undoes_what_came_after_its_step() -> None:
    ended = [event(WARNING.content()), event(WARNING.ended(9).content())]
    later = event(RunWarning("constant_groups", 8, "Equal.", "Why.", "Do.").content())
    lasts = [("cut_turns", None)]
    for step, expected in ((9, [("cut_turns", 9), ("constant_groups", None)]), (7, lasts), (3, lasts), (2, [])):
        events = [*ended, later, {"kind": "resumed", "step": step}]
        assert [(warning.name, warning.until) for warning in warnings_in(events)] == expected
    assert len(warnings_in([*ended, later, {"kind": "resumed"}, {"kind": "other", "step": 1}])) == 2


def test_a_damaged_warning_is_an_error() -> None:
    with pytest.raises(RecordError, match=r"A warning in events\.jsonl is damaged"):
        RunWarning.of({"kind": 3})

"""The ReAct format."""

from __future__ import annotations

import pytest

from turnsmith.tools.parsing import ParsedAction, ProblemKind, ReActActionParser


def calls(action: ParsedAction) -> list[tuple]:
    return [(call.name, call.arguments) for call in action.calls]


def kind(action: ParsedAction) -> ProblemKind | None:
    return action.problem and action.problem.kind


def test_react_several_actions_over_several_lines():
    action = ReActActionParser().parse(
        'Thought: two things.\nAction: a\nAction Input: {\n  "x": 1\n}\n'
        "Thought: and\nAction: b\nAction Input: two\nlines\n"
    )
    assert calls(action) == [("a", {"x": 1}), ("b", {"input": "two\nlines"})]
    assert action.text == "two things.\nThought: and"
    assert action.problem is None


@pytest.mark.parametrize(
    "text",
    [
        'Thought: hm Action: a Action Input: {"x": 1}',
        '**Thought:** hm\n**Action:** `a`\n**Action Input:** {"x": 1}',
        'Action: a\nAction Input: ```json\n{"x": 1}\n```',
        'Action: a\r\nAction Input: {"x": 1}\r\n',
        'Action:\n```json\n{"action": "a", "action_input": {"x": 1}}\n```',
        'Action: {"name": "a", "arguments": {"x": 1}}',
        'Action: a\nAction Input: {"x": 1}\nObservation:',
    ],
)
def test_react_is_read_however_it_is_dressed(text):
    action = ReActActionParser().parse(text)
    assert calls(action) == [("a", {"x": 1})]
    assert action.problem is None


def test_react_final_answer_is_the_text():
    assert ReActActionParser().parse("Thought: I know.\nFinal Answer: 42 is it\nreally") == ParsedAction(
        "42 is it\nreally"
    )
    action = ReActActionParser().parse("Action: look\nFinal Answer: done")
    assert (calls(action), action.text) == ([("look", {})], "done")


def test_react_what_the_model_invents_is_not_read():
    action = ReActActionParser().parse("Action: a\nAction Input: {}\nObservation: 5\nAction: b\nAction Input: {}")
    assert calls(action) == [("a", {})]
    assert kind(action) == ProblemKind.INVENTED_OBSERVATION


def test_react_a_word_in_a_sentence_is_no_label():
    text = "My next Action: is good, and the Final Answer: no Observation: yet"
    assert ReActActionParser().parse(text) == ParsedAction(text)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("'rain'", "rain"),
        ('"rain"', "rain"),
        ("'rain\"", "'rain\""),
        ("abca", "abca"),
        ("'", "'"),
        ("''", ""),
        ("```\nrain\n```", "rain"),
        ("rain\nThought: b", "rain"),
        ("rain\nObservation:", "rain"),
        ("rain\nFinal Answer: x", "rain"),
    ],
)
def test_react_plain_input_is_unquoted_and_ends_at_the_next_label(written, text):
    action = ReActActionParser().parse(f"Action: a\nAction Input: {written}")
    assert calls(action) == [("a", {"input": text} if text else {})]


@pytest.mark.parametrize(("stars", "arguments"), [(24, {"x": 1}), (25, {})])
def test_react_the_input_label_is_near_the_start_of_the_next_line(stars, arguments):
    text = f'Action: a\n{"*" * stars}Action Input: {{"x": 1}}'
    assert calls(ReActActionParser().parse(text)) == [("a", arguments)]


@pytest.mark.parametrize(("stars", "count"), [(23, 1), (24, 0)])
def test_react_markup_before_a_label_is_bounded(stars, count):
    text = f"Well.\n{'*' * stars}Action: a\nAction Input: {{}}"
    action = ReActActionParser().parse(text)
    assert len(action.calls) == count
    assert action.text == ("Well." if count else text)
    assert len(ReActActionParser().parse(f"{'*' * 24}Action: a\nAction Input: {{}}").calls) == 1


def test_react_the_input_label_on_the_same_line_is_near():
    for name, count in (("n" * 126, 1), ("n" * 127, 0)):
        action = ReActActionParser().parse(f"So: Action: {name} Action Input: {{}}")
        assert (len(action.calls), action.problem) == (count, None)


def test_react_an_action_that_other_text_separates_from_an_input_has_no_arguments():
    action = ReActActionParser().parse("Action: look\nor so\nAction Input: {}")
    assert (calls(action), action.text) == ([("look", {})], "or so\nAction Input: {}")


def test_react_the_first_of_answer_and_observation_counts():
    action = ReActActionParser().parse("Final Answer: 42\nObservation: yes\nAction: a")
    assert (action.text, action.calls, action.problem) == ("42", [], None)
    action = ReActActionParser().parse("Hm.\nObservation: yes\nFinal Answer: 42")
    assert (action.text, kind(action)) == ("Hm.", ProblemKind.INVENTED_OBSERVATION)
    action = ReActActionParser().parse("Hm.\nObservation: \n")
    assert (action.text, action.problem) == ("Hm.", None)


def test_react_json_that_names_no_tool_is_a_problem():
    action = ReActActionParser().parse('Action: {"x": 1}\nmore')
    assert (action.calls, kind(action), action.text) == ([], ProblemKind.MISSING_NAME, "more")
    assert action.problem.sentence.startswith("The action does not name a tool: ")


def test_react_an_action_without_a_name_is_cut_out():
    action = ReActActionParser().parse("Well.\nAction:\nmore")
    assert action.text == "Well.\nmore"
    assert action.problem.sentence.startswith("The action does not name a tool, or the name is too long: ")


def test_react_an_action_without_a_name_does_not_hide_the_next():
    action = ReActActionParser().parse("Well.\nAction:\nAction: look\nAction Input: {}")
    assert [call.name for call in action.calls] == ["look"]
    assert action.text == "Well."


def test_react_labels_at_the_very_start():
    assert ReActActionParser().parse("Final Answer: 42") == ParsedAction("42")
    for text in ("Observation: yes", "Observation: yes\nFinal Answer: 42"):
        action = ReActActionParser().parse(text)
        assert (action.text, kind(action)) == ("", ProblemKind.INVENTED_OBSERVATION)
    for label in ("Final Answer", "Observation"):
        assert ReActActionParser().parse(f"{label}: 42\nAction: a\nAction Input: {{}}").calls == []
    assert ReActActionParser().parse("x Action: a") == ParsedAction("x Action: a")


def test_react_labels_in_sentences_do_not_hide_a_real_one():
    action = ReActActionParser().parse("My Observation: none.\nObservation: yes")
    assert (action.text, kind(action)) == ("My Observation: none.", ProblemKind.INVENTED_OBSERVATION)
    many = "x Observation: " * 300 + "end"
    assert ReActActionParser().parse(many) == ParsedAction(many)


def test_react_an_empty_input_ends_before_the_next_label():
    action = ReActActionParser().parse("Action: a\nAction Input:\nThought: hm")
    assert (calls(action), action.text) == ([("a", {})], "hm")


def test_react_a_fence_on_one_line():
    action = ReActActionParser().parse('Action: a\nAction Input: ```{"x": 1}```after')
    assert (calls(action), action.text) == ([("a", {"x": 1})], "after")


def test_react_final_answer_as_an_action():
    assert ReActActionParser().parse("Action: Final Answer\nAction Input: 42") == ParsedAction("42")


def test_react_a_closing_fence_is_cut_with_its_action():
    action = ReActActionParser().parse('Action: a\nAction Input: {"x": 1}\n\n```\nafter')
    assert (calls(action), action.text) == ([("a", {"x": 1})], "after")


def test_react_problems_name_the_action():
    action = ReActActionParser().parse('Action: a\nAction Input: {"x": }\nmore')
    assert (kind(action), action.text) == (ProblemKind.INVALID_JSON, "more")
    assert "The input of the action `a` is not valid JSON" in str(action.problem)
    assert kind(ReActActionParser().parse("Action:\n")) == ProblemKind.MISSING_NAME
    assert kind(ReActActionParser().parse("Action: a\n" * 300)) == ProblemKind.TOO_MANY_CALLS

"""Which regular expressions re2 may match, and how they are written for it."""

from __future__ import annotations

import re

import pytest

from turnsmith.env.adapters.linear_patterns import LinearPattern, Untranslatable, for_re2, matches


@pytest.mark.parametrize(
    ("pattern", "translated"),
    [
        (r"(\w+\s?)+\.", "(?s)(?:(?:(?:[0-9A-Za-z_\ue000\ue001]){1,}(?:[\\t-\\r\\x1c- \ue002]){0,1})){1,}\\x{2e}"),
        ("^yes|no$", None),
        ("^(?:yes|no)$", "(?s)(?:yes|no)"),
        ("(?i)yes", "(?is)yes"),
        ("[^a-c-]", r"(?s)[^a-c\x{2d}]"),
        (r"\Aa.\Z", "(?s)a."),
    ],
)
def test_a_pattern_is_translated(pattern: str, translated: str | None) -> None:
    if translated is None:
        with pytest.raises(Untranslatable):
            for_re2(pattern)
    else:
        assert for_re2(pattern) == translated


@pytest.mark.parametrize(
    "pattern",
    [r"(a)\1", "(?=a)a", "(?<!a)b", r"\ba", "a^b", "(?m)a", "(?i:a)", "(?a)\\d", "é", "\\u017f", "(?>a)", "a*+"],
)
def test_what_re2_has_not_or_means_otherwise_is_left_to_re(pattern: str) -> None:
    with pytest.raises(Untranslatable):
        for_re2(pattern)


def test_it_matches_as_re_does() -> None:
    assert matches("a.", "a\n")
    assert not matches("a", "ab")
    assert matches(r"\w+", "\u00e9t\u00e9")
    assert matches(r"\s", "\x1c")


@pytest.mark.parametrize(
    "text", ["a", "\u00e9", "5", "\u0663", " ", "\u2003", "!", "\u20ac", "a\u00e9", "\u20ac\u20ac"]
)
@pytest.mark.parametrize("pattern", [r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", r".+", r"[^\w]+", r"a\w"])
def test_a_character_beyond_ascii_is_matched_as_those_of_its_kind(pattern: str, text: str) -> None:
    translated = LinearPattern(re.compile(for_re2(pattern)), folds_case=False)
    assert translated(text) == (re.fullmatch(pattern, text, re.DOTALL) is not None)

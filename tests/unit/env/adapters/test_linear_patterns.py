"""Which regular expressions re2 may match, and how they are written for it."""

from __future__ import annotations

import pytest

from turnsmith.env.adapters.linear_patterns import Untranslatable, for_re2, matches


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

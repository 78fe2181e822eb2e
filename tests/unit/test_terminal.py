"""Where a live view is drawn, and lines on streams that lack some characters."""

from __future__ import annotations

import io

import pytest

from turnsmith.text import can_draw_live, print_line


class Terminal(io.StringIO):
    def __init__(self, encoding: str | None) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str | None:
        return self._encoding

    def isatty(self) -> bool:
        return not self.closed


@pytest.mark.parametrize(
    ("term", "encoding", "draws"),
    [("xterm-256color", "UTF-8", True), ("dumb", "UTF-8", False), ("xterm", "ascii", False), ("xterm", None, False)],
)
def test_only_a_capable_utf8_terminal_is_drawn_on(
    term: str, encoding: str | None, draws: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    assert can_draw_live(Terminal(encoding)) is draws


def test_what_is_no_open_stream_is_not_drawn_on() -> None:
    closed = io.StringIO()
    closed.close()
    assert not can_draw_live(closed)
    assert not can_draw_live(object())


def test_a_character_that_the_encoding_lacks_becomes_a_question_mark() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    print_line("95 % · done", file)
    assert raw.getvalue() == b"95 % ? done\n"

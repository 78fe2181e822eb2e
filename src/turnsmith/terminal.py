"""Writing to a terminal, a pipe or a file: text that cannot act on the terminal, in its encoding; and whether a live
view can be drawn there.

Whatever is printed may contain what a model, an environment or somebody else's run folder says. Here is the one place
where that meets the terminal: `print_line` for plain text, `safe_console` for what rich draws.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, C1 ones too, but for tabs and line ends; those that reverse text; and lone surrogates."""


def printable(text: str) -> str:
    """Replace each character that could act on a terminal, such as the first of an escape sequence, with U+FFFD.

    Example:
        >>> printable("a name\\x1b]0;pwned\\x07\\r\\n") == "a name\\ufffd]0;pwned\\ufffd\\n"
        True
    """
    return text if text.isprintable() else _ACTIVE.sub("\ufffd", text.replace("\r\n", "\n"))


def can_draw_live(file: Any) -> bool:
    """Whether `file` is a UTF-8 terminal that can move its cursor, and so show colours and a live view.

    Example:
        >>> import io
        >>> can_draw_live(io.StringIO())
        False
    """
    try:
        if not file.isatty() or "utf" not in (file.encoding or "").lower():
            return False
    except (AttributeError, ValueError):  # not a stream, or one that is closed
        return False
    from rich.console import Console

    return not Console(file=file).is_dumb_terminal


def hide_progress_bars() -> None:
    """Have libraries that load models show none, which would garble our lines; tqdm reads this when it is imported."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    # With tokenizers alone, transformers would say that PyTorch was not found.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


def print_line(text: str, file: TextIO, *, is_styled: bool = False) -> None:
    """Print `text` and flush; a character that the file's encoding lacks becomes a question mark.

    Args:
        text: What to print.
        file: Where.
        is_styled: Whether the text comes from a `safe_console`, whose escape sequences are its own.
    """
    encoding = getattr(file, "encoding", None) or "utf-8"
    text = text if is_styled else printable(text)
    print(text.encode(encoding, "replace").decode(encoding), file=file, flush=True)


def safe_console(**options: Any) -> Console:
    """A console of rich that sends no escape sequences but its own, whatever texts it is given to draw."""
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        def render(self, *args: Any, **more: Any) -> Iterable[Segment]:
            for segment in super().render(*args, **more):
                yield segment if segment.control else Segment(printable(segment.text), segment.style)

    return SafeConsole(highlight=False, **options)

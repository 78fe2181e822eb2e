"""Writing to a terminal, a pipe or a file: whether a live view can be drawn there, and lines in its encoding."""

from __future__ import annotations

from typing import Any, TextIO


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


def print_line(text: str, file: TextIO) -> None:
    """Print `text` and flush; a character that the file's encoding lacks becomes a question mark."""
    encoding = getattr(file, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), file=file, flush=True)

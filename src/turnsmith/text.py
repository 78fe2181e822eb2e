"""Text for people: short numbers and durations, sparklines, wrapped lines; text that UTF-8 can encode; and how text is
written to a terminal, a pipe or a file.

What is printed may contain what a model, an environment or somebody else's run folder says. Here is the one place where
that meets the terminal: `print_line` for plain text, `safe_console` for what rich draws.
"""

from __future__ import annotations

import math
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_BARS = "▁▂▃▄▅▆▇█"
_ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, C1 ones too, but for tabs and line ends; those that reverse text; and lone surrogates."""
_PAIR, _SURROGATE = re.compile("[\ud800-\udbff][\udc00-\udfff]"), re.compile("[\ud800-\udfff]")


def number(value: Any) -> str:
    """Format a number in at most eight characters, easy to compare with the line above.

    Example:
        >>> [number(value) for value in (0.3125, 12.5, 0.0123, -0.00012, 1e-7, 32, 12345.6, float("nan"), None)]
        ['0.312', '12.5', '0.0123', '-1.2e-04', '1.0e-07', '32', '12346', 'nan', '-']
    """
    try:
        value = float(value)
    except (TypeError, ValueError, OverflowError):
        return "-"
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if value == int(value) and size < 1e6:
        return str(int(value))
    if size >= 1e6 or size < 1e-3:
        return f"{value:.1e}"
    if size < 0.1:
        return f"{value:.4f}"
    return f"{value:.{0 if size >= 1000 else 1 if size >= 10 else 2 if size >= 1 else 3}f}"


def duration(seconds: float) -> str:
    """Format seconds the way people write them.

    Example:
        >>> duration(0.42), duration(42.3), duration(95), duration(7265), duration(float("nan"))
        ('0.4 s', '42 s', '1:35', '2:01:05', 'nan s')
    """
    if not abs(seconds) < 1e9:  # thirty years, or no number at all
        return f"{seconds:.0e} s"
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw the values as one line of bars; more than `width` values are averaged into `width` bins.

    Example:
        >>> sparkline([0.0, 0.5, 1.0], width=10), sparkline([2.0, 2.0], width=10), len(sparkline(range(100), width=10))
        ('▁▅█', '▁▁', 10)
    """
    finite = [max(-1e300, min(1e300, float(value))) for value in values if math.isfinite(value)]
    if not finite or width < 1:
        return ""
    if len(finite) > width:
        edges = [round(index * len(finite) / width) for index in range(width + 1)]
        finite = [sum(finite[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(finite), max(finite) - min(finite)
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1)) if span > 0 else 0] for value in finite)


def wrapped(text: str, width: int) -> Iterator[str]:
    """Wrap each line to `width`, with continuation lines indented so that the start of each line stands out.

    Example:
        >>> print("\\n".join(wrapped("what to do: play an episode yourself", width=24)))
        what to do: play an
            episode yourself
        >>> list(wrapped("see /home/me/my-run", width=20))
        ['see /home/me/my-run']
    """
    for line in text.splitlines():
        margin = " " * (len(line) - len(line.lstrip()) + 4)
        # A path or a command stays whole, so that it can be copied.
        parts = textwrap.wrap(
            line, max(20, width), subsequent_indent=margin, break_on_hyphens=False, break_long_words=False
        )
        yield from parts or [""]


def replace_surrogates(text: str) -> str:
    """Replace each lone surrogate, which UTF-8 cannot encode, with U+FFFD.

    Returns a plain `str` even if given a subclass.

    Example:
        >>> replace_surrogates("caf\\u00e9 \\ud83d") == "caf\\u00e9 \\ufffd"
        True
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        text = _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)
        return _SURROGATE.sub("\ufffd", text)
    return str.__str__(text)


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

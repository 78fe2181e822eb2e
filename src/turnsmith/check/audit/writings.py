"""How an answer may be written: the forms that scorers want, other honest ways, and wrong answers that are near."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping

Write = Callable[[str], str]
"""Writes an answer in another way; returns it unchanged where that does not apply."""

FORMS = (
    "#### X",
    "\\boxed{X}",
    "<answer>X</answer>",
    "<think>\n\n</think>\n<answer>X</answer>",
    "<think>\n\n</think>\n\\boxed{X}",
    "Answer: X",
    "The answer is X.",
    "The final answer is X",
    '{"answer": "X"}',
    "```\nX\n```",
    "(X)",
    "[X]",
)
"""How scorers want a final answer X to be written; the search adds what the scorer and the prompt say."""
_SENTENCE = "That is all."
_PARAGRAPH = "So it has been shown, step by step, that this is so. "[:50] * 8
_REASONS = "First I read the question, then I thought about each of its parts, and in the end I was sure. " * 4
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def in_form(form: str, text: str) -> str:
    """An answer in a form.

    Example:
        >>> in_form("#### X", "57"), in_form("", "57")
        ('#### 57', '57')
    """
    return form.replace("X", text, 1) if form else text


def mark_of(form: str) -> str:
    """What a form has before the answer, if that is telling.

    Example:
        >>> (
        ...     mark_of("#### X"),
        ...     mark_of("\\\\boxed{X}"),
        ...     mark_of("<think>\\n</think>\\n<answer>X</answer>"),
        ...     mark_of("(X)"),
        ... )
        ('####', '\\\\boxed{', '<answer>', '')
    """
    before = form.partition("X")[0].split()
    return before[-1] if before and len(before[-1]) > 1 else ""


def with_choice(letter: str, question: str) -> str:
    """The letter of a choice with the text that the question has for it; as it is if there is none.

    Example:
        >>> with_choice("B", "Which is red?\\nA. grass\\nB. blood\\n"), with_choice("7", "3 + 4?")
        ('B: blood', '7')
    """
    pattern = rf"(?:^|\s|\(){letter}[).:]\s*(.+?)(?=\s+\(?[A-Z][).:]\s|\s*$)"
    found = re.search(pattern, question, re.MULTILINE) if re.fullmatch("[A-Z]", letter) else None
    return f"{letter}: {found[1]}" if found else letter


def _if_number(write: Callable[[str], str]) -> Write:
    return lambda text: write(text) if _NUMBER.fullmatch(text.strip()) else text


def _as_json(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=1)
    except ValueError:
        return text


def _spaced(text: str) -> str:
    return re.sub(r"([\[({,])(?=\S)", r"\1 ", text)


def _thousands(text: str) -> str:
    whole, dot, rest = text.strip().partition(".")
    return f"{int(whole):,}{dot}{rest}" if abs(int(whole)) > 999 else text


def _without_spaces(text: str) -> str:
    return re.sub(r"\s*([,\[\](){}:])\s*", r"\1", text) if _is_list(text) else text


def _is_list(text: str) -> bool:
    try:
        return isinstance(ast.literal_eval(text.strip()), (list, tuple, dict, set))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False


SPACES, BLANK = "spaces around it", "an empty line before it"
SENTENCE, PARAGRAPH = "a sentence after it", "a paragraph of 400 characters after it"
CHOICE = "the text of the choice after its letter"
AROUND: Mapping[str, Write] = {
    SPACES: lambda text: text if "\n" in text else f"  {text}  ",  # a program's spaces mean something
    BLANK: lambda text: f"\n\n{text}",
    "a new line after it": lambda text: f"{text}\n",
    "Windows line ends": lambda text: f"{text}\r\n",
    SENTENCE: lambda text: f"{text}\n{_SENTENCE}",
    PARAGRAPH: lambda text: f"{text}\n{_PARAGRAPH}",
    "a line before it": lambda text: f"I have thought about it.\n{text}",
    "reasons before it": lambda text: f"{_REASONS}\n{text}",
    "thoughts in tags before it": lambda text: f"<think>\n{_REASONS}\n</think>\n{text}",
}
"""Honest ways to write around a right answer in its form. Spaces never mean anything, nor does how much follows it."""
WITHIN: Mapping[str, Write] = {
    "a full stop": lambda text: f"{text}." if text[-1:].isalnum() else text,
    "another case": lambda text: text.upper() if text != text.upper() else text.lower(),
    "quotation marks": lambda text: f'"{text}"',
    "bold type": lambda text: f"**{text}**",
    "dollar signs": lambda text: f"${text}$",
    "backticks": lambda text: f"`{text}`",
    "a sentence around it": lambda text: f"The answer is {text}.",
    "a thousands separator": _if_number(_thousands),
    "a decimal place more": _if_number(lambda text: f"{text}0" if "." in text else f"{text}.0"),
    "digits of another script": _if_number(lambda text: text.translate({48 + n: 0x660 + n for n in range(10)})),
    "spaces inside its brackets": lambda text: _spaced(text) if _is_list(text) else text,
    "no spaces inside its brackets": _without_spaces,
    "JSON over several lines": _as_json,
}
"""Honest ways to write the answer itself; a full stop or the case may mean something."""
SAME_VALUE = (
    "a thousands separator",
    "a decimal place more",
    "spaces inside its brackets",
    "no spaces inside its brackets",
    "JSON over several lines",
)
"""Those of them that write the same number or list in another way."""


def _one_off(text: str) -> str:
    value = float(text)
    return str(int(value) + 1) if value.is_integer() else f"{value + 1:g}"


def _last_number(change: Callable[[str], str]) -> Write:
    """Change the last number of a text; not if it has the same value then."""

    def write(text: str) -> str:
        found = list(_NUMBER.finditer(text))
        changed = change(found[-1][0]) if found else ""
        if not changed or float(changed) == float(found[-1][0]):
            return text
        return text[: found[-1].start()] + changed + text[found[-1].end() :]

    return write


_WORD = 5
"""Halves of what is shorter may be the answer without its brackets."""
_negated = _last_number(lambda text: text[1:] if text.startswith("-") else f"-{text}")
NEAR: Mapping[str, Write] = {
    "the number plus one": _last_number(_one_off),
    "the number with another sign": lambda text: _negated(text) if len(_NUMBER.findall(text)) == 1 else text,
    "the number with a digit more": _last_number(lambda text: "7.".join(f"{text}.".split(".")[:2]).rstrip(".")),
    "the number with a digit before it": _last_number(lambda text: re.sub("^-?", r"\g<0>4", text)),
    "ten times the number": _last_number(lambda text: f"{float(text) * 10:g}"),
    "its first half": lambda text: text if _NUMBER.search(text) or len(text) < _WORD else text[: len(text) // 2],
    "its last half": lambda text: text if _NUMBER.search(text) or len(text) < _WORD else text[len(text) // 2 :],
    "its first character": lambda text: text[:1],
    "a letter before it": lambda text: f"x{text}" if text.isalpha() else text,
    "a letter after it": lambda text: f"{text}x" if text.isalpha() else text,
    "its parts in another order": lambda text: _reordered(text),
    "one of its parts twice": lambda text: _edited(text, lambda parts: [*parts, parts[-1]]),
    "without one of its parts": lambda text: _edited(text, lambda parts: parts[:-1]),
}
"""Answers near to a right one that are not right, unless several answers are."""


def _edited(text: str, edit: Callable[[list[str]], list[str]]) -> str:
    separator = next((one for one in ("\n", ", ", ",", " ") if one in text.strip("[](){} \n")), "")
    if not separator or re.search(r"[=+*^]", text):  # settings and sums have no order
        return text
    inner = text.strip("[](){} \n")
    if any(" " in part.strip() for part in inner.split(separator)):
        return text  # a sentence
    return text.replace(inner, separator.join(edit(inner.split(separator))), 1)


def _reordered(text: str) -> str:
    return _edited(text, lambda parts: [*parts[1:], parts[0]])

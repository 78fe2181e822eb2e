"""Settings of a scorer that are wrong in ways that users often have them: another column, another form, a list."""

from __future__ import annotations

import re

from turnsmith.check.audit.search import Search
from turnsmith.check.audit.writings import FORMS, in_form
from turnsmith.check.environment.oracle import in_order
from turnsmith.check.finding import Finding
from turnsmith.env.adapters.question_answer import ANSWERS, QuestionAnswer, column_of

_LONG = 120
_FINAL = (r"####\s*(.+?)\s*$", r"\\boxed\{([^{}]*)\}", r"<answer>\s*(.*?)\s*</answer>", r"(-?\d[\d,]*(?:\.\d+)?)\D*$")
"""Where the answer stands in a text that explains it, most telling first."""


async def wrong_setting(found: Search) -> Finding | None:
    """What is wrong with the answers of the rows, if that is why right answers are not paid; else None."""
    [spec, *others] = found.subject.environment.each()
    made = spec.build()
    rows = [task.start.task for task in found.tasks if task.start.task]
    if others or not isinstance(made, QuestionAnswer) or not rows:
        return None
    made.reset(task=rows[0])
    answer, named = made.scored.answer, made.answer_column
    if isinstance(answer, (list, tuple)):
        saw = f"The answers of the rows are lists, such as {str(answer)[:80]}, and are compared as text."
        paid = await _paid(found, [str(answer[0])] if answer else [])
        saw += "" if paid else f" A single one, {str(answer[0])!r}, gets nothing." if answer else ""
        return (
            None if paid else Finding("failed", saw, "Write one answer into each row, or a reward that takes a list.")
        )
    usual = [name for name in ANSWERS if column_of(rows[0], name) is not None]
    if named and usual and named not in ANSWERS and not named.endswith(tuple(ANSWERS)):
        saw = f"Answers are compared with the column {named!r}, such as {str(answer)[:60]!r}; the rows also have \
{usual[0]!r}, such as {str(column_of(rows[0], usual[0]))[:60]!r}."
        return Finding("failed", saw, f"Pass --answer {usual[0]}, if that is the right answer.")
    texts = [str(column_of(row, named)) if named else str(answer) for row in rows]
    if sum(map(len, texts)) / len(texts) > _LONG:
        short = next((one[1] for pattern in _FINAL if (one := re.search(pattern, texts[0], re.DOTALL))), "")
        tells_apart = found.top is not None and found.top > found.bottom
        if short and tells_apart and not await _paid(found, [short, *(in_form(form, short) for form in FORMS)]):
            saw = f"The answers of the rows are whole explanations, of {len(texts[0])} characters in the first: its \
end, {short[:60]!r}, gets nothing."
            return Finding(
                "failed", saw, "Write only the final answer into the column, or score what follows its mark."
            )
    return None


async def _paid(found: Search, answers: list[str]) -> bool:
    """Whether an answer to the first start is paid."""
    for answer in answers:
        played = await found.play(lambda task, answer=answer: in_order([answer]), found.tasks[:1])
        if played is not None and played.mean > found.bottom:
            return True
    return False

"""Finds out, before training, whether a reward function that takes lists compares the answers in them.

TRL calls such a function with all answers of a batch. Here each answer is scored when its episode ends, by itself, so a
function that ranks or normalises what it is given would say the same of every answer.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from turnsmith.concurrency.loop_thread import run_blocking
from turnsmith.env.adapters.scorers import Scored, Scorer
from turnsmith.errors import ConfigError, TurnsmithError, describe_failure

_ANSWERS = (
    *("{0}", "\\boxed{{{0}}}", "<answer>{0}</answer>", "<think>\nIt is {0}.\n</think>\n<answer>{0}</answer>"),
    *("", "No.", "#### 0", "I do not know it. " * 20),
)
"""Right and wrong answers of different lengths in the usual formats: any function tells some of them apart."""


def check_alone(scorer: Scorer, scored: Scored) -> None:
    """Raise a ConfigError if an answer's reward depends on the others in its list, or the function cannot be called.

    Functions of single answers are left to the first episodes, except verl's, which choose by `data_source`.
    """
    if not scorer.is_batch:
        if scorer.is_verls:
            _call(scorer, [replace(scored, response=str(scored.answer))])
        return
    batch = [replace(scored, response=text.format(scored.answer)) for text in _ANSWERS]
    alone = [reward for one in batch for reward in _call(scorer, [one])]
    together = _call(scorer, batch)
    if alone != together and together == _call(scorer, batch):  # else it is random, and nothing can be said
        raise ConfigError(
            f"The reward {scorer.name} gives an answer another reward when it is called with other answers beside it, "
            "as one that ranks or normalises them does. Here each answer is scored by itself, and the advantage "
            "compares those of a group: return the reward of each answer as it is."
        )


def _call(scorer: Scorer, batch: list[Scored]) -> list[float | None]:
    try:
        returned: Any = scorer.call(batch, {})
        if inspect.isawaitable(returned):
            returned = run_blocking(_await(returned))
    except TurnsmithError:
        raise
    except Exception as error:
        raise ConfigError(f"{describe_failure(f'The reward {scorer.name}', error)}, with {_said(batch)}.") from error
    return [reward for reward, _ in scorer.read(returned, len(batch))]


async def _await(returned: Any) -> Any:
    return await returned


def _said(batch: list[Scored]) -> str:
    return "these answers: " + ", ".join(repr(scored.response[:20]) for scored in batch)

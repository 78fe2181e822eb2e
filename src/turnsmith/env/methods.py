"""What the methods of an environment's class look like."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from turnsmith.env.base import BaseEnvironment


@dataclass(frozen=True, slots=True)
class Methods:
    """What a class's methods look like; looked up once a class."""

    plain_reset: bool
    plain_step: bool
    plain_close: bool
    takes_seed: bool
    takes_task: bool
    has_close: bool
    has_is_done: bool


@lru_cache(maxsize=256)
def methods_of(found: Any) -> Methods:
    """Look at a class, once."""

    def plain(name: str) -> bool:
        return not inspect.iscoroutinefunction(getattr(found, name, None))

    parameters = inspect.signature(found.reset).parameters
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    close = getattr(found, "close", None)
    return Methods(
        plain_reset=plain("reset"),
        plain_step=plain("step") and plain("is_done"),
        plain_close=plain("close"),
        takes_seed="seed" in parameters or anything,
        takes_task="task" in parameters or anything,
        # The default does nothing, so it is not worth a thread hop.
        has_close=callable(close) and close is not BaseEnvironment.close,
        has_is_done=callable(getattr(found, "is_done", None)),
    )

"""Calls to vLLM's engine, which is a process of its own and may end before it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from turnsmith.errors import EngineFailure

_LOOK_SECONDS = 0.5
_Answer = TypeVar("_Answer")


async def answer_of(call: Coroutine[Any, Any, _Answer], has_ended: Callable[[], bool]) -> _Answer:
    """Wait for the answer to a call, for which vLLM 0.27.1 would wait for ever if the engine has ended meanwhile.

    Raises:
        EngineFailure: The engine has ended.
    """
    task = asyncio.create_task(call)
    try:
        while not (await asyncio.wait([task], timeout=_LOOK_SECONDS))[0]:
            if has_ended():
                raise EngineFailure("vLLM's engine has ended: killed, or out of memory.")
        return await task
    finally:
        task.cancel()  # whoever gives up waiting gives up the call

"""Copies of models that play beside the one that is trained: each in memory once per process, on the CPU."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from turnsmith.concurrency.threads import shared_threads
from turnsmith.inference.chat import Chat, set_template
from turnsmith.inference.engine import Engine

_MOST = 6
"""Copies that a process keeps; beyond that, the one that was not asked for longest is dropped once it is idle."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model to copy."""

    path: str
    dtype: str = "float32"
    trust_remote_code: bool = False
    chat_template: str | None = None
    """In place of its own, as `model.chat_template`."""

    @classmethod
    def named(cls, name: str, like: ModelFolder | None) -> ModelFolder:
        """The model with this name, folder or id."""
        from turnsmith.inference.models import resolve

        return replace(like or cls(""), path=resolve(name), chat_template=None)


@dataclass(slots=True)
class _Copy:
    engine: Any
    chat: Chat
    users: int = 0


class ModelCopies:
    """The copies in this process, loaded when they are asked for."""

    def __init__(self) -> None:
        self._copies: dict[tuple[ModelFolder, int], _Copy] = {}
        """By folder and when it was written: a step that is made again writes another model to the same place."""
        self._loading: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}
        atexit.register(self.close)

    @asynccontextmanager
    async def using(self, folder: ModelFolder, like: Chat) -> AsyncGenerator[tuple[Engine, Chat]]:
        """The engine and the chat template of a model; `like` has the settings of the template."""
        async with self._loading.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            key = folder, _written(folder)
            copy = self._copies.pop(key, None)
            if copy is None:
                self._drop_idle()
                copy = await shared_threads().run(_load, folder, like)
            self._copies[key] = copy  # the one that was asked for last is the last
        copy.users += 1
        try:
            yield copy.engine, copy.chat
        finally:
            copy.users -= 1

    def close(self) -> None:
        """End all of them."""
        for copy in self._copies.values():
            copy.engine.close()
        self._copies.clear()

    def _drop_idle(self) -> None:
        for key, copy in list(self._copies.items())[: max(0, len(self._copies) - _MOST + 1)]:
            if not copy.users:
                del self._copies[key]
                copy.engine.close()


def _written(folder: ModelFolder) -> int:
    """When a model was written; 0 if it is no folder with a config."""
    config = Path(folder.path, "config.json")
    return config.stat().st_mtime_ns if config.is_file() else 0


def _load(folder: ModelFolder, like: Chat) -> _Copy:
    from turnsmith.inference.engines.transformers_engine import TransformersEngine
    from turnsmith.inference.sync.engines import load_tokenizer

    tokenizer, _ = load_tokenizer(folder.path, folder.trust_remote_code)
    set_template(tokenizer, folder.chat_template)
    engine = TransformersEngine(folder.path, dtype=folder.dtype, trust_remote_code=folder.trust_remote_code)
    return _Copy(engine, Chat(tokenizer, template_settings=like.template_settings))

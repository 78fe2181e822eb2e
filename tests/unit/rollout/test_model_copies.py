"""Copies of models: the one that was asked for last stays longest, and one in use is never closed."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from turnsmith.rollout import model_copies
from turnsmith.rollout.model_copies import ModelCopies, ModelFolder


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the copies that were closed; nothing is loaded."""
    paths: list[str] = []

    def load(folder: ModelFolder, like: Any) -> Any:
        return model_copies._Copy(SimpleNamespace(close=lambda: paths.append(folder.path)), like)

    monkeypatch.setattr(model_copies, "_load", load)
    return paths


async def use(copies: ModelCopies, *names: str) -> None:
    for name in names:
        async with copies.using(ModelFolder(name), None):  # type: ignore[arg-type]
            pass


async def test_the_one_that_was_not_asked_for_longest_is_closed(closed: list[str]) -> None:
    copies = ModelCopies()
    names = [f"model-{number}" for number in range(6)]
    await use(copies, *names, names[0])
    assert closed == []
    await use(copies, "another")
    assert closed == [names[1]]
    copies.close()
    assert sorted(closed) == sorted([*names, "another"])


async def test_one_in_use_is_not_closed_until_it_is_free(closed: list[str]) -> None:
    copies, most = ModelCopies(), model_copies._MOST
    names = [f"model-{number}" for number in range(most)]
    async with AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(copies.using(ModelFolder(name), None))  # type: ignore[arg-type]
        await use(copies, "another")
        assert closed == []
    await use(copies, "one more")
    assert closed[0] == names[0]


def test_a_named_model_is_loaded_like_the_first(tiny_folder: str) -> None:
    first = ModelFolder("first", dtype="bfloat16", trust_remote_code=True)
    assert ModelFolder.named(tiny_folder, first) == ModelFolder(tiny_folder, "bfloat16", trust_remote_code=True)
    assert ModelFolder.named(tiny_folder, None) == ModelFolder(tiny_folder)

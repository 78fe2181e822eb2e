"""An answer always comes, whatever an environment returns or raises, and it comes in time."""

from __future__ import annotations

import asyncio
import enum
import time
from typing import Any

import numpy as np
import pytest

from turnsmith import BaseEnvironment
from turnsmith.config import EnvironmentConfig
from turnsmith.env import EnvironmentHost, EnvironmentSpec
from turnsmith.env.host import open_host
from turnsmith.env.isolation import messages as m
from turnsmith.env.isolation import worker as worker_module
from turnsmith.env.isolation.pool import close_workers
from turnsmith.errors import EnvironmentFailure, EnvironmentTimeout


class Colour(enum.StrEnum):
    RED = "red"


class Liar(str):
    """A string that says that it is short."""

    __slots__ = ()

    def __len__(self) -> int:
        return 1


class Stop(BaseException):
    pass


class Odd(BaseEnvironment):
    """Returns or raises what the action names."""

    def reset(self) -> str:
        return np.random.default_rng(0).choice(["a red door", "a blue door"])

    def get_prompt_prefix(self) -> str:
        return np.str_("Choose.")

    def step(self, action: str) -> Any:
        raised = {
            "surrogate": ValueError("bad name \udcff"),
            "own class": Stop("no"),
            "long": ValueError("z" * 50_000_000),
            "exit": SystemExit(3),
            "generator": GeneratorExit(),
        }
        if action in raised:
            raise raised[action]
        returned = {
            "numpy": np.str_("left"),
            "enum": Colour.RED,
            "half": "x\udfff",
            "wide": "\U0001f600" * (2**22),
            "liar": Liar("y" * 10_000_000),
        }
        info = {"word": np.str_("x"), "number": np.float32(0.5), "many": np.arange(2), "pair": (1, 2)}
        return returned[action], np.float32(0.5), np.bool_(False), info


class AsyncOdd(Odd):
    """The same on the event loop."""

    async def reset(self) -> str:  # type: ignore[override]
        return super().reset()

    async def step(self, action: str) -> Any:
        return super().step(action)


@pytest.mark.parametrize("environment", [Odd, AsyncOdd])
async def test_whatever_is_returned_or_raised_is_answered(environment: type) -> None:
    host = open_host(EnvironmentSpec.of(environment, EnvironmentConfig(isolation="process", isolation_workers=1)))
    try:
        async with asyncio.timeout(60):
            assert (await host.reset()).endswith("door")
            assert host.prompt_prefix() == "Choose."
            seen = {"numpy": "left", "enum": "red", "half": "x\ufffd", "wide": "\U0001f600" * 2**22}
            info = {"word": "x", "number": 0.5, "many": [0, 1], "pair": [1, 2]}
            for action, observation in seen.items():
                result = await host.step(action)
                assert result.observation == observation
                assert (result.reward, result.info) == (0.5, info)
            for action, sentence in (
                ("surrogate", r"step raised ValueError: bad name \\udcff"),
                ("own class", "Stop: no"),
                ("long", "step raised ValueError: zzz"),
                ("exit", "SystemExit"),
                ("generator", "GeneratorExit"),
                ("liar", "returned a text of 10,000,000 characters"),
            ):
                with pytest.raises(EnvironmentFailure, match=sentence):
                    await host.step(action)
            assert (await host.step("numpy")).observation == "left", "the worker is as it was"
    finally:
        await host.close()
        await close_workers()


async def test_what_leaves_a_host_is_plain() -> None:
    host = EnvironmentHost(EnvironmentSpec.of(Odd))
    assert type(await host.reset()) is str
    result = await host.step("numpy")
    assert [type(value) for value in (host.prompt_prefix(), result.observation, result.reward, result.terminated)] == [
        str,
        str,
        float,
        bool,
    ]
    await host.close()


async def test_a_worker_that_never_answers_a_call_is_given_up_on_the_side_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("turnsmith.env.isolation.connection.ANSWER_SECONDS", 0.5)
    config = EnvironmentConfig(isolation="process", isolation_workers=1, call_seconds=30)
    host = open_host(EnvironmentSpec.of(Odd, config))
    await host.reset()
    connection: Any = host._worker  # type: ignore[attr-defined]
    host._spec.config.call_seconds = 0.1  # type: ignore[attr-defined]
    monkeypatch.setattr(connection._channel, "send", lambda message: None)  # as if the reply were lost
    began = time.monotonic()
    with pytest.raises(EnvironmentTimeout, match=r"Odd: its worker did not answer, though it is alive"):
        await host.step("numpy")
    assert time.monotonic() - began < 20
    await host.close()
    await close_workers()


async def test_a_worker_answers_even_if_its_reply_cannot_be_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    class Closed:
        def send(self, message: bytes) -> None:
            sent.append(m.read_reply(message))

    worker = worker_module._Worker()
    worker._channel = Closed()  # type: ignore[assignment]
    worker._send(m.StepReply(5, "\ud800", 0.0, False, False, m.pack("", {})))
    assert [(reply.call, type(reply).__name__) for reply in sent] == [(5, "ErrorReply")]

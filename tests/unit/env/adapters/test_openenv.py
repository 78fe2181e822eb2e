"""What an OpenEnv server's address, actions and observations become; `tests/e2e/test_openenv.py` has a real server."""

from __future__ import annotations

import asyncio

import pytest

from turnsmith import EnvironmentConfig, EnvironmentSpec
from turnsmith.env.adapters.openenv import OpenEnvEnvironment
from turnsmith.errors import ConfigError, EnvironmentFailure


@pytest.mark.parametrize(
    ("target", "url"),
    [
        ("openenv://localhost:8000", "http://localhost:8000"),
        ("openenv:https://env.example.org/", "https://env.example.org"),
        ("ws://localhost:8000/ws", "http://localhost:8000"),
        ("wss://env.example.org/ws", "https://env.example.org"),
    ],
)
def test_each_form_of_an_address(target: str, url: str) -> None:
    spec = EnvironmentSpec.of(target)
    assert spec.build().url == url
    assert spec.isolated().mode == "thread", "its code runs on the server"
    assert "/" not in spec.name
    assert ":" not in spec.name


def test_what_is_no_address_is_refused() -> None:
    for wrong in ("openenv:localhost", "openenv://", "openenv:ftp://host"):
        with pytest.raises(ConfigError, match=r"write openenv://host:port"):
            EnvironmentSpec.of(wrong)


def test_a_server_that_is_not_there_is_a_fault() -> None:
    async def play() -> None:
        environment = OpenEnvEnvironment("openenv://127.0.0.1:9")
        try:
            await environment.reset()
        finally:
            await environment.close()

    with pytest.raises(EnvironmentFailure, match=r"http://127\.0\.0\.1:9 does not answer as an OpenEnv server"):
        asyncio.run(play())


def test_the_fields_that_are_shown() -> None:
    environment = OpenEnvEnvironment("openenv://host")
    assert environment._show({"text": "Hello", "metadata": {"a": 1}, "image": None}) == "Hello"
    assert environment._show({"board": [[0, 1]], "turn": 2}) == "board: [[0, 1]]\nturn: 2"
    chosen = OpenEnvEnvironment("openenv://host", EnvironmentConfig(observation_field="turn", level=3))
    assert chosen._show({"board": [[0, 1]], "turn": 2}) == "2"
    assert chosen.reset_arguments == {"level": 3}
    with pytest.raises(EnvironmentFailure, match=r"no field 'turn', but board: set environment\.observation_field"):
        chosen._show({"board": 1})

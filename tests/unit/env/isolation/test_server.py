"""An environment server: who may use it, what it says when it has no worker left, and when it ends one."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from turnsmith.cli.main import main
from turnsmith.config import EnvironmentConfig
from turnsmith.env.examples import GuessNumber
from turnsmith.env.isolation import pool
from turnsmith.env.isolation.handshake import keep_alive, read_token
from turnsmith.env.isolation.pool import close_workers, isolation_status
from turnsmith.env.isolation.remote_host import RemoteHost
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError, WorkerLost
from turnsmith.supervisor import children_of


@contextmanager
def served(*words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a server of `GuessNumber`, and its process."""
    command = [sys.executable, "-m", "turnsmith", "serve-env", "turnsmith.env.examples:GuessNumber", "--port", "0"]
    with subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip().rpartition("=")[2], server
        finally:
            server.kill()


def played(address: str, work: Callable[[Callable[..., RemoteHost]], Coroutine[Any, Any, Any]], **settings: Any) -> Any:
    """Run `work` with a function that makes hosts of environments on the server."""

    async def run() -> Any:
        config = EnvironmentConfig(isolation=address, **{"isolation_workers": 1, **settings})
        try:
            return await work(lambda: RemoteHost(EnvironmentSpec.of(GuessNumber, config)))
        finally:
            await close_workers()

    return asyncio.run(run())


async def one_step(make: Callable[..., RemoteHost]) -> str:
    host = make()
    await host.reset(seed=1)
    result = await host.step("no idea")
    await host.close()
    return result.observation


def test_only_who_knows_the_token_gets_a_worker(tmp_path: Path) -> None:
    token, other = tmp_path / "token", tmp_path / "other"
    read_token(str(other), create=True)
    with served("--token-file", str(token), "--workers", "2") as (address, server):
        assert token.stat().st_mode & 0o777 == 0o600
        with pytest.raises(WorkerLost, match=r"needs a token: set environment\.isolation_token_file"):
            played(address, one_step)
        with pytest.raises(WorkerLost, match="has another token"):
            played(address, one_step, isolation_token_file=str(other))
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        strangers = [socket.create_connection((host, int(port))) for _ in range(3)]
        for nonsense, stranger in zip((b"", b"\xff" * 99, b"\x03\x00\x00\x00\xc1\xc1\xc1"), strangers, strict=True):
            stranger.sendall(nonsense)
        assert children_of(server.pid) == [], "no process was started for any of them"
        assert "Answer with a number" in played(address, one_step, isolation_token_file=str(token))
        for stranger in strangers:
            stranger.close()


def test_an_address_that_others_can_reach_needs_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve-env", "turnsmith.env.examples:GuessNumber", "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "clients must know a token: pass --token-file FILE" in capsys.readouterr().err


def test_a_token_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    with pytest.raises(ConfigError, match="has 6 characters; it needs at least 16"):
        read_token(str(tmp_path / "token"))
    with pytest.raises(ConfigError, match="cannot be used: No such file"):
        read_token(str(tmp_path / "none"))


def test_a_server_without_a_free_worker_says_so_and_clients_share_what_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "_BUSY_SECONDS", 0.1)

    async def second(make: Callable[..., RemoteHost]) -> None:
        with pytest.raises(WorkerLost, match=r"busy: all of its 1 workers are in use\. Start it with more --workers"):
            await one_step(make)

    async def first(make: Callable[..., RemoteHost]) -> tuple[int, int]:
        hosts = [make() for _ in range(4)]
        await asyncio.gather(*(host.reset(seed=place) for place, host in enumerate(hosts)))
        await asyncio.to_thread(played, address, second)
        status = isolation_status()
        for host in hosts:
            await host.step("8")
            await host.close()
        return status.workers, status.environments

    with served("--workers", "1") as (address, _):
        assert played(address, first, isolation_workers=3) == (1, 4)


def test_a_worker_whose_client_is_silent_ends_and_a_later_episode_gets_another() -> None:
    async def work(make: Callable[..., RemoteHost]) -> None:
        assert "number" in await one_step(make)
        async with asyncio.timeout(30):
            while isolation_status().workers:
                await asyncio.sleep(0.1)
        assert "number" in await one_step(make)

    with served("--workers", "1", "--idle-seconds", "0.5") as (address, _):
        played(address, work)


def test_a_peer_that_is_gone_without_a_word_is_noticed_by_the_kernel() -> None:
    with socket.socket() as connection:
        keep_alive(connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        seconds = [connection.getsockopt(socket.IPPROTO_TCP, option) for option in (4, 5, 6)]
    assert seconds[0] + seconds[1] * seconds[2] <= 120

"""Thousands of episodes whose agent is a program that leaves something behind: nothing grows in the process."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from turnsmith import Chat, EnvironmentConfig, EnvironmentSpec, ScriptedEngine
from turnsmith.concurrency.threads import default_threads
from turnsmith.inference.engine import Sampling
from turnsmith.rollout import EpisodeStart, run_episode
from turnsmith.rollout.spec import Limits

# Without Python, which would take a minute for each hundred.
PROGRAM = r"""
url=${OPENAI_BASE_URL#http://}; host=${url%%/*}; body='{"messages":[{"role":"user","content":"Hi"}]}'
exec 3<>"/dev/tcp/${host%:*}/${host#*:}"
printf 'POST /%s/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s' \
    "${url#*/}" "${#body}" "$body" >&3
cat <&3 >/dev/null
setsid sleep 600 &
(setsid sleep 600 >/dev/null 2>&1 &)
"""
AT_ONCE = 16


@dataclass(frozen=True)
class Held:
    """What this process holds."""

    files: int
    threads: int
    children: int
    mib: float

    @classmethod
    def now(cls) -> Held:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        children = sum(len(task.read_text().split()) for task in Path("/proc/self/task").glob("*/children"))
        files = sum(1 for _ in Path("/proc/self/fd").iterdir())
        return cls(files, threading.active_count(), children, pages * os.sysconf("SC_PAGE_SIZE") / 2**20)


async def play_many(episodes: int, chat: Chat, program: Path) -> list[Held]:
    """What is held after each tenth of the episodes."""
    program.write_text(PROGRAM)
    config = EnvironmentConfig(command=f"bash {program}", isolation="thread", answer="wanted", reward=["exact"])
    spec, free = EnvironmentSpec.of("turnsmith.env.agent:CommandAgent", config), asyncio.Semaphore(AT_ONCE)

    async def play(number: int) -> None:
        async with free:
            trajectory = await run_episode(
                EpisodeStart(f"episode-{number}", task={"wanted": "2"}),
                environment=spec,
                engine=ScriptedEngine(["2"], chat),
                chat=chat,
                limits=Limits(seconds=60),
                sampling=Sampling(),
            )
        assert (trajectory.error, trajectory.rewards) == ("", [1.0])

    held: list[Held] = []
    for tenth in range(10):
        await asyncio.gather(*(play(tenth * episodes + number) for number in range(episodes // 10)))
        await asyncio.sleep(0.2)
        held.append(Held.now())
    return held


@pytest.mark.nightly  # minutes
@pytest.mark.skipif(not Path("/proc/self/fd").exists() or shutil.which("bash") is None, reason="reads /proc; bash")
async def test_nothing_grows_over_ten_thousand_programs(chat: Chat, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    episodes = 10_000
    held = await play_many(episodes, chat, tmp_path / "program.sh")
    with capsys.disabled():
        print(f"\nafter each {episodes // 10} programs:", *held, sep="\n  ")
    first, last = held[3], held[-1]
    assert (last.files, last.children) == (first.files, 0)
    assert last.threads <= 1 + AT_ONCE + default_threads(), "the pool grows to its limit"
    assert last.mib - first.mib < 4, "less than 1 KiB an episode"

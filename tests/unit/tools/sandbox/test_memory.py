"""Programs within their limits cannot take down the worker process that runs them, or the episodes beside theirs."""

from __future__ import annotations

import asyncio

import pytest

from turnsmith import BaseEnvironment
from turnsmith.config import EnvironmentConfig
from turnsmith.env.isolation.pool import close_workers
from turnsmith.env.isolation.remote_host import RemoteHost
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.tools.sandbox import SandboxLimits, run_python
from turnsmith.tools.sandbox.pool import most_programs

MIB = 2**20
HOG = f"taken = bytearray(b'1') * {250 * MIB}\nimport time\ntime.sleep(1)\nprint('held')"
INNOCENT = "print('innocent')"


class Coder(BaseEnvironment):
    def reset(self) -> str:
        return "Write a program."

    async def step(self, action: str):
        result = await run_python(action, SandboxLimits(memory=400 * MIB))
        return result.output.strip(), float(result.is_ok), True, {}


async def play(seed: int, program: str) -> str:
    config = EnvironmentConfig(isolation="process", isolation_workers=1, isolation_memory_gib=0.7, call_seconds=30)
    host = RemoteHost(EnvironmentSpec.of(Coder, config))
    try:
        await host.reset(seed=seed)
        return (await host.step(program)).observation
    finally:
        await host.close()


@pytest.mark.nightly
async def test_four_programs_within_their_limits_do_not_take_the_worker_down() -> None:
    programs = [HOG] * 4 + [INNOCENT] * 2
    try:
        outputs = await asyncio.gather(*(play(seed, program) for seed, program in enumerate(programs)))
    finally:
        await close_workers()
    assert outputs == ["held"] * 4 + ["innocent"] * 2


@pytest.mark.parametrize(("gib", "programs"), [(0.1, 1), (4, 2), (10_000, None)])
def test_programs_leave_half_of_a_workers_memory_free(
    gib: float, programs: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSMITH_WORKER_MEMORY", str(int(gib * 2**30)))
    limits = SandboxLimits(memory=900 * MIB, disk=100 * MIB)
    expected = most_programs(SandboxLimits(memory=64 * MIB, disk=MIB)) if programs is None else programs
    assert most_programs(limits) == expected

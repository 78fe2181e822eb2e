"""A program in a sandbox that is sent lines and answers with lines."""

from __future__ import annotations

import asyncio

import pytest

from turnsmith.tools.sandbox.command import SandboxLimits
from turnsmith.tools.sandbox.session import open_dialogue

ECHO = "import sys\nfor line in sys.stdin:\n    print(len(line), flush=True)\n"


async def test_lines_go_to_and_fro_until_it_ends() -> None:
    async with open_dialogue(ECHO, SandboxLimits(), 1000) as program:
        for length in (1, 500_000):
            await program.say(b"x" * (length - 1) + b"\n")
            assert await program.hear() == b"%d\n" % length
    async with open_dialogue("print('a\\nb')", SandboxLimits(), 1000) as program:
        assert [await program.hear() for _ in range(3)] == [b"a\n", b"b\n", b""]
        await program.say(b"nobody reads this\n" * 100_000)


@pytest.mark.parametrize(
    "code",
    ["print('x' * 5000)", "for i in range(10**6):\n    open(str(i), 'w').close()\nprint()", "import os\nos._exit(0)"],
)
async def test_a_program_beyond_its_limits_is_not_heard(code: str) -> None:
    async with open_dialogue(code, SandboxLimits(files=100), 1000) as program, asyncio.timeout(20):
        assert await program.hear() == b""

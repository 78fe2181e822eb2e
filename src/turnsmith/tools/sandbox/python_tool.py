"""A tool that runs the Python code a model writes, in a sandbox."""

from __future__ import annotations

import logging
from typing import Any

from turnsmith.errors import ToolError
from turnsmith.tools.definition import ToolDefinition
from turnsmith.tools.sandbox.availability import check_sandbox
from turnsmith.tools.sandbox.limits import SandboxLimits
from turnsmith.tools.sandbox.pool import shared_pool
from turnsmith.tools.sandbox.session import START_LIMIT, Ending, ProgramResult, run_program
from turnsmith.tools.tool import Tool

logger = logging.getLogger(__name__)

_DESCRIPTION = (
    "Run a Python program and see what it prints. Every call starts anew: variables and files of earlier calls are "
    "gone. It has the standard library, a folder for files of its own, and no network."
)


async def run_python(
    code: str, limits: SandboxLimits | None = None, *, run_without_sandbox: bool = False
) -> ProgramResult:
    """Run a Python program in a sandbox of its own: no network, none of your files, bounded in everything.

    For rewards and environments that judge what a model has written; a model itself gets a `PythonTool`.

    Args:
        code: The program.
        limits: What it may use.
        run_without_sandbox: Run it with your own rights. Only for programs that you trust.

    Example:
        >>> import asyncio
        >>> asyncio.run(run_python("print(6 * 7)")).output
        '42\\n'
    """
    limits = limits or SandboxLimits()
    if not run_without_sandbox:
        check_sandbox()
    pool = shared_pool(limits, is_sandboxed=not run_without_sandbox)
    cell = await pool.take()
    try:
        return await run_program(cell, code, limits)
    finally:
        pool.release(cell)


class PythonTool(Tool):
    """Lets a model run Python code, in a sandbox: what it writes cannot reach your files, processes or network.

    Refuses to be made where there is no sandbox (bubblewrap on Linux), with a sentence that says what is missing.

    Args:
        limits: What one program may use.
        name: What the model calls the tool.
        max_output_tokens: Most tokens of the output that the model is shown.
        run_without_sandbox: Run the programs with your own rights. Only for a model that you trust as yourself.

    Example:
        >>> from turnsmith.tools.registry import ToolRegistry
        >>> ToolRegistry([PythonTool()]).execute_tool("python", code="print(sum(range(10)))")
        (True, '45\\n')
    """

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        *,
        name: str = "python",
        max_output_tokens: int = 1024,
        run_without_sandbox: bool = False,
    ) -> None:
        self.limits = limits or SandboxLimits()
        # The program's own limit ends it, and keeps what it printed; this one is for a machine that is overloaded.
        self.time_limit = self.limits.seconds + START_LIMIT
        self.max_output_tokens = max_output_tokens
        self.run_without_sandbox = run_without_sandbox
        if run_without_sandbox:
            logger.warning("The tool %s runs model-written code without a sandbox, as you have asked.", name)
        else:
            check_sandbox()
        super().__init__(ToolDefinition(name, _DESCRIPTION, self.signature.parameters))

    async def execute(self, code: str) -> Any:
        """Run a program.

        Args:
            code: The program. Print what you want to see.
        """
        result = await run_python(code, self.limits, run_without_sandbox=self.run_without_sandbox)
        text = _tell(result, self.limits)
        if not result.is_ok:
            raise ToolError(text)
        return text


def _tell(result: ProgramResult, limits: SandboxLimits) -> str:
    """What the model is told: what the program printed, and how it ended if that needs saying."""
    note = {
        Ending.LATE: f"[The program was stopped: it took longer than {limits.seconds:g} s.]",
        Ending.FLOODED: f"[The program was stopped: it printed more than {limits.output} bytes.]",
        Ending.CROWDED: f"[The program was stopped: it made more than {limits.files} files.]",
        Ending.DIED: "[The program was killed: it crashed, or used too much memory or computing time.]",
        Ending.EXITED: f"[The program ended with exit code {result.exit_code}.]",
    }[result.ending]
    if result.is_ok:
        return result.output or "[The program printed nothing.]"
    if result.ending is Ending.EXITED and result.output:
        return result.output  # the traceback says it all
    return f"{result.output.rstrip()}\n{note}".lstrip()

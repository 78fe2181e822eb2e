"""A tool that runs model-written Python code in a sandbox."""

from __future__ import annotations

import logging
from typing import Any

from turnsmith.errors import ToolError
from turnsmith.tools.definition import ToolDefinition
from turnsmith.tools.sandbox.availability import check_sandbox
from turnsmith.tools.sandbox.command import SandboxLimits
from turnsmith.tools.sandbox.process import START_LIMIT
from turnsmith.tools.sandbox.session import Ending, ProgramResult, run_program, sandbox_process
from turnsmith.tools.tool import Tool

logger = logging.getLogger(__name__)

_DESCRIPTION = (
    "Run a Python program and see what it prints. Every call starts from scratch: variables and files of earlier calls "
    "are gone. The program has the standard library, a folder for its own files, and no network."
)


async def run_python(
    code: str, limits: SandboxLimits | None = None, *, run_without_sandbox: bool = False
) -> ProgramResult:
    """Run a Python program in a sandbox of its own: no network, none of your files, limited resources.

    For rewards and environments that judge code which a model has written; the model itself gets a `PythonTool`.

    Args:
        code: The program.
        limits: Its resource limits.
        run_without_sandbox: Run it with your own rights. Only for programs that you trust.

    Example:
        >>> import asyncio
        >>> asyncio.run(run_python("print(6 * 7)")).output
        '42\\n'
    """
    limits = limits or SandboxLimits()
    async with sandbox_process(limits, is_sandboxed=not run_without_sandbox) as process:
        return await run_program(process, code, limits)


class PythonTool(Tool):
    """Lets a model run Python code in a sandbox, where it cannot reach your files, processes or network.

    Args:
        limits: Resource limits of one program.
        name: The tool's name.
        max_output_tokens: Longer output is shortened to this many tokens before the model sees it.
        run_without_sandbox: Run the programs with your own rights. Only for a model that you trust as yourself.

    Raises:
        MissingDependency: This machine has no sandbox (bubblewrap on Linux); the message says what is missing.

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
        # `limits` end the program and keep its output; this longer limit is for a sandbox that does not start.
        self.time_limit = self.limits.seconds + START_LIMIT
        self.max_output_tokens = max_output_tokens
        self.run_without_sandbox = run_without_sandbox
        if run_without_sandbox:
            logger.warning("The tool %s runs model-written code without a sandbox (run_without_sandbox=True).", name)
        else:
            check_sandbox()
        super().__init__(ToolDefinition(name, _DESCRIPTION, self.signature.parameters))

    async def execute(self, code: str) -> Any:
        """Run a Python program.

        Args:
            code: The program. Print what you want to see.
        """
        result = await run_python(code, self.limits, run_without_sandbox=self.run_without_sandbox)
        text = _result_text(result, self.limits)
        if not result.is_ok:
            raise ToolError(text)
        return text


def _result_text(result: ProgramResult, limits: SandboxLimits) -> str:
    """The tool's result: the output of the program, and how it ended unless the output shows it."""
    note = {
        Ending.TIMEOUT: f"[The program was stopped: it took longer than {limits.seconds:g} s.]",
        Ending.OUTPUT_LIMIT: f"[The program was stopped: it printed more than {limits.output} bytes.]",
        Ending.FILE_LIMIT: f"[The program was stopped: it created more than {limits.files} files.]",
        Ending.CRASHED: "[The program was killed: it crashed, or used too much memory or CPU time.]",
        Ending.EXITED: f"[The program ended with exit code {result.exit_code}.]",
    }[result.ending]
    if result.is_ok:
        return result.output or "[The program printed nothing.]"
    if result.ending is Ending.EXITED and result.output:
        return result.output  # the traceback or the exit message
    return f"{result.output.rstrip()}\n{note}".lstrip()

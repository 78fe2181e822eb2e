"""Run Python code that a model wrote, isolated from the rest of the machine: `PythonTool` and `run_python`.

- `command`: the bubblewrap command line, which decides what the sandbox sees of the machine
- `system_calls`, `seccomp`: the system calls that the kernel accepts from it
- `inside`: the few lines that run in the sandbox and execute the program
- `process`, `pool`: one waiting interpreter, and a few of them kept ready
- `session`: one program, what it is sent, its output and how it ended
"""

from turnsmith.tools.sandbox.availability import check_sandbox
from turnsmith.tools.sandbox.command import SandboxLimits
from turnsmith.tools.sandbox.python_tool import PythonTool, run_python
from turnsmith.tools.sandbox.session import Ending, ProgramResult

__all__ = ["Ending", "ProgramResult", "PythonTool", "SandboxLimits", "check_sandbox", "run_python"]

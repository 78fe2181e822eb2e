"""Running Python code that a model has written, so that it can harm nothing: `PythonTool` and `run_python`.

- `command`: the bubblewrap command line, what the sandbox shows of the machine
- `system_calls`, `seccomp`: which system calls the kernel accepts from it
- `inside`: the few lines that run in the sandbox and run the program
- `cell`, `pool`: one waiting interpreter, and a few of them kept ready
- `session`: one program, its output and its end
"""

from turnsmith.tools.sandbox.availability import check_sandbox
from turnsmith.tools.sandbox.limits import SandboxLimits
from turnsmith.tools.sandbox.python_tool import PythonTool, run_python
from turnsmith.tools.sandbox.session import Ending, ProgramResult

__all__ = ["Ending", "ProgramResult", "PythonTool", "SandboxLimits", "check_sandbox", "run_python"]

"""A container by bubblewrap, where a project has one of Docker or of a service: its own files and no network."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import subprocess
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HOME = "/home/user"


def command(home: Path, *binds: tuple[Path, str], folder: str = HOME) -> list[str]:
    """The beginning of a command that runs in the container; `home` and `binds` are what it may write to."""
    mounts = [part for outside, inside in ((home, HOME), *binds) for part in ("--bind", str(outside), inside)]
    links = [part for name in ("bin", "lib", "lib64", "sbin") for part in ("--symlink", f"usr/{name}", f"/{name}")]
    own = ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--unshare-all", "--die-with-parent"]
    variables = ["--clearenv", "--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--setenv", "HOME", HOME]
    return ["bwrap", "--ro-bind", "/usr", "/usr", *links, *own, *mounts, *variables, "--chdir", folder]


class Notebook:
    """What the environments need of `e2b_code_interpreter.Sandbox`: a kernel that keeps its variables, and files."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.sandbox_id = Path(self.folder.name).name
        source = Path(__file__).read_text(encoding="utf-8")
        start = [*command(Path(self.folder.name)), "/usr/bin/python3", "-c", source, "kernel"]
        self.kernel = subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.files = SimpleNamespace(write=self._write)

    @classmethod
    def create(cls, **settings: Any) -> Notebook:
        return cls()

    def run_code(self, code: str) -> SimpleNamespace:
        assert self.kernel.stdin
        assert self.kernel.stdout
        self.kernel.stdin.write(f"{json.dumps(code)}\n")
        self.kernel.stdin.flush()
        said = json.loads(self.kernel.stdout.readline())
        return SimpleNamespace(
            logs=SimpleNamespace(stdout=said["stdout"], stderr=said["stderr"]),
            results=[SimpleNamespace(text=text, png=None) for text in said["results"]],
            error=SimpleNamespace(**said["error"]) if said["error"] else None,
            execution_count=said["count"],
        )

    def kill(self) -> None:
        self.kernel.kill()
        self.kernel.communicate()
        self.folder.cleanup()

    def _write(self, name: str, content: bytes) -> None:
        file = Path(self.folder.name, Path(name).relative_to(HOME))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _serve() -> None:
    """The kernel: a line with code in, a line with what it did out."""
    variables: dict[str, Any] = {"__name__": "__main__"}
    asked, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for end in (0, 1):  # programs that the code starts have none of the two
        os.dup2(os.open(os.devnull, os.O_RDWR), end)
    for count, line in enumerate(asked, start=1):
        out, errors, results, error = io.StringIO(), io.StringIO(), [], None
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            try:
                tree = ast.parse(json.loads(line))
                last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
                exec(compile(tree, "cell", "exec"), variables)  # noqa: S102 - in the container
                shown = compile(ast.Expression(last.value), "cell", "eval") if last else None
                value = eval(shown, variables) if shown else None  # noqa: S307 - in the container
                results = [] if value is None else [repr(value)]
            except BaseException as raised:
                error = {"name": type(raised).__name__, "value": str(raised), "traceback": traceback.format_exc()}
        told = {"stdout": out.getvalue().splitlines(), "stderr": errors.getvalue().splitlines()}
        answers.write(f"{json.dumps({**told, 'results': results, 'error': error, 'count': count})}\n")
        answers.flush()


if __name__ == "__main__":
    _serve()

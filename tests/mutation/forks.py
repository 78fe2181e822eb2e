"""Run pytest many times, each in a fork of a process that has already imported torch and pytest.

`tests.mutation.run` starts one such process per job. It reads one job per line (JSON) from standard input, and writes
one exit code per line. After a run without a mutant it imports what the tests imported, so that the forks for the
mutants need not. It never imports turnsmith itself: every fork imports the mutated copy.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PRELOADED = ("pytest", "hypothesis", "numpy", "pyarrow.parquet", "torch", "transformers")
NOT_PRELOADED = ("turnsmith", "tests", "conftest", "docs", "examples", "benchmarks", "verl")
"""What imports turnsmith: the folders of this repository, and verl, which loads it as its plugin."""
TIMEOUT = -100
"""The code of a run that timed out."""


def main() -> None:
    preload(PRELOADED)
    no_shrinking()
    for line in sys.stdin:
        job = json.loads(line)
        print(run(job), flush=True)
        if "reach" in job and Path(job["reach"]).exists():
            preload(json.loads(Path(job["reach"]).read_text())["modules"])


def preload(names: Iterable[str]) -> None:
    with contextlib.redirect_stdout(sys.stderr):  # Standard output is for exit codes.
        for name in names:
            if name.partition(".")[0] not in NOT_PRELOADED:
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
                assert "turnsmith" not in sys.modules, f"{name} imports it: no fork would import a mutant any more"


def no_shrinking() -> None:
    """Make hypothesis stop at the first failing example, and try the same examples every time."""
    from hypothesis import Phase, settings

    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutation", phases=phases, derandomize=True, database=None, print_blob=False)
    settings.load_profile("mutation")


def run(job: dict[str, Any]) -> int:
    """Run pytest in a fork. Returns its exit code, minus the number of the signal that killed it, or `TIMEOUT`."""
    child = os.fork()
    if child == 0:
        run_pytest(job)
    deadline = time.monotonic() + job["timeout"]
    done, status = 0, 0
    while not done and time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # The processes that the tests left behind; after a timeout, pytest itself.
    if not done:
        os.waitpid(child, 0)
        return TIMEOUT
    code = os.waitstatus_to_exitcode(status)
    return TIMEOUT if code == -signal.SIGALRM else code


def run_pytest(job: dict[str, Any]) -> None:
    code = 70
    try:
        os.setsid()
        signal.alarm(int(job["timeout"]))  # `Only` sets it again for each test. Nothing handles the signal: it kills.
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for descriptor, target in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
            os.dup2(descriptor, target)
        # By their names first: pytest would import the files of doctests a second time, as other modules.
        for name in job["modules"]:
            importlib.import_module(name)
        import pytest

        from tests.mutation.reach import Only, Recorder

        plugin = Recorder(job["traced"], job["reach"]) if "reach" in job else Only(job["only"])
        code = int(pytest.main(job["arguments"], [plugin]))
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    main()

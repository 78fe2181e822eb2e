"""Two resumes of one run, without a model: the real lock, rewind and writers, in processes of their own.

`python -m tests.unit.trainer.rival_resumes RUN OFFSET...` copies the run once for each offset, resumes the copy twice,
the second time so many seconds later, and prints what became of both as a line of JSON. Each resume rewinds in one
process and writes the other steps in another, as training does.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.unit.verify.sample_history import Plan, write_steps

from turnsmith.errors import RecordError
from turnsmith.records import run_lock
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_lock import join_run
from turnsmith.records.signed_ledger import signed_end
from turnsmith.trainer import resume
from turnsmith.trainer.resume import reopen

STEPS = 4
STEP_SECONDS = 0.12
LONG = Plan(steps=Plan().steps[:1] * STEPS)


def resumed(folder: Path, seconds: float) -> str:
    """Resume after so many seconds; what became of it, if it did not train for all steps."""
    time.sleep(seconds)
    try:
        stopped = reopen(folder, {})
    except RecordError as error:
        return str(error)
    told = in_a_process(lambda: written(stopped.run, stopped.lock.token, stopped.step + 1))[1]()
    if not told:
        stopped.run.append_event("finished", step=STEPS, **signed_end(stopped.run, STEPS))
    stopped.lock.release()
    return told


def written(run: RunFolder, token: str, first: int) -> str:
    """Write the steps from the first on; what stopped it, if something did."""
    try:
        with join_run(run.path, token):
            for step in range(first, STEPS + 1):
                time.sleep(STEP_SECONDS)
                run.append_event("step", writer=os.getppid(), content=step)
                write_steps(run, replace(LONG, steps=LONG.steps[:step]), step)
    except RecordError as error:
        return str(error)
    return ""


def in_a_process(function: Callable[[], str]) -> tuple[int, Callable[[], str]]:
    """Call the function in a child; return its id, and a function that waits for the result."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            text = function()
        except BaseException as error:  # noqa: BLE001  (a process that was forked must not go on)
            text = f"raised {error!r}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)

    def wait() -> str:
        with os.fdopen(reading, "rb") as pipe:
            text = pipe.read().decode()
        os.waitpid(child, 0)
        return text

    return child, wait


def main(run: Path, offsets: list[float]) -> None:
    """Resume copies of the run twice each."""
    resume._LOCK_SECONDS, run_lock._ENDING_SECONDS = 0.3, 0.0  # neither has long to live here
    for number, offset in enumerate(offsets):
        copy = shutil.copytree(run, run.with_name(f"copy-{number}"))
        rivals = [in_a_process(partial(resumed, copy, later)) for later in (0.0, offset)]
        told = {pid: wait() for pid, wait in rivals}
        print(json.dumps({"run": str(copy), "offset": offset, "told": told}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), list(map(float, sys.argv[2:])))

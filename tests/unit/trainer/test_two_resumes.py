"""Two resumes of one run: one trains, the other is told who holds the run, and nothing of it is in the folder."""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.trainer.rival_resumes import LONG, STEP_SECONDS, STEPS
from tests.unit.verify.sample_history import Plan, write_run

from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer.dataset import CustomEnvironmentDataset
from turnsmith.trainer.resume import Recipe
from turnsmith.verify.run import verify_run

FLOCK = {
    "works": "",
    "ENOLCK": "errno = 37; return -1;",
    "private": "return 0;",
}
"""What `flock` does: where locks work, where there are none, and where each process has its own."""


@pytest.fixture(autouse=True)
def _own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))


def stopped_run(parent: Path) -> RunFolder:
    """A run that was killed in its third step, after the checkpoint of its second."""
    run = write_run(parent, Plan(steps=LONG.steps[:2], finish=False))
    run.append_metrics({"step": 3})
    CustomEnvironmentDataset().save(run.path, 0)
    Recipe(STEPS, 1, environment=f"{GuessNumber.__module__}:GuessNumber").write(run.path)
    return run


def preloaded(folder: Path, flock: str) -> dict[str, str]:
    """The environment variables with which `flock` behaves like this."""
    if not FLOCK[flock]:
        return {}
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed, so no library that replaces flock can be made")
    source, library = folder / "flock.c", folder / "flock.so"
    source.write_text(f"#include <errno.h>\nint flock(int file, int how) {{ {FLOCK[flock]} }}\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return {"LD_PRELOAD": str(library)}


def check_rivals(tmp_path: Path, flock: str, offsets: list[float]) -> int:
    """Resume a run twice for each offset; return of how many runs one trained to the end."""
    run = stopped_run(tmp_path)
    command = [sys.executable, "-m", "tests.unit.trainer.rival_resumes", str(run.path), *map(str, offsets)]
    variables = {**os.environ, **preloaded(tmp_path, flock)}
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    results = list(map(json.loads, done.stdout.splitlines()))
    assert [result["offset"] for result in results] == offsets
    for result in results:
        told = result["told"]
        winner = next((pid for pid, sentence in told.items() if not sentence), None)
        assert winner is not None or all("process" in sentence for sentence in told.values()), result
        if winner is None:  # both were refused; nobody has written, so that one can be resumed
            continue
        (loser,) = told.keys() - {winner}
        assert f"process {winner} on {platform.node()}" in told[loser], result
        found = RunFolder.open(result["run"])
        proved = {one.check: one.status for one in verify_run(found).verdicts}
        assert proved == dict.fromkeys(proved, "ok"), result  # signed to its end by the one that trained
        assert [line["step"] for line in found.read_metrics()] == [1, 2, 3, 4]
        writers = {event["writer"] for event in found.read_events() if event["kind"] == "step"}
        assert writers == {int(winner)}, result
    trained = sum("" in result["told"].values() for result in results)
    assert trained == len(results) if flock == "works" else trained > 0, results
    return trained


@pytest.mark.parametrize(("flock", "offset"), [("works", 0.0), ("private", 0.07)])
def test_one_of_two_resumes_trains_and_the_other_is_told_who_does(tmp_path: Path, flock: str, offset: float) -> None:
    check_rivals(tmp_path, flock, [offset])


@pytest.mark.nightly
@pytest.mark.parametrize("flock", FLOCK)
def test_one_of_two_resumes_trains_at_any_offset(
    tmp_path: Path, flock: str, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(f"{os.environ.get('TURNSMITH_SEED')} {flock}")
    offsets = [draw.choice([1.0, 0.1]) * draw.uniform(0.0, STEP_SECONDS * 2) for _ in range(50)]
    trained = check_rivals(tmp_path, flock, offsets)
    with capsys.disabled():
        print(f"\nflock {flock}: one of two trained {trained} of 50 times, both were refused {50 - trained} times")

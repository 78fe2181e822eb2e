"""The long fuzz run of everything that reads somebody else's bytes, and a count of tracebacks.

    python -m tests.fuzz.run_readers --files 500000 --frames 500000 --parquet 20000 --session 2000 --atheris 200000

Half of the inputs of a target are nearly right (`tests.fuzz.mutants`), half are files of the corpus with some bytes
changed. `--atheris` more inputs are made by atheris, which is guided by coverage (`pip install atheris`), for `files`
and for `frames` each, and a fiftieth of that for `parquet`. One line of result; exits 1 if anything was raised.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback

from tests.fuzz.mutants import MAKERS, changed_bytes
from tests.fuzz.readers import CORPUS, TARGETS

ATHERIS = {"files": 1, "frames": 1, "parquet": 50}
"""Targets of the fuzzer that is guided by coverage, and by how much to divide its number of inputs."""
_MEMORY = 4 * 2**30


def run_target(name: str, count: int, seed: int) -> list[str]:
    """Give a target that many inputs; returns what went wrong, with the input."""
    rng, target, make = random.Random(f"{name}/{seed}"), TARGETS[name], MAKERS[name]
    corpus = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    wrong: list[str] = []
    for number in range(count):
        data = make(rng) if number % 2 else changed_bytes(rng.choice(corpus), rng)
        try:
            target(data)
        except BaseException as error:  # noqa: BLE001 - counting them is the point
            place = traceback.extract_tb(error.__traceback__)[-1]
            wrong.append(f"{name}: {error!r:.200} in {place.filename}:{place.lineno} on {data.hex()[:4000]}")
        if number % 50_000 == 49_999:
            print(f"  {name}: {number + 1:,} inputs, {len(wrong)} wrong", flush=True)
    return wrong


def run_atheris(name: str, count: int, seed: int) -> list[str]:
    """The same with atheris, in a process of its own, because atheris ends the process itself."""
    with tempfile.TemporaryDirectory() as finds:  # new inputs go to the first folder
        command = [sys.executable, "-m", "tests.fuzz.atheris_readers", name, finds, str(CORPUS / name)]
        command += [f"-runs={count}", f"-seed={seed % 2**31 or 1}", "-max_len=16384", f"-artifact_prefix={finds}/"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
    # A count of its own: an end without an error is not yet a run.
    is_complete = done.returncode == 0 and f"Done {count} runs" in done.stderr
    return [] if is_complete else [f"atheris, {name}: {(done.stdout + done.stderr)[-3000:]}"]


def main() -> None:
    """Run all targets and say what came out."""
    options = argparse.ArgumentParser(description=__doc__)
    for name in TARGETS:
        options.add_argument(f"--{name}", type=int, default=0)
    options.add_argument("--atheris", type=int, default=0)
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    wrong: list[str] = []
    for name in TARGETS:
        began, count = time.time(), getattr(chosen, name)
        wrong += run_target(name, count, chosen.seed)
        print(f"{name}: {count:,} inputs, {time.time() - began:.0f} s", flush=True)
    for name, divisor in ATHERIS.items() if chosen.atheris else ():
        began, count = time.time(), chosen.atheris // divisor
        wrong += run_atheris(name, count, chosen.seed)
        print(f"{name}, guided by coverage: {count:,} inputs, {time.time() - began:.0f} s", flush=True)
    for line in wrong[:20]:
        print(line)
    inputs = sum(getattr(chosen, name) for name in TARGETS) + sum(chosen.atheris // by for by in ATHERIS.values())
    print(f"{inputs:,} inputs, {len(wrong)} wrong")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()

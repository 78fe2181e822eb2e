"""The long fuzz run: every parser, in child processes, and a count of exceptions and of slow texts.

    python -m tests.fuzz.run_long --texts 200000 --hypothesis 10000 --atheris 100000 --native 20000

`--texts` hostile texts are made at random, `--hypothesis` more by hypothesis, `--atheris` more by atheris (which is
guided by coverage; `pip install atheris`), and each goes through all parsers; `--native` of the random ones also go
through the native parsers of two model families. One line of result; exits 1 if anything was raised.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests.fuzz.hostile import PARSERS, check, hostile, native_parsers

if TYPE_CHECKING:
    from turnsmith.tools.parsing import ActionParser

# A parser takes microseconds for texts of this length; the bound only has to catch time that grows with its square.
SLOW = 0.25


def random_texts(count: int, seed: int, parsers: list[ActionParser]) -> list[str]:
    """Parse hostile texts; returns what went wrong."""
    rng = random.Random(seed)
    wrong: list[str] = []
    for number in range(count):
        text = hostile(rng)
        for parser in parsers:
            wrong += check_text(parser, text)
        if number % 50_000 == 49_999:
            print(f"  {number + 1:,} texts, {len(wrong)} wrong", flush=True)
    return wrong


def check_text(parser: ActionParser, text: str) -> list[str]:
    began = time.process_time()
    try:
        check(parser.parse(text))
    except Exception as error:  # noqa: BLE001 - counting them is the point
        return [f"{type(parser).__name__} {type(error).__name__}: {error} on {text[:300]!a}"]
    took = time.process_time() - began
    return (
        [f"{type(parser).__name__} took {took:.2f} s on {len(text)} characters: {text[:80]!a}"] if took > SLOW else []
    )


def hypothesis_texts(count: int) -> list[str]:
    """The same through hypothesis, which makes texts smaller until they tell what is wrong."""
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    from tests.fuzz.hostile import PIECES, VALID

    made = st.lists(st.sampled_from([*PIECES, *VALID]) | st.text(st.characters(codec=None), max_size=8), max_size=20)

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(made.map("".join))
    def run(text: str) -> None:
        for parser in PARSERS:
            check(parser.parse(text))

    try:
        run()
    except Exception as error:  # noqa: BLE001 - counting them is the point
        return [f"hypothesis: {type(error).__name__}: {error}"]
    return []


def main() -> None:
    """Run all three and say what came out."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--texts", type=int, default=20_000)
    options.add_argument("--hypothesis", type=int, default=2_000)
    options.add_argument("--atheris", type=int, default=0)
    options.add_argument("--native", type=int, default=0)
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    began = time.time()
    wrong = random_texts(chosen.texts, chosen.seed, PARSERS) + hypothesis_texts(chosen.hypothesis)
    native = native_parsers() if chosen.native else []
    wrong += random_texts(chosen.native, chosen.seed + 1, native)
    if chosen.atheris:
        # In a process of its own, because atheris ends the process itself.
        command = [sys.executable, "-m", "tests.fuzz.atheris_harness", f"-runs={chosen.atheris}", "-max_len=4096"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        # A count of its own: an end without an error is not yet a run.
        if done.returncode or f"Done {chosen.atheris} runs" not in done.stderr:
            wrong.append(f"atheris: {done.stderr[-2000:]}")
    texts = chosen.texts + chosen.hypothesis + chosen.atheris
    for line in wrong[:20]:
        print(line)
    inputs = texts * len(PARSERS) + chosen.native * len(native)
    print(f"{texts:,} texts, {inputs:,} parser inputs, {len(wrong)} wrong, {time.time() - began:.0f} s")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()

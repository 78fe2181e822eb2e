"""LiveCodeBench/LiveCodeBench: its tests of programs, run in a process of their own as it does."""

from __future__ import annotations

import json
import multiprocessing
import re
import sys
from typing import Any

from published_subjects import Subject

# What is asked, a program that does it, and inputs with their outputs.
TASKS = (
    ("Read n and then n numbers. Print their sum.",
     "n = int(input())\nprint(sum(map(int, input().split())))", (("3\n1 2 3", "6"), ("1\n5", "5"))),
    ("Read a line with two numbers. Print the larger one.",
     "a, b = map(int, input().split())\nprint(max(a, b))", (("3 9", "9"), ("7 2", "7"))),
    ("Read a word. Print it backwards.", "print(input()[::-1])", (("abc", "cba"), ("level", "level"))),
    ("Read n. Print the numbers from 1 to n, each on its line.",
     "for i in range(1, int(input()) + 1):\n    print(i)", (("3", "1\n2\n3"), ("1", "1"))),
    ("Read a line of words. Print how many words there are.",
     "print(len(input().split()))", (("a b c", "3"), ("one", "1"))),
    ("Read n and then n lines with a name each. Print the names in alphabetical order.",
     "names = [input() for _ in range(int(input()))]\nprint('\\n'.join(sorted(names)))",
     (("3\nzoe\nada\nben", "ada\nben\nzoe"), ("1\nmia", "mia"))),
    ("Read two numbers a and b. Print a to the power of b modulo 1000.",
     "a, b = map(int, input().split())\nprint(pow(a, b, 1000))", (("2 10", "24"), ("3 3", "27"))),
    ("Read a number. Print yes if it is prime and no if not.",
     "n = int(input())\nprint('yes' if n > 1 and all(n % d for d in range(2, n)) else 'no')",
     (("7", "yes"), ("9", "no"))),
)  # fmt: skip
ASKED = " Read from standard input and write to standard output. Put the program into ```python and ``` lines.\n\n"


def _run(tests: str, program: str, sending: Any) -> None:
    from importlib.util import module_from_spec, spec_from_file_location

    file = next(f"{place}/lcb_runner/evaluation/testing_util.py" for place in sys.path if place)
    specification = spec_from_file_location("testing_util", file)
    assert specification
    assert specification.loader
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    results, _ = module.run_test({"input_output": tests}, test=program, timeout=4)
    sending.send(all(result is True for result in results))


def passed(response: str, task: dict[str, Any]) -> float:
    """Whether the last program of a response passes every test."""
    programs = re.findall(r"```(?:python)?\n(.*?)```", response, re.DOTALL)
    if not programs:
        return 0.0
    forking = multiprocessing.get_context("fork")
    receiving, sending = forking.Pipe(duplex=False)
    process = forking.Process(target=_run, args=(task["tests"], programs[-1], sending))
    process.start()
    sending.close()
    try:
        return float(receiving.recv()) if receiving.poll(20) else 0.0
    except EOFError:
        return 0.0
    finally:
        process.kill()
        process.join()
        receiving.close()


def rows() -> list[dict[str, Any]]:
    made = []
    for number in range(16):
        asked, program, tests = TASKS[number % len(TASKS)]
        inputs, outputs = zip(*(tests if number < len(TASKS) else tests[::-1]), strict=True)
        made.append(
            {
                "prompt": f"Problem {number + 1}.{ASKED}{asked}",
                "tests": json.dumps({"inputs": inputs, "outputs": outputs}),
                "answer": f"```python\n{program}\n```",
            }
        )
    return made


def _buffer_is_missing() -> bool:
    program = "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split()[1:])))"
    return passed(f"```python\n{program}\n```", rows()[0]) == 0


SUBJECTS = {
    "livecodebench-stdin": Subject(
        (
            *("--data", "rows.jsonl", "--reward", "published_subjects.livecodebench_fresh:passed"),
            *("--prompt", "prompt", "--answer", "answer"),
        ),
        _buffer_is_missing,
        rows,
    ),
}

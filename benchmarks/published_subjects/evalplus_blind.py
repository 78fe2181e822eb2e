"""evalplus/evalplus: completions of functions, checked against a reference on the inputs of a task."""

from __future__ import annotations

from typing import Any

from published_subjects import Subject

# Name, parameters, what it does, the body of a reference, inputs, more inputs.
TASKS: tuple[tuple[str, str, str, str, list[Any], list[Any]], ...] = (
    ("mean_gap", "numbers: list[float]) -> float", "Mean distance of neighbours in the list; it has two at least.",
     "    gaps = [abs(b - a) for a, b in zip(numbers, numbers[1:])]\n    return sum(gaps) / len(gaps)\n",
     [[[1.0, 2.0, 4.0]], [[3.0, 3.0]]], [[[0.5, -0.5, 2.5, 2.5]], [[1e3, -1e3]]]),
    ("fraction_of", "number: float) -> float", "What stands after the decimal point of a positive number.",
     "    return number % 1.0\n", [[3.5], [1.25]], [[123.456], [7.0]]),
    ("running_max", "numbers: list[int]) -> list[int]", "The largest number up to each place of the list.",
     ("    best, seen = None, []\n    for number in numbers:\n"
     "        best = number if best is None else max(best, number)\n        seen.append(best)\n    return seen\n"),
     [[[1, 2, 3, 2, 3, 4, 2]], [[]]], [[[5, 4, 3]], [[-1, -3, 0, 0]]]),
    ("rescale", "numbers: list[float]) -> list[float]",
     "Numbers moved and stretched so that the smallest is 0 and the largest 1. At least two of them differ.",
     "    low, high = min(numbers), max(numbers)\n    return [(number - low) / (high - low) for number in numbers]\n",
     [[[1.0, 2.0, 3.0]], [[2.0, 49.9]]], [[[-5.0, 0.0, 5.0, 2.5]], [[100.0, 49.9]]]),
    ("count_letters", "text: str) -> dict[str, int]", "How often each letter of a text occurs, whatever its case.",
     ("    counts = {}\n    for letter in text.lower():\n        if letter.isalpha():\n"
     "            counts[letter] = counts.get(letter, 0) + 1\n    return counts\n"),
     [["Anna"], [""]], [["a1b2 A"], ["..."]]),
    ("is_palindrome", "text: str) -> bool", "Whether a text is the same from both ends.",
     "    return text == text[::-1]\n", [[""], ["aba"], ["ab"]], [["abba"], ["Aba"]]),
    ("find_zero", "xs: list[float]) -> float",
     ("A number x with xs[0] + xs[1] * x + xs[2] * x**2 + ... = 0. There is an even count of coefficients, and the "
     "last one is not zero, so that there is such a number."),
     ("    def value(x):\n        return sum(coefficient * x**power for power, coefficient in enumerate(xs))\n\n"
     "    low, high = -1.0, 1.0\n    while value(low) * value(high) > 0:\n        low, high = 2 * low, 2 * high\n"
     "    while high - low > 1e-10:\n        middle = (low + high) / 2\n"
     "        low, high = (middle, high) if value(low) * value(middle) > 0 else (low, middle)\n    return low\n"),
     [[[1, 2]], [[-6, 11, -6, 1]]], [[[3, -7, 0, 4, 1, 2]], [[-8, 1, -5, 2]]]),
    ("digit_sum", "number: int) -> int", "Sum of the decimal digits of a number, without its sign.",
     "    return sum(int(digit) for digit in str(abs(number)))\n", [[123], [0]], [[-45], [10**12 + 7]]),
    ("merge_words", "first: list[str], second: list[str]) -> list[str]", "Words of two lists in turn, then the rest.",
     ("    merged = []\n    for place in range(max(len(first), len(second))):\n"
     "        merged += first[place : place + 1] + second[place : place + 1]\n    return merged\n"),
     [[["a", "b"], ["c"]], [[], []]], [[["x"], ["y", "z", "w"]]]),
    ("halves", "numbers: list[int]) -> list[float]", "One half of each number.",
     "    return [number / 2 for number in numbers]\n", [[[3, 1]], [[4]]], [[[2, 0, 7]], [[-5, 5]]]),
    ("gcd", "first: int, second: int) -> int", "The greatest common divisor of two positive numbers.",
     "    while second:\n        first, second = second, first % second\n    return first\n",
     [[3, 5], [25, 15]], [[144, 60], [7, 7]]),
    ("brackets_fit", "text: str) -> bool", "Whether each round bracket that opens is closed again, and no other.",
     ("    depth = 0\n    for sign in text:\n        depth += (sign == '(') - (sign == ')')\n"
     "        if depth < 0:\n            return False\n    return depth == 0\n"),
     [["(())"], ["("]], [[")("], ["()()((()))"]]),
    ("primes_below", "limit: int) -> list[int]", "All prime numbers below a limit, in order.",
     "    return [n for n in range(2, limit) if all(n % d for d in range(2, int(n**0.5) + 1))]\n",
     [[10], [2]], [[30], [0]]),
    ("longest_word", "words: list[str]) -> str", "The first of the longest words, or an empty text if there is none.",
     "    return max(words, key=len, default='')\n", [[["a", "bb", "cc"]], [[]]], [[["one", "three", "seven"]]]),
    ("to_binary", "number: int) -> str", "A number that is not negative, with binary digits.",
     "    return bin(number)[2:]\n", [[5], [0]], [[1023], [64]]),
    ("flatten", "rows: list[list[int]]) -> list[int]", "The numbers of all rows, one row after the other.",
     "    return [number for row in rows for number in row]\n", [[[[1, 2], [3]]], [[]]], [[[[], [4, 5, 6], []]]]),
    ("caesar", "text: str, shift: int) -> str", "Small letters moved on in the alphabet, from z on to a.",
     "    return ''.join(chr((ord(c) - 97 + shift) % 26 + 97) if c.islower() else c for c in text)\n",
     [["abc", 1], ["xyz", 3]], [["Hello, world", 13], ["zz", 27]]),
    ("area", "sides: tuple[float, float, float]) -> float", "The area of a triangle from its sides, to two decimals.",
     "    a, b, c = sides\n    s = (a + b + c) / 2\n    return round((s * (s - a) * (s - b) * (s - c)) ** 0.5, 2)\n",
     [[[3.0, 4.0, 5.0]]], [[[2.0, 2.0, 2.0]], [[10.0, 8.0, 6.0]]]),
    ("second_smallest", "numbers: list[int]) -> int | None", "The second smallest of the different numbers, if any.",
     "    ordered = sorted(set(numbers))\n    return ordered[1] if len(ordered) > 1 else None\n",
     [[[1, 2, 3]], [[]]], [[[5, 5, 4]], [[1, 1]]]),
    ("vowels", "text: str) -> int", "How many vowels (a, e, i, o, u) a text has, whatever their case.",
     "    return sum(letter in 'aeiou' for letter in text.lower())\n", [["Audio"], ["xyz"]], [["queueing"], [""]]),
)  # fmt: skip


def rows() -> list[dict[str, Any]]:
    """With the columns of HumanEval+."""
    return [
        {
            "task_id": f"HumanEval/{number}",
            "prompt": f'def {name}({parameters}:\n    """{what}"""\n',
            "entry_point": name,
            "canonical_solution": body,
            "base_input": inputs,
            "plus_input": more,
            "atol": 1e-4 if name == "find_zero" else 0,
        }
        for number, (name, parameters, what, body, inputs, more) in enumerate(TASKS)
    ]


def passed(response: str, task: dict[str, Any]) -> float:
    """1 if the prompt with the response as its completion passes on both kinds of inputs."""
    from evalplus.eval import PASS, untrusted_check
    from evalplus.gen.util import trusted_exec

    entry_point = task["entry_point"]
    for inputs in (task["base_input"], task["plus_input"]):
        reference = task["prompt"] + task["canonical_solution"]
        expected, seconds = trusted_exec(reference, inputs, entry_point, record_time=True)
        status, _ = untrusted_check(
            "humaneval",
            task["prompt"] + response,
            inputs,
            entry_point,
            expected=expected,
            atol=task["atol"],
            ref_time=seconds,
            fast_check=True,
        )
        if status != PASS:
            return 0.0
    return 1.0


def _status(code: str, inputs: list[Any], name: str, expected: list[Any], atol: float) -> str:
    from evalplus.eval import untrusted_check

    seconds = [0.1] * len(inputs)
    return untrusted_check("humaneval", code, inputs, name, expected=expected, atol=atol, ref_time=seconds)[0]


def _value_far_below_zero_passes() -> bool:
    code = "def find_zero(xs):\n    return 1000.0 - 9e-5\n"
    return _status(code, [[[-1e9, 0, 0, 1]]], "find_zero", [1000.0], 1e-4) == "pass"


def _one_number_passes_for_a_list() -> bool:
    return _status("def halves(numbers):\n    return 0.5\n", [[[1, 1]]], "halves", [[0.5, 0.5]], 0) == "pass"


_WORDS = (
    *("--data", "rows.jsonl", "--reward", "published_subjects.evalplus_blind:passed"),
    *("--answer", "canonical_solution"),
)
SUBJECTS = {
    "evalplus-find-zero": Subject(_WORDS, _value_far_below_zero_passes, rows),
    "evalplus-shape": Subject(_WORDS, _one_number_passes_for_a_list, rows),
}

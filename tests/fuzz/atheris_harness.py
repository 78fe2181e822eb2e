"""Coverage-guided fuzzing of the parsers: `python -m tests.fuzz.atheris_harness -runs=200000 -max_len=4096`.

Needs `pip install atheris` (Linux wheels for CPython up to 3.13). The first byte chooses the alphabet: raw text, or one
piece of `hostile.PIECES` for each byte, which reaches deep into the formats at once.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["turnsmith.tools.parsing"]):
    from tests.fuzz.hostile import PARSERS, PIECES, VALID, check

ALPHABET = [*PIECES, *VALID]


def one_input(data: bytes) -> None:
    """Parse one input with every parser; whatever is raised is a find."""
    if not data:
        return
    if data[0] % 3 == 0:
        text = data[1:].decode("utf-8", "surrogateescape")
    else:
        text = "".join(ALPHABET[byte % len(ALPHABET)] for byte in data[1:])
    for parser in PARSERS:
        check(parser.parse(text))


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()

"""Coverage-guided fuzzing of the readers: `python -m tests.fuzz.atheris_readers files NEW tests/fuzz/corpus/files`.

The first argument is a target of `tests.fuzz.readers`; the others are libFuzzer's. Needs `pip install atheris` (Linux
wheels for CPython up to 3.13).
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["turnsmith.records", "turnsmith.viewer", "turnsmith.env.isolation"]):
    from tests.fuzz.readers import TARGETS


if __name__ == "__main__":
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()

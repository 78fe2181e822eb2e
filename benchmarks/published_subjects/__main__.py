"""Run one part of a subject here: `python -m published_subjects MODULE ID shows|words`."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def main(module: str, name: str, part: str) -> None:
    subject = importlib.import_module(f"published_subjects.{module}").SUBJECTS[name]
    if part == "shows":
        result = bool(subject.shows())
    else:
        if subject.rows is not None:
            Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in subject.rows()), encoding="utf-8")
        result = list(subject.words)
    print(f"\nresult: {json.dumps(result)}")


if __name__ == "__main__":
    main(*sys.argv[1:])

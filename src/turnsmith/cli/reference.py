"""Print docs/reference/cli.md from the parsers: `python -m turnsmith.cli.reference > docs/reference/cli.md`."""

from __future__ import annotations

import argparse

from turnsmith.cli.main import build_parsers

_HEAD = """\
# The command line

Made by `python -m turnsmith.cli.reference > docs/reference/cli.md`; a test fails when this page is out of date.
"""


def reference() -> str:
    """The page, in Markdown."""
    return "\n".join([_HEAD, *(_section(name, parser) for name, parser in build_parsers(width=100).items())])


def _section(title: str, parser: argparse.ArgumentParser) -> str:
    return f"## `{title}`\n\n```text\n{parser.format_help().strip()}\n```\n"


if __name__ == "__main__":
    print(reference(), end="")

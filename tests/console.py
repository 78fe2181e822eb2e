"""What README, the quickstart and the recipes have a user type in a terminal, and where each command is executed."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "docs" / "quickstart.md", *sorted((ROOT / "recipes").glob("*/README.md"))]
PLACES = (
    ("pip install ", "not run: benchmarks/first_run.py types it in an empty environment, for minutes"),
    ("apt-get install ", "not run: it changes the machine, as .ci/run does (system_packages)"),
    ("turnsmith play ", "unit"),
    ("turnsmith train .* --dry-run", "unit"),
    (
        "turnsmith check .*--rehearse recipes/gpu",
        "not run: Qwen3-8B is on a hub; test_rehearse.py rehearses another",
    ),
    ("turnsmith check --machine .*recipes/gpu", "not run: it trains on GPUs; test_selftest.py runs it on a CPU"),
    ("(uvx --from . )?turnsmith check ", "e2e"),
    ("turnsmith train .*(letters|counting).py", "nightly"),
    ("turnsmith train .*recipes/(agent|self_play)/", "nightly"),
    ("turnsmith train .*recipes/gpu/", "not run: it needs a GPU; `--dry-run` in unit"),
    (
        "turnsmith train .*recipes/(number_game|sums)/",
        "not run: half an hour; benchmarks/recipe.py runs it",
    ),
    ("turnsmith train .*recipes/(support_desk|simulated_user|coding)/", "not run: Qwen3-0.6B is on a hub"),
)
"""Patterns of commands, the first that fits counts: the tests that execute them as they are typed, or why none does.
Each `turnsmith train` is executed with `--dry-run` in unit besides, and those of recipes for two steps in nightly
(test_recipe_folders.py)."""


def commands() -> list[tuple[str, str]]:
    """Each command, with its page: the lines of `console` blocks that begin with a `$`, at `&&` taken apart."""
    blocks = [
        (page, block) for page in PAGES for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    typed = [(page, line[2:]) for page, block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [(str(page.relative_to(ROOT)), command) for page, line in typed for command in line.split(" && ")]


def place(command: str) -> str:
    """Where a command is executed, or `not run: reason`."""
    return next((where for pattern, where in PLACES if re.match(pattern, command)), "nowhere")


def typed_in(where: str) -> list[str]:
    """The commands that are executed there."""
    return list(dict.fromkeys(command for _, command in commands() if place(command) == where))


def title(command: str) -> str:
    """A command's verb and what it is about, to name a test."""
    words = command.removeprefix("uvx --from . ").split()
    return f"{words[1]} {next((word for word in words[2:] if ':' in word or '/' in word), '')}"


def make_folder(folder: Path) -> Path:
    """Make the folder that a reader is in: the project without runs, and the file that the quickstart has them save."""
    for name in ("examples", "recipes"):
        (folder / name).symlink_to(ROOT / name)
    saved = re.search(r"Save this as `(.+)`:\n\n```python\n(.*?)```", PAGES[1].read_text(), re.DOTALL)
    assert saved
    (folder / saved[1]).write_text(saved[2])
    return folder

"""What the README and the docs say is true: their code runs, their output is real, their names and links exist."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import re
import shlex
import sys
import types
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

from turnsmith.cli.agent import named_environments
from turnsmith.cli.main import build_parsers
from turnsmith.cli.train import read_config
from turnsmith.config import known_elsewhere
from turnsmith.config_sources import known_keys, load

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "turnsmith"
PAGES = [ROOT / "README.md", *(page for name in ("docs", "recipes") for page in sorted((ROOT / name).rglob("*.md")))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
PARTS_OF_A_PROGRAM = {"env_response", "get_reward", "rollout_func", "environment_factory", "step", "render"}
"""What the pages for users of other tools compare besides settings."""


@dataclass
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    mark: str
    """The HTML comment on the line before it: `not run: reason`, `output`, `file: name`, or nothing."""
    line: int


def blocks_of(page: Path) -> list[Block]:
    blocks: list[Block] = []
    opened: Block | None = None
    before = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if opened is not None:
            if line.startswith("```"):
                blocks.append(opened)
                opened, before = None, ""
            else:
                opened.text += line + "\n"
        elif line.startswith("```"):
            mark = re.fullmatch(r"<!-- (.+) -->", before)
            opened = Block(line[3:].strip(), "", mark[1] if mark else "", number + 1)
        else:
            before = line
    assert opened is None, f"{page}: a block is not closed"
    return blocks


def prose_of(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_code_runs_and_prints_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType(f"docs_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    printed: str | None = None
    for block in blocks_of(page):
        where = f"{page.name} line {block.line}"
        if block.language == "python":
            assert block.text.strip(), f"{where} is empty"
            # Padded with newlines, so that a traceback shows the page's own line.
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            if block.mark.startswith("not run: "):
                check_imports(block.text)
                continue
            if block.mark.startswith("file: "):
                (tmp_path / block.mark.removeprefix("file: ")).write_text(block.text)
                continue
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, module.__dict__)  # noqa: S102
            printed = out.getvalue()
        elif block.mark == "output":
            assert printed is not None, f"{where}: no code before this output"
            assert block.text == printed, f"{where}: the code prints something else"
            printed = None


def check_imports(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = import_module(str(node.module))
            assert all(hasattr(module, alias.name) for alias in node.names)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_and_settings_are_accepted(page: Path, tmp_path: Path) -> None:
    for block in blocks_of(page):
        if block.language == "yaml":
            (tmp_path / "config.yaml").write_text(block.text)
            load(tmp_path / "config.yaml")
        for command in re.findall(r"^\$ turnsmith (.+)$", block.text, re.MULTILINE):
            args, extra = build_parsers()["turnsmith"].parse_known_args(shlex.split(command))
            assert not [word for word in extra if word.startswith("-")]
            if hasattr(args, "overrides"):
                args.overrides = [*args.overrides, *extra]
                settings = args.overrides
                if hasattr(args, "agent") and not (getattr(args, "machine", False) or getattr(args, "demo", False)):
                    _, settings = named_environments(args)
                read_config(None, getattr(args, "model", None), settings)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_names_in_the_text_exist(page: Path) -> None:
    known = [*known_keys(), "environment.max_steps"]
    verl = Path(next(iter(importlib.util.find_spec("verl").submodule_search_locations)))  # type: ignore[union-attr, arg-type]
    for name in re.findall(r"`([^`\n]+)`", prose_of(page)):
        setting = re.fullmatch(r"((?:model|inference|training|checkpoint|ray|logging)\.[a-z_]+)(=\S+)?", name)
        if setting:
            assert setting[1] in known, f"there is no setting {setting[1]}"
        file = re.fullmatch(r"[\w./-]+/[\w.-]+\.py|trajectory\.py", name)
        if file and name != "path/to/file.py":
            places = (ROOT / name, PACKAGE / name, verl.parent / name)
            assert any(place.is_file() for place in places), f"there is no file {name}"


def test_pages_for_users_of_other_tools_say_what_the_error_for_their_settings_says() -> None:
    checked = 0
    for page in (ROOT / "docs" / "coming-from").glob("*.md"):
        for theirs, here in re.findall(r"^\| (.+?) \| (.+) \|$", page.read_text(encoding="utf-8"), re.MULTILINE):
            settings = re.findall(r"`([a-z]+\.[a-z_]+)", here)
            for name in re.findall(r"`([a-z_.]+)`", theirs.split(" \u00d7 ")[0]) if settings else ():
                if name.split(".")[-1] not in {setting.split(".")[1] for setting in settings} | PARTS_OF_A_PROGRAM:
                    said = known_elsewhere(name) or ""
                    assert any(setting in said for setting in settings), f"{page.name}: {name}: {said}"
                    checked += 1
    assert checked >= 15


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), f"{page.name} links to {target}, which is not there"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings]
            assert anchor in slugs, f"{page.name} links to {target}: no such heading"


def test_readme_shows_the_shipped_example() -> None:
    example = (ROOT / "examples" / "letters.py").read_text(encoding="utf-8")
    assert example in [block.text for block in blocks_of(ROOT / "README.md")], "copy examples/letters.py to README.md"
    assert len(example.splitlines()) <= 20


def test_an_extension_takes_at_most_20_lines() -> None:
    files = [block for block in blocks_of(ROOT / "docs" / "extending.md") if block.mark.startswith("file: ")]
    assert len(files) == 5
    assert all(len(block.text.splitlines()) <= 20 for block in files)

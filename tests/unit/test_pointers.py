"""What docstrings, comments, messages and docs name in backticks is there: files, modules, classes, functions."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "turnsmith"
FILES = sorted(SOURCE.rglob("*.py"))
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "recipes").rglob("*.md"), *ROOT.glob("*.md")])
OURS = [path for folder in ("src", "tests", "benchmarks", "examples", "docs") for path in (ROOT / folder).rglob("*.py")]
FOREIGN = {
    "agg_loss": "verl",
    "create_app": "OpenEnv",
    "data_offsets": "safetensors",
    "extra_state": "verl's files",
    "flash_attention_2": "transformers",
    "get_bit_generator": "numpy",
    "glob.py": "a user's",
    "global_step_N": "N is a number",
    "hf_model": "verl",
    "lora_B": "PEFT",
    "masked_whiten": "verl",
    "my_game.py": "the user's",
    "my_mix.py": "the user's",
    "path/to/file.py": "the user's",
    "reload_weights": "vLLM",
    "rm_scores": "verl",
    "set_bit_generator": "numpy",
    "verl/": "verl",
    "worker_extension_cls": "vLLM",
}
"""What names in backticks begin with that are not ours, and whose they are."""
ANY_MEMBER = "*"


@cache
def text_of(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@cache
def known_words() -> set[str]:
    """Every word of our code outside of comments and of texts in three quotes, of which docstrings are."""
    code = (re.sub(r'"""(?s:.*?)"""|#.*', "", text_of(path)) for path in OURS if path != Path(__file__))
    return {word for text in code for word in re.findall(r"\w+", text)}


@cache
def members(name: str, seen: frozenset[str] = frozenset()) -> set[str]:
    """The names in the bodies of our classes with this name, and of their bases; a foreign base may have any."""
    found: set[str] = set()
    for file in (file for file in FILES if re.search(rf"^ *class {name}\b", text_of(file), re.MULTILINE)):
        for node in (node for node in ast.walk(ast.parse(text_of(file))) if getattr(node, "name", "") == name):
            assert isinstance(node, ast.ClassDef)
            found |= set(re.findall(r"\w+", ast.unparse(node)))
            for base in {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases} - seen:
                found |= members(base, seen | {name})
    has_none = {"ABC", "Enum", "Exception", "Generic", "Protocol", "StrEnum", "object"}
    return found or ({ANY_MEMBER} - ({ANY_MEMBER} if name in has_none else set()))


def problem(pointer: str, home: Path) -> str:
    """What is wrong with what a text in this file names; empty if it is there, or is no name of ours."""
    if pointer.startswith(tuple(FOREIGN)):
        return ""
    if match := re.fullmatch(r"([\w/]+\.py)(?::([\w.]+))?", pointer):
        places = [
            home.parent / match[1],
            ROOT / match[1],
            *SOURCE.glob(f"**/{match[1]}"),
            *ROOT.glob(f"tests/**/{match[1]}"),
        ]
        files = [place for place in places if place.is_file()]
        if not files:
            return "there is no such file"
        return "" if not match[2] or any(defines(file, match[2]) for file in files) else "the file does not define it"
    if match := re.fullmatch(r"turnsmith((?:\.\w+)+)", pointer):
        return "" if is_importable(match[1].split(".")[1:]) else "it cannot be imported"
    if match := re.fullmatch(r"([A-Z]\w+)\.(\w+)(?:\(.*\))?", pointer):
        return "" if members(match[1]) & {match[2], ANY_MEMBER} else f"{match[1]} has no {match[2]}"
    if match := re.fullmatch(r"(_?[a-z]+\w*_\w+|_\w+|\w+(?=\())(?:\(.*\))?", pointer):
        # Pages name much of other projects; of our files they name path and name.
        return "" if home in PAGES or match[1] in known_words() else "no code of ours has such a name"
    return ""


def defines(file: Path, name: str) -> bool:
    """Whether a file has a class, function, constant or attribute of this (dotted) name."""
    node: ast.AST = ast.parse(text_of(file))
    for part in name.split("."):
        inside = ast.walk(node)
        found = next(
            (one for one in inside if part in {getattr(one, kind, "") for kind in ("name", "id", "arg")}), None
        )
        if found is None:
            return False
        node = found
    return True


def is_importable(parts: list[str]) -> bool:
    """Whether `turnsmith.<parts>` is a module, or a name in one."""
    place = SOURCE
    for part in parts:
        if (place / part).is_dir():
            place = place / part
        elif (place / f"{part}.py").is_file():
            place = place / f"{part}.py"
        else:
            exports = place / "__init__.pyi"
            file = place if place.is_file() else exports if exports.is_file() else place / "__init__.py"
            return re.search(rf"\b{part}\b", text_of(file)) is not None
    return True


def wrong_pointers(file: Path) -> list[str]:
    """The pointers in a file that lead nowhere, as sentences."""
    text = text_of(file)
    if file in PAGES:
        text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    pointers = dict.fromkeys(re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text))
    return [f"{file.relative_to(ROOT)}: `{one}`: {wrong}" for one in pointers if (wrong := problem(one, file))]


def test_docstrings_comments_and_messages_name_what_is_there() -> None:
    assert [wrong for file in FILES for wrong in wrong_pointers(file)] == []


def test_the_docs_name_what_is_there() -> None:
    assert [wrong for page in PAGES for wrong in wrong_pointers(page)] == []


def test_packages_say_in_which_of_their_modules_to_begin() -> None:
    said = [
        (file.parent, name)
        for file in FILES
        for name in re.findall(r"reading in `([a-z_]+)`|loop in `([a-z_]+)`", text_of(file))
    ]
    assert said
    assert [one for one in said if not (one[0] / f"{''.join(one[1])}.py").is_file()] == []


def test_the_table_of_verl_names_what_relies_on_it() -> None:
    rows = (ROOT / "tests" / "unit" / "trainer" / "verl_members.txt").read_text().splitlines()
    relying = [row.split()[-1].split(":") for row in rows]
    assert len(relying) > 30
    assert [":".join(one) for one in relying if not defines(SOURCE / one[0], one[1])] == []


@pytest.mark.parametrize(
    "pointer",
    [
        "rollout/nothing.py",
        "rollout/episode.py:nothing",
        "turnsmith.nothing",
        "Trajectory.nothing",
        "no_such_pointer" + "_name",
        "nothing" + "_at_all()",
    ],
)
def test_what_is_not_there_is_found(pointer: str) -> None:
    assert problem(pointer, SOURCE / "rollout" / "episode.py")

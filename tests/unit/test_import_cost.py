"""`import turnsmith` and `turnsmith --help` stay light: about 0.1 and 0.4 s of CPU at most on a laptop."""

import ast
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import turnsmith
from turnsmith.cli.main import TRAINING_PACKAGES

STANDARD = "import asyncio, argparse, email.message, http.client, json, logging, subprocess, unittest"
"""What takes about 0.13 s of CPU on a laptop, and is measured beside what has a limit."""
HEAVY = ("torch", "ray", "verl", "vllm", "numpy", "pydantic")


def cpu_seconds(*arguments: str) -> float:
    """What Python computes for this; not how long it takes, which depends on what else the machine does."""
    before = os.times()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def is_ever_below(times: float, *arguments: str) -> bool:
    """Whether this ever takes less than `times` what the imports of Python's own modules take, measured beside it.

    The same machine takes half as long or twice as long from one hour to the next, so seconds alone say little. The
    best of several rounds counts: other work shares the caches, and only ever adds time.
    """
    return any(cpu_seconds(*arguments) < times * cpu_seconds("-c", STANDARD) for _ in range(9))


def test_import_takes_less_than_pythons_own_modules() -> None:
    assert is_ever_below(1, "-c", "import turnsmith")


def test_import_loads_nothing_heavy() -> None:
    code = f"import turnsmith, sys; print([name for name in {HEAVY} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert loaded.strip() == "[]"


def test_a_script_that_trains_can_be_checked_without_the_extras() -> None:
    code = f"""
import sys

class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {set(TRAINING_PACKAGES)}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
from turnsmith import BaseEnvironment, ConfigStore, RayPPOTrainer
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_takes_less_than_three_times_as_long() -> None:
    assert is_ever_below(3, "-m", "turnsmith.cli.main", "--help")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom turnsmith.cli.main import main\n"
        "try: main(['train', '--help'])\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert loaded.strip().splitlines()[-1] == "[]"


def test_python_dash_m_turnsmith_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "turnsmith", "--version"], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == f"turnsmith {turnsmith.__version__}"


def test_every_public_name_is_there_and_type_checkers_see_it() -> None:
    stub = ast.parse(Path(turnsmith.__file__).with_suffix(".pyi").read_text())
    seen = {alias.name for node in ast.walk(stub) if isinstance(node, ast.ImportFrom) for alias in node.names}
    public = set(turnsmith.__all__)  # pyright: ignore[reportAttributeAccessIssue]
    assert public == seen
    assert {"RayPPOTrainer", "BaseEnvironment", "algo"} <= public
    for name in public:
        assert getattr(turnsmith, name).__name__.rpartition(".")[2] == name
    assert public <= set(dir(turnsmith))


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(turnsmith, "no_such_name")


def test_the_version_is_the_one_of_the_package() -> None:
    assert turnsmith.__version__ == importlib.metadata.version("turnsmith")


def test_every_package_that_the_core_lacks_is_told_in_a_sentence() -> None:
    imported: set[str] = set()
    for file in Path(turnsmith.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    core = {"cloudpickle", "docstring_parser", "lazy_loader", "msgspec", "numpy", "orjson", "packaging"}
    core |= {"pyarrow", "pydantic", "pydantic_core", "rich", "turnsmith", "typing_extensions", "yaml"}
    own_sentence = {"datasets", "httpx", "httpx2", "jsonschema", "math_verify", "mcp", "re2", "vllm"}
    own_sentence |= {"jsonschema_specifications", "referencing"}  # they come with jsonschema
    assert imported - sys.stdlib_module_names - core - own_sentence <= TRAINING_PACKAGES

"""`import turnwise` and `turnwise --help` stay light; the limits are those of the design."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import turnwise

HEAVY = ("torch", "ray", "verl", "vllm", "numpy", "pydantic")


def best_seconds(*arguments: str, runs: int = 7) -> float:
    """The best of several runs: other work shares the cores, and only ever adds time."""
    times: list[float] = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return min(times)


def test_import_adds_less_than_150_ms_to_bare_python() -> None:
    assert best_seconds("-c", "import turnwise") - best_seconds("-c", "pass") < 0.15


def test_import_loads_nothing_heavy() -> None:
    code = f"import turnwise, sys; print([name for name in {HEAVY} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert loaded.strip() == "[]"


def test_help_takes_less_than_400_ms() -> None:
    assert best_seconds("-m", "turnwise.cli.main", "--help") < 0.4


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom turnwise.cli.main import main\n"
        "try: main(['train', '--help'])\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert loaded.strip().splitlines()[-1] == "[]"


def test_python_dash_m_turnwise_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "turnwise", "--version"], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == f"turnwise {turnwise.__version__}"


def test_every_public_name_is_there_and_type_checkers_see_it() -> None:
    source = ast.parse(Path(turnwise.__file__).read_text())
    seen = {alias.name for node in ast.walk(source) if isinstance(node, ast.ImportFrom) for alias in node.names}
    public = set(turnwise.__all__) - {"__version__"}
    assert public <= seen
    for name in public:
        assert getattr(turnwise, name).__name__.rpartition(".")[2] == name
    assert public <= set(dir(turnwise))


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(turnwise, "no_such_name")


def test_the_version_is_the_one_of_the_project_file() -> None:
    project = Path(turnwise.__file__).parents[2] / "pyproject.toml"
    assert f'version = "{turnwise.__version__}"' in project.read_text()

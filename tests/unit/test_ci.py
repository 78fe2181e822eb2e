"""What `.ci/run` makes of tests that fail, pass only alone, or would be skipped."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTED = [line for line in (ROOT / ".ci" / "passes_alone.txt").read_text().splitlines() if not line.startswith("#")]
FLAKY = """
from pathlib import Path

def test_second_time():
    seen = Path("seen")
    assert seen.exists() or seen.write_text("") is None and False
"""


def test_what_may_pass_only_alone_exists_and_has_a_reason() -> None:
    for line in LISTED:
        name, _, reason = line.partition(" :: ")
        file, _, function = name.partition("::")
        assert len(reason) > 20, line
        assert f"def {function.partition('[')[0]}(" in (ROOT / file).read_text(), line


@pytest.mark.nightly
@pytest.mark.parametrize("is_listed", [True, False])
def test_what_passes_only_alone_fails_unless_it_is_listed(tmp_path: Path, is_listed: bool) -> None:
    (function,) = re.findall(r"^run_tests\(\) \{.*?^\}", (ROOT / ".ci" / "run").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / ".ci").mkdir()
    listed = "test_flaky.py::test_second_time :: it only knows the second time" if is_listed else "# none"
    (tmp_path / ".ci" / "passes_alone.txt").write_text(f"{listed}\n")
    (tmp_path / "test_flaky.py").write_text(FLAKY)
    script = f"set -euo pipefail; logs={tmp_path}\n{function}\nrun_tests -q test_flaky.py"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True)
    summary = (tmp_path / "summary").read_text()
    assert (done.returncode == 0) is is_listed, done.stdout.decode()
    assert ("passed only alone, as listed: " if is_listed else "passes only alone; mend it") in summary


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("reason", "is_strict", "passed"),
    [
        ("only root can make a network", True, False),
        ("only root can make a network", False, True),
        ("only x86_64 has it", True, True),
    ],
)
def test_a_night_fails_where_it_would_skip(tmp_path: Path, reason: str, is_strict: bool, passed: bool) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(
        f"import pytest\n\n@pytest.mark.skipif(True, reason={reason!r})\ndef test_it():\n    pass\n"
    )
    variables = {name: value for name, value in os.environ.items() if name != "TURNSMITH_NO_SKIPS"}
    variables |= {"TURNSMITH_NO_SKIPS": "1"} if is_strict else {}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert (done.returncode == 0) is passed, done.stdout
    assert ("has to run" in done.stdout) is (not passed)

"""What verl, TransferQueue and vLLM look like where turnsmith relies on more than they promise: `verl_members.txt`.

Its columns: the member, or the file, of the package; the digest of its source; whether verl's branch `neo`, which drops
the V1 trainer, has it ("yes", or "other" if with another source); and what of ours relies on it.
After a new version was read, `python tests/unit/trainer/test_verl_members.py [A CLONE OF VERL]` writes it anew.
"""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path

import pytest

TABLE = Path(__file__).parent / "verl_members.txt"
ROWS = [line.split() for line in TABLE.read_text().splitlines()]


def digest(text: str, member: str) -> str:
    """That of a member's source, with its decorators; of all of the text if none is named; empty if it is not there."""
    lines = text.splitlines()
    body = ast.parse(text).body
    for part in member.split(".") if member else ():
        found = next((node for node in body if getattr(node, "name", "") == part), None)
        if not isinstance(found, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            return ""
        body = found.body
        lines = text.splitlines()[
            min([found, *found.decorator_list], key=lambda node: node.lineno).lineno - 1 : found.end_lineno
        ]
    return blake2b("\n".join(lines).encode(), digest_size=6).hexdigest()


def installed(place: str) -> str:
    """The digest of a row's first column in the installed package, which is read, not imported."""
    file, _, member = place.partition(":")
    package, _, path = file.partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    found = Path(spec.origin).parent / path
    return digest(found.read_text(), member) if found.is_file() else ""


@pytest.mark.parametrize(("place", "wanted", "neo", "ours"), ROWS, ids=[f"{row[0]}-{row[3]}" for row in ROWS])
def test_it_is_as_it_was_read(place: str, wanted: str, neo: str, ours: str) -> None:
    if installed(place) != wanted:
        pytest.fail(f"{place} is not what turnsmith was written for. {ours} relies on it.", pytrace=False)


def test_a_member_that_changed_or_went_is_noticed() -> None:
    text = "class A:\n    def f(self): ...\n    @x\n    def g(self): ...\n"
    assert digest(text, "A.g") not in {"", digest(text.replace("@x", "@y"), "A.g"), digest(text, "A.f")}
    assert digest(text, "A.f") == digest(text.replace("@x", "@y"), "A.f")
    assert digest(text, "A.h") == digest(text, "g") == ""
    assert digest(text, "") == digest(text, "A")


def test_metrics_and_timings_of_verl_have_the_names_that_we_read() -> None:
    from turnsmith.trainer.diagnostics.context import _VERL_NAMES

    spec = importlib.util.find_spec("verl")
    assert spec is not None
    files = (
        "trainer/ppo/v1/trainer_base.py trainer/ppo/v1/trainer_sync.py trainer/ppo/metric_utils.py "
        "trainer/ppo/core_algos.py trainer/ppo/ray_trainer.py trainer/ppo/rollout_corr_helper.py "
        "utils/debug/metrics.py workers/utils/losses.py workers/engine_workers.py"
    )
    text = "".join((Path(str(spec.origin)).parent / name).read_text() for name in files.split())
    # Some get their prefix where they are collected.
    for name, whole in (
        ('metrics["rollout_is', 'metrics["rollout_corr/rollout_is'),
        ('["kl_loss', '["actor/kl_loss'),
        ('["perf/max_memory', '["actor/perf/max_memory'),
    ):
        text = text.replace(name, whole)
    names = {name.removeprefix("timing_s/") for name in _VERL_NAMES.values()} - {"actor/lr"}  # put together from parts
    assert sorted(name for name in names if f'"{name}"' not in text) == []


def on_neo(clone: str, place: str, now: str) -> str:
    file, _, member = place.partition(":")
    shown = subprocess.run(["git", "-C", clone, "show", f"neo:{file}"], capture_output=True, text=True, check=False)
    then = digest(shown.stdout, member) if shown.returncode == 0 else ""
    return "-" if not place.startswith("verl/") else "yes" if then == now else "other" if then else "no"


if __name__ == "__main__":
    written = [(row[0], installed(row[0]), row[-2], row[-1]) for row in ROWS]
    if sys.argv[1:]:
        written = [(place, now, on_neo(sys.argv[1], place, now), ours) for place, now, _, ours in written]
    TABLE.write_text("".join(" ".join(row) + "\n" for row in written))

"""Which files are changed, and which tests may notice."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "turnsmith"
ALL_FILES = ("**/*.py",)
CORE_FILES = (
    "algo/**/*.py",
    "rollout/*.py",
    "tools/parsing/*.py",
    "records/*.py",
    "trainer/advantages.py",
    "trainer/verl/agent_loop.py",
    "trainer/config/*.py",
    "trainer/diagnostics/*.py",
    "trainer/dataset.py",
    "env/local_host.py",
    "env/spec.py",
    "inference/chat/*.py",
    "inference/engines/continuous_batch.py",
    "inference/weights.py",
)
"""The files in which a mistake would train on the wrong thing."""

_PARSING = ("formats", "parsing", "parsing_fuzz", "parsing_json", "parsing_native", "parsing_react", "parsing_tags")
_TRAINED_ON = tuple(
    f"tests/unit/trainer/test_{name}.py"
    for name in ("segments", "recorded_advantages", "rollout_rejection", "agent_training", "episode_worker")
)
TESTS = {
    "algo/": ("tests/unit/algo",),
    "records/": (
        "tests/unit/records",
        "tests/unit/test_hostile_runs.py",
        "tests/unit/viewer/test_summary.py",
        "tests/unit/test_config_sources.py",
    ),
    "records/run_warnings.py": ("tests/unit/trainer/test_warnings.py",),
    "records/advantages.py": ("tests/unit/records", "tests/unit/viewer"),
    "rollout/": ("tests/unit/rollout", "tests/unit/trainer/test_metrics.py", "tests/unit/trainer/test_warnings.py"),
    "rollout/episode_summary.py": ("tests/unit/trainer/test_drift.py", "tests/unit/trainer/test_metrics.py"),
    "tools/parsing/": tuple(f"tests/unit/tools/test_{name}.py" for name in _PARSING),
    "trainer/advantages.py": _TRAINED_ON,
    "trainer/verl/": _TRAINED_ON,
    "trainer/dataset.py": (
        "tests/unit/trainer/test_validation.py",
        "tests/unit/trainer/test_verl_dataset.py",
        "tests/unit/cli/test_resume.py",
    ),
    "gateway/": ("tests/unit/gateway", "tests/unit/rollout/test_agent_session.py"),
    "check/plan/": ("tests/unit/check/plan", "tests/unit/cli/test_plan.py"),
    "concurrency/generators.py": ("tests/unit/env/test_own_state.py",),
    "trainer/config/": (
        "tests/unit/trainer/test_to_verl.py",
        "tests/unit/test_config_fields.py",
        "tests/unit/trainer/test_verl_overrides.py",
        "tests/unit/trainer/test_layouts.py",
        "tests/unit/trainer/test_attention.py",
        "tests/unit/trainer/test_learning_rate.py",
        "tests/unit/trainer/test_preflight.py",
        "tests/unit/trainer/test_verl_keys.py",
    ),
    "trainer/diagnostics/": (
        "tests/unit/trainer/test_warnings.py",
        "tests/unit/trainer/test_warning_thresholds.py",
        "tests/unit/trainer/test_drift.py",
        "tests/unit/trainer/test_metrics.py",
        "tests/unit/rollout/test_episode_limits.py",
        "tests/unit/rollout/test_judge.py",
    ),
    "env/": ("tests/unit/env", "tests/unit/rollout/test_episode.py", "tests/unit/rollout/test_episode_clock.py"),
    "env/spec.py": ("tests/unit/env", "tests/unit/trainer/test_validation.py"),
    "inference/": ("tests/unit/inference",),
    "inference/chat/": (
        "tests/unit/inference/test_chat.py",
        "tests/unit/inference/test_chat_tools.py",
        "tests/unit/inference/test_thinking.py",
        "tests/unit/inference/test_chat_families.py",
        "tests/unit/inference/test_renderers.py",
        "tests/unit/rollout/test_episode.py",
    ),
}
"""The tests of a file, by the longest matching prefix of its path.

Besides these, `test_NAME.py` of the same package, if there is one, every unit test that imports the module by name, and
the module's doctests. For a file without an entry, the unit tests of its package.
"""

END_TO_END = {
    "trainer/verl/": "tests/e2e/test_tiny_training.py",
    "env/adapters/gymnasium.py": "tests/e2e/test_gymnasium.py",
    "env/adapters/linear_patterns.py": "tests/e2e/test_linear_patterns.py",
    "env/adapters/openenv": "tests/e2e/test_openenv.py",
    "env/adapters/pettingzoo.py": "tests/e2e/test_pettingzoo.py",
    "env/adapters/textarena.py": "tests/e2e/test_textarena.py",
    "env/adapters/reasoning_gym.py": "tests/e2e/test_reasoning_gym.py",
}
"""What may be noticed by an end-to-end test, because its other half is not in the unit tests."""


def own_tests(file: str) -> Path:
    return ROOT / "tests" / "unit" / Path(file).parent / f"test_{Path(file).stem}.py"


def importers(file: str) -> list[Path]:
    """The unit tests that name the module of a file."""
    named = re.compile(rf"\b{re.escape(module_of(file))}\b(?!\.)")
    return [test for test, text in _unit_tests().items() if named.search(text)]


@cache
def _unit_tests() -> dict[Path, str]:
    return {test: test.read_text() for test in sorted((ROOT / "tests" / "unit").rglob("test_*.py"))}


def paths_of_tests(file: str) -> tuple[str, ...]:
    prefix = max((prefix for prefix in TESTS if file.startswith(prefix)), key=len, default="")
    package = f"tests/unit/{Path(file).parts[0]}"
    return TESTS[prefix] if prefix else (package,) * (ROOT / package).is_dir()


def end_to_end_of(file: str) -> str:
    return next((test for prefix, test in END_TO_END.items() if file.startswith(prefix)), "")


def module_of(file: str) -> str:
    return ".".join(("turnsmith", *Path(file).with_suffix("").parts)).removesuffix(".__init__")


def all_tests_of(file: str, source: Path) -> list[str]:
    """The paths of all tests of a file, its doctests in a copy of the source included."""
    paths = [own_tests(file)] * own_tests(file).exists()
    if not file.startswith("trainer/verl/"):  # Doctests there would have to import verl.
        paths.append(source / "turnsmith" / file)
    for path in paths_of_tests(file):
        paths += sorted((ROOT / path).rglob("test_*.py")) or [ROOT / path]
    return [str(path) for path in (*paths, *importers(file))]

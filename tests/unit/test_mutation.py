"""The mutation tool changes what it should and nothing else; its list of equivalent mutants is current."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from tests.mutation import run
from tests.mutation.forks import TIMEOUT
from tests.mutation.mutants import Mutant, find_mutants, statement_lines
from tests.mutation.reach import Reach, Reached
from tests.mutation.run import EQUIVALENT, GONE, Slot, changes_of, draw, noticed_percent, read_equivalent
from tests.mutation.selection import ALL_FILES, END_TO_END, PACKAGE, ROOT, TESTS, importers, own_tests, paths_of_tests


def changes(source: str) -> set[tuple[str, str]]:
    return {(mutant.before, mutant.after) for mutant in find_mutants("file.py", dedent(source).encode())}


def test_each_kind_of_change_is_found() -> None:
    assert changes("x = a < b") == {("<", "<=")}
    assert changes("x = a + b") == {("+", "-")}
    assert changes("x += y") == {("+=", "-=")}
    assert changes("x = a and b") == {("and", "or")}
    assert changes("x = 3") == {("3", "4"), ("3", "2")}
    assert changes("x = True") == {("True", "False")}
    assert changes("x = not y") == {("not", "")}
    assert changes("do(x)") == {("do(x)", "pass")}
    assert changes("def f(): raise E('no')") == {("raise E('no')", "pass")}
    assert changes("def f(): return x") == {("x", "None")}
    assert changes("if x:\n    y = z") == {("x", "(not (x))")}
    assert changes("y = a if x else b") == {("x", "(not (x))")}


def test_what_cannot_change_behaviour_is_left_alone() -> None:
    source = '''
        """A docstring."""
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            import that
        __all__ = ["a" + "b"]
        x: Literal[1, 2] | None
        logger.info("took %s", 1 + 2)
        pairs = zip(a, b, strict=True)

        @decorated(slots=True)
        def f(a: int | str) -> int | None:
            """Another docstring."""
            ...
            return None
    '''
    assert changes(source) == set()


def test_only_the_changed_expression_differs_and_characters_of_several_bytes_do_not_shift_it() -> None:
    source = 'name = "é" * 2 if flag else (\n    1 - x\n)\n'.encode()
    by_change = {mutant.after: mutant.apply(source).decode() for mutant in find_mutants("file.py", source)}
    assert by_change["+"] == 'name = "é" * 2 if flag else (\n    (1 + x)\n)\n'
    assert by_change["3"] == 'name = "é" * (3) if flag else (\n    1 - x\n)\n'
    assert by_change["(not (flag))"] == 'name = "é" * 2 if (not (flag)) else (\n    1 - x\n)\n'


@pytest.mark.nightly
def test_every_mutant_is_python_and_the_draw_repeats() -> None:
    drawn = draw(list(ALL_FILES), count=100, seed=3)
    assert drawn == draw(list(ALL_FILES), count=100, seed=3)
    assert drawn != draw(list(ALL_FILES), count=100, seed=4)
    assert len({mutant.key for mutant in drawn}) == len(drawn)
    for mutant in drawn:
        original = (PACKAGE / mutant.file).read_bytes()
        assert ast.dump(ast.parse(mutant.apply(original))) != ast.dump(ast.parse(original)), mutant


def test_the_tests_of_every_file_exist() -> None:
    missing = {path for paths in (*TESTS.values(), END_TO_END.values()) for path in paths if not (ROOT / path).exists()}
    assert not missing, "a test was renamed: change TESTS in tests/mutation/selection.py"


@pytest.mark.nightly
def test_every_file_has_tests() -> None:
    files = [str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py")]
    without = [one for one in files if not (paths_of_tests(one) or own_tests(one).exists() or importers(one))]
    assert without == ["__main__.py"], "no unit test may notice a change of these"


def test_every_entry_of_the_equivalent_list_still_names_a_mutant() -> None:
    listed = read_equivalent()
    files = {change[0] for change in listed}
    changes = changes_of(mutant for file in files for mutant in find_mutants(file, (PACKAGE / file).read_bytes()))
    assert listed <= set(changes.values())
    written = [line.split(" :: ") for line in EQUIVALENT.read_text(encoding="utf-8").splitlines()]
    several = {change[:4] for change in changes.values() if change[4] > 1}
    unclear = [entry for entry in written if tuple(entry[:4]) in several]
    assert unclear == [], "say which of several is meant: `0 @2` is the second such change of such a line"


def test_of_several_such_changes_of_a_line_an_entry_names_one() -> None:
    source = b"def f(x):\n    if x[0] == x[-1] and x[0]:\n        return 1\n    return 1\n"
    mutants = [
        one for one in find_mutants("file.py", source) if (one.before, one.after) in (("0", "-1"), ("1", "None"))
    ]
    names = changes_of(reversed(mutants))
    assert [names[one][2:] for one in mutants] == [("0", "-1", 1), ("0", "-1", 2), ("1", "None", 1), ("1", "None", 2)]


def test_survivors_and_time_outs_lower_the_percentage_and_equivalents_do_not() -> None:
    assert (
        noticed_percent({"noticed": 6, "noticed end to end": 2, "equivalent": 5, "SURVIVED": 1, "TIMED OUT": 1}) == 80.0
    )
    assert noticed_percent({"noticed": 3, "SURVIVED": 0}) == 100.0
    assert noticed_percent({"noticed": 0, "SURVIVED": 0}) == 0.0


@pytest.mark.parametrize(("at_least", "is_enough"), [("50", True), ("50.1", False), (None, True)])
def test_too_few_noticed_mutants_end_in_an_error(monkeypatch, at_least, is_enough) -> None:
    verdicts = ["noticed", "SURVIVED", "equivalent", "noticed", "TIMED OUT"]
    monkeypatch.setattr(run, "verdicts_of", lambda mutants, jobs, **how: zip(mutants, verdicts, strict=True))
    limit = ["--at-least", at_least] if at_least else []
    monkeypatch.setattr("sys.argv", ["run", "--count", "5", "--files", "algo/reference/kl.py", *limit])
    if is_enough:
        run.main()
    else:
        with pytest.raises(SystemExit, match=r"--at-least 50\.1%"):
            run.main()


def test_what_has_a_verdict_is_not_tried_again(monkeypatch, tmp_path, capsys) -> None:
    tried: list[Mutant] = []

    def verdicts_of(mutants: list[Mutant], jobs: int, **how: bool) -> Iterator[tuple[Mutant, str]]:
        for mutant in mutants[:2]:
            tried.append(mutant)
            yield mutant, "noticed"

    monkeypatch.setattr(run, "verdicts_of", verdicts_of)
    monkeypatch.setattr(
        "sys.argv", ["run", "--count", "4", "--files", "algo/reference/kl.py", "--results", str(tmp_path / "verdicts")]
    )
    run.main()
    run.main()
    assert len(set(tried)) == 4
    assert "4 mutants, seed 0; 2 not tried yet" in capsys.readouterr().out


def test_a_mutant_is_in_the_innermost_statement_of_a_function() -> None:
    source = b"LIMIT = 3\n\ndef f(x=1):\n    if x:\n        return (\n            x + 1\n        )\n    return 0\n"
    assert statement_lines(source, 1) is None, "it is run at import"
    assert statement_lines(source, 3) == range(3, 9), "a default: every test that calls the function"
    assert statement_lines(source, 4) == range(4, 8)
    assert statement_lines(source, 6) == range(5, 8)


def test_a_mutant_is_tried_on_the_tests_that_reach_it_quickest_first() -> None:
    slow, quick = Reached("slow", "a.py", 2.0, {"f": [1, 2]}), Reached("quick", "b.py", 0.1, {"f": [2]})
    other = Reached("other", "b.py", 0.2, {"g": [2]})
    reach = Reach([slow, other, quick])
    assert reach.of("f", [2]) == [quick, slow]
    assert reach.of("f", range(1, 2)) == [slow]
    assert reach.of("f", None) == [quick, slow]
    assert reach.of("f", [1], own="b.py") == [quick, other, slow], "they may start a process that reaches it"
    for own in ("", "b.py"):
        assert reach.of("nothing", [1], own) == [quick, other, slow], "a constant may be used elsewhere"


def test_a_test_that_imports_a_module_is_one_of_its_tests() -> None:
    assert "test_drift.py" in [test.name for test in importers("rollout/episode_report.py")]
    assert "test_drift.py" not in [test.name for test in importers("rollout/episode.py")]
    assert importers("rollout/__init__.py") != importers("rollout/players.py")


_ANSWERING = "import sys\nfor code in sys.argv[1:]:\n    sys.stdin.readline()\n    print(code, flush=True)"


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([["1"]], 1),
        ([["-100"]], TIMEOUT),
        ([["-9", "0"]], 0),
        ([["-9", "-9", "0"]], -9),
        ([["-9", "-9", "-9", "0"]], -9),
        ([["-9", "-9", "1"]], None),
        ([[], ["0"]], 0),
        ([[], [], ["0"]], GONE),
        ([[], [], [], []], None),
    ],
    ids=str,
)
def test_tests_that_are_killed_run_again_and_then_without_the_mutant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: list[list[str]], code: int | None
) -> None:
    """Each list has the codes that a process tells before it ends."""
    started: list[subprocess.Popen[str]] = []

    def start(source: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _ANSWERING, *(answers[len(started)] if len(started) < len(answers) else [])]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        return started[-1]

    monkeypatch.setattr(Slot, "start", staticmethod(start))
    (mutant,) = draw(["algo/rloo.py"], 1, 0)
    (tmp_path / "turnsmith" / "algo").mkdir(parents=True)
    slot = Slot(tmp_path, start(tmp_path))
    try:
        if code is None:
            with pytest.raises(SystemExit, match="fail or are killed without any mutant"):
                slot.test(mutant, [])
        else:
            assert slot.test(mutant, []) == code
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert (tmp_path / "turnsmith" / mutant.file).read_bytes() == (PACKAGE / mutant.file).read_bytes()


def test_what_was_tried_is_counted_even_if_something_stops_the_rest(monkeypatch, capsys) -> None:
    def verdicts(mutants: list[Mutant], jobs: int, **how: bool) -> Iterator[tuple[Mutant, str]]:
        yield mutants[0], "noticed"
        yield mutants[1], "SURVIVED"
        raise SystemExit("stopped")

    monkeypatch.setattr(run, "verdicts_of", verdicts)
    monkeypatch.setattr("sys.argv", ["run", "--count", "4", "--files", "algo/reference/kl.py"])
    with pytest.raises(SystemExit, match="stopped"):
        run.main()
    assert (
        "50.0% noticed of 2 tried (4 drawn): 1 noticed, 0 noticed end to end, 0 TIMED OUT, 0 equi"
        in capsys.readouterr().out
    )


_TESTS = """
import threading
import pytest
import source

@pytest.fixture(scope="module")
def made():
    return source.first()

def test_a(made):
    thread = threading.Thread(target=source.second)
    thread.start()
    thread.join()

def test_b(made):
    pass

def test_c(made):
    assert source.second() == 3
"""


@pytest.mark.nightly
def test_lines_of_threads_and_shared_fixtures_are_recorded_and_only_named_tests_run(tmp_path: Path) -> None:
    (tmp_path / "source.py").write_text("def first():\n    return 1\n\ndef second():\n    return 2\n")
    (tmp_path / "test_it.py").write_text(_TESTS)
    code = "import pytest; from tests.mutation.reach import *; pytest.main(['-q', 'test_it.py'], [{}])"
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}

    def run_with(plugin: str) -> str:
        command = [sys.executable, "-c", code.format(plugin)]
        return subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout

    source, output = str(tmp_path / "source.py"), tmp_path / "reach.json"
    assert "2 passed" in run_with(f"Recorder([{source!r}], {str(output)!r})")
    reach = Reach.read(output)
    assert reach.failed == ["test_it.py::test_c"], "it cannot notice a mutant"
    found = {test.name: set(test.lines.get(source, [])) for test in reach.tests}
    assert found == {"test_it.py::test_a": {2, 5}, "test_it.py::test_b": {2}}
    assert "1 passed" in run_with("Only({'test_it.py::test_b': 60, 'test_it.py::gone': 60})")
    (tmp_path / "test_it.py").write_text("def test_loop():\n    while True:\n        pass\n")
    with pytest.raises(subprocess.CalledProcessError) as killed:
        run_with("Only({'test_it.py::test_loop': 1})")
    assert killed.value.returncode == -signal.SIGALRM, "a mutant may never end"

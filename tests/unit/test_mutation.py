"""The mutation tool changes what it should and nothing else; its list of equivalent mutants is current."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest
from tests.mutation import run
from tests.mutation.mutants import find_mutants
from tests.mutation.run import CORE_FILES, PACKAGE, ROOT, TESTS, draw, noticed_percent, paths_of_tests, read_equivalent


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


def test_every_mutant_is_python_and_the_draw_repeats() -> None:
    drawn = draw(list(CORE_FILES), count=60, seed=3)
    assert drawn == draw(list(CORE_FILES), count=60, seed=3)
    assert drawn != draw(list(CORE_FILES), count=60, seed=4)
    for mutant in drawn:
        original = (PACKAGE / mutant.file).read_bytes()
        assert ast.dump(ast.parse(mutant.apply(original))) != ast.dump(ast.parse(original)), mutant
        assert paths_of_tests(mutant.file)


def test_the_tests_of_every_file_exist() -> None:
    missing = {path for paths in TESTS.values() for path in paths if not (ROOT / path).exists()}
    assert not missing, "a test was renamed: change TESTS in tests/mutation/run.py"


def test_every_entry_of_the_equivalent_list_still_names_a_mutant() -> None:
    for file, line, before, after in read_equivalent():
        mutants = find_mutants(file, (PACKAGE / file).read_bytes())
        names = {(mutant.line_text, mutant.before, mutant.after) for mutant in mutants}
        assert (line, before, after) in names, f"{file}: {line}: {before} -> {after}"


def test_survivors_alone_lower_the_percentage() -> None:
    assert noticed_percent({"noticed": 6, "noticed (timeout)": 1, "equivalent": 2, "SURVIVED": 1}) == 90.0
    assert noticed_percent({"noticed": 3, "SURVIVED": 0}) == 100.0
    assert noticed_percent({"noticed": 0, "SURVIVED": 0}) == 0.0


@pytest.mark.parametrize(("at_least", "is_enough"), [("75", True), ("75.1", False), (None, True)])
def test_too_few_noticed_mutants_end_in_an_error(monkeypatch, at_least, is_enough) -> None:
    verdicts = ["noticed", "SURVIVED", "equivalent", "noticed (timeout)"]
    monkeypatch.setattr(run, "verdicts_of", lambda mutants, jobs: zip(mutants, verdicts, strict=True))
    monkeypatch.setattr("sys.argv", ["run", "--count", "4", *(["--at-least", at_least] if at_least else [])])
    if is_enough:
        run.main()
    else:
        with pytest.raises(SystemExit, match=r"--at-least 75\.1%"):
            run.main()

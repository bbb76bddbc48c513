"""The table of mutants fits the package: it cannot rot between two runs of ``make mutants``."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.operators import GUARDED, changes, draw_changes
from tests.mutants.table import ROOT, Mutant, load_mutants, related_tests

MUTANTS = load_mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_old_text_of_a_mutant_occurs_once_and_the_new_one_is_python(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    changed = mutant.applied(source)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_tests_that_should_see_a_mutant_are_there(mutant: Mutant) -> None:
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8") if name else (ROOT / file).is_file()
    assert mutant.tests
    assert mutant.harm.endswith(".")


def test_a_mutant_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_text_that_is_gone_or_repeated_is_an_error() -> None:
    mutant = Mutant("moved", "a.py", "None.", "x = 1", "x = 2", ())
    assert mutant.applied("y = 0\nx = 1\n") == "y = 0\nx = 2\n"
    for source in ("x = 0\n", "x = 1\nx = 1\n"):
        with pytest.raises(ValueError, match="moved"):
            mutant.applied(source)


@pytest.mark.slow
def test_every_random_change_is_python_and_another_program() -> None:
    drawn = draw_changes(ROOT, 100, 3)
    assert drawn == draw_changes(ROOT, 100, 3) != draw_changes(ROOT, 100, 4)
    for change in drawn:
        source = (ROOT / change.file).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(change.applied(source))) != ast.dump(ast.parse(source)), change


def test_every_operator_has_its_example(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(
        'def f(a: int = 1) -> bool:\n    """ä"""\n    if a < 2 and g(a, a + 3):\n'
        '        raise ValueError("4")\n'
        "    return a[a:] is None\n",
        encoding="utf-8",
    )
    found = {(change.operator, change.old, change.new) for change in changes(tmp_path, "example.py")}
    assert ("flip a comparison", "a < 2", "(a <= 2)") in found
    assert ("drop a term", "a + 3", "(a)") in found
    assert ("swap arguments", "g(a, a + 3)", "(g(a + 3, a))") in found
    assert ("replace a constant", "2", "(3)") in found
    assert ("remove a statement", 'raise ValueError("4")', "pass") in found
    assert ("negate a condition", "a < 2 and g(a, a + 3)", "(not (a < 2 and g(a, a + 3)))") in found
    assert ("off by one", "a[a:]", "(a[a + 1:])") in found
    assert not {old for _, old, _ in found} & {"4", "int"}


def test_every_guarded_module_has_related_tests() -> None:
    for name in GUARDED:
        place = ROOT / "redactory" / name
        for path in [place] if place.is_file() else sorted(place.rglob("[!_]*.py")):
            assert related_tests(path.relative_to(ROOT).as_posix()), path

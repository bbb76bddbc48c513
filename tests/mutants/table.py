"""The table of named mutants, and the tests that are related to a module."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("table.yaml")


@dataclass(frozen=True)
class Mutant:
    """A silent breakage: ``old`` text of ``file``, which occurs there once, becomes ``new``."""

    name: str
    file: str
    harm: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, source: str) -> str:
        """``source`` with the breakage.  ``ValueError`` where the old text does not occur exactly once."""
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"mutant '{self.name}': its old text occurs {count} times in {self.file}")
        return source.replace(self.old, self.new)


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return table


def load_mutants() -> list[Mutant]:
    """The named mutants, in the order of the table."""
    return [Mutant(**{**row, "tests": tuple(row["tests"])}) for row in _table()["mutants"]]


@cache
def related_tests(file: str) -> list[str]:
    """The test files that bear on the module ``file``, the most specific first.

    First those of the table's map, then those whose name has the module's in it, then those that import it.
    """
    path = Path(file)
    package, stem = ".".join(path.parent.parts), path.stem
    imports = re.compile(rf"{re.escape(package)}\.{stem}\b|from {re.escape(package)} import [^\n]*\b{stem}\b")
    every = sorted((ROOT / "tests").rglob("test_*.py"))
    named = [test for test in every if stem.rstrip("s") in test.stem]
    importing = [test for test in every if imports.search(test.read_text(encoding="utf-8"))]
    found = [test.relative_to(ROOT).as_posix() for test in (*named, *importing)]
    return list(dict.fromkeys([*_table()["related"].get(file, ()), *found]))

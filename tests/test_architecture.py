"""The house itself: floors, links, packages, imports that stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "redactory"
FLOORS = {
    "foundation": 0,
    "dedup": 1,
    "encoder": 1,
    "detectors": 2,
    "redaction": 3,
    "training": 4,
    "evaluation": 5,
    "pipelines": 6,
    "flows": 7,
}
MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def _list_imports(path: Path) -> set[str]:
    """The modules that a file names, wherever in it; of ``from a import b`` both a and a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_a_room_imports_only_from_floors_below(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0]
    if room not in FLOORS:
        return
    for name in _list_imports(path):
        parts = name.split(".")
        if parts[0] == "redactory" and len(parts) > 1 and parts[1] != room:
            assert FLOORS[parts[1]] < FLOORS[room], f"{room} imports {name}"


def _module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def _find_cycle(arrows: Mapping[str, Collection[str]]) -> list[str]:
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return [str(name) for name in error.args[1]]
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    # a package's own file only hands names on
    modules = {_module_name(path): path for path in MODULES if path.name != "__init__.py"}
    assert _find_cycle({name: _list_imports(path) & modules.keys() for name, path in modules.items()}) == []


@pytest.mark.parametrize("room", FLOORS)
def test_no_packages_of_a_room_import_each_other_in_a_circle(room: str) -> None:
    arrows: dict[str, set[str]] = {}
    for path in (PACKAGE / room).rglob("*.py"):
        inside = {tuple(name.split(".")) for name in {_module_name(path), *_list_imports(path)}}
        below = {parts[2] for parts in inside if parts[:2] == ("redactory", room) and len(parts) > 2}
        own = path.relative_to(PACKAGE / room).parts[0].removesuffix(".py")
        arrows.setdefault(own, set()).update(below - {own, "__init__"})
    del arrows["__init__"]
    known = {own: {name for name in below if name in arrows} for own, below in arrows.items()}
    assert _find_cycle(known) == []


def test_prefect_typer_and_torch_stay_in_their_rooms() -> None:
    allowed = {
        "prefect": {"flows"},
        "typer": {"flows"},
        "dask": {"flows"},
        # the map of local updates has a client of its own
        "distributed": {"flows", "training"},
        "torch": {"training", "evaluation", "detectors"},
        # training: the top of a model card
        "yaml": {"detectors", "evaluation", "pipelines", "flows", "training"},
    }
    for path in MODULES:
        room = path.relative_to(PACKAGE).parts[0]
        for name in _list_imports(path):
            top = name.split(".")[0]
            assert room in allowed.get(top, {room}), f"{path.name} imports {name}"


def test_every_room_is_linked_at_the_root_and_every_folder_is_a_package() -> None:
    for room in FLOORS.keys() - {"foundation", "encoder"}:
        assert (ROOT / room).resolve() == PACKAGE / room
    for folder in {path.parent for path in MODULES}:
        assert (folder / "__init__.py").is_file(), folder


@pytest.mark.parametrize(
    "module", ["redactory.flows.cli", "redactory.pipelines.curation.curate", "redactory.evaluation"]
)
def test_torch_and_prefect_are_not_imported_before_they_are_needed(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('torch', 'prefect', 'stanza') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_line_starts_without_the_engines() -> None:
    heavy = "('spacy', 'pandas', 'pyarrow')"
    code = f"import sys, redactory.flows.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


BANNED = {
    *("own", "found", "given", "told", "said", "asked"),
    *("heard", "learnt", "alone", "wordless", "promised", "begun"),
}
"""Names that say nothing to a reader: name the thing."""


def _named(node: ast.AST) -> list[str]:
    """What a node of the syntax tree names: a function and its parameters, a class and its fields, an attribute."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        arguments = node.args
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        name = [] if isinstance(node, ast.Lambda) else [node.name]
        return [*name, *(parameter.arg for parameter in parameters if parameter)]
    if isinstance(node, ast.ClassDef):
        fields = (line.target for line in node.body if isinstance(line, ast.AnnAssign))
        return [node.name, *(field.id for field in fields if isinstance(field, ast.Name))]
    return [node.attr] if isinstance(node, ast.Attribute) else []


def _banned(source: str) -> list[str]:
    names = (name for node in ast.walk(ast.parse(source)) for name in _named(node))
    return [name for name in names if name.strip("_").lower() in BANNED]


@pytest.mark.parametrize("path", MODULES, ids=_module_name)
def test_nothing_has_a_banned_name(path: Path) -> None:
    assert _banned(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "def own(): ...",
        "def f(*, given=1): ...",
        "class Told: ...",
        "class A:\n    found: int",
        "a.said",
        "lambda asked: 1",
    ],
)
def test_a_banned_name_is_seen(source: str) -> None:
    assert len(_banned(source)) == 1


def test_no_two_public_classes_have_the_same_name() -> None:
    files: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files.setdefault(node.name, []).append(_module_name(path))
    assert {name: paths for name, paths in files.items() if len(paths) > 1} == {}

"""Random mutants: small changes of the syntax tree, at places that a seed draws."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

GUARDED = (
    "training/mechanisms/mechanism.py",
    "training/accounting",
    "training/guarantee",
    "training/uedp",
    "training/ldp",
    "redaction",
    "pipelines/stages",
    "dedup",
    "evaluation/statistics.py",
    "foundation/stream.py",
    "pipelines/curation/error_sealing.py",
    "flows/prefect_tasks.py",
)
"""Where a silent mistake would cost privacy, a mask or a row: files and folders of the package."""
_PAIRS: tuple[tuple[type[ast.cmpop], type[ast.cmpop]], ...] = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq)),
    *((ast.In, ast.NotIn), (ast.Is, ast.IsNot)),
)
_OPPOSITE = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
_TERMS = ast.Add | ast.Sub | ast.Mult | ast.Div | ast.BitAnd | ast.BitOr


@dataclass(frozen=True)
class Change:
    """One mutant of a file: ``new`` in place of ``old``, which begins at byte ``begin`` in a ``line``."""

    file: str
    line: int
    begin: int
    operator: str
    old: str
    new: str

    def applied(self, source: str) -> str:
        """``source``, the text of the file, with the change."""
        octets = source.encode()
        end = self.begin + len(self.old.encode())
        return (octets[: self.begin] + self.new.encode() + octets[end:]).decode()


def draw_changes(root: Path, count: int, seed: int) -> list[Change]:
    """``count`` changes of guarded files below ``root``."""
    places = [root / "redactory" / name for name in GUARDED]
    files = sorted(path for place in places for path in ([place] if place.is_file() else place.rglob("*.py")))
    every = [change for path in files for change in changes(root, path.relative_to(root).as_posix())]
    return random.Random(seed).sample(every, count)


def changes(root: Path, file: str) -> Iterator[Change]:
    """Every change that an operator makes of ``file`` below ``root``, in the order of the syntax tree."""
    octets = (root / file).read_bytes()
    # the syntax tree counts bytes within a line
    starts = [0, *accumulate(map(len, octets.splitlines(keepends=True)))]
    tree = ast.parse(octets)
    tests = {node.test for node in ast.walk(tree) if isinstance(node, ast.If | ast.While)}
    for node in _code(tree):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        negated = [("negate a condition", f"(not {_source(node)})")] if node in tests else []
        for operator, new in (*negated, *_variants(node)):
            yield Change(file, node.lineno, begin, operator, octets[begin:end].decode(), new)


def _code(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """The nodes that do something: no annotation, no message of an error, no import, no assertion."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert):
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return
    if isinstance(node, ast.expr | ast.stmt):
        yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "exc", "bases", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _code(child)


def _variants(node: ast.expr | ast.stmt) -> Iterator[tuple[str, str]]:
    """The operators that fit ``node``, each with the source that takes its place."""
    match node:
        case ast.Compare(left, [op, *ops], comparators):
            other = ast.Compare(left, [_OPPOSITE[type(op)](), *ops], comparators)
            yield "flip a comparison", _source(other)
        case ast.BinOp(left, op, right) if isinstance(op, _TERMS):
            yield "drop a term", _source(left)
            if not isinstance(op, ast.Sub | ast.Div):
                yield "drop a term", _source(right)
        case ast.BoolOp(op, values):
            for place in range(len(values)):
                rest = [value for number, value in enumerate(values) if number != place]
                yield "drop a term", _source(ast.BoolOp(op, rest) if len(rest) > 1 else rest[0])
        case ast.Call(function, [first, second, *rest], keywords) if not isinstance(first, ast.Starred):
            if not isinstance(second, ast.Starred) and ast.dump(first) != ast.dump(second):
                yield "swap arguments", _source(ast.Call(function, [second, first, *rest], keywords))
        case ast.Constant(bool() as value):
            yield "replace a constant", repr(not value)
        case ast.Constant(int() as value):
            yield "replace a constant", f"({value + 1})"
            yield "replace a constant", f"({value - 1})"
        case ast.Constant(float() as value):
            yield "replace a constant", f"({value * 2 or 1.0})"
        case ast.Subscript(value, ast.Slice(lower, upper, step), context):
            later = [one and ast.BinOp(one, ast.Add(), ast.Constant(1)) for one in (lower, upper)]
            for limits in ((later[0], upper), (lower, later[1])):
                if limits != (lower, upper):
                    yield "off by one", _source(ast.Subscript(value, ast.Slice(*limits, step), context))
        case ast.IfExp(test, body, orelse):
            yield "negate a condition", _source(ast.IfExp(test, orelse, body))
        case ast.Raise() | ast.Continue() | ast.AugAssign() | ast.Expr(ast.Call()):
            yield "remove a statement", "pass"


def _source(node: ast.AST) -> str:
    return f"({ast.unparse(ast.fix_missing_locations(node))})"

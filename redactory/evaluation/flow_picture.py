"""The flow of points as a picture: bars for what there was, ribbons for where it went (SVG, no script)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from markupsafe import Markup

from redactory.evaluation.report_facts import share

_BAR, _GAP, _SPACE = 48.0, 54.0, 6.0
_LINE = 17.0
_LEAST_WIDTH = 4.0
_ROOM_FOR_TWO = 800
_LETTER = 7.3
"""Widths of letters differ; this many pixels hold one of the labels' font with room to spare."""


@dataclass
class Node:
    """A bar: its name, its count, the class that colours it, what it divides into, and its place."""

    name: str
    count: int
    kind: str
    children: list[Node] = field(default_factory=list)
    whole: int = 0
    left: float = 0.0
    width: float = 0.0
    row: int = 0


def flow_picture(counts: Mapping[str, int], width: int) -> Markup:
    """The flow rows -> documents -> points -> sides -> shards for a page ``width`` pixels wide.

    ``counts`` as the manifest holds them.  Bars of one row are to scale, except that none is too thin
    to be seen; points are another unit than documents and drawn as wide as these.
    """
    root = _tree(counts)
    _place(root, 0.0, float(width), 0)
    nodes = _below(root)
    last = max(node.row for node in nodes)
    below = sum(not _fits(node) for node in nodes if node.row == last)
    height = last * (_BAR + _GAP) + _BAR + below * _LINE + (8 if below else 0)
    told = ", ".join(f"{node.count:,} {node.name.lower()}" for node in nodes)
    ribbons = Markup("").join(_ribbon(parent, child) for parent in nodes for child in parent.children)
    bars = Markup("").join(map(_bar, nodes))
    return Markup('<svg class="flow" viewBox="0 0 {} {:.0f}" role="img" aria-label="{}">{}{}{}</svg>').format(
        width, height, told, ribbons, bars, _outside(nodes, width)
    )


def _tree(counts: Mapping[str, int]) -> Node:
    public, private = counts["public"], counts["private"]
    public_copies, private_copies = counts["public_duplicate"], counts["private_duplicate"]
    points = counts["points"]
    sides = [
        Node(
            "Public side",
            public + public_copies,
            "public-side",
            [
                Node("Public shards", public, "public", whole=points),
                Node("Duplicates", public_copies, "duplicate", whole=points),
            ],
            whole=points,
        ),
        Node(
            "Private side",
            private + private_copies,
            "private-side",
            [
                Node("Duplicates", private_copies, "duplicate", whole=points),
                Node("Private shards", private, "private", whole=points),
            ],
            whole=points,
        ),
        Node("Quarantined", counts["quarantined"], "quarantined", whole=points),
    ]
    documents = Node("Documents", counts["documents"], "neutral", [Node("Points", points, "neutral", sides)])
    rejected = Node("Rejected", counts["rejected"], "rejected", whole=counts["rows"])
    return Node("Rows", counts["rows"], "neutral", [documents, rejected])


def _place(node: Node, left: float, width: float, row: int) -> None:
    """Give ``node`` its bar and its children theirs, side by side below it and as wide together."""
    node.left, node.width, node.row = left, width, row
    node.children = [child for child in node.children if child.count]
    total = sum(child.count for child in node.children)
    room = width - _SPACE * (len(node.children) - 1)
    wanted = [max(_LEAST_WIDTH, room * child.count / total) for child in node.children]
    for child, wish in zip(node.children, wanted, strict=True):
        _place(child, left, max(1.0, room * wish / sum(wanted)), row + 1)
        left += child.width + _SPACE


def _below(node: Node) -> list[Node]:
    return [node, *(later for child in node.children for later in _below(child))]


def _top(node: Node) -> float:
    return node.row * (_BAR + _GAP)


def _ribbon(parent: Node, child: Node) -> Markup:
    """From the child's share of its parent's lower edge to the child's upper edge."""
    total = sum(sibling.width for sibling in parent.children)
    before = sum(sibling.width for sibling in parent.children if sibling.left < child.left)
    a = parent.left + parent.width * before / total
    b = a + parent.width * child.width / total
    top, bottom = _top(parent) + _BAR, _top(child)
    middle = (top + bottom) / 2
    c, d = child.left, child.left + child.width
    return Markup(
        '<path class="ribbon {}" d="M{:.1f},{:.1f} C{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f} '
        'L{:.1f},{:.1f} C{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f} Z"/>'
    ).format(
        child.kind,
        *(a, top, a, middle, c, middle, c, bottom),
        *(d, bottom, d, middle, b, middle, b, top),
    )


def _bar(node: Node) -> Markup:
    return Markup(
        '<g class="bar {}"><rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.0f}" rx="{}"/>{}</g>'
    ).format(node.kind, node.left, _top(node), node.width, _BAR, 5 if node.width > 12 else 1, _inside(node))


def _number(node: Node) -> str:
    return f"{node.count:,} · {share(node.count, node.whole)}" if node.whole else f"{node.count:,}"


def _fits(node: Node) -> bool:
    return max(len(node.name), len(_number(node))) * _LETTER < node.width - 10


def _inside(node: Node) -> Markup:
    if not _fits(node):
        return Markup("")
    name = Markup('<text class="name" x="{:.1f}" y="{:.1f}">{}</text>')
    number = Markup('<text x="{:.1f}" y="{:.1f}">{}</text>')
    middle, top = node.left + node.width / 2, _top(node)
    return name.format(middle, top + 20, node.name) + number.format(middle, top + 37, _number(node))


def _outside(nodes: list[Node], width: int) -> Markup:
    """The names of bars too narrow for them, below the bars; no two on a line where they could meet."""
    line = Markup(
        '<text class="outside {}" text-anchor="{}" x="{:.1f}" y="{:.1f}"><tspan>{}</tspan> {}</text>'
    )
    texts = Markup("")
    used: Counter[tuple[int, str]] = Counter()
    for node in nodes:
        if not _fits(node):
            anchor, x = ("start", node.left) if node.left < width / 2 else ("end", node.left + node.width)
            row = node.row, anchor if width >= _ROOM_FOR_TWO else ""
            used[row] += 1
            y = _top(node) + _BAR + _LINE * used[row]
            texts += line.format(node.kind, anchor, x, y, node.name, _number(node))
    return texts

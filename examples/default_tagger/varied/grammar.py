"""The templates' little language, and how a template becomes pieces of text.

A template holds slots and choices::

    [Hi|Hello|] {PERSON:first}, your {thing} [arrives|leaves] on {DATE_TIME}.

* ``{LABEL}`` or ``{LABEL:sort}`` is a sensitive thing: its text is one labelled piece.
* ``{word}`` is plain text, drawn from a section ``@word`` of the files or from :mod:`.plain`; a section's
  lines may hold slots themselves.
* ``[a|b|]`` is one of its alternatives, which may be empty and may hold choices again.
* ``\\n`` is a line break; a backslash before any other sign takes that sign as it is.

In a file, lines before the first section (a line ``@name``) are templates of rows; ``%`` begins a remark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from varied.scene import Scene

_TOKEN = re.compile(r"\\(.)|\{([A-Za-z0-9_]+)(?::([a-z0-9_]+))?\}|([\[|\]])", re.DOTALL)


class Piece(NamedTuple):
    """A stretch of text that is wholly plain (``label`` None) or wholly one sensitive thing."""

    text: str
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """``{name:sort}``."""

    name: str
    sort: str | None


@dataclass(frozen=True, slots=True)
class Choice:
    """``[a|b]``: each alternative is a sequence of nodes."""

    alternatives: tuple[tuple[Node, ...], ...]


Node = str | Slot | Choice
Filler = Callable[[Scene], str]


def parse(template: str) -> tuple[Node, ...]:
    """The nodes of ``template``; ``ValueError`` where a bracket is not closed or not opened."""
    stack: list[list[list[Node]]] = [[[]]]
    position = 0
    for match in _TOKEN.finditer(template):
        if match.start() > position:
            stack[-1][-1].append(template[position : match.start()])
        position = match.end()
        escaped, name, sort, bracket = match.groups()
        if escaped:
            stack[-1][-1].append({"n": "\n", "t": "\t"}.get(escaped, escaped))
        elif name:
            stack[-1][-1].append(Slot(name, sort))
        elif bracket == "[":
            stack.append([[]])
        elif bracket == "|" and len(stack) > 1:
            stack[-1].append([])
        elif bracket == "]" and len(stack) > 1:
            alternatives = tuple(tuple(each) for each in stack.pop())
            stack[-1][-1].append(Choice(alternatives))
        else:
            raise ValueError(f"template: {bracket} at {match.start()} stands alone")
    if len(stack) > 1:
        raise ValueError("template: a choice is not closed")
    if template[position:]:
        stack[-1][-1].append(template[position:])
    return tuple(stack[0][0])


def slots(nodes: Sequence[Node]) -> set[Slot]:
    """Every slot of the nodes, those inside choices too."""
    found: set[Slot] = set()
    for node in nodes:
        if isinstance(node, Slot):
            found.add(node)
        elif isinstance(node, Choice):
            for each in node.alternatives:
                found |= slots(each)
    return found


@dataclass(frozen=True)
class Grammar:
    """``sections``: name -> its parsed lines; ``plain`` and ``secret``: what draws a slot's text."""

    sections: Mapping[str, Sequence[tuple[Node, ...]]]
    plain: Mapping[str, Filler]
    secret: Mapping[tuple[str, str | None], Filler]

    def expand(self, nodes: Sequence[Node], scene: Scene) -> list[Piece]:
        """The pieces of one reading of ``nodes``, in order; none is empty."""
        pieces: list[Piece] = []
        self._expand(nodes, scene, pieces)
        return pieces

    def _expand(self, nodes: Sequence[Node], scene: Scene, pieces: list[Piece]) -> None:
        for node in nodes:
            if isinstance(node, str):
                pieces.append(Piece(node))
            elif isinstance(node, Choice):
                self._expand(scene.draw.choice(node.alternatives), scene, pieces)
            elif (node.name, node.sort) in self.secret:
                pieces.append(Piece(self.secret[node.name, node.sort](scene), node.name))
            elif node.name in self.plain:
                pieces.append(Piece(self.plain[node.name](scene)))
            else:
                self._expand(scene.draw.choice(self.sections[node.name]), scene, pieces)

    def secretive(self, nodes: Sequence[Node]) -> bool:
        """Whether some reading of ``nodes`` holds a sensitive thing."""
        return any(
            (slot.name, slot.sort) in self.secret
            or any(self.secretive(line) for line in self.sections.get(slot.name, ()))
            for slot in slots(nodes)
        )

    def unknown(self, nodes: Sequence[Node]) -> set[Slot]:
        """Slots of ``nodes`` that nothing fills."""
        return {
            slot
            for slot in slots(nodes)
            if (slot.name, slot.sort) not in self.secret
            and (slot.sort is not None or (slot.name not in self.plain and slot.name not in self.sections))
        }

"""A shape: a file of one format taken apart into texts and put together again, all else as it stood.

A shape is one registered class.  It gives the rows of a file in order; each row tells its texts and is
written anew with changes to them.  What lies between the rows (blank lines, headers) is handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, ClassVar

from redactory.pipelines.fields import Fields, NoText
from redactory.redaction.replacements import Edit, Found

Whole = Mapping[str, str | None]
"""Columns that are replaced whole, by what stands in their place; None takes a column out."""
Edits = Sequence[Sequence[Edit]]
"""The changes to each text of a row, in order."""
Render = Callable[[Edits, Whole], Any]


NO_FIELDS = Fields(())


@dataclass(frozen=True)
class Row:
    """A row: its number from 1, its texts in order, its cells, and how it is written with changes to them.

    A header has the number 0.

    ``reason`` says why it has none; such a row is left out.  ``render`` is given the changes to each text,
    and the columns that are replaced whole.
    """

    number: int
    texts: list[str] = field(default_factory=list)
    cells: Mapping[str, Any] = field(default_factory=dict)
    render: Render | None = None
    reason: str | None = None
    sure: Sequence[Sequence[Found]] = ()
    """Hits that follow from where a text stands, of each text; empty where there are none."""
    taken_out: int = 0
    """Images and attachments that nobody can look at, and that are not written."""


class Shape:
    """A file of one format.  A subclass with ``names`` is registered for these formats."""

    names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        SHAPES.update(dict.fromkeys(cls.names, cls))

    def __init__(
        self,
        file: BinaryIO,
        name: str,
        format_: str,
        limit: int,
        fields: Fields = NO_FIELDS,
        hidden: Collection[str] = (),
    ) -> None:
        """A file of a format, whose rows have at most ``limit`` bytes; no cell of ``hidden`` is told."""
        self.file, self.name, self.format, self.limit = file, name, format_, limit
        self.fields, self.hidden = fields, hidden
        self.header: Sequence[str] = ()
        """The names in the header or the schema, once rows are read."""

    def rows(self) -> Iterator[Row | bytes]:
        """The rows, and the bytes between them, in the order of the file."""
        raise NotImplementedError

    def write(self, target: BinaryIO, pieces: Iterator[Any]) -> None:
        """Write what the rows rendered, and the bytes between them."""
        for piece in pieces:
            target.write(piece)

    def _row(self, number: int, cells: Mapping[str, Any], render: Render) -> Row:
        try:
            return Row(number, self.fields.texts(cells), cells, render)
        except NoText as error:
            return Row(number, reason=str(error))


SHAPES: dict[str, type[Shape]] = {}
"""The shape of each format by its name."""

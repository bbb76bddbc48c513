"""What a format's reader hands on, and the columns that it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redactory.foundation.errors import InputError

Record = tuple[int, dict[str, Any] | None, str | None, bytes]
"""(row number from 1, the record or None, a reason code or None, the raw bytes for the quarantine)"""

UNDECODABLE, BROKEN_JSON, NOT_AN_OBJECT = "undecodable", "broken_json", "not_an_object"
ROW_TOO_LONG, BROKEN_ROW = "row_too_long", "broken_row"
KEPT_BYTES = 1 << 16


@dataclass(frozen=True)
class Columns:
    """Columns of a table: those that it must have, and those that are read where it has them.

    ``mapped`` None reads all of them.
    """

    needed: tuple[str, ...] = ()
    mapped: tuple[str, ...] | None = None

    def among(self, names: Sequence[str], file: str) -> list[str]:
        """Those of ``names`` to read; ``InputError`` where a needed one is missing, or one is there twice."""
        for column in self.needed:
            if column not in names:
                raise InputError(
                    f"{file} has no column '{column}'; say under input which column holds what (text, id, "
                    "user, label). In CSV the first line names the columns, with commas between them"
                )
        wanted = [name for name in names if self.mapped is None or name in self.mapped]
        for name in wanted:
            if self.mapped is not None and wanted.count(name) > 1:
                raise InputError(
                    f"{file} has two columns '{name}': which one is meant cannot be told; rename one of them"
                )
        return wanted

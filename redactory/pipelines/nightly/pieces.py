"""What one night reads of one file, as its plan stands in the release log."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.keys import KEY_VARIABLE, load_digest_key
from redactory.pipelines.readers import Slice, Source, blocks_of


@dataclass(frozen=True)
class Piece:
    """Bytes ``from_byte`` up to ``to_byte`` of the file at ``url``, which hold ``rows`` rows.

    ``from_row`` rows come before, so that rows keep the numbers that they have in the file.  ``header`` is
    the length of a table's header line, for a piece that does not begin with it.  A file that can only be
    read ``whole`` (Parquet, compressed, text) has one piece.  ``digest`` is keyed, ``key`` the fingerprint of
    its key, None where an earlier version entered a sha256.  ``stamp`` is a sign that stays as long as nobody
    writes the file, where the piece reaches its end.  ``again``: the file was asked for as new, and what was
    read of it before counts no more.
    """

    url: str
    name: str
    format: str
    from_byte: int
    to_byte: int
    from_row: int
    rows: int
    digest: str
    key: str | None
    header: int = 0
    whole: bool = False
    stamp: str | None = None
    again: bool = False

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.to_byte - self.from_byte

    @property
    def slice(self) -> Slice:
        """What is read for it."""
        return Slice(self.from_byte, self.to_byte, self.from_row, self.header)

    def is_in(self, source: Source) -> bool:
        """Whether ``source`` still holds these bytes; ``ConfigurationError`` under another key."""
        blocks, key = blocks_of(source, self.slice.without_header()), load_digest_key()
        if self.key is None:
            digest = hashlib.sha256()
            for block in blocks:
                digest.update(block)
            return digest.hexdigest() == self.digest
        if self.key != key.fingerprint:
            raise ConfigurationError(
                f"{self.name}: an earlier night read it under the key {self.key}, and {KEY_VARIABLE} is "
                f"{key.fingerprint}, so that nobody can tell whether it is the same: bring that key back, or "
                "read all of it as new: --again FILE"
            )
        return key.file_digest(blocks) == self.digest

    def to_json(self) -> dict[str, Any]:
        """As it stands in the release log: file, places and a digest; no text."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Piece:
        """What :meth:`to_json` gave."""
        given = dict(value)
        if "sha256" in given:
            given |= {"digest": given.pop("sha256"), "key": None}
        return cls(**given)


def sources_of(pieces: Iterable[Piece]) -> list[Source]:
    """The files of a plan, each with all of its slices; one that is read whole has none."""
    found: dict[str, Source] = {}
    for piece in pieces:
        before = found[piece.url].slices if piece.url in found else ()
        slices = () if piece.whole else (*before, piece.slice)
        found[piece.url] = Source(piece.url, piece.name, piece.format, slices)
    return list(found.values())

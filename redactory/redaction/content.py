"""The digest of what a table holds, whatever file format, compression or encryption it went through."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from redactory.foundation.keys import DigestKey


def table_digest(table: pa.Table) -> bytes:
    """sha256 over the names, types and values of ``table``, in row order; chunks do not count.

    Columns are of numbers, strings, bytes, or lists of these.  Null is a value of its own, and no two
    tables run into each other: every column tells its lengths before its bytes.
    """
    digest = hashlib.sha256(f"{table.num_rows}\n".encode())
    for name, column in zip(table.column_names, table.columns, strict=True):
        digest.update(f"{name}\x00{_kind(column.type)}\n".encode())
        for piece in _pieces(column.combine_chunks()):
            digest.update(piece)
    return digest.digest()


def keyed_digest(key: DigestKey, name: str, content: bytes) -> str:
    """32 hex digits for a manifest: ``content`` of the file ``name``, keyed.

    An unkeyed digest would let anybody try out guesses of a small private part.
    """
    return key.text_digest(key.purpose("content"), name.encode() + b"\x00" + content).hex()


def _kind(kind: pa.DataType) -> str:
    # the name of a list's own field is the file format's business
    return f"list({_kind(kind.value_type)})" if pa.types.is_list(kind) else str(kind)


def _pieces(array: Any) -> Iterator[bytes]:
    """The bytes that stand for an array: which values are null, then lengths, then values."""
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    kind = array.type
    yield pc.is_null(array).to_numpy(zero_copy_only=False).tobytes()
    if pa.types.is_list(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        yield lengths.to_numpy(zero_copy_only=False).tobytes()
        yield from _pieces(pc.list_flatten(array))
    elif pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        data = pc.fill_null(array.cast(pa.large_binary()), b"")
        yield pc.binary_length(data).to_numpy(zero_copy_only=False).astype("<i8").tobytes()
        yield b"".join(data.to_pylist())
    else:
        yield pc.fill_null(array, 0).to_numpy(zero_copy_only=False).tobytes()

"""Write and read parts (Parquet files), with their schemas and content digests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.parquet.encryption import create_decryption_properties, create_encryption_properties

from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.files import PRIVATE_FILE, commit_file, read_json
from redactory.foundation.keys import DigestKey
from redactory.redaction.encryption import RunKey, find_containing_run, find_run_key


def require_not_purged(folder: Path) -> None:
    """Raise ``RunStateError`` if the data ``folder`` of a run was purged."""
    run = find_containing_run(folder)
    if run is None or not run.manifest.is_file():
        return
    if folder.name in read_json(run.manifest).get("purged", ()):
        raise RunStateError(
            f"{run.root.name}: {folder.name}/ was purged, but is needed here: use another run, or a trainer "
            "that reads only the shards (crt, crt-drop or redact-only)"
        )


# Content digest of a table, independent of file format, compression and encryption.


def compute_table_digest(table: pa.Table) -> bytes:
    """Return the sha256 over the names, types and values of ``table``, in row order; chunking does not matter.

    Columns hold numbers, booleans, strings, bytes, or lists of these. Null is a distinct value. The encoding is
    unambiguous: every column gives its lengths before its bytes.
    """
    digest = hashlib.sha256(f"{table.num_rows}\n".encode())
    for name, column in zip(table.column_names, table.columns, strict=True):
        digest.update(f"{name}\x00{_encode_kind(column.type)}\n".encode())
        for piece in _encode_array(column.combine_chunks()):
            digest.update(piece)
    return digest.digest()


def compute_keyed_digest(key: DigestKey, name: str, content: bytes) -> str:
    """Return 32 hex digits for a manifest: keyed digest of ``content`` of the file ``name``.

    An unkeyed digest would let anybody test guesses of a small private part.
    """
    return key.compute_text_digest(key.derive_subkey("content"), name.encode() + b"\x00" + content).hex()


def _encode_kind(kind: pa.DataType) -> str:
    # the name of a list's item field depends on the file format
    return f"list({_encode_kind(kind.value_type)})" if pa.types.is_list(kind) else str(kind)


def _encode_array(array: Any) -> Iterator[bytes]:
    """Encode an array: null flags, then lengths, then values."""
    kind = array.type
    yield pc.is_null(array).to_numpy(zero_copy_only=False).tobytes()
    if pa.types.is_list(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        yield lengths.to_numpy(zero_copy_only=False).tobytes()
        yield from _encode_array(pc.list_flatten(array))
    elif pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        data = pc.fill_null(array.cast(pa.large_binary()), b"")
        yield pc.binary_length(data).to_numpy(zero_copy_only=False).astype("<i8").tobytes()
        yield b"".join(data.to_pylist())
    else:
        array = array.cast(pa.uint8()) if pa.types.is_boolean(kind) else array
        yield pc.fill_null(array, 0).to_numpy(zero_copy_only=False).tobytes()


ROW_GROUP_ROWS = 16_384

_TEXT, _ID = pa.string(), pa.int64()
PUBLIC = pa.schema({"example_id": _TEXT, "text": _TEXT})
PRIVATE = pa.schema({"example_id": _TEXT, "user": _TEXT, "text": _TEXT, "reasons": pa.list_(_TEXT)})
VAULT = pa.schema(
    {"example_id": _ID, **dict.fromkeys(("doc_id", "user_id", "speaker", "prefix", "text", "suffix"), _TEXT)}
)
CLASS = "class"
"""The column of ``vault/`` with each example's class, null without one."""
LABELLED_VAULT = pa.schema([*VAULT, (CLASS, _TEXT)])
"""Schema of ``vault/`` for an input with a class column."""
EXAMPLES = pa.schema(
    {
        "example_id": _ID,
        **dict.fromkeys(("released_id", "document", "user", "split", "decision"), _TEXT),
        "dup_of": _ID,
        "earlier_run": _TEXT,
        "reasons": pa.list_(_TEXT),
    }
)
DOCUMENT, ROLE, USERS = "document_id", "role", "users"
COUNTED = pa.schema([*PUBLIC, (USERS, _ID)])
"""Schema of ``public/`` for a run that is public by count: the noisy number of users of the text."""
ORDER = pa.schema({"position": pa.int32(), "turn": pa.int32()})
"""Of an example: its number in its document, and the number of its text in the document, both from 0."""
RESERVED_COLUMNS = frozenset(
    (*PUBLIC.names, *PRIVATE.names, *LABELLED_VAULT.names, *EXAMPLES.names, *ORDER.names, DOCUMENT, ROLE)
)
"""Names that input columns must not have in a shard."""
ACROSS = pa.schema({"example_id": _ID, "released_id": _TEXT, "private_example": _ID, "similarity": pa.float32()})
SPAN_FIELDS = pa.schema(
    {
        "example_id": _ID,
        "start": pa.int32(),
        "end": pa.int32(),
        "label": _TEXT,
        "score": pa.float32(),
        "detector": _TEXT,
        "policy": _TEXT,
    }
)
SPANS = pa.schema([*SPAN_FIELDS, ("value_digest", pa.binary(16)), ("tokens", pa.int32())])
QUARANTINE = pa.schema(
    {
        **dict.fromkeys(("kind", "reason", "source"), _TEXT),
        "row": _ID,
        "example_id": _ID,
        **dict.fromkeys(("user_id", CLASS), _TEXT),
        "content": pa.binary(),
    }
)
"""Schema of ``quarantine/``: a ``row`` that was rejected, or an ``example``, whose source is its document's id."""

_SAFE_STATISTICS = ["example_id", "start", "end", "score", "row", "range"]


_IDENTITY, _CONTENT = b"redactory.part", b"redactory.content"
_ENCRYPTED_MAGIC = b"PARE"


def write_part(path: Path, table: pa.Table, mode: int = PRIVATE_FILE, *, group_rows: int = ROW_GROUP_ROWS) -> None:
    """Commit ``table`` as one Parquet file: zstd, fixed row groups, no page index.

    A private part of an encrypted run is encrypted and bound to its place in the run. Column statistics would quote the
    smallest and the largest text, so only numeric columns have them. The bytes do not depend on the chunks of
    ``table``.
    """
    key = find_run_key(path)
    table = table.combine_chunks()
    safe = [
        n for n in table.column_names if n in _SAFE_STATISTICS and not pa.types.is_string(table.schema.field(n).type)
    ]
    encryption: dict[str, Any] = {}
    if key is not None:
        metadata = {_IDENTITY: key.get_file_identity(path), _CONTENT: compute_table_digest(table)}
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), **metadata})
        encryption = {"encryption_properties": create_encryption_properties(key.secret)}
    with commit_file(path, mode) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            row_group_size=group_rows,
            write_statistics=safe or False,
            store_schema=True,
            **encryption,
        )


def read_part(path: Path, columns: list[str] | None = None) -> pa.Table:
    """Read one part, or some of its columns.

    ``CheckFailed`` for a part of an encrypted run that cannot be decrypted, is not encrypted, or was written for
    another place; ``ConfigurationError`` if its key is not configured.
    """
    with _open_part(path) as (file, key), _map_decryption_errors(path, key):
        return _drop_metadata(file.read(columns=columns))


def read_id_range(path: Path, column: str, first: int, last: int) -> pa.Table:
    """Read the rows with ``column`` in [first, last], skipping row groups; errors as :func:`read_part`."""
    with _open_part(path) as (file, key), _map_decryption_errors(path, key):
        place = file.schema_arrow.get_field_index(column)
        ranges = (file.metadata.row_group(n).column(place).statistics for n in range(file.num_row_groups))
        groups = [n for n, r in enumerate(ranges) if not (r and r.has_min_max and (r.min > last or r.max < first))]
        table = _drop_metadata(file.read_row_groups(groups))
    return table.filter(pc.and_(pc.greater_equal(table[column], first), pc.less_equal(table[column], last)))


def read_batches(folder: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a data folder by row group; errors of :func:`read_part`, ``RunStateError`` if purged."""
    if not (paths := list_parts(folder)):
        require_not_purged(folder)
    for path in paths:
        for table in read_rows(path, 0, columns):
            yield from table.combine_chunks().to_batches()


def read_rows(path: Path, first: int, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """Yield the rows of a part from number ``first`` on, by row group; same errors as :func:`read_part`."""
    with _open_part(path) as (file, key):
        for number in range(file.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            if first < rows:
                with _map_decryption_errors(path, key):
                    table = file.read_row_group(number, columns=columns)
                yield _drop_metadata(table.slice(first))
            first = max(0, first - rows)


def list_parts(folder: Path) -> list[Path]:
    """List the parts of a data folder in partition order."""
    return sorted(folder.glob("part-*.parquet"))


def read_values(folder: Path, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield the values of ``columns`` of each row of a data folder, in order."""
    for batch in read_batches(folder, list(columns)):
        yield from zip(*(batch[name].to_pylist() for name in columns), strict=True)


def read_column(folder: Path, column: str) -> list[str]:
    """Read one text column of a data folder, in order."""
    return [value for (value,) in read_values(folder, column)]


def read_part_schema(path: Path) -> pa.Schema:
    """Read the columns of a part from its footer."""
    with _open_part(path) as (file, _):
        return _drop_metadata(file.schema_arrow.empty_table()).schema


def build_shard_schema(manifest: Mapping[str, Any], split: str) -> pa.Schema:
    """Return the columns of a split's shards in a run or export with this manifest."""
    schema = PRIVATE if split != "public" else COUNTED if "route" in manifest else PUBLIC
    more = manifest.get("columns", {}).items()
    return pa.schema([*schema, *(pa.field(name, pa.type_for_alias(kind)) for name, kind in more)])


def count_part_rows(path: Path) -> int:
    """Read the number of rows of a part from its footer."""
    with _open_part(path) as (file, _):
        return int(file.metadata.num_rows)


def is_encrypted(path: Path) -> bool:
    """Whether a part is an encrypted Parquet file."""
    with path.open("rb") as file:
        return file.read(len(_ENCRYPTED_MAGIC)) == _ENCRYPTED_MAGIC


def read_content_sha256(path: Path) -> bytes | None:
    """Return the stored content sha256 of an encrypted part; None for an unencrypted part."""
    with _open_part(path) as (file, key):
        return None if key is None else bytes(file.metadata.metadata[_CONTENT])


@contextmanager
def _open_part(path: Path) -> Iterator[tuple[pq.ParquetFile, RunKey | None]]:
    key = find_run_key(path)
    if is_encrypted(path) != (key is not None):
        if key is None:
            raise RunStateError(
                f"{_describe_part(path)} is encrypted, but its data key was shredded or lost (redactory verify tells)"
            )
        raise CheckFailed(f"{_describe_part(path)} is not encrypted in an encrypted run: the run did not write it")
    with _map_decryption_errors(path, key):
        # an unencrypted file is refused with a key
        properties = create_decryption_properties(key.secret) if key else None
        file = pq.ParquetFile(path, decryption_properties=properties)
    with file:
        if key is not None and (file.metadata.metadata or {}).get(_IDENTITY) != key.get_file_identity(path):
            raise CheckFailed(f"{_describe_part(path)} was written as another part, and is in the wrong place")
        yield file, key


@contextmanager
def _map_decryption_errors(path: Path, key: RunKey | None) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, ValueError):
        if key is None:
            raise
        raise CheckFailed(f"{_describe_part(path)} cannot be decrypted: changed, or written with another key") from None


def _drop_metadata(table: Any) -> Any:
    kept = {k: v for k, v in (table.schema.metadata or {}).items() if k not in (_IDENTITY, _CONTENT)}
    return table.replace_schema_metadata(kept or None)


def _describe_part(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"

"""Readers: files in, documents and rejected rows out, one at a time, in bounded memory.

The room promises that every row of the input is either a document or a rejection with a reason code,
a file and a row number; that reading goes on after a bad row; and that no message quotes a row.
"""

from redactory.pipelines.readers.documents import Document, Rejection, read_documents
from redactory.pipelines.readers.sources import (
    Slice,
    Source,
    blocks_of,
    find_by_path,
    find_sources,
    fingerprint,
    modified,
    size_of,
    stamp_of,
)

__all__ = [
    "Document",
    "Rejection",
    "Slice",
    "Source",
    "blocks_of",
    "find_by_path",
    "find_sources",
    "fingerprint",
    "modified",
    "read_documents",
    "size_of",
    "stamp_of",
]

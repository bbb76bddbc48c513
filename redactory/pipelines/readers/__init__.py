"""Readers: files in, documents and rejected rows out, one at a time, in bounded memory.

The room promises that every row of the input is either a document or a rejection with a reason code,
a file and a row number; that reading goes on after a bad row; and that no message quotes a row.
"""

# each of these registers its formats
from redactory.pipelines.readers import (
    batches,
    formats,
    shape_documents,
    shape_html,
    shape_mail,
    shape_word,
    tables,
)
from redactory.pipelines.readers.documents import Document, InputSettings, Rejection, read_documents
from redactory.pipelines.readers.files import Slice, Source, find_by_path, find_sources, format_of

__all__ = [
    "Document",
    "InputSettings",
    "Rejection",
    "Slice",
    "Source",
    "batches",
    "find_by_path",
    "find_sources",
    "format_of",
    "formats",
    "read_documents",
    "shape_documents",
    "shape_html",
    "shape_mail",
    "shape_word",
    "tables",
]

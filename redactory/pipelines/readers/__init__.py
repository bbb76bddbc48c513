"""Readers: files in, documents and rejected rows out, one at a time, in bounded memory.

The room promises that every row of the input is either a document or a rejection with a reason code,
a file and a row number; that reading goes on after a bad row; and that no message quotes a row.
"""

from redactory.pipelines.readers.documents import Document, Rejection, read_documents
from redactory.pipelines.readers.sources import Source, find_sources, fingerprint, size_of

__all__ = ["Document", "Rejection", "Source", "find_sources", "fingerprint", "read_documents", "size_of"]

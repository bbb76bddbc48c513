"""Readers: turn files into documents and rejected rows, one at a time, in bounded memory.

Every row of the input becomes a document or a rejection with a reason code, a file and a row number. Reading
continues after a bad row, and no message quotes a row.
"""

# ruff: noqa: E402

import importlib
import pkgutil

# every module registers its formats, whose names the settings of the input then accept
for _module in pkgutil.iter_modules(__path__):
    if _module.name not in ("documents", "files"):
        importlib.import_module(f"{__name__}.{_module.name}")

from redactory.pipelines.readers.documents import Document as Document
from redactory.pipelines.readers.documents import InputSettings as InputSettings
from redactory.pipelines.readers.documents import Rejection as Rejection
from redactory.pipelines.readers.documents import read_documents as read_documents
from redactory.pipelines.readers.files import Slice as Slice
from redactory.pipelines.readers.files import Source as Source
from redactory.pipelines.readers.files import detect_format as detect_format
from redactory.pipelines.readers.files import find_sources as find_sources
from redactory.pipelines.readers.files import find_sources_by_path as find_sources_by_path

"""Readers: turn files into documents and rejected rows, one at a time, in bounded memory.

Every row of the input becomes a document or a rejection with a reason code, a file and a row number. Reading
continues after a bad row, and no message quotes a row.
"""

# each of these registers its formats
from redactory.pipelines.readers import columnar as columnar
from redactory.pipelines.readers import document_formats as document_formats
from redactory.pipelines.readers import formats as formats
from redactory.pipelines.readers import html_format as html_format
from redactory.pipelines.readers import mail_format as mail_format
from redactory.pipelines.readers import tables as tables
from redactory.pipelines.readers import word_format as word_format
from redactory.pipelines.readers.documents import Document as Document
from redactory.pipelines.readers.documents import InputSettings as InputSettings
from redactory.pipelines.readers.documents import Rejection as Rejection
from redactory.pipelines.readers.documents import read_documents as read_documents
from redactory.pipelines.readers.files import Slice as Slice
from redactory.pipelines.readers.files import Source as Source
from redactory.pipelines.readers.files import detect_format as detect_format
from redactory.pipelines.readers.files import find_sources as find_sources
from redactory.pipelines.readers.files import find_sources_by_path as find_sources_by_path

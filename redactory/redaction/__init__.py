"""Redaction: masking into one token, the public and the private side, and files that prove both.

The room promises that no character inside a hit survives masking, that whatever holds a mask is
private, that a finished folder is never mistaken for an unfinished one, and that one flipped byte in
it shows.
"""

from redactory.redaction.folder import ModelFolder, RunFolder, SealedFolder, part_name
from redactory.redaction.mask import MASK, mask, merge_intervals
from redactory.redaction.sealing import (
    broken_files,
    is_finished,
    read_manifest,
    seal,
    succeed,
    write_manifest,
)
from redactory.redaction.shards import parts, read_batches, read_column, write_part
from redactory.redaction.sides import PRIVATE, PUBLIC, Fate, route
from redactory.redaction.values import ValueDigests, open_values

__all__ = [
    "MASK",
    "PRIVATE",
    "PUBLIC",
    "Fate",
    "ModelFolder",
    "RunFolder",
    "SealedFolder",
    "ValueDigests",
    "broken_files",
    "is_finished",
    "mask",
    "merge_intervals",
    "open_values",
    "part_name",
    "parts",
    "read_batches",
    "read_column",
    "read_manifest",
    "route",
    "seal",
    "succeed",
    "write_manifest",
    "write_part",
]

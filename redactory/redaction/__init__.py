"""Redaction: masking into one token, the public and the private side, and files that prove both.

The room promises that no character inside a hit survives masking, that whatever holds a mask is
private, that a finished folder is never mistaken for an unfinished one, that one flipped byte in it
shows, and that no caller has to know whether a run is encrypted.
"""

from redactory.redaction.encryption import (
    RunKey,
    establish_key,
    key_of,
    read_secret,
    write_secret,
)
from redactory.redaction.folder import ModelFolder, RunFolder, SealedFolder, part_name
from redactory.redaction.mask import MASK, mask, merge_intervals
from redactory.redaction.sealing import (
    broken_files,
    is_finished,
    list_files,
    measured_on,
    read_manifest,
    require_regular,
    result_of,
    seal,
    succeed,
    write_manifest,
)
from redactory.redaction.shards import (
    content_of,
    is_encrypted,
    part_rows,
    parts,
    read_batches,
    read_between,
    read_column,
    read_part,
    write_part,
)
from redactory.redaction.sides import PRIVATE, PUBLIC, Fate, route
from redactory.redaction.values import ValueDigests, open_values

__all__ = [
    "MASK",
    "PRIVATE",
    "PUBLIC",
    "Fate",
    "ModelFolder",
    "RunFolder",
    "RunKey",
    "SealedFolder",
    "ValueDigests",
    "broken_files",
    "content_of",
    "establish_key",
    "is_encrypted",
    "is_finished",
    "key_of",
    "list_files",
    "mask",
    "measured_on",
    "merge_intervals",
    "open_values",
    "part_name",
    "part_rows",
    "parts",
    "read_batches",
    "read_between",
    "read_column",
    "read_manifest",
    "require_regular",
    "read_part",
    "read_secret",
    "result_of",
    "route",
    "seal",
    "succeed",
    "write_manifest",
    "write_part",
    "write_secret",
]

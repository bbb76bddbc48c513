"""Append-only records: JSON lines, each linked to the previous one by sha256.

Used for the privacy ledger, the release log and the run's journal. A line is ``{"seq", "prev", "type", "body"}``, where
``prev`` is the sha256 of the previous line's bytes. So changing, dropping or inserting a record breaks the chain. There
is one writer at a time; a record is on disk when :meth:`RecordLog.append` returns.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from redactory.foundation.canonical import canonical_json
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.files import make_folder, open_and_lock, sync_to_disk

GENESIS = "0" * 64
MAX_RECORD_GAP = datetime.timedelta(days=45)
"""Longest credible time between two records; a monthly job has less."""


@dataclass(frozen=True)
class Record:
    """One line: its number from 0, its type, its body, and the sha256 of the line, which the next one names."""

    seq: int
    type: str
    body: dict[str, Any]
    digest: str = field(default="", compare=False)


def read_records(path: Path) -> list[Record]:
    """Read every whole record of ``path``, oldest first; ``CheckFailed`` if the chain is broken.

    Skips a last line without newline: a crash interrupted it, and it was never reported as written.
    """
    return _parse_records(path, path.read_bytes())[0]


def compute_chain_head(path: Path) -> str:
    """Return the sha256 for the next record's ``prev``; it identifies the whole log."""
    records = read_records(path)
    return records[-1].digest if records else GENESIS


def estimate_record_ages(times: Sequence[datetime.datetime]) -> list[datetime.timedelta]:
    """Estimate how long before the last of ``times`` each of them was, despite wrong clocks.

    ``times`` are clock readings in order, one per record or entry, and now. Correct clocks advance in small steps: a
    step back, or one longer than ``MAX_RECORD_GAP``, means a wrong clock before or after it, and does not count.
    """
    ages, age = [datetime.timedelta()], datetime.timedelta()
    for before, after in reversed(list(pairwise(times))):
        step = after - before
        age += step if datetime.timedelta() < step <= MAX_RECORD_GAP else datetime.timedelta()
        elapsed = times[-1] - before
        # a time ahead of the last gets its age from the others
        ages.append(min(elapsed, age) if elapsed >= datetime.timedelta() else age)
    return ages[::-1]


def _open_for_append(path: Path, timeout: float) -> int:
    while True:
        make_folder(path.parent)
        try:
            return open_and_lock(path, timeout)
        except FileNotFoundError:
            # the folder was removed meanwhile
            continue
        except BlockingIOError:
            raise RunStateError(f"{path.name} is being written by another process") from None


class RecordLog:
    """The writer of a record file.

    Opening removes an incomplete last line of a crash, checks the chain and takes the lock; a second writer is refused
    after ``timeout`` seconds (``RunStateError``). ``records`` are those so far; clear the list to save memory: the file
    and its chain do not depend on it.
    """

    def __init__(self, path: Path, timeout: float = 0.0) -> None:
        self._file = _open_for_append(path, timeout)
        try:
            self.records, whole_bytes = _parse_records(path, path.read_bytes())
            self.last_record = self.records[-1] if self.records else None
            os.ftruncate(self._file, whole_bytes)
            os.lseek(self._file, 0, os.SEEK_END)
            # the file's name must survive a crash too
            sync_to_disk(path.parent)
        except BaseException:
            # an open file would keep the lock
            os.close(self._file)
            raise

    def append(self, type: str, body: dict[str, Any]) -> Record:  # noqa: A002 (the field's name on disk)
        """Write one record, sync it to disk, and return it; on failure the file is unchanged."""
        last = self.last_record
        number, previous_hash = (0, GENESIS) if last is None else (last.seq + 1, last.digest)
        line = canonical_json({"seq": number, "prev": previous_hash, "type": type, "body": body})
        end = os.lseek(self._file, 0, os.SEEK_CUR)
        try:
            self._write_fully(line + b"\n")
            os.fsync(self._file)
        except BaseException:
            os.ftruncate(self._file, end)
            os.lseek(self._file, end, os.SEEK_SET)
            raise
        self.last_record = Record(number, type, body, hashlib.sha256(line).hexdigest())
        self.records.append(self.last_record)
        return self.last_record

    def _write_fully(self, data: bytes) -> None:
        # a full disk writes only a part, and reports only its size
        while data:
            data = data[os.write(self._file, data) :]

    def close(self) -> None:
        """Release the lock."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _parse_records(path: Path, data: bytes) -> tuple[list[Record], int]:
    """Return the whole records in ``data``, and their length in bytes."""
    whole_bytes = data.rfind(b"\n") + 1
    records: list[Record] = []
    prev = GENESIS
    for number, line in enumerate(data[:whole_bytes].split(b"\n")[:-1]):
        try:
            value = json.loads(line)
            if (value["seq"], value["prev"]) != (number, prev):
                raise ValueError
            prev = hashlib.sha256(line).hexdigest()
            records.append(Record(number, value["type"], value["body"], prev))
        except (ValueError, KeyError, TypeError):
            raise CheckFailed(
                f"{path}: the chain of records breaks at line {number + 1}; restore the file from a backup"
            ) from None
    return records, whole_bytes

"""The one append-only record format: JSON lines, each bound to the one before it by sha256.

Three things are kept in it: the privacy ledger, the release log, the run's journal.  A line is
``{"seq", "prev", "type", "body"}``; ``prev`` is the sha256 of the previous line's bytes, so that no
record can be changed, dropped or put in between without every later line showing it.  There is one
writer at a time; a record is on the disk before :meth:`RecordLog.append` returns.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from redactory.foundation.canonical import canonical_json
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.files import make_folder, open_locked, sync_to_disk

GENESIS = "0" * 64
SILENCE = datetime.timedelta(days=45)
"""The longest time between two records for which a clock is believed; a job of each month has less."""


@dataclass(frozen=True)
class Record:
    """One line: its number from 0, its type, its body."""

    seq: int
    type: str
    body: dict[str, Any]


def read_records(path: Path) -> list[Record]:
    """Every whole record of ``path``, oldest first; ``CheckFailed`` where the chain is broken.

    A last line without its newline is what a crash leaves of an unfinished append: it was never
    reported as written, and is left out.
    """
    return _parse(path, path.read_bytes())[0]


def chain_head(path: Path) -> str:
    """The sha256 that the next record's ``prev`` would be; it names the whole log."""
    return _parse(path, path.read_bytes())[1]


def chain_heads(path: Path) -> list[str]:
    """What :func:`chain_head` was after each whole record of ``path``; ``CheckFailed`` as there."""
    data = path.read_bytes()
    whole = _parse(path, data)[2]
    return [hashlib.sha256(line).hexdigest() for line in data[:whole].split(b"\n")[:-1]]


def record_ages(times: Sequence[datetime.datetime]) -> list[datetime.timedelta]:
    """How long before the last of ``times`` each of them was, as far as they bear it out among themselves.

    ``times`` are those that clocks gave one after the other, as records or entries were made, and now.  They
    pass in small steps where the clocks are right: a step back, and one longer than ``SILENCE``, is a clock
    that was wrong before it or after, and does not count.
    """
    ages, age = [datetime.timedelta()], datetime.timedelta()
    for before, after in reversed(list(pairwise(times))):
        step = after - before
        age += step if datetime.timedelta() < step <= SILENCE else datetime.timedelta()
        elapsed = times[-1] - before
        # what was made under a clock ahead of the last has the age that the others give it
        ages.append(min(elapsed, age) if elapsed >= datetime.timedelta() else age)
    return ages[::-1]


def _open_for_append(path: Path) -> int:
    while True:
        make_folder(path.parent)
        try:
            return open_locked(path)
        except FileNotFoundError:
            # the folder was taken away meanwhile
            continue
        except BlockingIOError:
            raise RunStateError(f"{path.name} is being written by another process") from None


class RecordLog:
    """The writer of a record file.

    Opening cuts off the torn last line that a crash may have left, checks the chain and takes the
    lock; a second writer is refused (``RunStateError``).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _open_for_append(path)
        try:
            self.records, self._prev, whole = _parse(path, path.read_bytes())
            self._count = len(self.records)
            os.ftruncate(self._file, whole)
            os.lseek(self._file, 0, os.SEEK_END)
            # the file's name must outlast a crash as its records do
            sync_to_disk(path.parent)
        except BaseException:
            # left open, it would keep the lock
            os.close(self._file)
            raise

    def append(self, type: str, body: dict[str, Any]) -> Record:  # noqa: A002 (the field's name on disk)
        """Write one record, synced to the disk, and return it; one that fails leaves the file as it was."""
        record = Record(self._count, type, body)
        line = canonical_json({"seq": record.seq, "prev": self._prev, "type": type, "body": body})
        end = os.lseek(self._file, 0, os.SEEK_CUR)
        try:
            self._write(line + b"\n")
            os.fsync(self._file)
        except BaseException:
            os.ftruncate(self._file, end)
            os.lseek(self._file, end, os.SEEK_SET)
            raise
        self._prev = hashlib.sha256(line).hexdigest()
        self._count += 1
        self.records.append(record)
        return record

    def clear_records(self) -> None:
        """Hold the records so far no longer: ``records`` has what is appended from now on.

        For a log of many bodies that nobody asks for again; the file and its chain stay as they are.
        """
        self.records.clear()

    def _write(self, data: bytes) -> None:
        # a disk that fills up takes a part of it, and says so by a number alone
        while data:
            data = data[os.write(self._file, data) :]

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _parse(path: Path, data: bytes) -> tuple[list[Record], str, int]:
    whole = data.rfind(b"\n") + 1
    records: list[Record] = []
    prev = GENESIS
    for number, line in enumerate(data[:whole].split(b"\n")[:-1]):
        try:
            value = json.loads(line)
            good = value["seq"] == number and value["prev"] == prev
            records.append(Record(number, value["type"], value["body"]))
        except (ValueError, KeyError, TypeError):
            good = False
        if not good:
            raise CheckFailed(f"{path.name}: the chain of records breaks at line {number + 1}")
        prev = hashlib.sha256(line).hexdigest()
    return records, prev, whole

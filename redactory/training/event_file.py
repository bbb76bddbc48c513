"""Event files that TensorBoard draws curves from: scalars alone, without that library.

A file is a sequence of records (TFRecord: the length, its checksum, an ``Event`` in protocol-buffer form, its
checksum; tensorflow/core/util/event.proto, and CRC-32C by RFC 3720, appendix B.4).

Formal guarantees: what is written was released or is a constant: the loss on held-out public text, step
sizes, the noise.  Nothing that is computed from private text before noise (a norm, a batch's size) may be.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

_POLYNOMIAL, _MASK_DELTA = 0x82F63B78, 0xA282EAD8
_VERSION = b"brain.Event:2"


@dataclass
class EventFile:
    """A new file in ``folder``, which is made; one for each process that trains."""

    folder: Path
    path: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / f"events.out.tfevents.{time.time():.6f}.{os.getpid()}"
        self._write(_field(1, time.time()) + _field(3, _VERSION))

    def add(self, step: int, scalars: Mapping[str, float | None]) -> None:
        """Add ``scalars`` by their names at ``step``; one that is None is left out."""
        known = {name: value for name, value in scalars.items() if value is not None}
        values = (_field(1, _field(1, name.encode()) + _single(2, value)) for name, value in known.items())
        # no time: how long an epoch took would tell how many points were drawn
        self._write(_field(1, float(step)) + _varint(2 << 3) + _varint(step) + _field(5, b"".join(values)))

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        with self.path.open("ab") as file:
            file.write(length + _checksum(length) + event + _checksum(event))


def _field(number: int, value: bytes | float) -> bytes:
    """A field of a message: octets with their length, or a double."""
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    return _varint(number << 3 | 1) + struct.pack("<d", value)


def _single(number: int, value: float) -> bytes:
    return _varint(number << 3 | 5) + struct.pack("<f", value)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _checksum(data: bytes) -> bytes:
    """The masked CRC-32C of a record."""
    crc = 0xFFFFFFFF
    for octet in data:
        crc = _table()[(crc ^ octet) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)


@cache
def _table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [value >> 1 ^ (_POLYNOMIAL if value & 1 else 0) for value in table]
    return table

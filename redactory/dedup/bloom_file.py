"""A Bloom filter in a file: every parameter stands in its head, and other parameters are refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redactory.dedup.bloom import BloomFilter
from redactory.foundation.canonical import canonical_json
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.files import commit

FORMAT = "redactory-bloom/1"
HASH = "blake2b-128, keyed"


@dataclass(frozen=True)
class BloomParameters:
    """What makes a filter the one that is looked for.

    ``purpose`` names the digests' subkey and ``key`` the key itself by its fingerprint; ``side`` is
    public, private or both; ``policy`` is the hash of what decided texts and sides.
    """

    capacity: int
    error_rate: float
    purpose: str
    key: str
    side: str
    policy: str


def save_bloom(path: Path, bloom: BloomFilter, parameters: BloomParameters, added: int) -> None:
    """Commit ``bloom``: one line of JSON, then its bits.  ``added`` digests are in it, for the record."""
    content = bloom.to_bytes()
    head = {
        "format": FORMAT,
        "hash": HASH,
        **dataclasses.asdict(parameters),
        "added": added,
    }
    head["sha256"] = _digest(head, content)
    with commit(path) as temporary, temporary.open("wb") as file:
        file.write(canonical_json(head) + b"\n")
        file.write(content)


def load_bloom(path: Path, parameters: BloomParameters) -> BloomFilter:
    """The filter of ``path``, made with exactly ``parameters``.

    ``RunStateError`` names the first parameter that differs, and both values; ``CheckFailed`` is
    raised for a file that is no filter, is cut off, or holds other bits than were written.
    """
    head, content = _read(path)
    expected = {"format": FORMAT, "hash": HASH, **dataclasses.asdict(parameters)}
    for name, value in expected.items():
        if head.get(name) != value:
            raise RunStateError(
                f"{path.name} holds a filter with {name} {head.get(name)}, and {name} {value} is asked for; "
                "give the parameters that it was made with, or begin a new one"
            )
    sealed = head.pop("sha256", None)
    if _digest(head, content) != sealed:
        raise CheckFailed(f"{path.name} does not hold what was written: restore it, or begin a new one")
    return BloomFilter.from_bytes(parameters.capacity, parameters.error_rate, content)


def _digest(head: dict[str, Any], content: bytes) -> str:
    """Of the head and the bits together."""
    return hashlib.sha256(canonical_json(head) + b"\n" + content).hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    line, _, content = path.read_bytes().partition(b"\n")
    try:
        head = json.loads(line)
    except ValueError:
        head = None
    if not isinstance(head, dict) or "format" not in head:
        raise CheckFailed(f"{path.name} is no Bloom filter of Redactory's")
    return head, content

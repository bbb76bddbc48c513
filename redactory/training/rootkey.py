"""The root key of a training: drawn fresh, kept 0600 while it is needed, bound to one ledger, then gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redactory.foundation.errors import RunStateError
from redactory.foundation.files import make_private_folder
from redactory.foundation.records import RecordLog
from redactory.foundation.stream import RandomStream
from redactory.redaction.encryption import read_secret, write_secret
from redactory.training.ledger import HEAD


def begin_or_resume(log: RecordLog, head: dict[str, Any], key_file: Path, seed: int | None) -> RandomStream:
    """The stream of this training; the ``head`` is on the disk when this returns.

    An empty ledger gets a fresh key (a key that lies there belongs to a ledger that is gone, and is
    never used again).  A ledger that was begun must have been begun with the same head and the key
    that lies there, else ``RunStateError``: one key never serves two trainings.
    """
    if not log.records:
        stream = RandomStream.from_entropy() if seed is None else RandomStream.from_seed(seed)
        make_private_folder(key_file.parent)
        write_secret(key_file, stream.root)
        log.append(HEAD, {**head, "seeded": stream.seeded, "key": _fingerprint(stream)})
        return stream
    require_same_head(log, head)
    if not key_file.exists():
        raise RunStateError("the key of the interrupted training is gone: remove the model's folder")
    stream = RandomStream(read_secret(key_file), seeded=log.records[0].body["seeded"])
    if _fingerprint(stream) != log.records[0].body["key"]:
        raise RunStateError("the key in state/ belongs to another training: remove the model's folder")
    return stream


def require_same_head(log: RecordLog, head: dict[str, Any]) -> None:
    """``RunStateError`` where the ledger's training was begun with another ``head``."""
    begun = log.records[0].body
    changed = sorted(key for key in head if begun.get(key) != head[key])
    if changed:
        raise RunStateError(
            f"a training was begun here with other {', '.join(changed)}: finish it with those, "
            "give this one another name, or remove the model's folder"
        )


def _fingerprint(stream: RandomStream) -> str:
    return stream.octets("fingerprint", 0, 8).hex()

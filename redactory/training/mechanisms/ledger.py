"""The privacy ledger: the plan before the first step, and every noisy step before its noise."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.files import make_private_folder
from redactory.foundation.records import RecordLog
from redactory.foundation.stream import RandomStream
from redactory.redaction.encryption import read_secret, write_secret
from redactory.training.mechanisms.mechanism import Mechanism

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "redactory-ledger/1"
HEAD, NOISY_STEP, END = "head", "noisy_step", "end"
_DIGEST_BYTES = 16


class Admission(Protocol):
    """Called before noise is drawn for a sum; raises to refuse it."""

    def authorize_noisy_step(self, step: int, clipped_sum: Tensor) -> None:
        """Record that ``step`` is about to release ``clipped_sum`` with noise."""


class StepLedger:
    """Writes each noisy step before its noise is drawn, and admits a replayed step only with the same sum.

    Formal guarantees: under one root key no noise serves two different sums, up to a collision of 128-bit keyed
    digests, and a step counts once, however often a training is resumed. The key of the digests is derived from the
    root key and is removed with it, so the ledger does not reveal sums.
    """

    def __init__(self, log: RecordLog, mechanism: Mechanism, stream: RandomStream) -> None:
        self._log = log
        self._event = mechanism.to_event()
        self._key = stream.random_bytes("ledger", 0, 32)
        self._recorded_digests = {r.body["step"]: r.body["sum"] for r in log.records if r.type == NOISY_STEP}

    def authorize_noisy_step(self, step: int, clipped_sum: Tensor) -> None:
        """Record ``step``, synced to disk, or compare it with its record.

        ``CheckFailed`` if a replayed sum differs or a step would be left out.
        """
        octets = clipped_sum.detach().cpu().contiguous().numpy().tobytes()
        digest = hashlib.blake2b(octets, digest_size=_DIGEST_BYTES, key=self._key).hexdigest()
        recorded = self._recorded_digests.get(step)
        if recorded is None:
            if step != len(self._recorded_digests):
                raise CheckFailed(f"noisy step {step} cannot follow {len(self._recorded_digests)} recorded steps")
            self._log.append(NOISY_STEP, {"step": step, "event": self._event, "sum": digest})
            self._recorded_digests[step] = digest
        elif not hmac.compare_digest(recorded, digest):
            raise CheckFailed(
                f"noisy step {step} was replayed with a sum that differs from its record: its noise must "
                "not be reused. Remove the model's folder and train again."
            )


# The root key of a training: drawn fresh, kept 0600 while it is needed, bound to one ledger, then gone.


def begin_or_resume_stream(log: RecordLog, head: dict[str, Any], key_file: Path, seed: int | None) -> RandomStream:
    """Return the stream of this training; ``head`` is on disk by then.

    An empty ledger gets a fresh key; a key that is already there belongs to a lost ledger, and is never used again. A
    ledger with records must have the same head and its own key, else ``RunStateError``: one key never serves two
    trainings.
    """
    if not log.records:
        stream = RandomStream.from_entropy() if seed is None else RandomStream.from_seed(seed)
        make_private_folder(key_file.parent)
        write_secret(key_file, stream.root)
        log.append(HEAD, {**head, "seeded": stream.seeded, "key": _compute_key_fingerprint(stream)})
        return stream
    require_same_head(log, head)
    if not key_file.exists():
        raise RunStateError("the key of the interrupted training is gone: remove the model's folder")
    stream = RandomStream(read_secret(key_file), seeded=log.records[0].body["seeded"])
    if _compute_key_fingerprint(stream) != log.records[0].body["key"]:
        raise RunStateError("the key in state/ belongs to another training: remove the model's folder")
    return stream


def require_same_head(log: RecordLog, head: dict[str, Any]) -> None:
    """Raise ``RunStateError`` if the ledger's training began with another ``head``."""
    recorded = log.records[0].body
    key_fields = {"seeded", "key"}
    changed = sorted(k for k in {*head, *recorded} - key_fields if recorded.get(k) != head.get(k))
    if changed:
        raise RunStateError(
            f"an unfinished training here has other {', '.join(changed)}: finish it with those, give this "
            "one another name, or remove the model's folder"
        )


def _compute_key_fingerprint(stream: RandomStream) -> str:
    return stream.random_bytes("fingerprint", 0, 8).hex()

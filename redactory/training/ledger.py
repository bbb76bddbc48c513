"""The privacy ledger: what was promised before the first step, and every noisy step before its noise.

Records (``foundation/records.py``): one ``head``; one ``noisy_step`` for each release; one ``end``.
Epsilon is only ever computed from it (``docs/guarantees.md``, "The ledger").
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any, Protocol

from torch import Tensor

from redactory.foundation.errors import CheckFailed
from redactory.foundation.records import RecordLog
from redactory.foundation.stream import RandomStream
from redactory.training.mechanism import Relation
from redactory.training.mechanism_record import AnyMechanism

FORMAT = "redactory-ledger/1"
HEAD, NOISY_STEP, END = "head", "noisy_step", "end"
_DIGEST_BYTES = 16


class Admission(Protocol):
    """Asked before noise is drawn for a sum; refusing means raising."""

    def admit(self, step: int, clipped_sum: Tensor) -> None:
        """Take note that ``step`` is about to release ``clipped_sum`` with noise."""


class StepLedger:
    """Writes each noisy step ahead of its noise, and lets a replayed step pass only with the same sum.

    Formal guarantees: under one root key no noise serves two different sums, up to a collision of
    128-bit keyed digests, and a step counts once however often a training is resumed.  The key of
    the digests comes from the root key and is gone with it, so the ledger does not give sums away.
    """

    def __init__(self, log: RecordLog, mechanism: AnyMechanism, stream: RandomStream) -> None:
        self._log = log
        self._event = mechanism.event()
        self._key = stream.octets("ledger", 0, 32)
        self._known = {r.body["step"]: r.body["sum"] for r in log.records if r.type == NOISY_STEP}

    def admit(self, step: int, clipped_sum: Tensor) -> None:
        """Record ``step``, synced to the disk, or compare it with its record.

        Raises ``CheckFailed`` where a replayed sum differs or a step would be left out.
        """
        octets = clipped_sum.detach().cpu().contiguous().numpy().tobytes()
        digest = hashlib.blake2b(octets, digest_size=_DIGEST_BYTES, key=self._key).hexdigest()
        known = self._known.get(step)
        if known is None:
            if step != len(self._known):
                raise CheckFailed(f"noisy step {step} cannot follow {len(self._known)} recorded steps")
            self._log.append(NOISY_STEP, {"step": step, "event": self._event, "sum": digest})
            self._known[step] = digest
        elif not hmac.compare_digest(known, digest):
            raise CheckFailed(
                f"noisy step {step} was replayed with another sum than its record: its noise must not be "
                f"used "
                "again. Remove the model's folder and train anew."
            )


def head_body(
    settings: dict[str, Any],
    mechanism: AnyMechanism | None,
    steps: int,
    parent: str,
    versions: dict[str, str],
    relation: Relation = Relation.SUBSTITUTION,
    base: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The body of the ``head`` record, without what depends on the key.

    ``relation`` is what a secret and its mask are to the noised points, ``base`` the content hash of
    pretrained weights, ``steps`` the number of noisy steps that are promised, ``parent``
    the sha256 of the curated run's manifest, ``settings`` the resolved settings.
    Without a ``mechanism`` nothing is noised.
    """
    return {
        "format": FORMAT,
        "relation": relation.value,
        "mechanism": None if mechanism is None else mechanism.to_json(),
        "sampler": None if mechanism is None else mechanism.sampler,
        "steps": steps,
        "settings": settings,
        "base": base,
        "parent": parent,
        "versions": versions,
    }

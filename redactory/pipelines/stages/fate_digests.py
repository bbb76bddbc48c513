"""Digests of redacted texts: what two points of a side must share to be duplicates."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from redactory.dedup import DedupSettings
from redactory.dedup.words import Words
from redactory.foundation.keys import DIGEST_BYTES, DigestKey
from redactory.redaction import MASK, PRIVATE, PUBLIC, Fate


def fate_digests(
    key: DigestKey,
    settings: DedupSettings,
    ids: Sequence[int],
    fates: Sequence[Fate],
    users: list[str] | None,
) -> tuple[list[bytes], list[bytes] | None]:
    """The digests of the fates of points, and their ranks where a side is folded.

    They are equal only within a side and, given ``users``, within a user.  A folded side's digest is that
    of the local key, and the text's own its rank: the text with the smallest stays (rule S2); elsewhere
    ranks are equal.  A quarantined point has no redacted text and must repeat nothing: its digest is of
    its id.
    """
    words, alone = Words(MASK), key.purpose("dedup/alone")
    own = {side: key.purpose(f"dedup/{side}") for side in (PUBLIC, PRIVATE)}
    folded = {
        side: key.purpose(purpose_of(settings, side)) for side in own if settings.mode_of(side) == "folded"
    }
    digests, ranks = [], []
    for number, (point, fate) in enumerate(zip(ids, fates, strict=True)):
        owner = f"{users[number]}\x00" if users is not None else ""
        rank = bytes(DIGEST_BYTES)
        if fate.failure is not None:
            digest = key.text_digest(alone, point.to_bytes(8, "big"))
        else:
            digest = key.text_digest(own[fate.side], (owner + fate.text).encode())
            if fate.side in folded:
                rank = digest
                digest = key.text_digest(folded[fate.side], (owner + words.folded(fate.text)).encode())
        digests.append(digest)
        ranks.append(rank)
    return digests, ranks if folded else None


def purpose_of(settings: DedupSettings, side: str) -> str:
    """What the digests of a side's fates are for: texts of two sides, or folded and not, never meet."""
    return f"dedup/{side}/folded" if settings.mode_of(side) == "folded" else f"dedup/{side}"


def users_of(points: pa.Table) -> list[str]:
    """The user of each point; a row without one is its own user."""
    columns = (points["user_id"].to_pylist(), points["doc_id"].to_pylist())
    return [u if u is not None else f"\x00{d}" for u, d in zip(*columns, strict=True)]

"""The barriers over digests: repeated documents, repeated texts, repeated redacted texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from redactory.dedup import DedupSettings, plan_range
from redactory.dedup.plan import (
    SCREEN_ERROR_RATE,
    BloomFilter,
    BloomParameters,
    OnePass,
    as_numbers,
    load_bloom,
    repeated_digests,
    save_bloom,
    write_entries,
)
from redactory.dedup.signatures import Words
from redactory.foundation.keys import DIGEST_BYTES, DigestKey
from redactory.foundation.progress import StageReport
from redactory.pipelines.work import Job
from redactory.redaction import MASK, PRIVATE, PUBLIC, Fate, read_part

SIDES = (PUBLIC, PRIVATE)
PLANNED = frozenset({"exact", "folded", "minhash"})
"""Modes that begin with a plan over digests."""
UNKNOWN = -1
"""Stands for a dropped point where nobody knows which does: a Bloom filter does not say what it repeats."""
_TEXTS, _REDACTED = "text-digests", "redacted-digests"


def plan_documents(job: Job, partitions: int, number: int) -> StageReport:
    """Find documents whose id an earlier one has, in one hash range."""
    return _plan(job, "document-ids", "repeated-documents", partitions, number)


def plan_texts(job: Job, partitions: int, number: int) -> StageReport:
    """Find texts that occurred before, in one hash range: each distinct text is detected once."""
    return _plan(job, _TEXTS, "repeated-texts", partitions, number, screened(job.config.dedup))


def plan_duplicates(job: Job, partitions: int, number: int) -> StageReport:
    """Find redacted texts (or, folded, their keys) that another point of their side stands for (S1, S2)."""
    return _plan(job, _REDACTED, "duplicates", partitions, number, screened(job.config.dedup))


def screen_texts(job: Job, partitions: int, number: int) -> StageReport:
    """Make the filter of the texts that may repeat; the others skip the digest table."""
    return _screen(job, _TEXTS, partitions)


def screen_redacted(job: Job, partitions: int, number: int) -> StageReport:
    """Make the filter of the redacted texts that may repeat; the others skip the digest table."""
    return _screen(job, _REDACTED, partitions)


def pass_side(job: Job, partitions: int, number: int) -> StageReport:
    """Mode ``bloom``: drop one side's repeats in a single pass over its points, in fixed memory.

    Each side has a filter of its own: what is public must not depend on private text.
    """
    side, settings = SIDES[number], job.config.dedup
    if settings.mode_of(side) != "bloom":
        return StageReport("dedup in one pass")
    sizes = [len(np.load(job.digests(_REDACTED, p), mmap_mode="r")) for p in range(partitions)]
    one_pass = OnePass(settings.bloom.capacity or sum(sizes), settings.bloom.error_rate)
    dropped = 0
    for partition in range(partitions):
        columns = ["point_id", "side", "failure"]
        points = read_part(job.part("redacted", partition), columns=columns).to_pydict()
        mine = [s == side and f is None for s, f in zip(points["side"], points["failure"], strict=True)]
        entries = np.load(job.digests(_REDACTED, partition))
        entries = entries[np.argsort(entries["id"], kind="stable")][np.array(mine, bool)]
        repeats = np.array(one_pass.repeats(as_numbers(entries)), bool)
        write_entries(job.passed(side, partition), np.array(entries["id"][repeats]))
        dropped += int(repeats.sum())
    facts = {
        "capacity": one_pass.filter.capacity,
        "added": one_pass.added,
        "dropped": dropped,
        "new": one_pass.tracked_new,
        "lost": one_pass.tracked_lost,
    }
    return StageReport("dedup in one pass", Counter({f"bloom/{side}/{n}": v for n, v in facts.items()}))


def screened(settings: DedupSettings) -> bool:
    """Whether a Bloom filter stands in front of the plans."""
    return settings.filter == "bloom"


def _plan(
    job: Job, table: str, plan: str, partitions: int, number: int, screened: bool = False
) -> StageReport:
    files = [job.digests(table, partition) for partition in range(partitions)]
    repeated = _filter(job, table, partitions) if screened else None
    repeats = plan_range(files, number, job.range(plan, number), repeated, job.hash_ranges)
    return StageReport(plan, Counter({"repeats": repeats}))


def _screen(job: Job, table: str, partitions: int) -> StageReport:
    repeated = repeated_digests([job.digests(table, partition) for partition in range(partitions)])
    parameters = _parameters(job, table, repeated.capacity)
    save_bloom(job.filter(table), repeated, parameters, added=round(repeated.size()))
    return StageReport(f"screen {table}")


def _filter(job: Job, table: str, partitions: int) -> BloomFilter:
    digests = sum(len(np.load(job.digests(table, p), mmap_mode="r")) for p in range(partitions))
    return load_bloom(job.filter(table), _parameters(job, table, digests))


def _parameters(job: Job, table: str, capacity: int) -> BloomParameters:
    return BloomParameters(
        capacity, SCREEN_ERROR_RATE, table, job.key.fingerprint, "both", job.config.curation_hash()
    )


# Digests of redacted texts: what two points of a side must share to be duplicates.


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

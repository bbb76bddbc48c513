"""Which point stands for which: plans over digests, one pass, near-duplicates, earlier runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from redactory.dedup import DedupSettings, DuplicatePlan, plan_range
from redactory.dedup.index import (
    NOBODY,
    IndexFolder,
    SeenFiles,
    distinct,
    earlier_of,
    first_that_saw,
    write_earlier,
    write_seen,
)
from redactory.dedup.near import (
    PRIVATE_SIDE,
    PUBLIC_SIDE,
    Comparison,
    choose_range,
    compare_buckets,
    copy_signed,
    join_groups,
    near_earlier,
    nearest,
)
from redactory.dedup.plan import (
    PIECES,
    SCREEN_ERROR_RATE,
    WHOLE,
    BloomParameters,
    Entries,
    OnePass,
    as_numbers,
    read_range,
    write_entries,
)
from redactory.dedup.signatures import Shingler, SignedFiles, TextFacts, Words, banding_for, write_signed
from redactory.foundation.errors import RunStateError
from redactory.foundation.keys import DIGEST_BYTES, DigestKey
from redactory.foundation.progress import StageReport
from redactory.pipelines.work import Job, OpenIndex
from redactory.redaction import MASK, PRIVATE, PUBLIC, Fate, read_part

Ids = NDArray[np.int64]
SIDES = {PUBLIC: PUBLIC_SIDE, PRIVATE: PRIVATE_SIDE}
"""The number of each side in the files of near-duplicates."""
PLANNED = frozenset({"exact", "folded", "minhash"})
"""Modes that begin with a plan over digests."""
BY_DIGEST = frozenset({"exact", "folded", "bloom"})
"""Modes that know a text of an earlier run by its digest; ``minhash`` compares, ``none`` does not ask."""
NEAR = frozenset({"minhash"})
UNKNOWN = -1
"""Stands for a dropped point where nobody knows which does: a Bloom filter does not say what it repeats."""


# The barriers over digests: repeated documents, repeated texts, repeated redacted texts.


def plan_documents(job: Job, partitions: int, number: int) -> StageReport:
    """Find documents whose id an earlier one has, in one hash range."""
    return _plan(job, "document-ids", "repeated-documents", partitions, number)


def plan_texts(job: Job, partitions: int, number: int) -> StageReport:
    """Find texts that occurred before, in one hash range: each distinct text is detected once."""
    return _plan(job, "text-digests", "repeated-texts", partitions, number)


def plan_duplicates(job: Job, partitions: int, number: int) -> StageReport:
    """Find redacted texts (or, folded, their keys) that another point of their side stands for (S1, S2)."""
    return _plan(job, "redacted-digests", "duplicates", partitions, number)


def _plan(job: Job, table: str, plan: str, partitions: int, number: int) -> StageReport:
    files = [job.digests(table, partition) for partition in range(partitions)]
    repeats = plan_range(files, number, job.range(plan, number), ranges=job.hash_ranges)
    return StageReport(plan, Counter({"repeats": repeats}))


def pass_side(job: Job, partitions: int, number: int) -> StageReport:
    """Mode ``bloom``: drop one side's repeats in a single pass over its points, in fixed memory.

    Each side has a filter of its own: what is public must not depend on private text.
    """
    side, settings = list(SIDES)[number], job.config.dedup
    if settings.mode_of(side) != "bloom":
        return StageReport("dedup in one pass")
    sizes = [len(np.load(job.digests("redacted-digests", p), mmap_mode="r")) for p in range(partitions)]
    one_pass = OnePass(settings.bloom.capacity or sum(sizes), settings.bloom.error_rate)
    dropped = 0
    for partition in range(partitions):
        columns = ["point_id", "side", "failure"]
        points = read_part(job.part("redacted", partition), columns=columns)
        mine = _sides(points) == side
        mine &= ~points["failure"].is_valid().to_numpy(zero_copy_only=False)
        entries = np.load(job.digests("redacted-digests", partition))
        entries = entries[np.argsort(entries["id"], kind="stable")][mine]
        repeats = np.array(one_pass.repeats(as_numbers(entries)), bool)
        write_entries(job.digests(f"passed-{side}", partition), np.array(entries["id"][repeats]))
        dropped += int(repeats.sum())
    facts = {
        "capacity": one_pass.capacity,
        "added": one_pass.added,
        "dropped": dropped,
        "new": one_pass.tracked_new,
        "lost": one_pass.tracked_lost,
    }
    return StageReport("dedup in one pass", Counter({f"bloom/{side}/{n}": v for n, v in facts.items()}))


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
    own = {side: key.purpose(f"dedup/{side}") for side in SIDES}
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


def _sides(points: pa.Table) -> NDArray[Any]:
    return np.array(points["side"].to_pylist(), object)


# What all of it comes to.


def first_points(job: Job, partition: int, redacted: pa.Table) -> Ids:
    """For each point of a partition the point that stands for it; itself, or ``UNKNOWN``.

    A point that repeats an earlier run is given below ``UNKNOWN`` (:func:`earlier_places`).
    """
    first = _distinct_points(job, partition, redacted)
    for side in _sides_in(job, NEAR):
        mine = _sides(redacted) == side
        plan = DuplicatePlan(job.near_ranges("near-duplicates"))
        recalled = [] if job.index is None else job.near_ranges("near-earlier")
        places = earlier_of(recalled, first[mine])
        first[mine] = _or_earlier(places, plan.first_of_any(first[mine]))
    if job.index is not None and job.config.dedup.modes() & BY_DIGEST:
        ids = redacted["point_id"].to_numpy()
        first = _or_earlier(earlier_of([job.digests("earlier", partition)], ids), first)
    return first


def _distinct_points(job: Job, partition: int, redacted: pa.Table, also: str | None = None) -> Ids:
    """As ``first_points``, before near-duplicates are dropped; mode ``also`` too goes by the plan here."""
    ids: Ids = redacted["point_id"].to_numpy()
    first, settings = ids.copy(), job.config.dedup
    by_plan = [side for side in SIDES if settings.mode_of(side) in PLANNED | {also}]
    planned = np.isin(_sides(redacted), by_plan)
    if planned.any():
        first = np.where(planned, DuplicatePlan(job.ranges("duplicates")).first_of(ids), ids)
    for side in _sides_in(job, frozenset({"bloom"})):
        first[np.isin(ids, np.load(job.digests(f"passed-{side}", partition)))] = UNKNOWN
    return first


def earlier_places(first: Ids) -> Ids:
    """The places of the earlier runs, among those that the index was opened with, that points repeat.

    ``NOBODY`` where a point repeats none.
    """
    return np.where(first < UNKNOWN, UNKNOWN - 1 - first, NOBODY)


def _or_earlier(places: Ids, first: Ids) -> Ids:
    """Below ``UNKNOWN`` where a point repeats an earlier run, which no point of this one stands for."""
    return np.where(places == NOBODY, first, UNKNOWN - 1 - places)


# Near-duplicates, within each side and across the split: sign, compare, group, choose.


def sign_part(job: Job, partitions: int, number: int) -> StageReport:
    """Write the buckets, rows and shingles of the distinct redacted texts of one partition."""
    settings = job.config.dedup
    redacted = read_part(job.part("redacted", number))
    wanted = [s for s in SIDES if settings.across or settings.mode_of(s) == "minhash"]
    own = _distinct_points(job, number, redacted, also="none") == redacted["point_id"].to_numpy()
    own &= np.isin(_sides(redacted), wanted)
    own &= ~redacted["failure"].is_valid().to_numpy(zero_copy_only=False)
    kept = redacted.filter(pa.array(own))
    texts = kept["text"].to_pylist()
    if settings.scope == "corpus":
        groups = np.zeros(len(texts), np.uint64)
    else:
        points = read_part(job.part("points", number), columns=["user_id", "doc_id"])
        groups = _hashes(job.key, "dedup/user", users_of(points.filter(pa.array(own))))
    facts = TextFacts(
        kept["point_id"].to_numpy(),
        np.array([SIDES[side] for side in kept["side"].to_pylist()], np.uint8),
        groups,
        _hashes(job.key, "dedup/rank", texts),
    )
    sets = Shingler(job.key, settings.near.shingle, Words(MASK)).sets(texts)
    banding = banding_for(settings.near.threshold, settings.near.permutations)
    write_signed(job.signed(number), facts, sets, banding)
    return StageReport("sign", Counter({"signed": len(texts)}))


def _hashes(key: DigestKey, purpose: str, values: list[str]) -> NDArray[np.uint64]:
    subkey = key.purpose(purpose)
    digests = b"".join(key.text_digest(subkey, value.encode())[:8] for value in values)
    return np.frombuffer(digests, "<u8")


def compare_range(job: Job, partitions: int, number: int) -> StageReport:
    """Compare the texts that share a bucket of one hash range: within sides, and across the split."""
    settings = job.config.dedup
    asked = Comparison(
        settings.near.threshold,
        frozenset(SIDES[side] for side in _sides_in(job, NEAR)),
        settings.across,
        job.range("near-pairs", number),
        job.range("near-across", number),
    )
    counts = compare_buckets(_signed(job, partitions), number, asked, job.near_count)
    return StageReport("compare", Counter({f"near/{name}": count for name, count in counts.items()}))


def join_all(job: Job, partitions: int, number: int) -> StageReport:
    """Join the near pairs of all ranges to groups."""
    joined, largest = join_groups(job.near_ranges("near-pairs"), job.near_ranges("near-groups"))
    return StageReport("group", Counter({"near/grouped": joined, "near/largest_group": largest}))


def choose(job: Job, partitions: int, number: int) -> StageReport:
    """Choose which texts of each group stay."""
    threshold, out = job.config.dedup.near.threshold, job.range("near-duplicates", number)
    # without an index nothing was recalled
    earlier = [] if job.index is None else job.near_ranges("near-earlier")
    groups = job.range("near-groups", number)
    dropped = choose_range(_signed(job, partitions), groups, threshold, out, earlier)
    return StageReport("choose", Counter({"near/dropped": dropped}))


def across_rows(job: Job, records: pa.Table) -> list[dict[str, Any]]:
    """The released public points of a partition that nearly duplicate a private one, with one such."""
    if not job.config.dedup.across:
        return []
    public = records.select(["point_id", "released_id"]).filter(pc.equal(records["fate"], PUBLIC))
    released = dict(zip(*(column.to_pylist() for column in public.columns), strict=True))
    if not released:
        return []
    first, last = min(released), max(released)
    found = []
    for path in job.near_ranges("near-across"):
        pairs = np.load(path, mmap_mode="r")
        low, high = np.searchsorted(pairs["public"], [first, last + 1])
        found.append(np.array(pairs[low:high]))
    return [
        {"point_id": p, "released_id": released[p], "private_point": q, "similarity": s}
        for p, q, s in nearest(np.concatenate(found)).tolist()
        if p in released
    ]


def _signed(job: Job, partitions: int) -> list[SignedFiles]:
    return [job.signed(partition) for partition in range(partitions)]


# Earlier runs of the index: what repeats one of them, and what later runs shall know of this one.


def recall_part(job: Job, partitions: int, number: int) -> StageReport:
    """Look one partition's texts up among what earlier runs saw, and write down what this one saw."""
    index = opened(job)
    points = read_part(job.part("redacted", number), columns=["point_id", "side", "failure"])
    sides, fine = _sides(points), ~points["failure"].is_valid().to_numpy(zero_copy_only=False)
    entries: Entries = np.load(job.digests("redacted-digests", number))
    # of each entry, in the order of digests, which row of the points it is: look-ups in order are the fastest
    row = np.argsort(np.argsort(entries["id"], kind="stable"), kind="stable")
    pairs: list[tuple[int, int]] = []
    for side in _sides_in(job, BY_DIGEST):
        own = entries[(fine & (sides == side))[row]]
        write_entries(job.digests(f"seen-{side}", number), distinct([own]))
        with _there(index):
            files = [_seen_files(job, side, e.folder, e.body["filters"][side]) for e in index.runs]
            first = first_that_saw(files, own)
        known = first != NOBODY
        pairs += zip(own["id"][known].tolist(), first[known].tolist(), strict=True)
    found = write_earlier(job.digests("earlier", number), pairs)
    return StageReport("recall", Counter({"repeats": found}))


def recall_near(job: Job, partitions: int, number: int) -> StageReport:
    """Find the texts that nearly duplicate one that an earlier run kept, in one range of the buckets."""
    index, near = opened(job), job.config.dedup.near
    first: dict[int, int] = {}
    counts: Counter[str] = Counter()
    for side in _sides_in(job, NEAR):
        for place, entry in enumerate(index.runs):
            with _there(index):
                theirs = [signed_files(entry.folder, side, p) for p in range(entry.body["partitions"])]
                files = _signed(job, partitions)
                found, more = near_earlier(files, theirs, SIDES[side], number, near.threshold, job.near_count)
            counts.update(more)
            for point in found:
                first.setdefault(point, place)
    write_earlier(job.range("near-earlier", number), first.items())
    return StageReport("recall near", Counter({f"near/{name}": count for name, count in counts.items()}))


def remember_texts(job: Job, partitions: int, number: int) -> StageReport:
    """Write the digests of all texts that a side has, kept or not, and the filter in front of them.

    Of all of them: with those alone that were kept, and old entries removed, one point exchanged could
    exchange two texts of a later run (``docs/guarantees.md``, "Earlier runs").
    """
    counts: Counter[str] = Counter()
    for side in _sides_in(job, BY_DIGEST):
        files = [job.digests(f"seen-{side}", partition) for partition in range(partitions)]
        held = sum(len(np.load(path, mmap_mode="r")) for path in files)
        ranges = [
            job.range(f"seen-{side}", n) for n in range(job.hash_ranges * (PIECES if held > WHOLE else 1))
        ]
        for n, path in enumerate(ranges):
            seen = distinct([read_range(one, n, len(ranges)) for one in files])
            write_entries(path, seen)
            counts[f"index/{side}"] += len(seen)
        out = _seen_files(job, side, opened(job).draft, capacity_of(job, side, counts))
        write_seen(out, ranges, counts[f"index/{side}"])
    return StageReport("remember", counts)


def remember_signed(job: Job, partitions: int, number: int) -> StageReport:
    """Copy what near-duplicates are found by, of the texts that one partition keeps."""
    redacted = read_part(job.part("redacted", number))
    ids = redacted["point_id"].to_numpy()
    kept = ids[first_points(job, number, redacted) == ids]
    counts: Counter[str] = Counter()
    for side in _sides_in(job, NEAR):
        out = signed_files(opened(job).draft, side, number)
        counts[f"index/{side}"] += copy_signed(job.signed(number), kept, SIDES[side], out)
    return StageReport("remember near", counts)


def opened(job: Job) -> OpenIndex:
    """The index of a run that has one."""
    if job.index is None:
        raise RunStateError("this run has no index (dedup.index)")
    return job.index


def capacities(job: Job, counts: Counter[str]) -> dict[str, int]:
    """How many texts each side's filter is made for, of those that have one."""
    return {side: capacity_of(job, side, counts) for side in _sides_in(job, BY_DIGEST)}


def capacity_of(job: Job, side: str, counts: Counter[str]) -> int:
    """How many texts a side's filter is made for."""
    settings = job.config.dedup
    asked = settings.bloom.capacity if settings.mode_of(side) == "bloom" else None
    return max(1, asked or counts[f"index/{side}"])


def signed_files(folder: Path, side: str, partition: int) -> SignedFiles:
    """Where an entry holds the signed texts that one partition of its run kept on a side."""
    below = folder / f"near-{side}"
    buckets, rows, shingles = (
        below / f"part-{partition:05d}-{name}.npy" for name in ("buckets", "rows", "shingles")
    )
    return SignedFiles(buckets, rows, shingles)


def gone(index: IndexFolder, what: str) -> RunStateError:
    """The error where an earlier run was forgotten that this run goes by."""
    return RunStateError(
        f"{index.root}: {what} that this run goes by was removed meanwhile (keep_runs, keep_days or "
        "redactory index --keep-runs), and without it the run would become another one: start a new run in "
        "another folder, and keep more runs in the index than are at work at a time"
    )


def _sides_in(job: Job, modes: frozenset[str]) -> list[str]:
    """The sides that are deduplicated by one of ``modes``."""
    return [side for side in SIDES if job.config.dedup.mode_of(side) in modes]


def _seen_files(job: Job, side: str, folder: Path, capacity: int) -> SeenFiles:
    """Where an entry holds the digests of one side; the filter is bound to key, side and policies."""
    settings = job.config.dedup
    alone = settings.mode_of(side) == "bloom"
    rate = settings.bloom.error_rate if alone else SCREEN_ERROR_RATE
    bound = BloomParameters(
        capacity, rate, purpose_of(settings, side), job.key.fingerprint, side, opened(job).policy
    )
    return SeenFiles(folder / f"{side}.bloom", bound, None if alone else folder / f"{side}.digests.npy")


@contextmanager
def _there(index: OpenIndex) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise gone(index.folder, "an entry") from None

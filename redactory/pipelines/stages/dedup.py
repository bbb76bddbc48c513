"""Which point stands for which: plans over digests, one pass, near-duplicates, earlier runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from rbloom import Bloom

from redactory.dedup import DedupSettings, first_of, plan_range
from redactory.dedup.index import IndexFolder
from redactory.dedup.near import (
    ACROSS,
    PRIVATE_SIDE,
    PUBLIC_SIDE,
    choose,
    compare_buckets,
    copy_signed,
    join_groups,
    near_earlier,
    nearest,
)
from redactory.dedup.plan import (
    PIECES,
    WHOLE,
    Entries,
    Ids,
    OnePass,
    are_among,
    as_numbers,
    bloom_filter,
    distinct,
    entries_in,
    merge_digests,
    read_bloom,
    read_range,
    write_entries,
    write_pairs,
)
from redactory.dedup.settings import Rule
from redactory.dedup.signatures import ROW, Shingler, SignedFiles, Words, banding_for, write_signed
from redactory.foundation.errors import RunStateError
from redactory.foundation.files import write_bytes
from redactory.foundation.keys import DIGEST_BYTES, DigestKey
from redactory.foundation.progress import StageReport
from redactory.pipelines.fields import ROLE as ROLE_MARK
from redactory.pipelines.work import Job, OpenIndex, kept, numbers, scalar
from redactory.redaction import MASK, PRIVATE, PUBLIC, Fate, read_part
from redactory.redaction.shards import ROLE

SIDES = {PUBLIC: PUBLIC_SIDE, PRIVATE: PRIVATE_SIDE}
"""The number of each side in the files of near-duplicates."""
UNKNOWN, NOBODY = -1, -1
"""Stand for a dropped point where nobody knows which does (a Bloom filter does not say what it repeats), and
for the earlier run of a text that none has."""
NEAR, PLANNED, ONE_PASS, BY_DIGEST = map(attrgetter, ("near", "planned", "one_pass", "by_digest"))


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
    side, bloom = list(SIDES)[number], job.config.dedup.bloom
    if side not in job.sides(ONE_PASS):
        return StageReport("dedup in one pass")
    files = [job.digests("redacted-digests", partition) for partition in range(partitions)]
    one_pass, dropped = OnePass(bloom.capacity or entries_in(files), bloom.error_rate), 0
    for partition, path in enumerate(files):
        points = read_part(job.part("redacted", partition), columns=["point_id", "side", "failure"])
        entries = np.load(path)
        entries = entries[np.argsort(entries["id"], kind="stable")][_usable(points, [side])]
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
    key: DigestKey, settings: DedupSettings, ids: Sequence[int], fates: Sequence[Fate], owners: list[str] | None
) -> tuple[list[bytes], list[bytes] | None]:
    """The digests of the fates of points, and their ranks where a side is folded.

    They are equal only within a side and, given ``owners`` (:func:`owners_of`), within an owner.  A folded
    side's digest is that of the local key, and the text's own its rank: the text with the smallest stays
    (rule S2); elsewhere ranks are equal.  A quarantined point has no redacted text and must repeat nothing:
    its digest is of its id.
    """
    words, alone = Words(MASK), key.purpose("dedup/alone")
    rules = settings.rules()
    own = {side: key.purpose(f"dedup/{side}") for side in rules}
    folded = {s: key.purpose(purpose_of(settings, s)) for s, rule in rules.items() if rule.folded}
    digests, ranks = [], []
    for number, (point, fate) in enumerate(zip(ids, fates, strict=True)):
        owner = f"{owners[number]}\x00" if owners is not None and owners[number] else ""
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
    return f"dedup/{side}/folded" if settings.rules()[side].folded else f"dedup/{side}"


def users_of(points: pa.Table) -> list[str]:
    """The user of each point; a row without one is its own user."""
    columns = (points["user_id"].to_pylist(), points["doc_id"].to_pylist())
    return [u if u is not None else f"\x00{d}" for u, d in zip(*columns, strict=True)]


def owners_of(job: Job, points: pa.Table) -> list[str] | None:
    """Of each point, what two equal texts must share: their user where that is asked for, and their role.

    A training may read a text with its role.  Were the role not compared, one point exchanged could put the
    text of another role in place of an equal one: two rows.  None where texts alone are compared.
    """
    users = users_of(points) if job.config.dedup.scope == "user" else None
    roles = points[ROLE].to_pylist() if ROLE in job.carried.names else None
    if roles is None:
        return users
    own = users if users is not None else [""] * len(roles)
    return [one if role is None else f"{one}{ROLE_MARK}{role}" for one, role in zip(own, roles, strict=True)]


def _on(points: pa.Table, sides: Sequence[str]) -> NDArray[np.bool_]:
    """Which points are of these sides."""
    return np.array([side in sides for side in points["side"].to_pylist()], bool)


def _usable(points: pa.Table, sides: Sequence[str]) -> NDArray[np.bool_]:
    """Which points are of these sides, and not quarantined."""
    fine: NDArray[np.bool_] = np.array([failure is None for failure in points["failure"].to_pylist()], bool)
    return fine & _on(points, sides)


# What all of it comes to.


def first_points(job: Job, partition: int, redacted: pa.Table) -> Ids:
    """For each point of a partition the point that stands for it; itself, or ``UNKNOWN``.

    A point that repeats an earlier run is given below ``UNKNOWN`` (:func:`earlier_places`).
    """
    first = _distinct_points(job, partition, redacted)
    if near := job.sides(NEAR):
        mine = _on(redacted, near)
        recalled = job.near_ranges("near-earlier") if job.index is not None else []
        places = first_of(recalled, first[mine], NOBODY)
        first[mine] = _or_earlier(places, first_of(job.near_ranges("near-duplicates"), first[mine]))
    if job.index is not None and job.sides(BY_DIGEST):
        ids = numbers(redacted, "point_id")
        first = _or_earlier(first_of([job.digests("earlier", partition)], ids, NOBODY), first)
    return first


def _distinct_points(job: Job, partition: int, redacted: pa.Table, all_sides: bool = False) -> Ids:
    """As ``first_points``, before near-duplicates are dropped; ``all_sides`` go by the plan for signing."""
    ids: Ids = numbers(redacted, "point_id")
    sides = job.sides(lambda rule: rule.planned or (all_sides and not rule.one_pass))
    first = ids
    if (planned := _on(redacted, sides)).any():
        first = np.where(planned, first_of(job.ranges("duplicates"), ids), ids)
    for side in job.sides(ONE_PASS):
        dropped = np.isin(ids, np.load(job.digests(f"passed-{side}", partition)))
        first = np.where(dropped, UNKNOWN, first)
    return first.copy()


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
    wanted = list(SIDES) if settings.report_cross_split else job.sides(NEAR)
    own = _distinct_points(job, number, redacted, all_sides=True) == numbers(redacted, "point_id")
    own &= _usable(redacted, wanted)
    signed = kept(redacted, own)
    texts = signed["text"].to_pylist()
    rows = np.zeros(len(texts), ROW)
    rows["id"] = numbers(signed, "point_id")
    rows["side"] = [SIDES[side] for side in signed["side"].to_pylist()]
    rows["rank"] = _hashes(job.key, "dedup/rank", texts)
    told = [ROLE] if ROLE in job.carried.names else []
    if told or settings.scope == "user":
        points = read_part(job.part("points", number), columns=["user_id", "doc_id", *told])
        rows["group"] = _hashes(job.key, "dedup/user", owners_of(job, kept(points, own)) or [])
    sets = Shingler(job.key, settings.near.shingle, Words(MASK)).sets(texts)
    banding = banding_for(settings.near.threshold, settings.near.permutations)
    write_signed(job.signed(number), rows, sets, banding)
    return StageReport("sign", Counter({"signed": len(texts)}))


def _hashes(key: DigestKey, purpose: str, values: list[str]) -> NDArray[np.uint64]:
    subkey = key.purpose(purpose)
    digests = b"".join(key.text_digest(subkey, value.encode())[:8] for value in values)
    return np.frombuffer(digests, "<u8")


def compare_range(job: Job, partitions: int, number: int) -> StageReport:
    """Compare the texts that share a bucket of one hash range: within sides, and across the split."""
    settings, near = job.config.dedup, [SIDES[side] for side in job.sides(NEAR)]
    pairs, across, counts = compare_buckets(
        _signed(job, partitions), number, settings.near.threshold, near, settings.report_cross_split, job.near_count
    )
    write_entries(job.range("near-pairs", number), pairs)
    write_entries(job.range("near-across", number), across)
    return _report("compare", counts)


def join_all(job: Job, partitions: int, number: int) -> StageReport:
    """Join the near pairs of all ranges to groups."""
    joined, largest = join_groups(job.near_ranges("near-pairs"), job.near_ranges("near-groups"))
    return StageReport("group", Counter({"near/grouped": joined, "near/largest_group": largest}))


def choose_range(job: Job, partitions: int, number: int) -> StageReport:
    """Choose which texts of each group stay; those that repeat an earlier run are out before."""
    pairs = np.load(job.range("near-groups", number))
    if job.index is not None:
        pairs = pairs[first_of(job.near_ranges("near-earlier"), pairs["id"], NOBODY) == NOBODY]
    dropped = choose(_signed(job, partitions), pairs, job.config.dedup.near.threshold)
    write_pairs(job.range("near-duplicates", number), dropped)
    return StageReport("choose", Counter({"near/dropped": len(dropped)}))


def across_rows(job: Job, records: pa.Table) -> list[tuple[Any, ...]]:
    """The released public points of a partition that nearly duplicate a private one, with one such."""
    public = records.filter(pc.equal(records["fate"], scalar(PUBLIC)))
    if not job.config.dedup.report_cross_split or not public.num_rows:
        return []
    released = dict(zip(*(public[name].to_pylist() for name in ("point_id", "released_id")), strict=True))
    found = [np.empty(0, ACROSS)]
    for path in job.near_ranges("near-across"):
        pairs = np.load(path, mmap_mode="r")
        low, high = np.searchsorted(pairs["public"], [min(released), max(released) + 1])
        found.append(np.array(pairs[low:high]))
    best = nearest(np.concatenate(found)).tolist()
    return [(p, released[p], q, similarity) for p, q, similarity in best if p in released]


def _signed(job: Job, partitions: int) -> list[SignedFiles]:
    return [job.signed(partition) for partition in range(partitions)]


def _report(stage: str, counts: Counter[str]) -> StageReport:
    return StageReport(stage, Counter({f"near/{name}": count for name, count in counts.items()}))


# Earlier runs of the index: what repeats one of them, and what later runs shall know of this one.


def recall_part(job: Job, partitions: int, number: int) -> StageReport:
    """Look one partition's texts up among what earlier runs saw, and write down what this one saw."""
    index, rules = opened(job), job.config.dedup.rules()
    points = read_part(job.part("redacted", number), columns=["point_id", "side", "failure"])
    entries: Entries = np.load(job.digests("redacted-digests", number))
    # of each entry, in the order of digests, which row of the points it is: look-ups in order are the fastest
    row = np.argsort(np.argsort(entries["id"], kind="stable"), kind="stable")
    pairs: list[tuple[int, int]] = []
    for side in job.sides(BY_DIGEST):
        asked = entries[_usable(points, [side])[row]]
        write_entries(job.digests(f"seen-{side}", number), distinct([asked]))
        for place, entry in enumerate(index.runs):
            with _there(index):
                seen = _saw(seen_file(entry.folder, side, rules[side]), asked)
            pairs += ((point, place) for point in asked["id"][seen].tolist())
            asked = asked[~seen]
    found = write_pairs(job.digests("earlier", number), pairs)
    return StageReport("recall", Counter({"repeats": found}))


def seen_file(folder: Path, side: str, rule: Rule) -> Path:
    """Where an entry holds what its run saw on a side: digests, or the filter of mode ``bloom``."""
    return folder / (f"{side}.bloom" if rule.one_pass else f"{side}.digests.npy")


def _saw(path: Path, asked: Entries) -> NDArray[np.bool_]:
    """Which of ``asked`` an earlier run saw."""
    if path.suffix == ".npy":
        return are_among(path, asked)
    held = _filter(path, path.stat().st_mtime_ns)
    return np.fromiter((digest in held for digest in as_numbers(asked)), bool, len(asked))


@lru_cache(maxsize=64)
def _filter(path: Path, written: int) -> Bloom:
    # a process asks for one partition's texts after the other; an entry never changes once it counts
    return read_bloom(path)


def recall_near(job: Job, partitions: int, number: int) -> StageReport:
    """Find the texts that nearly duplicate one that an earlier run kept, in one range of the buckets."""
    index, near, files = opened(job), job.config.dedup.near, _signed(job, partitions)
    first: dict[int, int] = {}
    counts: Counter[str] = Counter()
    for side in job.sides(NEAR):
        for place, entry in enumerate(index.runs):
            theirs = [signed_of(entry.folder, side, p) for p in range(entry.body["partitions"])]
            with _there(index):
                found, more = near_earlier(files, theirs, SIDES[side], number, near.threshold, job.near_count)
            counts.update(more)
            for point in found:
                first.setdefault(point, place)
    write_pairs(job.range("near-earlier", number), first.items())
    return _report("recall near", counts)


def remember_texts(job: Job, partitions: int, number: int) -> StageReport:
    """Write the digests of all texts that a side has, kept or not.

    Of all of them: with those alone that were kept, and old entries removed, one point exchanged could
    exchange two texts of a later run (``docs/guarantees.md``, "Earlier runs").
    """
    counts: Counter[str] = Counter()
    bloom, rules = job.config.dedup.bloom, job.config.dedup.rules()
    for side in job.sides(BY_DIGEST):
        files = [job.digests(f"seen-{side}", partition) for partition in range(partitions)]
        ranges = job.hash_ranges * (PIECES if entries_in(files) > WHOLE else 1)
        out = seen_file(opened(job).draft, side, rules[side])
        seen = job.range(f"seen-{side}", 0) if rules[side].one_pass else out
        counts[f"index/{side}"] = merge_digests(files, ranges, seen)
        if rules[side].one_pass:
            held = bloom_filter(bloom.capacity or counts[f"index/{side}"], bloom.error_rate)
            for n in range(ranges):
                held.update(as_numbers(read_range(seen, n, ranges)))
            write_bytes(out, held.save_bytes())
    return StageReport("remember", counts)


def remember_signed(job: Job, partitions: int, number: int) -> StageReport:
    """Copy what near-duplicates are found by, of the texts that one partition keeps."""
    redacted = read_part(job.part("redacted", number))
    ids = numbers(redacted, "point_id")
    stay = ids[first_points(job, number, redacted) == ids]
    counts: Counter[str] = Counter()
    for side in job.sides(NEAR):
        out = signed_of(opened(job).draft, side, number)
        counts[f"index/{side}"] += copy_signed(job.signed(number), stay, SIDES[side], out)
    return StageReport("remember near", counts)


def opened(job: Job) -> OpenIndex:
    """The index of a run that has one."""
    if job.index is None:
        raise RunStateError("this run has no index (dedup.index)")
    return job.index


def signed_of(folder: Path, side: str, partition: int) -> SignedFiles:
    """Where an entry holds the signed texts that one partition of its run kept on a side."""
    return SignedFiles(folder / f"near-{side}", partition)


def gone(index: IndexFolder, what: str) -> RunStateError:
    """The error where an earlier run was forgotten that this run goes by."""
    return RunStateError(
        f"{index.root}: {what} that this run uses was removed meanwhile (dedup.index.keep or redactory "
        "index --keep-runs), and the result would differ without it: start a new run in another folder, and "
        "keep more runs in the index than run at the same time"
    )


@contextmanager
def _there(index: OpenIndex) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise gone(index.folder, "an entry") from None

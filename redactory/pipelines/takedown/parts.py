"""Duplicates of what is taken out: somebody else's point takes the place of hers in the shard.

Of the points that hers stood for, the one is chosen that a curation without her would have kept: by rule S1
the first, by rule S2 the one whose text has the smallest rank, and then the first.  Of near-duplicates the
one of the smallest rank takes her place and stands for the others, though it need not be near to all of
them: a curation without her might keep more of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from redactory.dedup import DedupSettings
from redactory.foundation.keys import DigestKey
from redactory.pipelines.reissue import Staging
from redactory.pipelines.stages.redact import BINS, DUPLICATE
from redactory.pipelines.takedown.person import (
    Rejected,
    Row,
    Told,
    fates_of,
    has_vault,
    others_of,
    spans_of,
    without_rows,
)
from redactory.pipelines.work import PARTITION_BITS
from redactory.redaction import (
    MASK,
    PRIVATE,
    PUBLIC,
    RunFolder,
    merge_intervals,
    part_name,
    parts,
    read_batches,
    read_part,
)
from redactory.redaction.shards import POINTS

SIDES = (PUBLIC, PRIVATE)
OWN_TEXT = frozenset({"folded", "minhash"})
"""Modes in which a duplicate has another text than the point that stands for it."""


@dataclass
class Heirs:
    """``texts``: of each point that moves up, its redacted text; ``replaces``: hers, by it.

    ``originals``: the new ``dup_of`` of the other duplicates.  ``lost``: points of others whose text nobody
    knows any more, because the vault was purged: they go as well.  ``unknown`` says that more may have
    repeated her (mode ``bloom``, vault purged).
    """

    texts: dict[int, str] = field(default_factory=dict)
    replaces: dict[int, int] = field(default_factory=dict)
    originals: dict[int, int] = field(default_factory=dict)
    lost: dict[int, Row] = field(default_factory=dict)
    unknown: bool = False


def heirs_of(run: RunFolder, settings: DedupSettings, key: DigestKey, points: dict[int, Row]) -> Heirs:
    """Who takes the places of ``points``, which are taken out; deduplicated by ``settings`` under ``key``."""
    kept = {point: row["side"] for point, row in points.items() if row["fate"] in SIDES}
    found, texts = Heirs(), shard_texts(run, {points[point]["released_id"]: point for point in kept})
    groups: dict[int, list[Row]] = defaultdict(list)
    for row in others_of(run, set(points), set(kept)):
        groups[row["dup_of"]].append(row)
    vault = has_vault(run)
    for side in SIDES:
        if settings.mode_of(side) == "bloom":
            own = {texts[point]: point for point, of in sorted(kept.items(), reverse=True) if of == side}
            found.unknown |= bool(own) and not vault
            for hers, row in _repeats(run, side, own, points, settings.scope) if vault else ():
                groups[hers].append(row)
    for hers, rows in sorted(groups.items()):
        _inherit(run, settings, key, hers, kept[hers], rows, texts[hers], found)
    return found


def shard_texts(run: RunFolder, released: dict[str, int]) -> dict[int, str]:
    """The text in the shards of each point, by its id; ``released`` has the ids of both kinds."""
    by_folder: dict[Any, set[str]] = defaultdict(set)
    for name, point in released.items():
        for folder in (run.public, run.private):
            by_folder[folder / part_name(point >> PARTITION_BITS)].add(name)
    found = {}
    for path, names in sorted(by_folder.items()):
        table = read_part(path, ["point_id", "text"])
        table = table.filter(pc.is_in(table["point_id"], pa.array(sorted(names), pa.string())))
        found.update({released[row["point_id"]]: row["text"] for row in table.to_pylist()})
    return found


def _inherit(
    run: RunFolder,
    settings: DedupSettings,
    key: DigestKey,
    hers: int,
    side: str,
    rows: list[Row],
    text: str,
    found: Heirs,
) -> None:
    """Choose among the ``rows`` that repeat the point ``hers``, and write down what becomes of each."""
    by_id = {row["point_id"]: row for row in rows}
    if settings.mode_of(side) not in OWN_TEXT:
        heir = min(by_id)
        found.texts[heir] = text
    elif has_vault(run):
        told = fates_of(run, by_id)
        heir = min(by_id, key=lambda point: (_rank(settings, key, side, told[point]), point))
        found.texts[heir] = told[heir].fate.text
    else:
        found.lost.update(by_id)
        return
    found.replaces[heir] = hers
    # a Bloom filter has never said which point a duplicate repeats
    found.originals.update({p: heir for p, row in by_id.items() if p != heir and row["dup_of"] is not None})


def _rank(settings: DedupSettings, key: DigestKey, side: str, told: Told) -> bytes:
    """What decides within a group which text stays (``stages/fate_digests.py``, ``stages/near.py``)."""
    if settings.mode_of(side) == "minhash":
        return key.text_digest(key.purpose("dedup/rank"), told.fate.text.encode())[:8][::-1]
    owner = f"{told.owner}\x00" if settings.scope == "user" else ""
    return key.text_digest(key.purpose(f"dedup/{side}"), (owner + told.fate.text).encode())


def _repeats(
    run: RunFolder, side: str, own: dict[str, int], points: dict[int, Row], scope: str
) -> Iterable[tuple[int, Row]]:
    """(her point, a row that has its text) of the duplicates of which nobody wrote down what they repeat."""
    for path in sorted(run.points.glob("part-*.parquet")):
        rows = [
            row
            for row in read_part(path).to_pylist()
            if (row["side"], row["fate"], row["dup_of"], row["earlier_run"]) == (side, DUPLICATE, None, None)
            and row["point_id"] not in points
        ]
        told = fates_of(run, (row["point_id"] for row in rows))
        for row in rows:
            hers = own.get(told[row["point_id"]].fate.text)
            if hers is not None and (scope == "corpus" or row["user"] == points[hers]["user"]):
                yield hers, row


def remaining_texts(run: RunFolder, gone: set[int], side: str) -> Iterable[tuple[Row, Told]]:
    """(row, what it was) of every point of a side that stays and repeats an earlier run of the index."""
    wanted = pa.array(sorted(gone), pa.int64())
    for batch in read_batches(run.points):
        stays = pc.invert(pc.is_in(batch["point_id"], wanted))
        mine = pc.and_(pc.and_(stays, pc.is_valid(batch["earlier_run"])), pc.equal(batch["side"], side))
        rows = batch.filter(mine).to_pylist()
        told = fates_of(run, (row["point_id"] for row in rows))
        yield from ((row, told[row["point_id"]]) for row in rows)


# The parts of a run without a person's rows, with the points that take her places; and what was counted.


Hit = tuple[str, str, str, float]
"""Policy, detector, label and score of one hit."""


@dataclass
class Tally:
    """What left the run: ``removed`` by kind, ``moved_up`` by side, and what the manifest counts of them."""

    removed: Counter[str] = field(default_factory=Counter)
    moved_up: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    repeats: Counter[str] = field(default_factory=Counter)
    hits: Counter[Hit] = field(default_factory=Counter)
    masks: int = 0
    across: int = 0


@dataclass
class _Part:
    """One partition, while its tables are made anew."""

    staging: Staging
    number: int
    gone: pa.Array
    tally: Tally

    def table(self, folder: Path) -> pa.Table | None:
        """The part as it is now; None where its folder was purged, or never written."""
        path = folder / part_name(self.number)
        return read_part(path) if path.is_file() else None

    def put(self, folder: Path, table: pa.Table) -> None:
        self.staging.put(folder / part_name(self.number), table)


def stage_parts(staging: Staging, gone: dict[int, Row], heirs: Heirs, rejected: Rejected) -> Tally:
    """Stage every part that holds one of the points ``gone``, or one that ``heirs`` changes."""
    tally = Tally()
    _count(gone, heirs, rejected, tally)
    touched = {p >> PARTITION_BITS for p in (*gone, *heirs.texts, *heirs.originals)}
    removed = pa.array(sorted(gone), pa.int64())
    for path in parts(staging.run.points):
        number = int(path.stem.rpartition("-")[2])
        part = _Part(staging, number, removed, tally)
        if number in touched:
            rows = _points(part, heirs)
            _shards(part, rows, gone, heirs)
            _originals(part)
        _quarantine(part, rejected.rows.get(path.name, []), number in touched)
        _across(part)
    return tally


def _count(gone: dict[int, Row], heirs: Heirs, rejected: Rejected, tally: Tally) -> None:
    lost = set(heirs.lost)
    tally.removed["documents"] = len({row["document"] for p, row in gone.items() if p not in lost})
    tally.removed["rejected"] = rejected.reasons.total()
    tally.rejected.update(rejected.reasons)
    for row in gone.values():
        tally.removed.update(("points", row["fate"]))
        tally.reasons.update(row["reasons"])
        if row["fate"] == DUPLICATE:
            tally.removed[f"{row['side']}_duplicate"] += 1
        if row["earlier_run"] is not None:
            tally.repeats[row["side"]] += 1


def _points(part: _Part, heirs: Heirs) -> list[Row]:
    """``audit/points`` without the points, each heir with a fate of its own; the new rows."""
    folder = part.staging.run.points
    rows: list[Row] = _without(read_part(folder / part_name(part.number)), part.gone).to_pylist()
    for row in rows:
        point = row["point_id"]
        if point in heirs.texts:
            row["fate"], row["dup_of"] = row["side"], None
            part.tally.moved_up[row["side"]] += 1
        elif point in heirs.originals:
            row["dup_of"] = heirs.originals[point]
    part.put(folder, pa.Table.from_pylist(rows, POINTS))
    return rows


def _shards(part: _Part, rows: list[Row], gone: dict[int, Row], heirs: Heirs) -> None:
    """Both sides, in the order of the points; an heir has its own released id, user and reasons."""
    run = part.staging.run
    for side, folder in ((PUBLIC, run.public), (PRIVATE, run.private)):
        table = read_part(folder / part_name(part.number))
        kept = {row["point_id"]: row for row in table.to_pylist()}
        new = []
        for row in rows:
            if row["fate"] == side:
                text = heirs.texts.get(row["point_id"])
                fresh = {**row, "point_id": row["released_id"], "text": text}
                new.append(kept[row["released_id"]] if text is None else fresh)
        names = table.schema.names
        made = pa.Table.from_pylist([{name: row[name] for name in names} for row in new], table.schema)
        if not made.equals(table):
            part.put(folder, made)
        if not _has_vault(part) and side == PRIVATE:
            # without the originals, the masks of the points that stood in a shard are all that can be counted
            mine = (kept.get(row["released_id"]) for row in gone.values())
            part.tally.masks += sum(row["text"].count(MASK) for row in mine if row)


def _originals(part: _Part) -> None:
    """``vault/`` and ``audit/spans``, and what the manifest counts of the spans that go."""
    run = part.staging.run
    ledger, vault = read_part(run.spans / part_name(part.number)), part.table(run.vault)
    hers = ledger.filter(pc.is_in(ledger["point_id"], part.gone))
    names = ("policy", "detector", "label", "score")
    part.tally.hits.update(zip(*(hers[name].to_pylist() for name in names), strict=True))
    if vault is not None:
        own, spans = vault.filter(pc.is_in(vault["point_id"], part.gone)), spans_of(hers)
        for point, text in zip(own["point_id"].to_pylist(), own["text"].to_pylist(), strict=True):
            strict = spans.get(point, {}).get("strict", ())
            part.tally.masks += len(merge_intervals(text, [(span.start, span.end) for span in strict]))
        if own.num_rows:
            part.put(run.vault, _without(vault, part.gone))
    if hers.num_rows:
        part.put(run.spans, _without(ledger, part.gone))


def _quarantine(part: _Part, places: list[int], touched: bool) -> None:
    if not places and not touched:
        return
    folder = part.staging.run.quarantine
    table = part.table(folder)
    if table is None:
        return
    kept = without_rows(table, places)
    mine = pc.fill_null(pc.is_in(kept["point_id"], part.gone), False)
    part.tally.quarantined.update(kept.filter(mine)["reason"].to_pylist())
    kept = kept.filter(pc.invert(mine))
    if kept.num_rows < table.num_rows:
        part.put(folder, kept)


def _across(part: _Part) -> None:
    """``audit/across`` without the rows that name a point of hers, on either side."""
    folder = part.staging.run.across
    table = part.table(folder)
    if table is None or not table.num_rows:
        return
    mine = pc.or_(pc.is_in(table["point_id"], part.gone), pc.is_in(table["private_point"], part.gone))
    if pc.any(mine).as_py():
        kept = table.filter(pc.invert(mine))
        part.tally.across += table.num_rows - kept.num_rows
        part.put(folder, kept)


def _has_vault(part: _Part) -> bool:
    return (part.staging.run.vault / part_name(part.number)).is_file()


def _without(table: pa.Table, gone: pa.Array) -> pa.Table:
    return table.filter(pc.invert(pc.is_in(table["point_id"], gone)))


# What the manifest says once a person is out: every count that she was in, less by her share.


OF_POINTS = ("public", "private")


def counts_without(
    counts: Mapping[str, int], removed: Mapping[str, int], moved_up: Mapping[str, int]
) -> dict[str, int]:
    """The manifest's ``counts`` after a change; also what ``verify`` holds a release against."""
    less = Counter(removed)
    less["rows"] = removed.get("documents", 0) + removed.get("rejected", 0)
    for side in OF_POINTS:
        up = moved_up.get(side, 0)
        less[side] -= up
        less["duplicate"] += up
        less[f"{side}_duplicate"] += up
    return {name: count - less[name] for name, count in counts.items()}


def body_without(manifest: Mapping[str, Any], tally: Tally) -> dict[str, Any]:
    """The keys of the manifest that change: counts, reasons, hits, masks, what deduplication found.

    ``inputs``, ``seconds`` and ``stages`` stay: they say what was read, and what the curation did.
    """
    dedup = dict(manifest["dedup"])
    if dedup["across"] is not None:
        dedup["across"] -= tally.across
    if "index" in dedup:
        repeats = dedup["index"]["duplicate_earlier"]
        left = {side: count - tally.repeats[side] for side, count in repeats.items()}
        dedup["index"] = {**dedup["index"], "duplicate_earlier": left}
    return {
        "counts": counts_without(manifest["counts"], tally.removed, tally.moved_up),
        "rejected": _less(manifest["rejected"], tally.rejected),
        "quarantined": _less(manifest["quarantined"], tally.quarantined),
        "reasons": _less(manifest["reasons"], tally.reasons),
        "hits": _hits(manifest["hits"], tally),
        "masks": max(0, manifest["masks"] - tally.masks),
        "dedup": dedup,
    }


def _less(counts: Mapping[str, int], gone: Counter[str]) -> dict[str, int]:
    return {name: count - gone[name] for name, count in counts.items() if count > gone[name]}


def _hits(hits: list[dict[str, Any]], tally: Tally) -> list[dict[str, Any]]:
    gone: Counter[tuple[str, str, str, int]] = Counter()
    for (policy, detector, label, score), count in tally.hits.items():
        gone[policy, detector, label, min(int(score * BINS), BINS - 1)] += count
    left = []
    for hit in hits:
        bins = [
            count - gone[hit["policy"], hit["detector"], hit["label"], place]
            for place, count in enumerate(hit["histogram"])
        ]
        if sum(bins):
            left.append({**hit, "count": sum(bins), "histogram": bins})
    return left

"""The points of a person in a run, who takes their places, and the parts of the run without them.

Whose a point is follows from keyed pseudonyms alone.  Where somebody else's point repeats one that goes, it
takes its place in the shard: the one that a curation without the person would have kept, by rule S1 the
first, by rule S2 the one whose text has the smallest rank, and then the first.  Of near-duplicates the one of
the smallest rank stands for the others, though it need not be near to all of them: a curation without the
person might keep more of them.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from redactory.dedup import DedupSettings
from redactory.detectors import Detection, Span
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.keys import KEY_VARIABLE, DigestKey, forms_of
from redactory.pipelines.index import index_of
from redactory.pipelines.readers import InputSettings
from redactory.pipelines.readers.documents import DUPLICATE_ID
from redactory.pipelines.reissue import Staging, counts_without
from redactory.pipelines.stages.dedup import fate_digests, users_of
from redactory.pipelines.stages.redact import BINS, DUPLICATE
from redactory.pipelines.work import PARTITION_BITS
from redactory.redaction import (
    MASK,
    PRIVATE,
    PUBLIC,
    Fate,
    RunFolder,
    merge_intervals,
    part_name,
    parts,
    read_batches,
    read_part,
    route,
)
from redactory.redaction.shards import POINTS, require_there

SIDES = (PUBLIC, PRIVATE)
Row = dict[str, Any]


@dataclass(frozen=True)
class Person:
    """The ids that were asked for, as they stand in the input."""

    doc_ids: frozenset[str]
    user_ids: frozenset[str]

    def pseudonyms(self, key: DigestKey) -> list[dict[str, str]]:
        """What the release log says of them: ``kind`` and ``pseudonym`` each."""
        # two spellings of a user's name are one person
        kinds = (("document", self.doc_ids), ("user", {forms_of(user)[0] for user in self.user_ids}))
        return [{"kind": k, "pseudonym": key.pseudonym(k, i)} for k, ids in kinds for i in sorted(ids)]

    def among(self, ids: Set[str]) -> Person:
        """Those of the ids that are among ``ids``."""
        return Person(self.doc_ids & ids, self.user_ids & ids)


def require_key(manifest: dict[str, Any], key: DigestKey) -> None:
    """``ConfigurationError`` where ``key`` is not the run's: nobody could be found by it."""
    own = manifest["key"]
    if own["fingerprint"] == key.fingerprint:
        return
    if own["fresh"]:
        raise ConfigurationError(
            "the run drew a key of its own, which is gone: nobody can tell whose its points are. Remove "
            f"the run, or curate its input anew, without the person and with {KEY_VARIABLE} set"
        )
    # without one, this process drew its own
    set_now = "no key is set" if key.fresh else "another key than the run's is set"
    raise ConfigurationError(
        f"{set_now}: set {KEY_VARIABLE} (or {KEY_VARIABLE}_FILE) to the one whose "
        f"fingerprint is {own['fingerprint']}"
    )


def points_of(run: RunFolder, person: Person, key: DigestKey) -> tuple[dict[int, Row], int]:
    """The rows of ``audit/points`` of these documents and of these users, by point id.

    And how many documents without a user have an id that was asked for as a user's: nobody knows whether
    that is the same person, and they are left.
    """

    def mine(column: str, kind: str, ids: Iterable[str]) -> pa.Array:
        return pc.is_in(batch[column], pa.array([key.pseudonym(kind, i) for i in sorted(ids)], pa.string()))

    found: dict[int, Row] = {}
    lone: set[str] = set()
    users = {form for user in person.user_ids for form in forms_of(user)}
    for batch in read_batches(run.points):
        own = pc.or_(mine("document", "document", person.doc_ids), mine("user", "user", users))
        found.update((row["point_id"], row) for row in batch.filter(own).to_pylist())
        others = batch.filter(mine("user", "lone-user", person.user_ids - person.doc_ids))
        lone.update(others["document"].to_pylist())
    return found, len(lone - {row["document"] for row in found.values()})


# The redacted text of a point that is in no shard: its original and its spans, masked again.


class Masked(NamedTuple):
    """A point's fate, and whose it is within the run (as deduplication by user has it)."""

    fate: Fate
    owner: str


def has_vault(run: RunFolder) -> bool:
    """Whether the originals are still there."""
    return any(run.vault.glob("part-*.parquet"))


def fates_of(run: RunFolder, points: Iterable[int]) -> dict[int, Masked]:
    """F of each of ``points``, as the curation had it: mask and route are functions of text and spans.

    Points that were quarantined have no entry.  ``RunStateError`` where the vault was purged.
    """
    by_partition: dict[int, list[int]] = defaultdict(list)
    for point in points:
        by_partition[point >> PARTITION_BITS].append(point)
    if by_partition:
        require_there(run.vault)
    found: dict[int, Masked] = {}
    for partition, ids in sorted(by_partition.items()):
        wanted, name = pa.array(ids, pa.int64()), part_name(partition)
        vault, ledger = (_among(read_part(folder / name), wanted) for folder in (run.vault, run.spans))
        spans = _spans(ledger)
        rows = zip(vault["point_id"].to_pylist(), vault["text"].to_pylist(), users_of(vault), strict=True)
        for point, text, owner in rows:
            own = spans.get(point, {})
            detection = Detection(tuple(own.get("strict", ())), tuple(own.get("conservative", ())))
            found[point] = Masked(route(text, detection), owner)
    return found


def _spans(ledger: pa.Table) -> dict[int, dict[str, list[Span]]]:
    """The spans of each point by policy."""
    found: dict[int, dict[str, list[Span]]] = defaultdict(lambda: defaultdict(list))
    names = ("point_id", "policy", "start", "end", "label", "score", "detector")
    for point, policy, *span in zip(*(ledger[name].to_pylist() for name in names), strict=True):
        found[point][policy].append(Span(*span))
    return found


def _among(table: pa.Table, points: pa.Array) -> pa.Table:
    return table.filter(pc.is_in(table["point_id"], points))


def _without(table: pa.Table, points: pa.Array) -> pa.Table:
    return table.filter(pc.invert(pc.is_in(table["point_id"], points)))


# Rejected rows in the quarantine: the person's by the ids that stand in them, where they can be read at all.


@dataclass
class Rejected:
    """``rows``: the places of the person's rows in each part, by its name.

    ``reasons``: why they were rejected; ``ids``: those that stand in them.  ``unsearched`` counts the rows
    that say nothing of whom they are: broken ones, and texts whose id is another document's.
    """

    rows: dict[str, list[int]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    ids: set[str] = field(default_factory=set)
    unsearched: int = 0


def rejected_rows(run: RunFolder, person: Person, columns: InputSettings) -> Rejected:
    """Search the rejected rows of a run for the ids of ``person``."""
    found = Rejected()
    for path in parts(run.quarantine):
        for place, row in enumerate(read_part(path).to_pylist()):
            own = _ids_in(row, person, columns) if row["kind"] == "row" else frozenset()
            found.unsearched += own is None
            if own:
                found.ids |= own
                found.rows.setdefault(path.name, []).append(place)
                found.reasons[row["reason"]] += 1
    return found


def _ids_in(row: Row, person: Person, columns: InputSettings) -> frozenset[str] | None:
    """Which of the ids a rejected row names; None where nothing in it can say so.

    What cannot be read as a row is the person's where one of the ids stands in it as a word.
    """
    text = (row["content"] or b"").decode("utf-8", "replace")
    named = None if row["reason"] == DUPLICATE_ID else _named(text, row["source"] or "", columns)
    if named is not None:
        documents, users = named
        return documents & person.doc_ids | {u for u in person.user_ids if users & set(forms_of(u))}
    spelled = {form: user for user in person.user_ids for form in forms_of(user)}
    words = "|".join(map(re.escape, sorted({*person.doc_ids, *spelled})))
    said = re.findall(rf"(?<![\w-])(?:{words})(?![\w-])", text)
    return frozenset(word if word in person.doc_ids else spelled[word] for word in said) or None


def _named(text: str, source: str, columns: InputSettings) -> tuple[frozenset[str], frozenset[str]] | None:
    """The ids of document and user that a row can name; None where it cannot be read as a row."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return frozenset([str(value.get(columns.id))]), frozenset([str(value.get(columns.user))])
    name = source.rsplit("/", 1)[-1].lower()
    # a compressed table is a table as well
    delimiter = next((sign for ending, sign in ((".csv", ","), (".tsv", "\t")) if ending in name), None)
    if delimiter is None:
        return None
    try:
        cells = frozenset(
            cell for line in csv.reader(io.StringIO(text), delimiter=delimiter) for cell in line
        )
    except csv.Error:
        return None
    return cells, cells


# Who takes the places of the points that go.


@dataclass
class Heirs:
    """``texts``: of each point that moves up, its redacted text; ``replaces``: the point that goes, by it.

    ``originals``: the new ``dup_of`` of the other duplicates.  ``lost``: points of others whose text nobody
    knows any more, because the vault was purged: they go as well.  ``unknown`` says that more may have
    repeated the person (mode ``bloom``, vault purged).
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
    for batch in read_batches(run.points):
        repeats = pc.is_in(batch["dup_of"], pa.array(sorted(kept), pa.int64()))
        for row in _without(batch.filter(repeats), pa.array(sorted(points), pa.int64())).to_pylist():
            groups[row["dup_of"]].append(row)
    for side in SIDES:
        own = {texts[point]: point for point, of in sorted(kept.items(), reverse=True) if of == side}
        if settings.mode_of(side) == "bloom" and has_vault(run):
            for original, row in _unnamed_repeats(run, side, own, points, settings.scope):
                groups[original].append(row)
        found.unknown |= settings.mode_of(side) == "bloom" and bool(own) and not has_vault(run)
    for original, rows in sorted(groups.items()):
        side, by_id = kept[original], {row["point_id"]: row for row in rows}
        # only in these modes has a duplicate another text than the point that stands for it
        if settings.mode_of(side) not in ("folded", "minhash"):
            heir = min(by_id)
            found.texts[heir] = texts[original]
        elif has_vault(run):
            own_texts = fates_of(run, by_id)
            heir = min(by_id, key=lambda point: (_rank(settings, key, side, own_texts[point]), point))
            found.texts[heir] = own_texts[heir].fate.text
        else:
            found.lost.update(by_id)
            continue
        found.replaces[heir] = original
        # a Bloom filter has never said which point a duplicate repeats
        left = (p for p, row in by_id.items() if p != heir and row["dup_of"] is not None)
        found.originals.update(dict.fromkeys(left, heir))
    return found


def shard_texts(run: RunFolder, released: dict[str, int]) -> dict[int, str]:
    """The text in the shards of each point, by its id; ``released`` has the ids of both kinds."""
    by_folder: dict[Path, set[str]] = defaultdict(set)
    for name, point in released.items():
        for folder in (run.public, run.private):
            by_folder[folder / part_name(point >> PARTITION_BITS)].add(name)
    found = {}
    for path, names in sorted(by_folder.items()):
        table = _among(read_part(path, ["point_id", "text"]), pa.array(sorted(names), pa.string()))
        found.update({released[row["point_id"]]: row["text"] for row in table.to_pylist()})
    return found


def _rank(settings: DedupSettings, key: DigestKey, side: str, own: Masked) -> bytes:
    """What decides within a group which text stays (``stages/dedup.py``)."""
    if settings.mode_of(side) == "minhash":
        return key.text_digest(key.purpose("dedup/rank"), own.fate.text.encode())[:8][::-1]
    owner = f"{own.owner}\x00" if settings.scope == "user" else ""
    return key.text_digest(key.purpose(f"dedup/{side}"), (owner + own.fate.text).encode())


def _unnamed_repeats(
    run: RunFolder, side: str, own: dict[str, int], points: dict[int, Row], scope: str
) -> Iterator[tuple[int, Row]]:
    """(a point that goes, a row of its text) of the duplicates whose originals nobody wrote down."""
    for path in sorted(run.points.glob("part-*.parquet")):
        rows = {
            row["point_id"]: row
            for row in read_part(path).to_pylist()
            if (row["side"], row["fate"], row["dup_of"], row["earlier_run"]) == (side, DUPLICATE, None, None)
            and row["point_id"] not in points
        }
        for point, masked in fates_of(run, rows).items():
            original = own.get(masked.fate.text)
            if original is None:
                continue
            if scope == "corpus" or rows[point]["user"] == points[original]["user"]:
                yield original, rows[point]


# What the index across runs shall forget with a person: texts that nobody else in the run has.


def forgotten(
    run: RunFolder,
    manifest: Mapping[str, Any],
    settings: DedupSettings,
    key: DigestKey,
    points: dict[int, Row],
    heirs: Heirs,
) -> dict[str, Any] | None:
    """``{"digests": {side: hex}, "points": {side: ids}, "whole"}``; None for a run without an index.

    ``whole`` is False where more was to be forgotten than could be: of mode ``bloom``, whose filter forgets
    nothing, or because the vault that says it was purged.
    """
    if index_of(manifest) is None:
        return None
    gone: dict[str, Any] = {"digests": {}, "points": {}, "whole": True}
    for side in SIDES:
        mode, own = settings.mode_of(side), {p: row for p, row in points.items() if row["side"] == side}
        gone["digests"][side], gone["points"][side] = [], []
        if mode == "minhash":
            gone["points"][side] = sorted(point for point, row in own.items() if row["fate"] == side)
        elif mode in ("exact", "folded"):
            digests, whole = _digests(run, settings, key, side, own, heirs, points)
            gone["digests"][side] = sorted(digest.hex() for digest in digests)
            gone["whole"] &= whole
        elif mode == "bloom":
            gone["whole"] &= not own
    return gone


def _digests(
    run: RunFolder,
    settings: DedupSettings,
    key: DigestKey,
    side: str,
    own: dict[int, Row],
    heirs: Heirs,
    gone: Iterable[int],
) -> tuple[set[bytes], bool]:
    """The digests of one side that only the person had, and whether these are all."""

    def digests(masked: list[Masked]) -> set[bytes]:
        users = [one.owner for one in masked] if settings.scope == "user" else None
        return set(fate_digests(key, settings, range(len(masked)), [one.fate for one in masked], users)[0])

    inherited = set(heirs.replaces.values())
    lone = {p: row for p, row in own.items() if row["fate"] == side and p not in inherited}
    repeats = [p for p, row in own.items() if row["earlier_run"] is not None]
    if not has_vault(run):
        if settings.scope == "user":
            return set(), not (lone or repeats)
        texts = shard_texts(run, {row["released_id"]: point for point, row in lone.items()})
        return digests([Masked(Fate(side, text, ()), "") for text in texts.values()]), not repeats
    stays: list[Masked] = []
    # what repeats an earlier run stands in this run's entry as well, and others may repeat the same
    for batch in read_batches(run.points) if repeats else ():
        earlier = pc.and_(pc.is_valid(batch["earlier_run"]), pc.equal(batch["side"], side))
        rows = _without(batch.filter(earlier), pa.array(sorted(gone), pa.int64()))
        stays += fates_of(run, rows["point_id"].to_pylist()).values()
    return digests([*fates_of(run, [*lone, *repeats]).values()]) - digests(stays), True


# The parts of a run without a person's rows, with the points that take their places; and what was counted.


@dataclass
class Tally:
    """What left the run: ``removed`` by kind, ``moved_up`` by side, and what the manifest counts of them."""

    removed: Counter[str] = field(default_factory=Counter)
    moved_up: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    repeats: Counter[str] = field(default_factory=Counter)
    hits: Counter[tuple[str, str, str, int]] = field(default_factory=Counter)
    """By policy, detector, label and bin of the score."""
    masks: int = 0
    across: int = 0


def stage_parts(staging: Staging, gone: dict[int, Row], heirs: Heirs, rejected: Rejected) -> Tally:
    """Stage every part that holds one of the points ``gone``, or one that ``heirs`` changes."""
    run, tally, points = staging.run, Tally(rejected=rejected.reasons), pa.array(sorted(gone), pa.int64())
    tally.removed["documents"] = len({row["document"] for p, row in gone.items() if p not in heirs.lost})
    tally.removed["rejected"] = rejected.reasons.total()
    for row in gone.values():
        tally.removed.update(("points", row["fate"]))
        tally.reasons.update(row["reasons"])
        if row["fate"] == DUPLICATE:
            tally.removed[f"{row['side']}_duplicate"] += 1
        tally.repeats[row["side"]] += row["earlier_run"] is not None
    touched = {p >> PARTITION_BITS for p in (*gone, *heirs.texts, *heirs.originals)}
    for path in parts(run.points):
        name = path.name
        mine = int(path.stem.rpartition("-")[2]) in touched
        if mine:
            rows = _points(staging, name, points, heirs, tally)
            _shards(staging, name, rows, gone, heirs, tally)
            _originals(staging, name, points, tally)
        if mine or name in rejected.rows:
            _quarantine(staging, name, points, rejected.rows.get(name, []), tally)
        if (run.across / name).is_file():
            table = read_part(run.across / name)
            there = (pc.is_in(table[column], points) for column in ("point_id", "private_point"))
            kept = table.filter(pc.invert(pc.or_(*there)))
            if kept.num_rows < table.num_rows:
                tally.across += table.num_rows - kept.num_rows
                staging.put(run.across / name, kept)
    return tally


def _points(staging: Staging, name: str, gone: pa.Array, heirs: Heirs, tally: Tally) -> list[Row]:
    """``audit/points`` without the points, each heir with a fate of its own; the new rows."""
    folder = staging.run.points
    rows: list[Row] = _without(read_part(folder / name), gone).to_pylist()
    for row in rows:
        point = row["point_id"]
        if point in heirs.texts:
            row["fate"], row["dup_of"] = row["side"], None
            tally.moved_up[row["side"]] += 1
        elif point in heirs.originals:
            row["dup_of"] = heirs.originals[point]
    staging.put(folder / name, pa.Table.from_pylist(rows, POINTS))
    return rows


def _shards(
    staging: Staging, name: str, rows: list[Row], gone: dict[int, Row], heirs: Heirs, tally: Tally
) -> None:
    """Both sides, in the order of the points; an heir has its own released id, user and reasons."""
    run = staging.run
    for side, folder in ((PUBLIC, run.public), (PRIVATE, run.private)):
        table = read_part(folder / name)
        kept = {row["point_id"]: row for row in table.to_pylist()}
        new = []
        for row in (row for row in rows if row["fate"] == side):
            text = heirs.texts.get(row["point_id"])
            fresh = {**row, "point_id": row["released_id"], "text": text}
            new.append(kept[row["released_id"]] if text is None else fresh)
        made = pa.Table.from_pylist([{n: row[n] for n in table.schema.names} for row in new], table.schema)
        if not made.equals(table):
            staging.put(folder / name, made)
        if side == PRIVATE and not (run.vault / name).is_file():
            # without the originals, the masks of the points that stood in a shard are all that can be counted
            mine = (kept.get(row["released_id"]) for row in gone.values())
            tally.masks += sum(row["text"].count(MASK) for row in mine if row)


def _originals(staging: Staging, name: str, gone: pa.Array, tally: Tally) -> None:
    """``vault/`` and ``audit/spans``, and what the manifest counts of the spans that go."""
    run = staging.run
    ledger = read_part(run.spans / name)
    leaving = _among(ledger, gone)
    columns = (leaving[column].to_pylist() for column in ("policy", "detector", "label", "score"))
    for policy, detector, label, score in zip(*columns, strict=True):
        tally.hits[policy, detector, label, min(int(score * BINS), BINS - 1)] += 1
    if leaving.num_rows:
        staging.put(run.spans / name, _without(ledger, gone))
    if not (run.vault / name).is_file():
        return
    vault = read_part(run.vault / name)
    own, spans = _among(vault, gone), _spans(leaving)
    for point, text in zip(own["point_id"].to_pylist(), own["text"].to_pylist(), strict=True):
        strict = spans.get(point, {}).get("strict", ())
        tally.masks += len(merge_intervals(text, [(span.start, span.end) for span in strict]))
    if own.num_rows:
        staging.put(run.vault / name, _without(vault, gone))


def _quarantine(staging: Staging, name: str, gone: pa.Array, places: list[int], tally: Tally) -> None:
    path = staging.run.quarantine / name
    if not path.is_file():
        return
    table = read_part(path)
    kept = table.take(pa.array(sorted(set(range(table.num_rows)) - set(places)), pa.int64()))
    mine = pc.fill_null(pc.is_in(kept["point_id"], gone), False)
    tally.quarantined.update(kept.filter(mine)["reason"].to_pylist())
    kept = kept.filter(pc.invert(mine))
    if kept.num_rows < table.num_rows:
        staging.put(path, kept)


def body_without(manifest: Mapping[str, Any], tally: Tally) -> dict[str, Any]:
    """The keys of the manifest that change: counts, reasons, hits, masks, what deduplication found.

    ``inputs``, ``seconds`` and ``stages`` stay: they say what was read, and what the curation did.
    """

    def less(counts: Mapping[str, int], gone: Counter[str]) -> dict[str, int]:
        return {name: count - gone[name] for name, count in counts.items() if count > gone[name]}

    dedup, hits = dict(manifest["dedup"]), []
    if dedup["across"] is not None:
        dedup["across"] -= tally.across
    if "index" in dedup:
        repeats = dedup["index"]["duplicate_earlier"]
        left = {side: count - tally.repeats[side] for side, count in repeats.items()}
        dedup["index"] = {**dedup["index"], "duplicate_earlier": left}
    for hit in manifest["hits"]:
        of = hit["policy"], hit["detector"], hit["label"]
        bins = [count - tally.hits[*of, place] for place, count in enumerate(hit["histogram"])]
        hits += [{**hit, "count": sum(bins), "histogram": bins}] if sum(bins) else []
    return {
        "counts": counts_without(manifest["counts"], tally.removed, tally.moved_up),
        "rejected": less(manifest["rejected"], tally.rejected),
        "quarantined": less(manifest["quarantined"], tally.quarantined),
        "reasons": less(manifest["reasons"], tally.reasons),
        "hits": hits,
        "masks": max(0, manifest["masks"] - tally.masks),
        "dedup": dedup,
    }

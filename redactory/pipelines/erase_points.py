"""Whose a point is, and the parts of a run without them.

Whose a point is follows from keyed pseudonyms alone.  What is left of the run is written by the stages of a
curation, from redaction on, over what is left of its originals and of what the engines found in them: so it
is what a curation without the person would have left, in every mode of deduplication.  Where the originals
were purged, parts are filtered instead.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, dropwhile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from redactory.dedup.index import Entry, IndexFolder
from redactory.dedup.plan import write_pairs
from redactory.dedup.settings import DedupSettings
from redactory.foundation.errors import CheckFailed, ConfigurationError
from redactory.foundation.files import PRIVATE_FILE, PUBLIC_FILE
from redactory.foundation.keys import KEY_VARIABLE, DigestKey, forms_of
from redactory.foundation.records import read_records
from redactory.pipelines.config import Config
from redactory.pipelines.curate import stages_of
from redactory.pipelines.index import index_of
from redactory.pipelines.journal import INDEX
from redactory.pipelines.readers import InputSettings
from redactory.pipelines.readers.documents import DUPLICATE_ID
from redactory.pipelines.readers.tables import SEPARATORS
from redactory.pipelines.reissue import counts_without
from redactory.pipelines.release import counted
from redactory.pipelines.stages.dedup import SIDES
from redactory.pipelines.stages.points import BINS, DUPLICATE, QUARANTINED
from redactory.pipelines.work import DETECTED, PARTITION_BITS, REJECTED, Job, OpenIndex, ranges_for
from redactory.redaction import MASK, RunFolder, part_name, part_schema, parts, read_batches, read_part, write_part
from redactory.redaction import shards as tables
from redactory.redaction.shards import DOCUMENT, FOUND, POINTS

Row = dict[str, Any]


@dataclass(frozen=True)
class Person:
    """The ids that were asked for, as they stand in the input; two spellings of a user are one."""

    doc_ids: frozenset[str]
    user_ids: frozenset[str]

    def pseudonyms(self, key: DigestKey) -> list[dict[str, str]]:
        """What the release log says of them: ``kind`` and ``pseudonym`` each."""
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
            "the run used a temporary key, which is gone: its examples cannot be matched to a person. "
            f"Remove the run, or curate its input again, without the person and with {KEY_VARIABLE} set"
        )
    set_now = "no key is set" if key.fresh else "the key is not the run's"
    raise ConfigurationError(
        f"{set_now}: set {KEY_VARIABLE} (or {KEY_VARIABLE}_FILE) to the key with the fingerprint {own['fingerprint']}"
    )


def points_of(run: RunFolder, person: Person, key: DigestKey) -> tuple[dict[int, Row], int]:
    """The person's rows of ``audit/points``, by point id; and how many documents may be theirs as well.

    Those have no user, and an id that was asked for as a user's: they are left.
    """
    asked = {
        "document": person.doc_ids,
        "user": {forms_of(user)[0] for user in person.user_ids},
        "lone-user": person.user_ids - person.doc_ids,
    }
    names = {kind: pa.array([key.pseudonym(kind, i) for i in sorted(ids)], pa.string()) for kind, ids in asked.items()}
    found: dict[int, Row] = {}
    lone: set[str] = set()
    for batch in read_batches(run.points):
        own = pc.or_(pc.is_in(batch["document"], names["document"]), pc.is_in(batch["user"], names["user"]))
        found.update((row["point_id"], row) for row in batch.filter(own).to_pylist())
        lone.update(batch.filter(pc.is_in(batch["user"], names["lone-user"]))["document"].to_pylist())
    return found, len(lone - {row["document"] for row in found.values()})


# Rejected rows in the quarantine: the person's by the ids that stand in them, where they can be read at all.


@dataclass
class Rejected:
    """The person's rejected rows: ``rows`` are their places in each part, by its name.

    ``reasons``: why they were rejected; ``ids``: those that stand in them.  ``unsearched`` counts the rows
    that say nothing of whom they are: broken ones, and texts whose id is another document's.
    """

    rows: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    reasons: Counter[str] = field(default_factory=Counter)
    ids: set[str] = field(default_factory=set)
    unsearched: int = 0


def rejected_rows(run: RunFolder, person: Person, columns: InputSettings) -> Rejected:
    """Search the rejected rows of a run for the ids of ``person``."""
    found = Rejected()
    spelled = {i: i for i in person.doc_ids} | {f: user for user in person.user_ids for f in forms_of(user)}
    words = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, sorted(spelled)))})(?![\w-])")
    for path in parts(run.quarantine):
        for place, row in enumerate(read_part(path).to_pylist()):
            if row["kind"] != "row":
                continue
            text = (row["content"] or b"").decode("utf-8", "replace")
            named = None if row["reason"] == DUPLICATE_ID else _ids_in(text, row["source"] or "", columns)
            if named is None:
                # what cannot be read as a row is the person's where one of the ids stands in it as a word
                own = {spelled[word] for word in words.findall(text)}
                found.unsearched += not own
            else:
                documents, users = named
                own = documents & person.doc_ids
                own |= {user for user in person.user_ids if users & set(forms_of(user))}
            if own:
                found.ids |= own
                found.rows[path.name].append(place)
                found.reasons[row["reason"]] += 1
    return found


def _ids_in(text: str, source: str, columns: InputSettings) -> tuple[set[str], set[str]] | None:
    """The ids of document and user that a row can name; None where it cannot be read as a row."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return {str(value.get(columns.id))}, {str(value.get(columns.user))}
    name = source.rsplit("/", 1)[-1].lower()
    # a compressed table is a table as well
    if ".csv" not in name and ".tsv" not in name:
        return None
    try:
        # the header that says what separates cells is not at hand
        rows = (csv.reader(io.StringIO(text), delimiter=sign) for sign in SEPARATORS)
        cells = {cell for line in chain.from_iterable(rows) for cell in line}
    except csv.Error:
        return None
    return cells, cells


# A run without the person: its stages again, from redaction on, below ``state/reissue/files``.


@dataclass(frozen=True)
class Rest:
    """What is left: ``counts`` as stages report them, and ``lost`` rows of others that had to go as well.

    ``index`` has counts and capacities of the run's new entry in the index across runs, where there is one.
    """

    counts: Counter[str]
    lost: dict[int, Row]
    index: dict[str, Any] | None = None


def curated_without(
    run: RunFolder, manifest: Mapping[str, Any], key: DigestKey, gone: Set[int], rejected: Rejected
) -> Rest:
    """Write every part of ``run`` without the points ``gone`` and the rejected rows."""
    config, anew = Config.read_back(manifest["configuration"]), RunFolder(run.reissue.files)
    size, partitions = sum(entry["bytes"] for entry in manifest["inputs"]), len(parts(run.points))
    index = _own_index(run, manifest)
    audit = next((part_schema(path) for path in parts(run.points)), POINTS)
    carried = pa.schema([field for field in audit if field.name not in POINTS.names])
    job = Job(anew, config, key, index=index, hash_ranges=ranges_for(size), carried=carried)
    ids, earlier = pa.array(sorted(gone), pa.int64()), list[tuple[int, int]]()
    for number in range(partitions):
        rows = _without(read_part(run.points / part_name(number)), ids)
        _inputs_of_redaction(job, run, number, rows, ids, rejected)
        if job.index is not None:
            places = {entry.name: place for place, entry in enumerate(job.index.runs)}
            repeats = rows.filter(pc.is_valid(rows["earlier_run"]))
            names = repeats["earlier_run"].to_pylist()
            earlier += zip(repeats["point_id"].to_pylist(), map(places.__getitem__, names), strict=True)
    for number in range(job.hash_ranges):
        write_part(job.spread(number), DETECTED.empty_table())
    # what repeated an earlier run still does, though that run may be gone: it is not asked again
    asking_nobody = (
        job if job.index is None else dataclasses.replace(job, index=dataclasses.replace(job.index, runs=()))
    )
    counts: Counter[str] = Counter()
    both = zip(stages_of(job, partitions), stages_of(asking_nobody, partitions), strict=True)
    for stage, asking in dropwhile(lambda pair: pair[0].name != "redact", both):
        recall = stage.name.startswith("recall")
        for number in range(stage.numbers):
            counts.update((asking if recall else stage).task(number).counts)
        if recall:
            by_part: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for point, place in earlier:
                by_part[point >> PARTITION_BITS].append((point, place))
            for number in range(partitions):
                write_pairs(job.digests("earlier", number), by_part[number])
            write_pairs(job.range("near-earlier", 0), earlier)
    for number in range(partitions):
        # of a point that was quarantined nothing but these says whose it is
        path = anew.points / part_name(number)
        rows, old = read_part(path), _without(read_part(run.points / path.name), ids)
        for column in ("document", "user"):
            rows = rows.set_column(rows.schema.get_field_index(column), column, old[column])
        write_part(path, rows)
    shutil.rmtree(anew.state)
    if not parts(run.quarantine):
        shutil.rmtree(anew.quarantine)
    if job.index is None or index_of(manifest) is None:
        return Rest(counts, {})
    sides = {side: counts[f"index/{side}"] for side in SIDES}
    return Rest(counts, {}, {"counts": sides})


def _own_index(run: RunFolder, manifest: Mapping[str, Any]) -> OpenIndex | None:
    """The index as the run went by it, whose own entry is written anew in ``state/reissue/index``."""
    facts = manifest["dedup"].get("index")
    if facts is None:
        return None
    pinned = next(record.body for record in read_records(run.journal) if record.type == INDEX)
    runs = tuple(Entry(Path(name), {}) for name in facts["runs"])
    return OpenIndex(IndexFolder(run.reissue.index), facts["id"], pinned["token"], runs)


def _inputs_of_redaction(
    job: Job, run: RunFolder, number: int, rows: pa.Table, gone: pa.Array, rejected: Rejected
) -> None:
    """What redaction goes by in one partition: its points, what was found in them, what was rejected."""
    name = part_name(number)
    quarantine = run.quarantine / name
    held = read_part(quarantine) if quarantine.is_file() else tables.QUARANTINE.empty_table()
    theirs = pa.array([place in rejected.rows[name] for place in range(held.num_rows)], pa.bool_())
    of_rows = held.filter(pc.and_(pc.equal(held["kind"], "row"), pc.invert(theirs)))
    write_part(job.part("rejected", number), of_rows.select(REJECTED.names))
    write_part(job.part("repeated", number), REJECTED.empty_table())
    known = {row["point_id"]: row for row in held.to_pylist() if row["kind"] == "point"}
    failed = rows.filter(pc.equal(rows["fate"], QUARANTINED))["point_id"].to_pylist()
    purged = {"source": None, "content": b"", "reason": "purged"}
    vault = _without(read_part(run.vault / name), gone)
    # what is not known of a point's document is known of another point of it
    owners = dict(zip(rows["point_id"].to_pylist(), rows["document"].to_pylist(), strict=True))
    of_vault = zip(vault["point_id"].to_pylist(), vault["doc_id"].to_pylist(), strict=True)
    doc_ids = {owners[p]: doc_id for p, doc_id in of_vault}
    points = [
        {"point_id": p, "doc_id": one["source"] or doc_ids.get(owners[p], ""), "text": one["content"].decode()}
        for p, one in ((p, known.get(p, purged)) for p in failed)
    ]
    table = pa.concat_tables([vault, pa.Table.from_pylist(points, vault.schema)]).sort_by("point_id")
    for column in job.carried.names:
        table = table.append_column(job.carried.field(column), rows[column])
    write_part(job.part("points", number), table)
    spans = _without(read_part(run.spans / name), gone).select(FOUND.names)
    reasons = pa.array([known.get(p, purged)["reason"] for p in failed], pa.string())
    failures = pa.table({"point_id": pa.array(failed, pa.int64()), "failure": reasons})
    failures = failures.append_column("range", pa.nulls(len(failed), pa.int16()))
    found = pa.concat_tables([spans, failures], promote_options="default").select(DETECTED.names)
    write_part(job.part("found", number), found)
    # what was known in a document is among what was found: documents go as a whole
    write_part(job.part("known", number), DETECTED.empty_table())


def _without(table: pa.Table, points: pa.Array, column: str = "point_id") -> pa.Table:
    return table.filter(pc.invert(pc.fill_null(pc.is_in(table[column], points), False)))


# Without the originals: parts are filtered, and a point moves up where its text is known to be the same.


def filtered_without(run: RunFolder, manifest: Mapping[str, Any], gone: Mapping[int, Row], rejected: Rejected) -> Rest:
    """As :func:`curated_without` where ``vault/`` was purged.

    In modes ``none`` and ``exact`` the first duplicate of a point that goes takes its place; in others
    nobody knows what a duplicate said, and what only this person's point stood for is lost.
    """
    anew = RunFolder(run.reissue.files)
    heirs, lost = _heirs(run, Config.read_back(manifest["configuration"]).dedup, gone)
    texts = _texts_of(run, {gone[point]["released_id"]: heir for point, heir in heirs.items()})
    out, counts = pa.array(sorted({*gone, *lost}), pa.int64()), Counter[str]()
    for path in parts(run.points):
        name, audit = path.name, _without(read_part(path), out)
        rows = audit.to_pylist()
        for row in rows:
            if row["point_id"] in texts:
                row.update(fate=row["side"], dup_of=None)
            else:
                row["dup_of"] = heirs.get(row["dup_of"], row["dup_of"])
            counts[row["fate"]] += 1
            counts.update(f"reason/{reason}" for reason in row["reasons"])
            if row["earlier_run"] is not None:
                counts[f"duplicate_earlier/{row['side']}"] += 1
        write_part(anew.points / name, pa.Table.from_pylist(rows, audit.schema))
        counts["masks"] -= _filter_shards(run, anew, name, rows, texts)
        spans = _without(read_part(run.spans / name), out)
        write_part(anew.spans / name, spans)
        for span in spans.select(["policy", "detector", "label", "score"]).to_pylist():
            policy, detector, label, score = span.values()
            counts[f"hit/{policy}/{detector}/{label}/{min(int(score * BINS), BINS - 1)}"] += 1
        if (run.quarantine / name).is_file():
            held = read_part(run.quarantine / name)
            places = sorted({*range(held.num_rows)} - {*rejected.rows[name]})
            held = _without(held.take(pa.array(places, pa.int64())), out)
            write_part(anew.quarantine / name, held)
            kept = (row for row in held.to_pylist() if row["kind"] == "point")
            counts.update(f"quarantined/{row['reason']}" for row in kept)
        if (run.across / name).is_file():
            pairs = _without(_without(read_part(run.across / name), out), out, "private_point")
            write_part(anew.across / name, pairs)
            counts["across/points"] += pairs.num_rows
    counts["masks"] = max(0, manifest["masks"] + counts["masks"])
    return Rest(counts, lost)


def _heirs(run: RunFolder, dedup: DedupSettings, gone: Mapping[int, Row]) -> tuple[dict[int, int], dict[int, Row]]:
    """Which duplicate takes the place of each point that goes; and those that nobody can bring back."""
    heirs, lost, ids = dict[int, int](), dict[int, Row](), pa.array(sorted(gone), pa.int64())
    for batch in read_batches(run.points):
        for row in _without(batch.filter(pc.is_in(batch["dup_of"], ids)), ids).to_pylist():
            if dedup.mode_of(row["side"]) == "exact":
                heirs.setdefault(row["dup_of"], row["point_id"])
            else:
                lost[row["point_id"]] = row
    return heirs, lost


def _texts_of(run: RunFolder, heir_of: Mapping[str, int]) -> dict[int, str]:
    """The text of each heir: that of the point whose place it takes, which has the released id."""
    texts: dict[int, str] = {}
    for folder in (run.public, run.private) if heir_of else ():
        for batch in read_batches(folder, ["point_id", "text"]):
            named = batch.filter(pc.is_in(batch["point_id"], pa.array(list(heir_of), pa.string())))
            texts.update((heir_of[row["point_id"]], row["text"]) for row in named.to_pylist())
    return texts


def _filter_shards(run: RunFolder, anew: RunFolder, name: str, rows: Sequence[Row], texts: Mapping[int, str]) -> int:
    """Write a part of both splits with what is left of it; how many masks went."""
    masks = 0
    for folder, mode in ((run.public, PUBLIC_FILE), (run.private, PRIVATE_FILE)):
        old = read_part(folder / name)
        by_id = {row["point_id"]: row for row in old.to_pylist()}
        kept = [
            by_id.pop(row["released_id"], None)
            or {**row, "point_id": row["released_id"], "text": texts[row["point_id"]], DOCUMENT: row["document"]}
            for row in rows
            if row["fate"] == folder.name
        ]
        own = [{column: row[column] for column in old.schema.names} for row in kept]
        write_part(anew.root / folder.name / name, pa.Table.from_pylist(own, old.schema), mode)
        masks += sum(row["text"].count(MASK) for row in by_id.values())
    return masks


def body_without(
    manifest: Mapping[str, Any], gone: Mapping[int, Row], rejected: Rejected, rest: Rest
) -> tuple[dict[str, Any], dict[str, dict[str, int]]]:
    """The keys of the manifest that change; and what ``removed`` and ``moved_up`` say of the counts.

    ``inputs``, ``seconds`` and ``stages`` stay: they say what was read, and what the curation did.
    ``CheckFailed`` where the points that are left are not those before less these.
    """
    counts, before = rest.counts, manifest["counts"]
    removed = Counter(documents=len({row["document"] for row in gone.values()}), rejected=rejected.reasons.total())
    for row in (*gone.values(), *rest.lost.values()):
        removed.update(("points", row["fate"]))
        if row["fate"] == DUPLICATE:
            removed[f"{row['side']}_duplicate"] += 1
    moved_up = {side: counts[side] - (before[side] - removed[side]) for side in SIDES}
    change = {"removed": dict(removed), "moved_up": {side: n for side, n in moved_up.items() if n}}
    new = counts_without(before, removed, moved_up)
    if any(new[fate] != counts[fate] for fate in (*SIDES, DUPLICATE, QUARANTINED)):
        raise CheckFailed("what remains of the run is not the previous content minus what is removed")
    found = counted(Config.read_back(manifest["configuration"]).dedup, counts)
    dedup = {**manifest["dedup"], **({} if "vault" in manifest.get("purged", ()) else found.pop("dedup"))}
    if dedup["across"] is not None:
        dedup["across"] = counts["across/points"]
    if "index" in dedup:
        repeats = {side: counts[f"duplicate_earlier/{side}"] for side in SIDES}
        dedup["index"] = {**dedup["index"], "duplicate_earlier": repeats}
    rows = {name: n - rejected.reasons[name] for name, n in manifest["rejected"].items()}
    body = {**found, "counts": new, "rejected": {name: n for name, n in rows.items() if n}, "dedup": dedup}
    if "quarantine" in manifest.get("purged", ()):
        del body["quarantined"]
    return body, change

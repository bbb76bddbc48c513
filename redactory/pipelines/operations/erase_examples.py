"""Find a person's examples by keyed pseudonyms, and write the parts of a run without them.

The stages of a curation, from redaction on, run again over the remaining originals and the engines' spans: the
result equals a curation without the person, in every deduplication mode. If the originals were purged, parts
are filtered instead.
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
from redactory.foundation.keys import KEY_VARIABLE, DigestKey, unicode_variants
from redactory.foundation.records import read_records
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.curate import list_stages
from redactory.pipelines.curation.finish import summarize_counts
from redactory.pipelines.curation.index import find_index
from redactory.pipelines.curation.journal import INDEX
from redactory.pipelines.curation.reissue import subtract_counts
from redactory.pipelines.curation.stage_context import (
    DETECTED,
    PARTITION_BITS,
    REJECTED,
    CurationJob,
    OpenIndex,
    choose_range_count,
)
from redactory.pipelines.curation.stages.dedup import SPLIT_NUMBERS
from redactory.pipelines.curation.stages.examples import DUPLICATE, QUARANTINED, SCORE_BINS
from redactory.pipelines.readers import InputSettings
from redactory.pipelines.readers.documents import DUPLICATE_ID
from redactory.pipelines.readers.tables import SEPARATORS
from redactory.redaction import (
    MASK,
    RunFolder,
    format_part_name,
    list_parts,
    read_batches,
    read_part,
    read_part_schema,
    write_part,
)
from redactory.redaction import shards as tables
from redactory.redaction.shards import DOCUMENT, EXAMPLES, SPAN_FIELDS

Row = dict[str, Any]


@dataclass(frozen=True)
class Person:
    """The requested ids, as in the input; two spellings of a user are one."""

    doc_ids: frozenset[str]
    user_ids: frozenset[str]

    def compute_pseudonyms(self, key: DigestKey) -> list[dict[str, str]]:
        """The ``kind`` and ``pseudonym`` of each id, as in the release log."""
        kinds = (("document", self.doc_ids), ("user", {unicode_variants(user)[0] for user in self.user_ids}))
        return [{"kind": k, "pseudonym": key.make_pseudonym(k, i)} for k, ids in kinds for i in sorted(ids)]

    def intersect(self, ids: Set[str]) -> Person:
        """Return the requested ids that are in ``ids``."""
        return Person(self.doc_ids & ids, self.user_ids & ids)


def require_run_key(manifest: dict[str, Any], key: DigestKey) -> None:
    """Raise ``ConfigurationError`` if ``key`` is not the run's: nobody could be found with it."""
    run_key = manifest["key"]
    if run_key["fingerprint"] == key.fingerprint:
        return
    if run_key["fresh"]:
        raise ConfigurationError(
            "the run used a temporary key, which is gone: its examples cannot be matched to a person. "
            f"Remove the run, or curate its input again, without the person and with {KEY_VARIABLE} set"
        )
    set_now = "no key is set" if key.is_generated else "the key is not the run's"
    raise ConfigurationError(
        f"{set_now}: set {KEY_VARIABLE} (or {KEY_VARIABLE}_FILE) to the key with the fingerprint "
        f"{run_key['fingerprint']}"
    )


def find_person_examples(run: RunFolder, person: Person, key: DigestKey) -> tuple[dict[int, Row], int]:
    """Return the person's rows of ``audit/examples``, by example id, and how many documents may be theirs as well.

    Such documents have no user, and an id that was requested as a user's: they are kept.
    """
    ids_by_kind = {
        "document": person.doc_ids,
        "user": {unicode_variants(user)[0] for user in person.user_ids},
        "lone-user": person.user_ids - person.doc_ids,
    }
    names = {
        kind: pa.array([key.make_pseudonym(kind, i) for i in sorted(ids)], pa.string())
        for kind, ids in ids_by_kind.items()
    }
    matching_rows: dict[int, Row] = {}
    lone: set[str] = set()
    for batch in read_batches(run.examples):
        is_match = pc.or_(pc.is_in(batch["document"], names["document"]), pc.is_in(batch["user"], names["user"]))
        matching_rows.update((row["example_id"], row) for row in batch.filter(is_match).to_pylist())
        lone.update(batch.filter(pc.is_in(batch["user"], names["lone-user"]))["document"].to_pylist())
    return matching_rows, len(lone - {row["document"] for row in matching_rows.values()})


# Rejected rows in the quarantine: the person's by the ids that stand in them, where they can be read at all.


@dataclass
class RejectedRows:
    """The person's rejected rows: ``rows`` are their places in each part, by its name.

    ``reasons``: why they were rejected; ``ids``: the requested ids in them. ``unsearchable`` counts the rows whose
    person is unknown: broken ones, and texts with the id of another document.
    """

    rows: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    reasons: Counter[str] = field(default_factory=Counter)
    ids: set[str] = field(default_factory=set)
    unsearchable: int = 0


def find_rejected_rows(run: RunFolder, person: Person, columns: InputSettings) -> RejectedRows:
    """Find the rejected rows of a run that contain an id of ``person``."""
    result = RejectedRows()
    spellings = {i: i for i in person.doc_ids} | {f: user for user in person.user_ids for f in unicode_variants(user)}
    pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, sorted(spellings)))})(?![\w-])")
    for path in list_parts(run.quarantine):
        for index, row in enumerate(read_part(path).to_pylist()):
            if row["kind"] != "row":
                continue
            text = (row["content"] or b"").decode("utf-8", "replace")
            row_ids = None if row["reason"] == DUPLICATE_ID else _extract_row_ids(text, row["source"] or "", columns)
            if row_ids is None:
                # content that is not a row is the person's if it contains one of the ids as a word
                matched_ids = {spellings[word] for word in pattern.findall(text)}
                result.unsearchable += not matched_ids
            else:
                documents, users = row_ids
                matched_ids = documents & person.doc_ids
                matched_ids |= {user for user in person.user_ids if users & set(unicode_variants(user))}
            if matched_ids:
                result.ids |= matched_ids
                result.rows[path.name].append(index)
                result.reasons[row["reason"]] += 1
    return result


def _extract_row_ids(text: str, source: str, columns: InputSettings) -> tuple[set[str], set[str]] | None:
    """Return the ids of document and user that a row can name; None if it cannot be read as a row."""
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
class RemainingRun:
    """The rest of a run: ``counts`` as stages report them, and the ``lost`` rows of others that had to go too.

    ``index`` has the counts of the run's new entry in the index across runs, if there is one.
    """

    counts: Counter[str]
    lost_examples: dict[int, Row]
    index: dict[str, Any] | None = None


def rerun_stages_without_person(
    run: RunFolder, manifest: Mapping[str, Any], key: DigestKey, removed_ids: Set[int], rejected: RejectedRows
) -> RemainingRun:
    """Write every part of ``run`` without the examples ``removed_ids`` and the rejected rows."""
    config, new_run = Config.from_manifest(manifest["configuration"]), RunFolder(run.reissue.files)
    size, partitions = sum(entry["bytes"] for entry in manifest["inputs"]), len(list_parts(run.examples))
    index = _open_run_index(run, manifest)
    audit = next((read_part_schema(path) for path in list_parts(run.examples)), EXAMPLES)
    metadata = pa.schema([field for field in audit if field.name not in EXAMPLES.names])
    job = CurationJob(new_run, config, key, index=index, hash_ranges=choose_range_count(size), metadata_schema=metadata)
    ids, earlier = pa.array(sorted(removed_ids), pa.int64()), list[tuple[int, int]]()
    for number in range(partitions):
        rows = _drop_examples(read_part(run.examples / format_part_name(number)), ids)
        _write_redaction_inputs(job, run, number, rows, ids, rejected)
        if job.index is not None:
            places = {entry.name: place for place, entry in enumerate(job.index.runs)}
            repeats = rows.filter(pc.is_valid(rows["earlier_run"]))
            names = repeats["earlier_run"].to_pylist()
            earlier += zip(repeats["example_id"].to_pylist(), map(places.__getitem__, names), strict=True)
    for number in range(job.hash_ranges):
        write_part(job.repeat_spans_path(number), DETECTED.empty_table())
    # what repeated an earlier run still does, though that run may be gone: it is not asked again
    job_without_index = (
        job if job.index is None else dataclasses.replace(job, index=dataclasses.replace(job.index, runs=()))
    )
    counts: Counter[str] = Counter()
    both = zip(list_stages(job, partitions), list_stages(job_without_index, partitions), strict=True)
    for stage, asking in dropwhile(lambda pair: pair[0].name != "redact", both):
        recall = stage.name.startswith("recall")
        for number in range(stage.part_count):
            counts.update((asking if recall else stage).task(number).counts)
        if recall:
            by_part: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for point, place in earlier:
                by_part[point >> PARTITION_BITS].append((point, place))
            for number in range(partitions):
                write_pairs(job.digests_path("earlier", number), by_part[number])
            write_pairs(job.range_path("near-earlier", 0), earlier)
    for number in range(partitions):
        # only these columns say whose a quarantined example is
        path = new_run.examples / format_part_name(number)
        rows, old = read_part(path), _drop_examples(read_part(run.examples / path.name), ids)
        for column in ("document", "user"):
            rows = rows.set_column(rows.schema.get_field_index(column), column, old[column])
        write_part(path, rows)
    shutil.rmtree(new_run.state)
    if not list_parts(run.quarantine):
        shutil.rmtree(new_run.quarantine)
    if job.index is None or find_index(manifest) is None:
        return RemainingRun(counts, {})
    sides = {side: counts[f"index/{side}"] for side in SPLIT_NUMBERS}
    return RemainingRun(counts, {}, {"counts": sides})


def _open_run_index(run: RunFolder, manifest: Mapping[str, Any]) -> OpenIndex | None:
    """Open the index as the run used it; the run's own entry is rewritten in ``state/reissue/index``."""
    facts = manifest["dedup"].get("index")
    if facts is None:
        return None
    pin = next(record.body for record in read_records(run.journal) if record.type == INDEX)
    runs = tuple(Entry(Path(name), {}) for name in facts["runs"])
    return OpenIndex(IndexFolder(run.reissue.index), facts["id"], pin["token"], runs)


def _write_redaction_inputs(
    job: CurationJob, run: RunFolder, number: int, rows: pa.Table, removed_ids: pa.Array, rejected: RejectedRows
) -> None:
    """Write the inputs of redaction for one partition: its examples, their spans, and the rejected rows."""
    name = format_part_name(number)
    quarantine = run.quarantine / name
    held = read_part(quarantine) if quarantine.is_file() else tables.QUARANTINE.empty_table()
    theirs = pa.array([place in rejected.rows[name] for place in range(held.num_rows)], pa.bool_())
    kept_rows = held.filter(pc.and_(pc.equal(held["kind"], "row"), pc.invert(theirs)))
    write_part(job.part_path("rejected", number), kept_rows.select(REJECTED.names))
    write_part(job.part_path("repeated", number), REJECTED.empty_table())
    known = {row["example_id"]: row for row in held.to_pylist() if row["kind"] == "example"}
    failed_ids = rows.filter(pc.equal(rows["decision"], QUARANTINED))["example_id"].to_pylist()
    purged = {"source": None, "user_id": None, tables.CLASS: None, "content": b"", "reason": "purged"}
    vault = _drop_examples(read_part(run.vault / name), removed_ids)
    # another example of the document has what this one lacks
    owners = dict(zip(rows["example_id"].to_pylist(), rows["document"].to_pylist(), strict=True))
    of_vault = zip(vault["example_id"].to_pylist(), vault["doc_id"].to_pylist(), strict=True)
    doc_ids = {owners[p]: doc_id for p, doc_id in of_vault}
    points = [
        {
            "example_id": p,
            "doc_id": entry["source"] or doc_ids.get(owners[p], ""),
            **{name: entry[name] for name in ("user_id", tables.CLASS)},
            "text": entry["content"].decode(),
        }
        for p, entry in ((p, known.get(p, purged)) for p in failed_ids)
    ]
    table = pa.concat_tables([vault, pa.Table.from_pylist(points, vault.schema)]).sort_by("example_id")
    for column in job.metadata_schema.names:
        table = table.append_column(job.metadata_schema.field(column), rows[column])
    write_part(job.part_path("examples", number), table)
    spans = _drop_examples(read_part(run.spans / name), removed_ids).select(SPAN_FIELDS.names)
    reasons = pa.array([known.get(p, purged)["reason"] for p in failed_ids], pa.string())
    failures = pa.table({"example_id": pa.array(failed_ids, pa.int64()), "failure": reasons})
    failures = failures.append_column("range", pa.nulls(len(failed_ids), pa.int16()))
    detections = pa.concat_tables([spans, failures], promote_options="default").select(DETECTED.names)
    write_part(job.part_path("found", number), detections)
    # what was known in a document is among what was found: documents go as a whole
    write_part(job.part_path("known", number), DETECTED.empty_table())


def _drop_examples(table: pa.Table, example_ids: pa.Array, column: str = "example_id") -> pa.Table:
    return table.filter(pc.invert(pc.fill_null(pc.is_in(table[column], example_ids), False)))


# Without the originals: parts are filtered, and a duplicate moves up if its text is known to be the same.


def filter_parts_without_person(
    run: RunFolder, manifest: Mapping[str, Any], removed_rows: Mapping[int, Row], rejected: RejectedRows
) -> RemainingRun:
    """Like :func:`rerun_stages_without_person`, for a purged ``vault/``.

    In modes ``none`` and ``exact`` the first duplicate of a removed example replaces it. In other modes the text
    of a duplicate is unknown, so what only this example represented is lost.
    """
    new_run = RunFolder(run.reissue.files)
    replacements, lost = _find_replacements(run, Config.from_manifest(manifest["configuration"]).dedup, removed_rows)
    heirs = {removed_rows[point]["released_id"]: heir for point, heir in replacements.items()}
    texts = _read_replacement_texts(run, heirs)
    removed_ids, counts = pa.array(sorted({*removed_rows, *lost}), pa.int64()), Counter[str]()
    for path in list_parts(run.examples):
        name, audit = path.name, _drop_examples(read_part(path), removed_ids)
        rows = audit.to_pylist()
        for row in rows:
            if row["example_id"] in texts:
                row.update(decision=row["split"], dup_of=None)
            else:
                row["dup_of"] = replacements.get(row["dup_of"], row["dup_of"])
            counts[row["decision"]] += 1
            counts.update(f"reason/{reason}" for reason in row["reasons"])
            if row["earlier_run"] is not None:
                counts[f"duplicate_earlier/{row['split']}"] += 1
        write_part(new_run.examples / name, pa.Table.from_pylist(rows, audit.schema))
        counts["masks"] -= _filter_shards(run, new_run, name, rows, texts)
        spans = _drop_examples(read_part(run.spans / name), removed_ids)
        write_part(new_run.spans / name, spans)
        for span in spans.select(["policy", "detector", "label", "score"]).to_pylist():
            policy, detector, label, score = span.values()
            counts[f"span/{policy}/{detector}/{label}/{min(int(score * SCORE_BINS), SCORE_BINS - 1)}"] += 1
        if (run.quarantine / name).is_file():
            held = read_part(run.quarantine / name)
            places = sorted({*range(held.num_rows)} - {*rejected.rows[name]})
            held = _drop_examples(held.take(pa.array(places, pa.int64())), removed_ids)
            write_part(new_run.quarantine / name, held)
            kept_rows = (row for row in held.to_pylist() if row["kind"] == "example")
            counts.update(f"quarantined/{row['reason']}" for row in kept_rows)
        if (run.across / name).is_file():
            pairs = _drop_examples(read_part(run.across / name), removed_ids)
            pairs = _drop_examples(pairs, removed_ids, "private_example")
            write_part(new_run.across / name, pairs)
            counts["across/examples"] += pairs.num_rows
    counts["masks"] = max(0, manifest["masks"] + counts["masks"])
    return RemainingRun(counts, lost)


def _find_replacements(
    run: RunFolder, dedup: DedupSettings, removed_rows: Mapping[int, Row]
) -> tuple[dict[int, int], dict[int, Row]]:
    """Find the duplicate that replaces each removed example, and the examples that cannot be replaced."""
    heirs, lost, ids = dict[int, int](), dict[int, Row](), pa.array(sorted(removed_rows), pa.int64())
    for batch in read_batches(run.examples):
        for row in _drop_examples(batch.filter(pc.is_in(batch["dup_of"], ids)), ids).to_pylist():
            if dedup.mode_for(row["split"]) == "exact":
                heirs.setdefault(row["dup_of"], row["example_id"])
            else:
                lost[row["example_id"]] = row
    return heirs, lost


def _read_replacement_texts(run: RunFolder, replacements: Mapping[str, int]) -> dict[int, str]:
    """Read the text of each replacement: that of the removed example, which has the released id."""
    texts: dict[int, str] = {}
    for folder in (run.public, run.private) if replacements else ():
        for batch in read_batches(folder, ["example_id", "text"]):
            matches = batch.filter(pc.is_in(batch["example_id"], pa.array(list(replacements), pa.string())))
            texts.update((replacements[row["example_id"]], row["text"]) for row in matches.to_pylist())
    return texts


def _filter_shards(run: RunFolder, new_run: RunFolder, name: str, rows: Sequence[Row], texts: Mapping[int, str]) -> int:
    """Write a part of both splits without the removed examples; return how many masks went."""
    masks = 0
    for folder, mode in ((run.public, PUBLIC_FILE), (run.private, PRIVATE_FILE)):
        old = read_part(folder / name)
        by_id = {row["example_id"]: row for row in old.to_pylist()}
        kept_rows = [
            by_id.pop(row["released_id"], None)
            or {**row, "example_id": row["released_id"], "text": texts[row["example_id"]], DOCUMENT: row["document"]}
            for row in rows
            if row["decision"] == folder.name
        ]
        output_rows = [{column: row[column] for column in old.schema.names} for row in kept_rows]
        write_part(new_run.root / folder.name / name, pa.Table.from_pylist(output_rows, old.schema), mode)
        masks += sum(row["text"].count(MASK) for row in by_id.values())
    return masks


def build_manifest_changes(
    manifest: Mapping[str, Any], removed_rows: Mapping[int, Row], rejected: RejectedRows, remaining_run: RemainingRun
) -> tuple[dict[str, Any], dict[str, dict[str, int]]]:
    """Return the manifest keys that change, and the counts ``removed`` and ``moved_up``.

    ``inputs``, ``seconds`` and ``stages`` stay: they describe what was read and done. ``CheckFailed`` if the
    remaining examples are not those before minus the removed ones.
    """
    counts, old_counts = remaining_run.counts, manifest["counts"]
    removed = Counter(
        documents=len({row["document"] for row in removed_rows.values()}), rejected=rejected.reasons.total()
    )
    for row in (*removed_rows.values(), *remaining_run.lost_examples.values()):
        removed.update(("examples", row["decision"]))
        if row["decision"] == DUPLICATE:
            removed[f"{row['split']}_duplicate"] += 1
    moved_up = {side: counts[side] - (old_counts[side] - removed[side]) for side in SPLIT_NUMBERS}
    change = {"removed": dict(removed), "moved_up": {side: n for side, n in moved_up.items() if n}}
    new = subtract_counts(old_counts, removed, moved_up)
    if any(new[decision] != counts[decision] for decision in (*SPLIT_NUMBERS, DUPLICATE, QUARANTINED)):
        raise CheckFailed("what remains of the run is not the previous content minus what is removed")
    sections = summarize_counts(Config.from_manifest(manifest["configuration"]).dedup, counts)
    dedup = {**manifest["dedup"], **({} if "vault" in manifest.get("purged", ()) else sections.pop("dedup"))}
    if dedup["across"] is not None:
        dedup["across"] = counts["across/examples"]
    if "index" in dedup:
        repeats = {side: counts[f"duplicate_earlier/{side}"] for side in SPLIT_NUMBERS}
        dedup["index"] = {**dedup["index"], "duplicate_earlier": repeats}
    rows = {name: n - rejected.reasons[name] for name, n in manifest["rejected"].items()}
    body = {**sections, "counts": new, "rejected": {name: n for name, n in rows.items() if n}, "dedup": dedup}
    if "quarantine" in manifest.get("purged", ()):
        del body["quarantined"]
    return body, change

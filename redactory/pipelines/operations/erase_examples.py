"""Find a person's examples by keyed pseudonyms, and write the parts of a run without them.

The stages of a curation, from redaction on, run again over the remaining originals and the engines' spans: the
result equals a curation without the person, in every deduplication mode. If the originals were purged, parts
are filtered instead.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import chain, dropwhile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from redactory.dedup.index import Entry, IndexFolder
from redactory.dedup.plan import write_pairs
from redactory.dedup.settings import DedupSettings
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import PRIVATE_FILE, PUBLIC_FILE
from redactory.foundation.keys import KEY_VARIABLE, DigestKey, unicode_variants
from redactory.foundation.records import read_records
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.curate import list_stages
from redactory.pipelines.curation.finish import DECISIONS, check_counts_add_up, summarize_counts
from redactory.pipelines.curation.journal import INDEX
from redactory.pipelines.curation.stage_context import DETECTED, REJECTED, CurationJob, OpenIndex, choose_range_count
from redactory.pipelines.curation.stages.dedup import SPLIT_NUMBERS
from redactory.pipelines.curation.stages.examples import QUARANTINED, count_records, count_spans, select_split_rows
from redactory.pipelines.readers import InputSettings
from redactory.pipelines.readers.documents import DUPLICATE_ID
from redactory.pipelines.readers.formats import QUARANTINED_BYTES, REPEATED_KEY
from redactory.redaction import (
    MASK,
    PRIVATE,
    PUBLIC,
    RunFolder,
    format_part_name,
    list_parts,
    read_batches,
    read_part,
    read_part_schema,
    write_part,
)
from redactory.redaction.shards import CLASS, EXAMPLES, QUARANTINE, SPAN_FIELDS, read_values

Row = dict[str, Any]
_TABLE_NAME = re.compile(r"\.[ct]sv[^/]*$", re.IGNORECASE)


@dataclass(frozen=True)
class Person:
    """The requested ids, as in the input, and who asks; two spellings of a user are one."""

    doc_ids: frozenset[str]
    user_ids: frozenset[str]
    by: str | None = None

    def compute_pseudonyms(self, key: DigestKey) -> list[dict[str, str]]:
        """The ``kind`` and ``pseudonym`` of each id, as in the release log."""
        kinds = (("document", self.doc_ids), ("user", {unicode_variants(user)[0] for user in self.user_ids}))
        return [{"kind": k, "pseudonym": key.make_pseudonym(k, i)} for k, ids in kinds for i in sorted(ids)]


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
    names = pa.array([pseudonym["pseudonym"] for pseudonym in person.compute_pseudonyms(key)], pa.string())
    lone_names = pa.array([key.make_pseudonym("lone-user", i) for i in person.user_ids - person.doc_ids], pa.string())
    matching_rows, lone = dict[int, Row](), set[str]()
    for batch in read_batches(run.examples):
        is_match = pc.or_(pc.is_in(batch["document"], names), pc.is_in(batch["user"], names))
        matching_rows.update((row["example_id"], row) for row in batch.filter(is_match).to_pylist())
        lone.update(batch.filter(pc.is_in(batch["user"], lone_names))["document"].to_pylist())
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
    users = {spelling: user for user in person.user_ids for spelling in unicode_variants(user)}
    ids = "|".join(map(re.escape, sorted(person.doc_ids | users.keys())))
    pattern = re.compile(rf"(?<![\w-])(?:{ids})(?![\w-])")
    for path in list_parts(run.quarantine):
        for index, row in enumerate(read_part(path).to_pylist()):
            if row["kind"] != "row":
                continue
            text = (row["content"] or b"").decode("utf-8", "replace")
            row_ids = None if row["reason"] in (DUPLICATE_ID, REPEATED_KEY) else parse_row_ids(text, columns)
            # content without certain ids is the person's if it contains one of the ids as a word; CSV doubles a quote
            words = () if row_ids else pattern.findall(text) + pattern.findall(text.replace('""', '"'))
            row_documents, row_users = ([i] for i in row_ids) if row_ids else (words, words)
            matched = person.doc_ids.intersection(row_documents) | {users[i] for i in row_users if i in users}
            if matched:
                result.ids |= matched
                result.rows[path.name].append(index)
                result.reasons[row["reason"]] += 1
            # a whole row of a CSV file, compressed or not, names its ids between separators
            elif row_ids is None and (
                row["reason"] == DUPLICATE_ID
                or len(row["content"] or b"") >= QUARANTINED_BYTES
                or not _TABLE_NAME.search(row["source"] or "")
            ):
                result.unsearchable += 1
    return result


def parse_row_ids(text: str, columns: InputSettings) -> tuple[str | None, str | None] | None:
    """Return the ids of document and user of a row that is a JSON object with one of them, else None."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    document, user = (value.get(column) for column in (columns.id, columns.user))
    if document is user is None or not all(one is None or isinstance(one, str | int) for one in (document, user)):
        return None
    return (None if document is None else str(document), None if user is None else str(user))


# A run without the person: its stages again, from redaction on, below ``state/reissue/files``.


def prepare_job(run: RunFolder, manifest: Mapping[str, Any], key: DigestKey) -> CurationJob:
    """Return the job that curated ``run``, to write its next release.

    The index is opened as the run used it; the run's entry is rewritten in ``state/reissue/index``.
    """
    audit = next((read_part_schema(path) for path in list_parts(run.examples)), EXAMPLES)
    metadata = pa.schema([field for field in audit if field.name not in EXAMPLES.names])
    ranges, index = choose_range_count(sum(entry["bytes"] for entry in manifest["inputs"])), None
    if (facts := manifest["dedup"].get("index")) is not None:
        pin = next(record.body for record in read_records(run.journal) if record.type == INDEX)
        earlier_runs = tuple(Entry(Path(name), {}) for name in facts["runs"])
        index = OpenIndex(IndexFolder(run.reissue.index), facts["id"], pin["token"], earlier_runs)
    config, new_run = Config.from_manifest(manifest["configuration"]), RunFolder(run.reissue.files)
    return CurationJob(new_run, config, key, index=index, hash_ranges=ranges, metadata_schema=metadata)


def rerun_stages_without_person(
    job: CurationJob, run: RunFolder, removed_ids: Set[int], rejected: RejectedRows
) -> Counter[str]:
    """Write every part of ``run`` without the examples ``removed_ids`` and the rejected rows; return the counts."""
    ids, partitions = pa.array(sorted(removed_ids), pa.int64()), len(list_parts(run.examples))
    earlier_runs = job.index.runs if job.index is not None else ()
    places = {entry.name: place for place, entry in enumerate(earlier_runs)}
    repeats: list[list[tuple[int, int]]] = []
    for number in range(partitions):
        rows = _drop_examples(read_part(run.examples / format_part_name(number)), ids)
        _write_redaction_inputs(job, run, number, rows, ids, rejected)
        pairs = zip(rows["example_id"].to_pylist(), rows["earlier_run"].to_pylist(), strict=True)
        repeats.append([(example, places[name]) for example, name in pairs if name is not None])
    for number in range(job.hash_ranges):
        write_part(job.range_path("spread", number, ".parquet"), DETECTED.empty_table())
    # what repeated an earlier run still does, though that run may be gone: its entry is not read again
    job_without_earlier_runs = job if job.index is None else replace(job, index=replace(job.index, runs=()))
    counts: Counter[str] = Counter()
    stages = zip(list_stages(job, partitions), list_stages(job_without_earlier_runs, partitions), strict=True)
    for stage, recall in dropwhile(lambda pair: pair[0].name != "redact", stages):
        is_recall = stage.name.startswith("recall")
        for number in range(stage.part_count):
            counts.update((recall if is_recall else stage).task(number).counts)
        if is_recall:
            for number in range(partitions):
                write_pairs(job.digests_path("earlier", number), repeats[number])
            write_pairs(job.range_path("near-earlier", 0), chain.from_iterable(repeats))
    shutil.rmtree(job.run.state)
    if not list_parts(run.quarantine):
        shutil.rmtree(job.run.quarantine)
    return counts


def _write_redaction_inputs(
    job: CurationJob, run: RunFolder, number: int, rows: pa.Table, removed_ids: pa.Array, rejected: RejectedRows
) -> None:
    """Write the inputs of redaction for one partition: its examples, their spans, and the rejected rows."""
    name = format_part_name(number)
    held = _read_kept_quarantine(run, name, removed_ids, rejected)
    write_part(job.part_path("rejected", number), held.filter(pc.equal(held["kind"], "row")).select(REJECTED.names))
    write_part(job.part_path("repeated", number), REJECTED.empty_table())
    known = {row["example_id"]: row for row in held.to_pylist() if row["kind"] == "example"}
    failed_ids = rows.filter(pc.equal(rows["decision"], QUARANTINED))["example_id"].to_pylist()
    purged = {"source": None, "user_id": None, CLASS: None, "content": b"", "reason": "purged"}
    vault = _drop_examples(read_part(run.vault / name), removed_ids)
    # another example of the document has what this one lacks
    owners = dict(zip(rows["example_id"].to_pylist(), rows["document"].to_pylist(), strict=True))
    of_vault = zip(vault["example_id"].to_pylist(), vault["doc_id"].to_pylist(), strict=True)
    doc_ids = {owners[example]: doc_id for example, doc_id in of_vault}
    failed = [
        {
            "example_id": i,
            "doc_id": entry["source"] or doc_ids.get(owners[i], ""),
            **{name: entry[name] for name in ("user_id", CLASS)},
            "text": entry["content"].decode(),
        }
        for i, entry in ((i, known.get(i, purged)) for i in failed_ids)
    ]
    table = pa.concat_tables([vault, pa.Table.from_pylist(failed, vault.schema)]).sort_by("example_id")
    for column in ("document", "user", *job.metadata_schema.names):
        table = table.append_column(rows.schema.field(column), rows[column])
    write_part(job.part_path("examples", number), table)
    spans = _drop_examples(read_part(run.spans / name), removed_ids).select(SPAN_FIELDS.names)
    reasons = pa.array([known.get(i, purged)["reason"] for i in failed_ids], pa.string())
    failures = pa.table({"example_id": pa.array(failed_ids, pa.int64()), "failure": reasons})
    failures = failures.append_column("range", pa.nulls(len(failed_ids), pa.int16()))
    detections = pa.concat_tables([spans, failures], promote_options="default").select(DETECTED.names)
    write_part(job.part_path("found", number), detections)
    # what was known in a document is among what was found: documents go as a whole
    write_part(job.part_path("known", number), DETECTED.empty_table())


def _read_kept_quarantine(run: RunFolder, name: str, removed_ids: pa.Array, rejected: RejectedRows) -> pa.Table:
    """Read the part ``name`` of the quarantine without the person's rows; it is empty if the quarantine was purged."""
    path = run.quarantine / name
    table = read_part(path) if path.is_file() else QUARANTINE.empty_table()
    is_kept = pa.array([place not in rejected.rows[name] for place in range(table.num_rows)], pa.bool_())
    return _drop_examples(table.filter(is_kept), removed_ids)


def _drop_examples(table: pa.Table, example_ids: pa.Array, column: str = "example_id") -> pa.Table:
    return table.filter(pc.invert(pc.fill_null(pc.is_in(table[column], example_ids), False)))


# Without the originals: parts are filtered, and a duplicate moves up if its text is known to be the same.


def filter_parts_without_person(
    job: CurationJob, run: RunFolder, removed_rows: Mapping[int, Row], rejected: RejectedRows
) -> tuple[Counter[str], dict[int, Row]]:
    """Like :func:`rerun_stages_without_person`, for a purged ``vault/``.

    In modes ``none`` and ``exact`` the first duplicate of a removed example replaces it. In other modes the text
    of a duplicate is unknown, so what only this example represented is lost: these rows are returned, too. The count
    of masks is that of the removed shard rows, below zero.
    """
    heirs, heir_texts, lost = _find_heirs(run, job.config.dedup, removed_rows)
    removed_ids, counts = pa.array(sorted({*removed_rows, *lost}), pa.int64()), Counter[str]()
    for path in list_parts(run.examples):
        name, audit = path.name, _drop_examples(read_part(path), removed_ids)
        rows = audit.to_pylist()
        for row in rows:
            if (heir := heirs.get(row["dup_of"])) is not None:
                is_heir = heir == row["example_id"]
                row.update({"decision": row["split"], "dup_of": None} if is_heir else {"dup_of": heir})
            counts.update(f"reason/{reason}" for reason in row["reasons"])
        records = pa.Table.from_pylist(rows, audit.schema)
        released_ids = {row["released_id"] for row in rows}
        texts = dict(heir_texts)
        for split in SPLIT_NUMBERS:
            shard = read_part(run.root / split / name, columns=["example_id", "text"])
            texts.update(zip(shard["example_id"].to_pylist(), shard["text"].to_pylist(), strict=True))
        counts["masks"] -= sum(
            texts[example].count(MASK) for example in texts.keys() - heir_texts.keys() - released_ids
        )
        # a missing text of a kept example must not become an empty one
        column = [texts[row["released_id"]] if row["decision"] in SPLIT_NUMBERS else None for row in rows]
        redacted = pa.table({"text": pa.array(column, pa.string())})
        for split, mode in ((PUBLIC, PUBLIC_FILE), (PRIVATE, PRIVATE_FILE)):
            write_part(job.run.root / split / name, select_split_rows(job, records, redacted, split), mode)
        spans = _drop_examples(read_part(run.spans / name), removed_ids)
        quarantine = _read_kept_quarantine(run, name, removed_ids, rejected)
        write_part(job.run.examples / name, records)
        write_part(job.run.spans / name, spans)
        if (run.quarantine / name).is_file():
            write_part(job.run.quarantine / name, quarantine)
        if (run.across / name).is_file():
            pairs = _drop_examples(read_part(run.across / name), removed_ids)
            pairs = _drop_examples(pairs, removed_ids, "private_example")
            write_part(job.run.across / name, pairs)
            counts["across/examples"] += pairs.num_rows
        counts.update(count_spans(spans))
        counts.update(count_records(records, quarantine.filter(pc.equal(quarantine["kind"], "example"))["reason"]))
    return counts, lost


def _find_heirs(
    run: RunFolder, dedup: DedupSettings, removed_rows: Mapping[int, Row]
) -> tuple[dict[int, int], dict[str, str], dict[int, Row]]:
    """Find the duplicate that replaces each removed example, its text by released id, and what cannot be replaced."""
    ids = pa.array(sorted(removed_rows), pa.int64())
    heirs, lost = dict[int, Row](), dict[int, Row]()
    for batch in read_batches(run.examples):
        for row in _drop_examples(batch.filter(pc.is_in(batch["dup_of"], ids)), ids).to_pylist():
            if dedup.mode_for(row["split"]) == "exact":
                heirs.setdefault(row["dup_of"], row)
            else:
                lost[row["example_id"]] = row
    # the text is that of the removed example
    released_ids = {removed_rows[example]["released_id"]: heir["released_id"] for example, heir in heirs.items()}
    shards = [run.root / split for split in SPLIT_NUMBERS] if heirs else []
    rows = chain.from_iterable(read_values(folder, "example_id", "text") for folder in shards)
    texts = {released_ids[example]: text for example, text in rows if example in released_ids}
    return {example: heir["example_id"] for example, heir in heirs.items()}, texts, lost


def build_manifest_changes(
    manifest: Mapping[str, Any],
    removed_rows: Collection[Row],
    documents: int,
    rejected: RejectedRows,
    counts: Counter[str],
) -> dict[str, Any]:
    """Return the manifest keys that change: those that follow from the ``counts`` of the remaining examples.

    ``inputs``, ``seconds`` and ``stages`` stay: they describe what was read and done. ``CheckFailed`` if the
    remaining examples are not those before minus the removed ones.
    """
    old, dedup, purged = manifest["counts"], manifest["dedup"], manifest.get("purged", ())
    new_counts = {
        "rows": old["rows"] - documents - rejected.reasons.total(),
        "documents": old["documents"] - documents,
        "rejected": old["rejected"] - rejected.reasons.total(),
        "examples": old["examples"] - len(removed_rows),
        **{decision: counts[decision] for decision in DECISIONS},
        **{f"{split}_duplicate": counts[f"duplicate/{split}"] for split in SPLIT_NUMBERS},
    }
    check_counts_add_up(new_counts)
    sections = summarize_counts(Config.from_manifest(manifest["configuration"]).dedup, counts)
    if "vault" in purged:
        sections["masks"] = max(0, manifest["masks"] + counts["masks"])
        sections["dedup"] = {} if dedup["across"] is None else {"across": counts["across/examples"]}
    if "quarantine" in purged:
        del sections["quarantined"]
    sections["dedup"] = {**dedup, **sections["dedup"]}
    if "index" in dedup:
        repeats = {split: counts[f"duplicate_earlier/{split}"] for split in SPLIT_NUMBERS}
        sections["dedup"]["index"] = {**dedup["index"], "duplicate_earlier": repeats}
    rows = {reason: count - rejected.reasons[reason] for reason, count in manifest["rejected"].items()}
    return {**sections, "counts": new_counts, "rejected": {reason: count for reason, count in rows.items() if count}}

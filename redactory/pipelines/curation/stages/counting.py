"""Public by count: a text is public if enough users wrote it.

The policies still mask; the split is decided by how many users wrote the masked text, with noise and a threshold
(``docs/guarantees.md``, "Public by count"). The public shard contains only the selected texts, sorted by digest, so
neither the order nor the rows of the corpus affect it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from redactory.dedup.counting import bound_contributions, count_users, write_contributions
from redactory.dedup.plan import ENTRY, mark_known_digests, split_digests
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.files import PUBLIC_FILE, make_private_folder
from redactory.foundation.progress import StageReport
from redactory.foundation.stream import RandomStream
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.journal import SELECTION, RunJournal
from redactory.pipelines.curation.stage_context import CurationJob
from redactory.pipelines.curation.stages.dedup import read_example_users, write_decision_table, write_decisions
from redactory.redaction import (
    PRIVATE,
    PUBLIC,
    RoutingDecision,
    format_part_name,
    read_part,
    read_secret,
    write_part,
    write_secret,
)
from redactory.redaction.shards import ROLE, USERS
from redactory.training.count_selection import CountSelection
from redactory.training.mechanisms.lattice import draw_rounded_normal

TOO_FEW_USERS = "count:FEW"
"""Reason of a private example whose text too few users wrote."""


def attach_count_selection(job: CurationJob, journal: RunJournal) -> CurationJob:
    """Return ``job`` with its selection: its constants, and the fingerprint of the key of its noise.

    The key is drawn once per run and stored with the work files, which are deleted when the run is finished. The
    selection is recorded in the journal before the first count, and in ``train.budget`` if there is one.
    """
    route = job.config.route
    if route.strategy == "policies":
        return job
    if SELECTION not in journal.constants:
        stream = RandomStream.from_entropy()
        make_private_folder(job.run.work)
        write_secret(job.count_key_path, stream.root)
        calibrated = CountSelection.calibrate(route.epsilon, route.delta, route.texts_per_user)
        fingerprint = stream.random_bytes("fingerprint", 0, 16).hex()
        journal.record_constant(
            SELECTION, {**route.model_dump(mode="json"), **replace(calibrated, id=fingerprint).to_json()}
        )
    selection = CountSelection.from_manifest({"route": journal.constants[SELECTION]})
    assert selection is not None
    if job.config.train.budget is not None:
        from redactory.pipelines.curation.models import require_training_packages

        require_training_packages()
        from redactory.training.guarantee.budget import Budget

        budget = Budget.from_settings(job.config.train)
        assert budget is not None
        budget.reserve_selection(selection, job.run.root.name)
    return replace(job, selection=selection)


def require_noise_package(config: Config) -> None:
    """Raise ``ConfigurationError`` if a package for drawing the noise is missing."""
    if config.route.strategy != "policies" and find_spec("mpmath") is None:
        raise ConfigurationError(
            "route.strategy: exactly rounded noise needs mpmath, not installed here: pip install 'redactory[train]'"
        )


# Contributions: bounded per user, counted per text.


def write_user_contributions(
    job: CurationJob, partition: int, examples: pa.Table, decisions: Sequence[RoutingDecision]
) -> None:
    """Write one partition's contributions: the texts that may become public, each with its user.

    With ``strategy: both`` only texts without any span, which also depends on the text alone.
    """
    key, digests = job.key, compute_text_digests(job, examples, [decision.text for decision in decisions])
    user_subkey, rank_subkey = key.derive_subkey("count/user"), key.derive_subkey("count/choice")
    rows = []
    for user, text, decision in zip(read_example_users(examples), digests, decisions, strict=True):
        if decision.failure is None and (job.config.route.strategy == "count" or decision.split == PUBLIC):
            user_digest = key.compute_text_digest(user_subkey, user.encode())
            rows.append((user_digest, key.compute_text_digest(rank_subkey, user_digest + text), text))
    write_decision_table(job, "masked", partition, examples, decisions)
    users, ranks, texts = zip(*rows, strict=True) if rows else ((), (), ())
    write_contributions(job.digests_path("given", partition), users, ranks, texts)


def compute_text_digests(job: CurationJob, examples: pa.Table, texts: Sequence[str | None]) -> list[bytes]:
    """Return the counted digest of each example: of its masked text, with its role if there are roles."""
    purpose = job.key.derive_subkey("count/text")
    roles = examples[ROLE].to_pylist() if ROLE in job.metadata_schema.names else [None] * len(texts)
    pairs = zip(roles, texts, strict=True)
    return [job.key.compute_text_digest(purpose, f"{role or ''}\x00{text or ''}".encode()) for role, text in pairs]


def bound_user_contributions(job: CurationJob, number: int) -> StageReport:
    """Keep k distinct texts of each user, in one hash range of users."""
    files, out = job.digests_paths("given"), job.range_path("bounded", number)
    assert job.selection is not None
    bound_contributions(files, number, job.hash_ranges, job.selection.texts_per_user, out)
    return StageReport("bound")


def count_texts(job: CurationJob, number: int) -> StageReport:
    """Count users, add noise and apply the threshold, in one hash range of texts."""
    selection = job.selection
    assert selection is not None
    try:
        stream = RandomStream(read_secret(job.count_key_path))
    except FileNotFoundError:
        raise RunStateError("the key of the counts' noise is gone: start a new run in another folder") from None
    if stream.random_bytes("fingerprint", 0, 16).hex() != selection.id:
        raise RunStateError("the key of the counts' noise belongs to another run: start a new run in another folder")
    count_users(
        job.range_paths("bounded"),
        number,
        job.hash_ranges,
        selection.threshold,
        lambda block, texts: draw_rounded_normal(stream, "counts", block, texts, selection.deviation),
        job.range_path("counted", number),
    )
    return StageReport("count")


# The results: the split of each example, and the public shard.


def route_by_user_count(job: CurationJob, number: int) -> StageReport:
    """Route one partition's examples by the selected texts, and write the decisions."""
    examples, masked = read_part(job.part_path("examples", number)), read_part(job.part_path("masked", number))
    decisions = [
        RoutingDecision(row["split"], row["text"] or "", tuple(row["reasons"]), 0, row["failure"])
        for row in masked.to_pylist()
    ]
    entries = np.empty(len(decisions), ENTRY)
    digests = compute_text_digests(job, examples, [decision.text for decision in decisions])
    entries["high"], entries["low"] = split_digests(digests, len(decisions))
    is_selected = np.zeros(len(decisions), bool)
    for path in job.range_paths("counted"):
        is_selected |= mark_known_digests(path, entries)
    needs_policies, routed = job.config.route.strategy == "both", list[RoutingDecision]()
    for decision, selected in zip(decisions, is_selected.tolist(), strict=True):
        if decision.failure is not None or (needs_policies and decision.split == PRIVATE):
            routed.append(decision)
        elif selected:
            routed.append(replace(decision, split=PUBLIC, reasons=()))
        else:
            routed.append(replace(decision, split=PRIVATE, reasons=(*decision.reasons, TOO_FEW_USERS)))
    write_decisions(job, number, examples, routed)
    counts = Counter({f"reason/{TOO_FEW_USERS}": sum(TOO_FEW_USERS in decision.reasons for decision in routed)})
    return StageReport("route", counts)


def assign_text_based_ids(job: CurationJob, examples: pa.Table, redacted: pa.Table, records: pa.Table) -> pa.Table:
    """Return ``records`` in which a public example's released id follows from its text, not from its position."""
    digests = compute_text_digests(job, examples, redacted["text"].to_pylist())
    names = job.key.make_pseudonyms("counted", [digest.hex() for digest in digests])
    public = pc.equal(records["decision"], PUBLIC)
    ids = pc.if_else(public, pa.array(names, pa.string()), records["released_id"])
    return records.set_column(records.schema.get_field_index("released_id"), "released_id", ids)


def write_public_shard(job: CurationJob, number: int) -> StageReport:
    """Write ``public/``: the selected texts in the order of their digests, each with its noisy count."""
    rows = pa.concat_tables(read_part(job.part_path("held", partition)) for partition in range(job.partitions))
    counted = np.concatenate([np.load(path) for path in job.range_paths("counted")])
    digests = np.stack([counted["high"], counted["low"]], 1).astype(">u8")
    keys = [digest.tobytes().hex() for digest in digests]
    users = dict(zip(job.key.make_pseudonyms("counted", keys), counted["users"].tolist(), strict=True))
    order = {name: position for position, name in enumerate(users)}
    ids = rows["example_id"].to_pylist()
    rows = rows.take(pa.array(sorted(range(len(ids)), key=lambda row: order[ids[row]]), pa.int64()))
    user_counts = [users[name] for name in rows["example_id"].to_pylist()]
    columns = {**{name: rows[name] for name in rows.column_names}, USERS: user_counts}
    write_part(
        job.run.public / format_part_name(0), pa.Table.from_pydict(columns, job.shard_schema(PUBLIC)), PUBLIC_FILE
    )
    return StageReport("publish")

"""Deduplicate examples: plans over digests, one pass, near-duplicates, earlier runs."""

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

from redactory.dedup import DedupSettings, find_repeats_in_range, lookup_replacements, near, plan, write_digests
from redactory.dedup.index import IndexFolder
from redactory.dedup.plan import Entries, Ids
from redactory.dedup.settings import BLOOM_ERROR_RATE, DedupRule
from redactory.dedup.signatures import ROW, Shingler, SignedFiles, WordTokenizer, choose_banding, write_signed_texts
from redactory.foundation.errors import RunStateError
from redactory.foundation.files import write_bytes
from redactory.foundation.keys import DIGEST_BYTES, DigestKey
from redactory.foundation.progress import StageReport
from redactory.pipelines.curation.stage_context import REDACTED, CurationJob, OpenIndex, read_integer_column
from redactory.redaction import MASK, PRIVATE, PUBLIC, RoutingDecision, read_part, write_part
from redactory.redaction.mask import ROLE_MARK
from redactory.redaction.shards import ROLE

SPLIT_NUMBERS = {PUBLIC: near.PUBLIC_SPLIT, PRIVATE: near.PRIVATE_SPLIT}
"""The number of each split in the files of near-duplicates."""
UNKNOWN_EXAMPLE, NO_RUN = -1, -1
"""In place of the kept example if it is unknown (a Bloom filter does not tell), and of a missing earlier run."""
IS_NEAR, IS_ONE_PASS, IS_BY_DIGEST = map(attrgetter, ("near", "one_pass", "matches_by_digest"))


# Barriers over digests: repeated documents, repeated texts, repeated redacted texts.


def find_repeats(job: CurationJob, number: int, *, table: str) -> StageReport:
    """Find what occurred before, in one hash range of a ``table`` of digests.

    ``document-ids``, ``text-digests``, so that each distinct text is detected once, or ``redacted-digests``: redacted
    texts (or, folded, their keys) that repeat an earlier example of their split (S1, S2).
    """
    out = job.range_path(f"repeated-{table}", number)
    repeats = find_repeats_in_range(job.digests_paths(table), number, out, job.hash_ranges)
    return StageReport("repeats", Counter({"repeats": repeats}))


def deduplicate_in_one_pass(job: CurationJob, number: int) -> StageReport:
    """Mode ``bloom``: drop repeats within one split in a single pass over its examples, in fixed memory.

    Each split has its own filter, so that what is public does not depend on private text.
    """
    split = list(SPLIT_NUMBERS)[number]
    if split not in job.filter_splits_by_rule(IS_ONE_PASS):
        return StageReport("dedup in one pass")
    files = job.digests_paths("redacted-digests")
    one_pass, drop_count = plan.BloomPass(plan.count_entries(files), BLOOM_ERROR_RATE), 0
    for partition, path in enumerate(files):
        examples = read_part(job.part_path("redacted", partition), columns=["example_id", "split", "failure"])
        entries = np.load(path)
        entries = entries[np.argsort(entries["id"], kind="stable")][_mark_usable_examples(examples, [split])]
        repeats = np.array(one_pass.mark_repeats(plan.digests_to_ints(entries)), bool)
        plan.write_entries(job.digests_path(f"passed-{split}", partition), np.array(entries["id"][repeats]))
        drop_count += int(repeats.sum())
    facts = {
        "capacity": one_pass.capacity,
        "texts_added": one_pass.added,
        "examples_dropped": drop_count,
        "measured_on": one_pass.tracked_new,
        "measured_lost": one_pass.tracked_lost,
    }
    return StageReport("dedup in one pass", Counter({f"bloom/{split}/{n}": v for n, v in facts.items()}))


def write_decisions(job: CurationJob, partition: int, examples: pa.Table, decisions: Sequence[RoutingDecision]) -> None:
    """Write the decisions of one partition's examples, and the digests to find repeats."""
    ids = read_integer_column(examples, "example_id")
    digests, ranks = compute_decision_digests(
        job.key, job.config.dedup, ids.tolist(), decisions, build_dedup_scopes(job, examples)
    )
    write_digests(job.digests_path("redacted-digests", partition), digests, ids, ranks)
    write_decision_table(job, "redacted", partition, examples, decisions)


def write_decision_table(
    job: CurationJob, table: str, partition: int, examples: pa.Table, decisions: Sequence[RoutingDecision]
) -> None:
    """Write the decisions of one partition's examples with their masked texts."""
    columns = {field.name: [getattr(decision, field.name, None) for decision in decisions] for field in REDACTED}
    write_part(
        job.part_path(table, partition),
        pa.Table.from_pydict({**columns, "example_id": examples["example_id"]}, REDACTED),
    )


def compute_decision_digests(
    key: DigestKey,
    settings: DedupSettings,
    ids: Sequence[int],
    decisions: Sequence[RoutingDecision],
    scopes: list[str] | None,
) -> tuple[list[bytes], list[bytes] | None]:
    """Return the digests of redacted examples, and their ranks if a split is folded.

    Digests are equal only within a split and, given ``scopes`` (:func:`build_dedup_scopes`), within an owner. In a
    folded split the digest is that of the local key, and the text's own digest is its rank: the smallest rank is kept
    (rule S2). Otherwise all ranks are equal. A quarantined example must repeat nothing: its digest is that of its id.
    """
    words, unique_purpose = WordTokenizer(MASK), key.derive_subkey("dedup/alone")
    rules = settings.get_rules()
    exact_purposes = {split: key.derive_subkey(f"dedup/{split}") for split in rules}
    folded = {s: key.derive_subkey(get_digest_purpose(settings, s)) for s, rule in rules.items() if rule.folded}
    digests, ranks = [], []
    for number, (example, decision) in enumerate(zip(ids, decisions, strict=True)):
        owner = f"{scopes[number]}\x00" if scopes is not None and scopes[number] else ""
        rank = bytes(DIGEST_BYTES)
        if decision.failure is not None:
            digest = key.compute_text_digest(unique_purpose, example.to_bytes(8, "big"))
        else:
            digest = key.compute_text_digest(exact_purposes[decision.split], (owner + decision.text).encode())
            if decision.split in folded:
                rank = digest
                local_key = (owner + words.fold_text(decision.text)).encode()
                digest = key.compute_text_digest(folded[decision.split], local_key)
        digests.append(digest)
        ranks.append(rank)
    return digests, ranks if folded else None


def get_digest_purpose(settings: DedupSettings, split: str) -> str:
    """Return the purpose of a split's digests, so that digests of different splits, or folded and not, never match."""
    return f"dedup/{split}/folded" if settings.get_rules()[split].folded else f"dedup/{split}"


def read_example_users(examples: pa.Table) -> list[str]:
    """Return the user of each example; a row without a user is its own user."""
    columns = (examples["user_id"].to_pylist(), examples["doc_id"].to_pylist())
    return [u if u is not None else f"\x00{d}" for u, d in zip(*columns, strict=True)]


def build_dedup_scopes(job: CurationJob, examples: pa.Table) -> list[str] | None:
    """Return for each example what equal texts must share to be duplicates: the user if configured, and the role.

    A training may read a text with its role. If roles were not compared, exchanging one example could replace the kept
    text by an equal one of another role: two rows change. None if only texts are compared.
    """
    users = read_example_users(examples) if job.config.dedup.scope == "user" else None
    roles = examples[ROLE].to_pylist() if ROLE in job.metadata_schema.names else None
    if roles is None:
        return users
    owners = users if users is not None else [""] * len(roles)
    return [owner if role is None else f"{owner}{ROLE_MARK}{role}" for owner, role in zip(owners, roles, strict=True)]


def _mark_split_examples(examples: pa.Table, splits: Sequence[str]) -> NDArray[np.bool_]:
    """Mark the examples of these splits."""
    return np.array([split in splits for split in examples["split"].to_pylist()], bool)


def _mark_usable_examples(examples: pa.Table, splits: Sequence[str]) -> NDArray[np.bool_]:
    """Mark the examples of these splits that are not quarantined."""
    is_processed: NDArray[np.bool_] = np.array([failure is None for failure in examples["failure"].to_pylist()], bool)
    return is_processed & _mark_split_examples(examples, splits)


# The result of all plans.


def find_representatives(job: CurationJob, partition: int, redacted: pa.Table) -> Ids:
    """Return for each example of a partition the kept example: itself, another, or ``UNKNOWN_EXAMPLE``.

    An example that repeats an earlier run has a value below ``UNKNOWN_EXAMPLE`` (:func:`decode_earlier_runs`).
    """
    representatives = _find_exact_representatives(job, partition, redacted)
    if near_splits := job.filter_splits_by_rule(IS_NEAR):
        is_near = _mark_split_examples(redacted, near_splits)
        earlier_files = job.near_range_paths("near-earlier") if job.index is not None else []
        run_indices = lookup_replacements(earlier_files, representatives[is_near], NO_RUN)
        representatives[is_near] = _encode_earlier_runs(
            run_indices, lookup_replacements(job.near_range_paths("near-duplicates"), representatives[is_near])
        )
    if job.index is not None and job.filter_splits_by_rule(IS_BY_DIGEST):
        ids = read_integer_column(redacted, "example_id")
        representatives = _encode_earlier_runs(
            lookup_replacements([job.digests_path("earlier", partition)], ids, NO_RUN), representatives
        )
    return representatives


def _find_exact_representatives(job: CurationJob, partition: int, redacted: pa.Table, all_splits: bool = False) -> Ids:
    """Find representatives before near-duplicates are dropped; ``all_splits``: use the plan for all splits."""
    ids: Ids = read_integer_column(redacted, "example_id")
    splits = job.filter_splits_by_rule(lambda rule: rule.planned or (all_splits and not rule.one_pass))
    representatives = ids
    if (is_planned := _mark_split_examples(redacted, splits)).any():
        first = lookup_replacements(job.range_paths("repeated-redacted-digests"), ids)
        representatives = np.where(is_planned, first, ids)
    for split in job.filter_splits_by_rule(IS_ONE_PASS):
        dropped = np.isin(ids, np.load(job.digests_path(f"passed-{split}", partition)))
        representatives = np.where(dropped, UNKNOWN_EXAMPLE, representatives)
    return representatives.copy()


def decode_earlier_runs(representatives: Ids) -> Ids:
    """Return which earlier run of the open index each example repeats, as its position there, or ``NO_RUN``."""
    return np.where(representatives < UNKNOWN_EXAMPLE, UNKNOWN_EXAMPLE - 1 - representatives, NO_RUN)


def _encode_earlier_runs(run_indices: Ids, representatives: Ids) -> Ids:
    """Set a value below ``UNKNOWN_EXAMPLE`` for each example that repeats an earlier run."""
    return np.where(run_indices == NO_RUN, representatives, UNKNOWN_EXAMPLE - 1 - run_indices)


# Near-duplicates, within each split and across splits: sign, compare, group, choose.


def compute_text_signatures(job: CurationJob, number: int) -> StageReport:
    """Write the buckets, rows and shingles of the distinct redacted texts of one partition."""
    settings = job.config.dedup
    redacted = read_part(job.part_path("redacted", number))
    splits = list(SPLIT_NUMBERS) if settings.report_cross_split else job.filter_splits_by_rule(IS_NEAR)
    is_signed = _find_exact_representatives(job, number, redacted, all_splits=True) == read_integer_column(
        redacted, "example_id"
    )
    is_signed &= _mark_usable_examples(redacted, splits)
    signed = redacted.filter(is_signed)
    texts = signed["text"].to_pylist()
    rows = np.zeros(len(texts), ROW)
    rows["id"] = read_integer_column(signed, "example_id")
    rows["split"] = [SPLIT_NUMBERS[split] for split in signed["split"].to_pylist()]
    rows["rank"] = _hash_values(job.key, "dedup/rank", texts)
    role_columns = [ROLE] if ROLE in job.metadata_schema.names else []
    if role_columns or settings.scope == "user":
        examples = read_part(job.part_path("examples", number), columns=["user_id", "doc_id", *role_columns])
        rows["group"] = _hash_values(job.key, "dedup/user", build_dedup_scopes(job, examples.filter(is_signed)) or [])
    sets = Shingler(job.key, settings.near.shingle, WordTokenizer(MASK)).make_shingle_sets(texts)
    banding = choose_banding(settings.near.threshold, settings.near.permutations)
    write_signed_texts(job.signature_files[number], rows, sets, banding)
    return StageReport("sign", Counter({"signed": len(texts)}))


def _hash_values(key: DigestKey, purpose: str, values: list[str]) -> NDArray[np.uint64]:
    subkey = key.derive_subkey(purpose)
    digests = b"".join(key.compute_text_digest(subkey, value.encode())[:8] for value in values)
    return np.frombuffer(digests, "<u8")


def compare_near_duplicates(job: CurationJob, number: int) -> StageReport:
    """Compare the texts that share a bucket of one hash range, within splits and across them."""
    settings, near_splits = job.config.dedup, [SPLIT_NUMBERS[split] for split in job.filter_splits_by_rule(IS_NEAR)]
    pairs, cross_split_pairs, counts = near.compare_buckets(
        job.signature_files,
        number,
        settings.near.threshold,
        near_splits,
        settings.report_cross_split,
        job.near_range_count,
    )
    plan.write_entries(job.range_path("near-pairs", number), pairs)
    plan.write_entries(job.range_path("near-across", number), cross_split_pairs)
    return _make_near_duplicate_report("compare", counts)


def group_near_duplicates(job: CurationJob, number: int) -> StageReport:
    """Join the near pairs of all ranges to groups."""
    joined, largest = near.join_groups(job.near_range_paths("near-pairs"), job.near_range_paths("near-groups"))
    return StageReport("group", Counter({"near/grouped": joined, "near/largest_group": largest}))


def choose_representatives(job: CurationJob, number: int) -> StageReport:
    """Choose the kept texts of each group; texts that repeat an earlier run are excluded first."""
    pairs = np.load(job.range_path("near-groups", number))
    if job.index is not None:
        pairs = pairs[lookup_replacements(job.near_range_paths("near-earlier"), pairs["id"], NO_RUN) == NO_RUN]
    dropped = near.select_duplicates_to_drop(job.signature_files, pairs, job.config.dedup.near.threshold)
    plan.write_pairs(job.range_path("near-duplicates", number), dropped)
    return StageReport("choose", Counter({"near/dropped": len(dropped)}))


def find_cross_split_duplicates(job: CurationJob, records: pa.Table) -> list[tuple[Any, ...]]:
    """Return the released public examples of a partition that nearly duplicate a private one, with one such."""
    public = records.filter(pc.equal(records["decision"], PUBLIC))
    if not job.config.dedup.report_cross_split or not public.num_rows:
        return []
    released = dict(zip(*(public[name].to_pylist() for name in ("example_id", "released_id")), strict=True))
    pairs_by_range = [np.empty(0, near.CROSS_SPLIT_PAIR)]
    for path in job.near_range_paths("near-across"):
        pairs = np.load(path, mmap_mode="r")
        low, high = np.searchsorted(pairs["public"], [min(released), max(released) + 1])
        pairs_by_range.append(np.array(pairs[low:high]))
    nearest = near.select_nearest_pairs(np.concatenate(pairs_by_range)).tolist()
    return [(p, released[p], q, similarity) for p, q, similarity in nearest if p in released]


def _make_near_duplicate_report(stage: str, counts: Counter[str]) -> StageReport:
    return StageReport(stage, Counter({f"near/{name}": count for name, count in counts.items()}))


# The index across runs: find repeats of earlier runs, and record this run for later ones.


def match_earlier_runs(job: CurationJob, number: int) -> StageReport:
    """Find one partition's texts in what earlier runs saw, and record what this run saw."""
    index, rules = job.index, job.config.dedup.get_rules()
    assert index is not None
    examples = read_part(job.part_path("redacted", number), columns=["example_id", "split", "failure"])
    entries: Entries = np.load(job.digests_path("redacted-digests", number))
    # maps entries, sorted by digest for fast look-ups, to rows of the examples
    example_rows = np.argsort(np.argsort(entries["id"], kind="stable"), kind="stable")
    pairs: list[tuple[int, int]] = []
    for split in job.filter_splits_by_rule(IS_BY_DIGEST):
        unmatched = entries[_mark_usable_examples(examples, [split])[example_rows]]
        plan.write_entries(job.digests_path(f"seen-{split}", number), plan.collect_distinct_digests([unmatched]))
        for run_index, entry in enumerate(index.runs):
            with _report_removed_run(index):
                is_seen = _find_seen_entries(get_seen_texts_path(entry.folder, split, rules[split]), unmatched)
            pairs += ((example, run_index) for example in unmatched["id"][is_seen].tolist())
            unmatched = unmatched[~is_seen]
    repeats = plan.write_pairs(job.digests_path("earlier", number), pairs)
    return StageReport("recall", Counter({"repeats": repeats}))


def get_seen_texts_path(folder: Path, split: str, rule: DedupRule) -> Path:
    """Return the file of the texts that an entry's run saw in a split: digests, or the filter of mode ``bloom``."""
    return folder / (f"{split}.bloom" if rule.one_pass else f"{split}.digests.npy")


def _find_seen_entries(path: Path, entries: Entries) -> NDArray[np.bool_]:
    """Mark the ``entries`` that an earlier run saw."""
    if path.suffix == ".npy":
        return plan.mark_known_digests(path, entries)
    bloom = _load_bloom_filter(path, path.stat().st_mtime_ns)
    return np.fromiter((digest in bloom for digest in plan.digests_to_ints(entries)), bool, len(entries))


@lru_cache(maxsize=64)
def _load_bloom_filter(path: Path, modified: int) -> Bloom:
    # cached between partitions: an entry never changes once it counts
    return plan.read_bloom_filter(path)


def match_earlier_near_duplicates(job: CurationJob, number: int) -> StageReport:
    """Find the texts that nearly duplicate one that an earlier run kept, in one range of the buckets."""
    index, settings, files = job.index, job.config.dedup.near, job.signature_files
    assert index is not None
    first_runs: dict[int, int] = {}
    counts: Counter[str] = Counter()
    for split in job.filter_splits_by_rule(IS_NEAR):
        for run_index, entry in enumerate(index.runs):
            earlier_files = [get_kept_signature_files(entry.folder, split, p) for p in range(entry.body["partitions"])]
            with _report_removed_run(index):
                matches, run_counts = near.find_earlier_near_duplicates(
                    files, earlier_files, SPLIT_NUMBERS[split], number, settings.threshold, job.near_range_count
                )
            counts.update(run_counts)
            for example in matches:
                first_runs.setdefault(example, run_index)
    plan.write_pairs(job.range_path("near-earlier", number), first_runs.items())
    return _make_near_duplicate_report("recall near", counts)


def write_index_digests(job: CurationJob, number: int) -> StageReport:
    """Write the digests of all texts of a split, kept or not.

    If only kept texts were written, and old entries removed, exchanging one example could exchange two texts of a later
    run (``docs/guarantees.md``, "Earlier runs").
    """
    counts, rules = Counter[str](), job.config.dedup.get_rules()
    assert job.index is not None
    for split in job.filter_splits_by_rule(IS_BY_DIGEST):
        files = job.digests_paths(f"seen-{split}")
        ranges = job.hash_ranges * (plan.PIECES if plan.count_entries(files) > plan.MAX_UNDIVIDED_DIGESTS else 1)
        out = get_seen_texts_path(job.index.draft_folder, split, rules[split])
        seen_digests = job.range_path(f"seen-{split}", 0) if rules[split].one_pass else out
        counts[f"index/{split}"] = plan.merge_digests(files, ranges, seen_digests)
        if rules[split].one_pass:
            bloom_filter = plan.make_bloom_filter(counts[f"index/{split}"], BLOOM_ERROR_RATE)
            for n in range(ranges):
                bloom_filter.update(plan.digests_to_ints(plan.read_range(seen_digests, n, ranges)))
            write_bytes(out, bloom_filter.save_bytes())
    return StageReport("remember", counts)


def write_index_signatures(job: CurationJob, number: int) -> StageReport:
    """Copy the signatures of the texts that one partition keeps, for near-duplicate search in later runs."""
    redacted = read_part(job.part_path("redacted", number))
    ids = read_integer_column(redacted, "example_id")
    kept_ids = ids[find_representatives(job, number, redacted) == ids]
    counts: Counter[str] = Counter()
    assert job.index is not None
    for split in job.filter_splits_by_rule(IS_NEAR):
        out = get_kept_signature_files(job.index.draft_folder, split, number)
        counts[f"index/{split}"] += near.copy_signed_texts(
            job.signature_files[number], kept_ids, SPLIT_NUMBERS[split], out
        )
    return StageReport("remember near", counts)


def get_kept_signature_files(folder: Path, split: str, partition: int) -> SignedFiles:
    """Return the files of the signed texts that one partition of an entry's run kept in a split."""
    return SignedFiles(folder / f"near-{split}", partition)


def make_removed_run_error(index: IndexFolder, removed: str) -> RunStateError:
    """Return the error for an earlier run in use that was removed from the index."""
    return RunStateError(
        f"{index.root}: {removed} that this run uses was removed meanwhile (dedup.index.keep or redactory "
        "index --keep-runs), and the result would differ without it: start a new run in another folder, and "
        "keep more runs in the index than run at the same time"
    )


@contextmanager
def _report_removed_run(index: OpenIndex) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise make_removed_run_error(index.folder, "an entry") from None

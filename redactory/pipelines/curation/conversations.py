"""Read a run or an export as conversations: each turn with its role and the decisions of its examples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from redactory.detectors import Detection, Span
from redactory.foundation.errors import ConfigurationError, RunStateError, join_words
from redactory.pipelines.curation.error_sealing import run_with_sealed_traceback
from redactory.pipelines.curation.release_log import check_released
from redactory.redaction import PRIVATE, PUBLIC, RunFolder, read_batches, read_manifest, route_example
from redactory.redaction.folder import is_export
from redactory.redaction.known_values import add_known_values
from redactory.redaction.shards import DOCUMENT, EXAMPLES, ORDER, ROLE, read_values

Row = dict[str, Any]
SPLIT_FOLDERS = {"public": (PUBLIC,), "private": (PUBLIC, PRIVATE)}
"""The folders whose texts are shown for each split."""


def conversations(
    run: str | Path, split: Literal["public", "private"] = "public", *, known_values: bool = False
) -> list[dict[str, Any]]:
    """Return the documents of a finished run or an export as conversations, in the order of the input.

    Each is ``{"document_id", "turns": [{"turn", "role", "text", "decisions"}]}`` with the columns of
    ``input.metadata_columns``; a document that is no conversation is one turn without a role. ``decisions`` are the
    decisions of the turn's examples: ``public``, ``private``, ``duplicate`` or ``quarantined``. ``text`` joins the
    visible examples with a space, None if there are none: the public ones for ``split`` public; for private those of
    both splits, masked. A duplicate has the text of the kept example. An empty turn is left out, but counted in the
    numbers of the others.

    ``known_values`` (only with ``split`` private) masks a value that was masked once in a document everywhere in it,
    also in public examples, whatever the run's setting: no training uses these texts.

    An export has only public examples. ``ConfigurationError`` for an export whose run was created without
    ``input.emit_document_order``; ``RunStateError`` for its private split, and for a run that is not finished, or is
    held or rejected.
    """
    if split not in SPLIT_FOLDERS:
        raise ConfigurationError(f"split: expected one of {join_words(SPLIT_FOLDERS)}")
    if known_values and split != "private":
        raise ConfigurationError("known_values: the public split is already decided; use split='private'")
    folder = RunFolder(Path(run))
    manifest = read_manifest(folder)
    check_released(folder)
    if not is_export(manifest):
        language = manifest["configuration"]["detect"]["language"] if known_values else None
        rows = _read_run_rows(folder, split, language)
        return run_with_sealed_traceback(folder.state, _build_conversations, rows)
    if split == "private":
        raise RunStateError(f"{folder.root.name} is an export, which contains only the public split")
    if DOCUMENT not in manifest.get("columns", ()):
        raise ConfigurationError(f"{folder.root.name}: its run was created without input.emit_document_order")
    return _build_conversations({**row, "decision": PUBLIC} for row in _read_rows(folder, PUBLIC))


def _build_conversations(examples: Iterator[Row]) -> list[Row]:
    """Group ``examples``, sorted by document, into conversations."""
    documents: list[Row] = []
    reserved_columns = {"example_id", "text", "decision", DOCUMENT, ROLE, *ORDER.names}
    for document, document_rows in groupby(examples, itemgetter(DOCUMENT)):
        rows = list(document_rows)
        turns = [
            _build_turn(turn, list(turn_rows)) for turn, turn_rows in groupby(rows, lambda row: row.get("turn", 0))
        ]
        metadata = {name: value for name, value in rows[0].items() if name not in reserved_columns}
        documents.append({DOCUMENT: document, **metadata, "turns": turns})
    return documents


def _build_turn(number: int, examples: list[Row]) -> Row:
    text = " ".join(example["text"] for example in examples if example["text"] is not None)
    decisions = [example["decision"] for example in examples]
    return {"turn": number, ROLE: examples[0].get(ROLE), "text": text or None, "decisions": decisions}


def _read_run_rows(run: RunFolder, split: str, known_values_language: str | None) -> Iterator[Row]:
    """Yield every example of a run with its visible text; with a language, known values are masked."""
    texts = {row["example_id"]: row["text"] for folder in SPLIT_FOLDERS[split] for row in _read_rows(run, folder)}
    columns = read_values(run.examples, "example_id", "released_id", "decision")
    released_ids = {number: released for number, released, decision in columns if decision in (PUBLIC, PRIVATE)}
    masked_texts = {} if known_values_language is None else _mask_known_values(run, known_values_language)
    for row in _read_rows(run, "examples"):
        text = (
            masked_texts.get(row["example_id"])
            if masked_texts
            else texts.get(released_ids.get(row["example_id"] if row["dup_of"] is None else row["dup_of"], ""))
        )
        metadata = {name: value for name, value in row.items() if name not in EXAMPLES.names}
        yield {DOCUMENT: row["document"], **metadata, "decision": row["decision"], "text": text}


def _mask_known_values(run: RunFolder, language: str) -> dict[int, str]:
    """Return the text of each processed example with all known values of its document masked."""
    spans_by_id, masked_texts = defaultdict[int, list[Span]](list), dict[int, str]()
    for row in _read_rows(run, "spans"):
        if row["policy"] == "strict":
            spans_by_id[row["example_id"]].append(Span(*(row[name] for name in Span._fields)))
    for _, document_rows in groupby(_read_rows(run, "vault"), itemgetter("doc_id")):
        rows = list(document_rows)
        texts = [row["text"] for row in rows]
        detections = [Detection(tuple(spans_by_id[r["example_id"]])) for r in rows]
        for row, detection in zip(rows, add_known_values(texts, detections, language=language), strict=True):
            masked_texts[row["example_id"]] = route_example(row["text"], detection).text
    return masked_texts


def _read_rows(run: RunFolder, folder: str) -> Iterator[Row]:
    for batch in read_batches(getattr(run, folder)):
        yield from batch.to_pylist()

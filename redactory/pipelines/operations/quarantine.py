"""List the quarantine of a finished run by reason and id, and export it as input rows.

A rejected row of JSON lines or of a text file is exported unchanged. The quarantined examples of a document
become one row with its id and user, joined by line ends.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.files import write_bytes
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.error_sealing import run_with_sealed_traceback
from redactory.pipelines.curation.output_folder import lock_folders
from redactory.pipelines.curation.release_log import check_released
from redactory.pipelines.readers import InputSettings
from redactory.pipelines.readers.documents import DUPLICATE_ID
from redactory.pipelines.readers.files import detect_format
from redactory.pipelines.readers.formats import FORMATS, QUARANTINED_BYTES
from redactory.redaction import RunFolder, is_finished, list_parts, read_batches, read_manifest, read_part
from redactory.redaction.folder import find_containing_job, find_runs
from redactory.redaction.shards import CLASS, QUARANTINE, ROLE, require_not_purged

MAX_LISTED = 100
MAX_BYTES = 1 << 30
"""Exported rows lie in memory; a run that failed as a whole is curated again instead."""


def quarantine_list(place: str | Path, limit: int = MAX_LISTED) -> dict[str, Any]:
    """List the quarantine of a run, or of every finished run of a job; without any text or document id.

    ``{"runs": [{"run", "entries", "reasons": [{reason, kind, count, bytes}], "listed": [...]}]}``; the first
    ``limit`` entries of each run are listed: ``id`` (for :func:`read_quarantine_entry`), ``kind`` (row or example),
    ``reason``, ``bytes``, and the origin: ``source`` and ``row``, or ``example_id``. A purged quarantine has
    ``purged`` True. ``RunStateError`` if no run is finished, ``ConfigurationError`` if ``place`` is neither.
    """
    every = find_runs(place)
    runs = [run for run in every if is_finished(run)]
    if every and not runs:
        read_manifest(every[0])  # raises the error
    return {"runs": [run_with_sealed_traceback(run.state, _list_run_entries, run, limit) for run in runs]}


def read_quarantine_entries(run: RunFolder, columns: list[str]) -> Iterator[dict[str, Any]]:
    """Yield each entry's ``columns`` and its ``id``, in order, one part at a time."""
    require_not_purged(run.quarantine)
    for number, path in enumerate(list_parts(run.quarantine)):
        for offset, entry in enumerate(read_part(path, columns).to_pylist()):
            yield {"id": f"{number}-{offset}", **entry}


def _list_run_entries(run: RunFolder, limit: int) -> dict[str, Any]:
    counts, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    listed: list[dict[str, Any]] = []
    if "quarantine" in read_manifest(run).get("purged", ()):
        return {"run": str(run.root), "purged": True, "entries": 0, "reasons": [], "listed": []}
    for entry in read_quarantine_entries(run, ["kind", "reason", "source", "row", "example_id", "content"]):
        key, bytes_ = (entry["reason"], entry["kind"]), len(entry["content"] or b"")
        counts[key] += 1
        sizes[key] += bytes_
        if len(listed) < limit:
            # without text: an example's source is its document's id, which is not listed
            origin_keys = ("source", "row") if entry["kind"] == "row" else ("example_id",)
            listed.append({n: entry[n] for n in ("id", "kind", "reason", *origin_keys)} | {"bytes": bytes_})
    reasons = [
        {"reason": reason, "kind": kind, "count": count, "bytes": sizes[reason, kind]}
        for (reason, kind), count in counts.most_common()
    ]
    return {"run": str(run.root), "entries": counts.total(), "reasons": reasons, "listed": listed}


def read_quarantine_entry(run: str | Path, entry: str) -> bytes:
    """Return the content of one entry: the kept part of a rejected row, or an example's text (UTF-8).

    It is original text: show it only to people, and store it nowhere. ``ConfigurationError`` for an unknown id.
    """
    folder = RunFolder(Path(run))
    read_manifest(folder)
    rows = run_with_sealed_traceback(
        folder.state, list, (row for row in read_quarantine_entries(folder, ["content"]) if row["id"] == entry)
    )
    if not rows:
        raise ConfigurationError(
            f"{folder.root.name} has no quarantine entry with that id: see redactory quarantine list {folder.root}"
        )
    return rows[0]["content"] or b""


def escape_for_terminal(content: bytes) -> str:
    """Escape ``content`` for a terminal: whatever is invisible or could control the terminal."""
    shown = (
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode()
        for c in content.decode("utf-8", "backslashreplace")
    )
    return "".join(shown)


# Export: quarantined content as rows that people can fix and curate again.


def quarantine_export(run: str | Path, *, unencrypted: bool = False) -> dict[str, Any]:
    """Write the rows of a run's quarantine that can be curated again to ``state/quarantine.jsonl`` (mode 0600).

    Returns ``{"run", "out", "entries", "exported", "left"}``; ``out`` is None if nothing can be written. The rows
    are JSON lines of original text in the columns of the run's configuration: rejected rows of JSON lines and text
    files, and each document of quarantined examples with its id and user. ``left`` counts the entries that are not
    written, by reason. An erasure and ``purge --quarantine`` remove the file. ``RunStateError`` for a run that is
    held or rejected. ``ConfigurationError`` for an encrypted run unless ``unencrypted`` allows unencrypted output.
    """
    folder = RunFolder(Path(run).resolve())
    manifest = read_manifest(folder)
    check_released(folder)
    if manifest["encryption"] and not unencrypted:
        raise ConfigurationError(
            f"{folder.root.name} is encrypted, but exported rows are not: pass --unencrypted to write their "
            f"original text to {folder.exported.relative_to(folder.root)}"
        )
    config = Config.from_manifest(manifest["configuration"])
    with lock_folders(find_containing_job(folder), folder):
        return run_with_sealed_traceback(folder.state, _export_rows, folder, config)


def _export_rows(run: RunFolder, config: Config) -> dict[str, Any]:
    columns, lines, skipped = config.input, list[bytes](), Counter[str]()
    size, exported = 0, 0
    documents: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in read_quarantine_entries(run, QUARANTINE.names):
        content = entry["content"] or b""
        size += len(content)
        if size > MAX_BYTES:
            raise RunStateError(
                "the quarantine holds more than a gigabyte: fix the cause, and curate the input again as a new run"
            )
        if entry["kind"] == "example" and config.release.unit == "document":
            skipped["their document is decided as a whole: curate whole documents in a new run"] += 1
        elif entry["kind"] == "example":
            documents[entry["source"]].append(entry)
            exported += 1
        elif isinstance(line := _make_retry_line(entry["reason"], entry["source"], content, columns), str):
            skipped[line] += 1
        else:
            lines.append(line)
            exported += 1
    example_ids = {entry["example_id"] for entries in documents.values() for entry in entries}
    rows = (row for batch in read_batches(run.examples) for row in batch.to_pylist() if example_ids)
    metadata = {row["example_id"]: row for row in rows if row["example_id"] in example_ids}
    for doc_id, entries in documents.items():
        first = entries[0]
        kept = metadata[first["example_id"]]
        origin = {columns.user: first["user_id"], columns.label: first[CLASS]}
        row = {
            columns.fields.paths[0]: _join_examples(entries, metadata),
            columns.id: doc_id,
            **{name: value for name, value in kept.items() if name in columns.metadata_columns},
            **{name: value for name, value in origin.items() if name is not None and value is not None},
        }
        lines.append(json.dumps(row).encode() + b"\n")
    if lines:
        write_bytes(run.exported, b"".join(lines))
    counts = {"entries": exported + skipped.total(), "exported": exported, "left": dict(skipped.most_common())}
    return {"run": str(run.root), "out": str(run.exported) if lines else None, **counts}


def _make_retry_line(reason: str, source: str, content: bytes, columns: InputSettings) -> bytes | str:
    """Return a rejected row as a JSON line, or the reason why it cannot be one."""
    kind = detect_format(source) if columns.format == "auto" else columns.format
    if reason == DUPLICATE_ID:
        return "their document's id occurs twice"
    if kind is None or not (kind == "jsonl" or FORMATS[kind].is_text):
        return "they are rows of a table: fix the file, and curate it in a new run"
    if len(content) >= QUARANTINED_BYTES:
        return "only their first 64 KiB were kept"
    if not content:
        return "nothing of them could be read"
    if kind != "text":
        # a value may stand on several lines; inside a JSON string there is no line end
        return b" ".join(content.removeprefix("\ufeff".encode()).splitlines()) + b"\n"
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "they are not UTF-8"
    return json.dumps({columns.fields.paths[0]: text, columns.id: PurePosixPath(source).name}).encode() + b"\n"


def _join_examples(entries: list[dict[str, Any]], metadata: Mapping[int, dict[str, Any]]) -> Any:
    """Join the examples of a document to a text, or to a conversation if their roles are known."""
    texts = {entry["example_id"]: entry["content"].decode() for entry in entries}
    if any(ROLE in metadata[point] for point in texts):
        return [{"role": metadata[point][ROLE], "content": text} for point, text in texts.items()]
    return "\n".join(texts.values())

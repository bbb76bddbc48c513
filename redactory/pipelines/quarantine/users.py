"""Whose the quarantined points of a run are: ``vault/`` has the users, ``audit/points`` their keyed ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from redactory.foundation.keys import DigestKey
from redactory.redaction import RunFolder, read_batches, read_manifest
from redactory.redaction.shards import CLASS


@dataclass(frozen=True)
class Author:
    """Who wrote a document (None: it names nobody, and is its own user), and its class."""

    user_id: str | None
    label: str | None = None


UNKNOWN = Author(None)
"""Stands for a user that cannot be told any more (compare with ``is``)."""


def authors_of(run: RunFolder, documents: Mapping[str, int], key: DigestKey | None) -> dict[str, Author]:
    """The author of each document, given with the id of one of its points.

    A point in quarantine is not in ``vault/``.  Its user is known from another point of its document, or
    from any point of the same user: their keyed ids agree, which needs the run's ``key``.  Where neither is
    there, the answer is :data:`UNKNOWN`, and never a user of its own: one person must not become two.
    """
    keyed = _keyed(run, documents)
    found = dict.fromkeys(documents, UNKNOWN)
    by_user: dict[str, Author] = {}
    wanted = set(keyed.values())
    if key is not None:
        # a document that names nobody has an id of its own
        for doc_id, user in keyed.items():
            if user == key.pseudonym("lone-user", doc_id):
                found[doc_id] = Author(None)
    seen: set[str] = set()
    for doc_id, user_id, label in _vault(run):
        if doc_id in found:
            found[doc_id] = Author(user_id, label)
        if key is not None and user_id is not None and user_id not in seen:
            seen.add(user_id)
            if (pseudonym := key.pseudonym("user", user_id)) in wanted:
                by_user[pseudonym] = Author(user_id)
    return {
        doc_id: by_user.get(keyed[doc_id], UNKNOWN) if author is UNKNOWN else author
        for doc_id, author in found.items()
    }


def _keyed(run: RunFolder, documents: Mapping[str, int]) -> dict[str, str]:
    """The keyed user of each document."""
    documents_of = {point: doc_id for doc_id, point in documents.items()}
    found = {}
    for batch in read_batches(run.points, ["point_id", "user"]) if documents else ():
        for point, user in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if point in documents_of:
                found[documents_of[point]] = user
    return found


def _vault(run: RunFolder) -> Iterator[tuple[str, str | None, str | None]]:
    """Document, user and class of every point there; nothing where it was purged."""
    manifest = read_manifest(run)
    if "vault" in manifest.get("purged", ()):
        return
    labelled = manifest["configuration"]["input"].get("label") is not None
    columns = ["doc_id", "user_id", *([CLASS] if labelled else [])]
    for batch in read_batches(run.vault, columns):
        columns_ = [column.to_pylist() for column in batch.columns]
        if not labelled:
            columns_.append([None] * batch.num_rows)
        yield from zip(*columns_, strict=True)

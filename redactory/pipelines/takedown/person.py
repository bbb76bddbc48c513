"""Who is to be taken out, and which points of a run are theirs: told by keyed pseudonyms alone."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.keys import KEY_VARIABLE, DigestKey, forms_of
from redactory.redaction import RunFolder, read_batches

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


@dataclass(frozen=True)
class Hers:
    """The rows of ``audit/points`` that are hers, by point id.

    ``lone`` counts documents without a user whose own id was asked for as a user's: nobody knows whether
    that is she, and they are left.
    """

    points: dict[int, Row]
    lone: int

    @property
    def pseudonyms(self) -> set[str]:
        """Of the documents and the users of these points."""
        return {row[kind] for row in self.points.values() for kind in ("document", "user")}

    @property
    def documents(self) -> int:
        """How many documents these points make up."""
        return len({row["document"] for row in self.points.values()})


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


def hers(run: RunFolder, person: Person, key: DigestKey) -> Hers:
    """Find the points of ``person`` in a run of this ``key``: of these documents, and of these users."""
    documents = _pseudonyms(key, "document", person.doc_ids)
    users = _pseudonyms(key, "user", frozenset(form for user in person.user_ids for form in forms_of(user)))
    alone = _pseudonyms(key, "lone-user", person.user_ids - person.doc_ids)
    found: dict[int, Row] = {}
    lone: set[str] = set()
    for batch in read_batches(run.points):
        mine = pc.or_(pc.is_in(batch["document"], documents), pc.is_in(batch["user"], users))
        found.update((row["point_id"], row) for row in batch.filter(mine).to_pylist())
        lone.update(batch.filter(pc.is_in(batch["user"], alone))["document"].to_pylist())
    return Hers(found, len(lone - {row["document"] for row in found.values()}))


def others_of(run: RunFolder, gone: set[int], originals: set[int]) -> Iterator[Row]:
    """The duplicates of ``originals`` that are not among ``gone``, in the order of their ids."""
    wanted, without = pa.array(sorted(originals), pa.int64()), pa.array(sorted(gone), pa.int64())
    for batch in read_batches(run.points):
        mine = pc.and_(pc.is_in(batch["dup_of"], wanted), pc.invert(pc.is_in(batch["point_id"], without)))
        yield from batch.filter(mine).to_pylist()


def _pseudonyms(key: DigestKey, kind: str, ids: frozenset[str]) -> pa.Array:
    return pa.array([key.pseudonym(kind, value) for value in sorted(ids)], pa.string())

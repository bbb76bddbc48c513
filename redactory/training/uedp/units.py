"""Read the privacy units of every example of a finished run, and the examples that UeDP trainers use.

An example's users are its owner's keyed id, or the ids of all holders of a copy. Its entities are what the
policies found and the client listed. ``docs/explanation/uedp.md``, "Users, entities and points".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError, InputError
from redactory.foundation.keys import DIGEST_BYTES, DigestKey, load_digest_key
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK, mask_intervals
from redactory.redaction.sealing import read_manifest
from redactory.redaction.shards import CLASS
from redactory.training.data import (
    NO_CLASS,
    PublicText,
    TokenizedExamples,
    add_role_prefix,
    encode_classes,
    read_columns,
    read_folder_classes,
    read_manifest_digest,
    read_original_conversations,
    require_unchanged_parts,
)
from redactory.training.models.frozen_encoder import AnyCodec, encode_texts
from redactory.training.uedp.entities import EntityNames, Mention, load_high_degree_list
from redactory.training.uedp.incidence import Incidence, IncidenceBuilder
from redactory.training.unit_settings import UnitSettings

if TYPE_CHECKING:
    from redactory.training.settings import TrainSettings


_VAULT_COLUMNS = ["example_id", "text"]
_EXAMPLE_COLUMNS = ["example_id", "user", "decision", "dup_of", "document"]
_COPY_COLUMNS = ["example_id", "user", "decision", "dup_of", "earlier_run"]
_SPAN_COLUMNS = ["example_id", "start", "end", "label", "policy"]
_PRIORITY_BYTES = 8
TableRow = tuple[Any, ...]


def read_unit_incidence(run: RunFolder, units: UnitSettings, whole_documents: bool = False) -> Incidence:
    """Read the hypergraph of the finished ``run``'s vault, as ``units`` define it (:func:`read_incidence`).

    Entities are digests under the run's own digest, the same in every process: Algorithm 1 names an entity's coins
    by them, and a resumed training must draw the same coins. They are never written.
    """
    key = DigestKey(bytes.fromhex(read_manifest_digest(run)))
    return read_incidence(run, load_entity_names(units, key), units.duplicates == "merge", whole_documents)


def read_incidence(run: RunFolder, names: EntityNames, merge: bool = False, whole_documents: bool = False) -> Incidence:
    """Read the hypergraph of every example in a finished run's vault, in one pass over row groups.

    Duplicates remain examples of their own users. With ``merge`` they are left out, and the kept example lists every
    user who holds a copy (condition (a)). With ``whole_documents`` an example is a document of its user, with the id of
    its first example. Values are cut out of the texts at the strict spans of ``audit/spans``, normalised, and kept as
    keyed digests. Memory: the hypergraph, one row group of each table and, for ``merge``, the duplicates.

    ``CheckFailed`` if the tables differ from what the run sealed or do not fit together; ``GuaranteeError`` if
    ``merge`` meets a deduplication that does not know every holder.
    """
    for folder in (run.vault, run.examples, run.spans):
        require_unchanged_parts(run, folder)
    holders = _read_copy_holders(run) if merge else {}
    owners, hits = _RowsById(read_columns(run.examples, _EXAMPLE_COLUMNS)), _read_strict_spans(run)
    collector = IncidenceBuilder()
    within, pending, position = "", list[Any](), 0
    for point, text in read_columns(run.vault, _VAULT_COLUMNS):
        owner_row, point_spans = owners.find_row(point), hits.find_row(point)
        if owner_row is None:
            raise CheckFailed(f"audit/examples lacks example {point}, which is in the vault")
        _, user, decision, _, document = owner_row
        position = position + 1 if document == within else 0
        again, within = document == within, document
        if decision == "duplicate" and merge:
            continue
        mentions: list[Mention] = []
        for _, start, end, label, _ in point_spans[1] if point_spans is not None else ():
            if not 0 <= start < end <= len(text):
                raise CheckFailed(f"audit/spans: a span in example {point} is outside its text")
            mention = names.make_mention(text[start:end], label)
            mentions += [] if mention is None else [mention]
        mentions += names.find_listed_mentions(text)
        units = [bytes.fromhex(user), *holders.get(point, ())]
        if pending and whole_documents and again:
            pending[-1] += mentions
            continue
        if pending:
            collector.add(*pending)
        # an order that depends only on the document's keyed id and the place there: the id of a text that is public
        # by count depends on the text (condition (b))
        digest = hashlib.blake2b(f"{document} {position}".encode(), digest_size=_PRIORITY_BYTES).digest()
        pending = [point, int.from_bytes(digest, "big"), units, mentions]
    if pending:
        collector.add(*pending)
    return collector.build()


def _read_copy_holders(run: RunFolder) -> Mapping[int, list[bytes]]:
    """Read the keyed users of the copies of each kept example."""
    dedup = read_manifest(run)["dedup"]
    rules = {split["rule"] for split in dedup.get("splits", {}).values()} or {dedup["rule"]}
    if unknown := rules - {"S1", "S2", "none"}:
        raise GuaranteeError(
            f"deduplication by rule {', '.join(sorted(unknown))} does not record who else has a kept text: "
            "set copies to keep, or curate with dedup.mode exact"
        )
    if len(rules) > 1 and "route" in read_manifest(run):
        raise GuaranteeError(
            "texts public by count were merged but others not (dedup.private_mode none), so which copies "
            "are one example depends on the selection: set copies to keep, or curate with private_mode exact"
        )
    holders_by_example: dict[int, list[bytes]] = {}
    for point, user, decision, original, earlier_run in read_columns(run.examples, _COPY_COLUMNS):
        # what an earlier run has is not trained on here
        if decision == "duplicate" and earlier_run is None:
            if original is None:
                raise CheckFailed(f"audit/examples does not record which example {point} repeats")
            holders_by_example.setdefault(original, []).append(bytes.fromhex(user))
    return holders_by_example


class _RowsById:
    """Rows in the order of their example ids, read by ascending ids."""

    def __init__(self, rows: Iterator[TableRow]) -> None:
        self._rows, self._next = rows, next(rows, None)

    def find_row(self, example_id: int) -> TableRow | None:
        """Return the row of ``example_id``, or None; earlier rows are skipped."""
        while self._next is not None and self._next[0] <= example_id:
            current, self._next = self._next, next(self._rows, None)
            if self._next is not None and self._next[0] <= current[0]:
                raise CheckFailed("a table of the run is not in the order of its example ids")
            if current[0] == example_id:
                return current
        return None


def _read_strict_spans(run: RunFolder) -> _RowsById:
    """Yield (example id, its strict spans) for every example that has some; a span is a row of ``audit/spans``."""
    chosen = (row for row in read_columns(run.spans, _SPAN_COLUMNS) if row[4] == "strict")
    return _RowsById((point, list(rows)) for point, rows in groupby(chosen, itemgetter(0)))


# The examples that UeDP trainers and their baselines use: originals, one vault row each.


@dataclass(frozen=True)
class OriginalExamples:
    """The examples ``example_ids`` (ascending; None: all) of the run's vault, masked by ``masked_names`` if given.

    ``incidence`` is the hypergraph of these examples, if given: row i is example i. With ``whole_documents`` they
    are whole documents, as in :func:`read_incidence`.

    Formal guarantees: row i is a function of example i's own text, spans and class, and of public constants; which
    examples there are depends on the hypergraph alone.
    """

    run: RunFolder
    example_ids: NDArray[np.int64] | None = None
    masked_names: EntityNames | None = None
    incidence: Incidence | None = None
    whole_documents: bool = False

    def read_texts(self) -> Iterator[str]:
        """Return the text of each example, in order; ``CheckFailed`` if one of ``example_ids`` is not in the vault."""
        wanted_ids = None if self.example_ids is None else set(self.example_ids.tolist())
        names, count = self.masked_names, 0
        hits = None if names is None else _read_strict_spans(self.run)
        rows = (
            read_original_conversations(self.run)
            if self.whole_documents
            else read_columns(self.run.vault, _VAULT_COLUMNS)
        )
        for point, text in rows:
            if wanted_ids is not None and point not in wanted_ids:
                continue
            count += 1
            if names is None or hits is None:
                yield text
                continue
            point_spans = hits.find_row(point)
            places = names.find_listed_spans(text)
            for _, start, end, label, _ in point_spans[1] if point_spans is not None else ():
                if names.make_mention(text[start:end], label) is not None:
                    places.append((start, end))
            yield mask_intervals(text, places)
        if wanted_ids is not None and count < len(wanted_ids):
            raise CheckFailed("the vault lacks a selected example")

    def read_classes(self, names: tuple[str, ...]) -> NDArray[np.int64]:
        """Return the index in ``names`` of each example's class, int64 [n]; ``NO_CLASS`` for other classes.

        ``ConfigurationError`` if the run has no classes.
        """
        numbers = encode_classes(read_folder_classes(self.run.vault), names)
        if self.example_ids is None:
            return numbers
        all_ids = np.fromiter((point for (point,) in read_columns(self.run.vault, ["example_id"])), np.int64)
        return numbers[np.isin(all_ids, self.example_ids)]

    def compute_fingerprint(self, stream: RandomStream) -> str:
        """Return a digest of examples and hypergraph under a key of ``stream``.

        A resumed training must have the same examples for the same units, and lists may have changed.
        """
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES, key=stream.random_bytes("selection", 0, 32))
        digest.update(b"all" if self.example_ids is None else self.example_ids.tobytes())
        if self.incidence is not None:
            for rows in (self.incidence.users, self.incidence.entities):
                digest.update(rows.indptr.tobytes() + rows.indices.tobytes())
        return digest.hexdigest()


# A client's lists, read from files: entities, aliases, hubs.  Errors name file and line, never a value.


def load_entity_names(units: UnitSettings, key: DigestKey | None = None) -> EntityNames:
    """Load what counts as an entity under ``units``; ``ConfigurationError`` for an unreadable list.

    Neither the examples of an entity nor the examples that a cap keeps depend on ``key``.
    """
    hubs: dict[str, frozenset[str] | None] = {}
    for entry in units.high_degree_entities:
        if isinstance(entry, str):
            hubs |= load_high_degree_list(entry)
    for path in units.high_degree_files:
        hubs |= dict.fromkeys(_read_lines("high_degree_entities", path))
    return EntityNames(
        key or load_digest_key(),
        categories=None if units.labels is None else frozenset(units.labels),
        listed=_read_lines("entities", units.entities),
        hubs=hubs,
        aliases=_read_aliases(units.aliases),
    )


def _read_lines(key: str, path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigurationError(f"train.units.{key}: {path.name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"train.units.{key}: {path.name} is not UTF-8") from None
    return tuple(line.strip() for line in lines if line.strip())


def _read_aliases(path: Path | None) -> dict[str, str]:
    aliases: dict[str, str] = {}
    for number, line in enumerate(_read_lines("aliases", path), 1):
        alias, tab, value = line.partition("\t")
        if not (tab and alias.strip() and value.strip()):
            raise ConfigurationError(f"train.units.aliases: entry {number} is not 'alias, tab, value'")
        aliases[alias.strip()] = value.strip()
    return aliases


# Points as a training with units reads them: a language model's rows, or rows with a class each.


@dataclass(frozen=True)
class EncodedExamples:
    """``examples``, and which of them contribute nothing: no class, an untrained turn, or dropped.

    Formal guarantees: whether an example contributes depends only on its own whole text and its own class. A null
    example stays null, and it changes no other example.
    """

    examples: TokenizedExamples
    excluded_mask: NDArray[np.bool_] | None = None

    @property
    def included_rows(self) -> NDArray[np.int64]:
        """Return the rows that contribute."""
        rows = np.arange(len(self.examples), dtype=np.int64)
        return rows if self.excluded_mask is None else rows[~self.excluded_mask]


def encode_public_text(text: PublicText, settings: TrainSettings, tokenizer: AnyCodec) -> EncodedExamples:
    """Encode the public text for the task; ``InputError`` if no row of it can be used for training."""
    encoded = encode_examples(
        (add_role_prefix(*row) for row in text.read_rows()) if settings.prefix == CLASS else text.read_texts(),
        settings,
        tokenizer,
        lambda: encode_classes((label for _, label in text.read_rows()), settings.classes),
    )
    if not len(encoded.included_rows):
        raise InputError(f"train.public_text: {text.path.name} has no row for task {settings.task}")
    return encoded


def encode_examples(
    texts: Iterable[str],
    settings: TrainSettings,
    tokenizer: AnyCodec,
    classes: Callable[[], NDArray[np.int64]],
    drop_masked: bool = False,
) -> EncodedExamples:
    """Encode ``texts`` for the task, each cut to ``max_tokens``; a classifier needs ``classes``.

    With ``drop_masked`` a text with a mask contributes nothing. This looks at the whole text, before encoding and
    cutting: even if the mask is behind the cut, earlier tokens can differ between the two worlds
    (``docs/guarantees.md``, "Dropping masked points").
    """
    is_masked: list[bool] = []

    def iterate_texts_and_flag_masks() -> Iterator[str]:
        for text in texts:
            is_masked.append(MASK in text)
            yield text

    examples = encode_texts(iterate_texts_and_flag_masks(), tokenizer, settings.max_tokens)
    excluded = examples.examples_without_loss
    if settings.task == "classify":
        numbers = classes()
        examples, excluded = replace(examples, labels=numbers), numbers == NO_CLASS
    if drop_masked:
        excluded = np.array(is_masked, bool) | (False if excluded is None else excluded)
    return EncodedExamples(examples, excluded)

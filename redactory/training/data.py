"""What a training reads: the checked texts of a finished run, as rows of token ids, padded for one step.

Also what a step computes at once: how its rows are cut into pieces is a function of the rows and of settings
that the ledger holds, never of how many processes compute them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from redactory.foundation.canonical import file_sha256, read_blocks
from redactory.foundation.errors import CheckFailed, ConfigurationError, InputError
from redactory.foundation.keys import load_digest_key
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK, PRIVATE, PUBLIC, ROLE_MARK, TURN_MARK
from redactory.redaction.sealing import read_manifest
from redactory.redaction.shards import CLASS, ROLE, USERS, list_parts, read_batches, require_not_purged
from redactory.training.chat import ChatCodec, join_turns, messages_to_text
from redactory.training.tokenizer import TextCodec

IntArray = NDArray[np.int64]
RowIndices = Sequence[int] | IntArray
NO_CLASS = -100
"""The class number of a point that has none of the classes: its loss is 0 and its gradient exactly 0."""


# A finished run, checked against its manifest.


def read_manifest_digest(run: RunFolder) -> str:
    """The sha256 of the run's manifest, which every model names; ``RunStateError`` where unfinished."""
    read_manifest(run)
    return file_sha256(run.manifest)


def require_unchanged(run: RunFolder, folder: Path) -> None:
    """``CheckFailed`` unless the parts of ``folder`` are as they were sealed; ``RunStateError`` if purged."""
    require_not_purged(folder)
    prefix = folder.relative_to(run.root).as_posix() + "/part-"
    sealed = {n: entry["sha256"] for n, entry in read_manifest(run)["files"].items() if n.startswith(prefix)}
    actual_digests = {path.relative_to(run.root).as_posix(): file_sha256(path) for path in list_parts(folder)}
    if sealed != actual_digests:
        raise CheckFailed(f"the parts of {folder.name}/ are not those in manifest.json")


ExampleFormat = Literal["texts", "roles", "class", "turn", "conversation"]
"""How examples are read: as they are, with their roles or classes, or as turns and conversations."""


def read_texts(run: RunFolder, folder: Path, example_format: ExampleFormat = "texts") -> Iterator[str]:
    """The examples of a data folder of ``run``, in order; all but conversations a row group at a time.

    ``ConfigurationError`` where rows have no roles and are read with them.
    """
    if example_format == "conversation":
        yield from read_conversations(run, folder)
        return
    if example_format == CLASS:
        yield from map(add_role_prefix, read_texts(run, folder), read_classes(run, folder))
        return
    role = "speaker" if folder == run.vault else ROLE
    for batch in read_batches(folder, ["text"] if example_format == "texts" else ["text", role]):
        values = batch["text"].to_pylist()
        if example_format == "texts":
            yield from values
            continue
        _require_roles(batch.schema.names, role, folder, "chat" if example_format == "turn" else "prefix")
        for text, speaker in zip(values, batch[role].to_pylist(), strict=True):
            yield join_turns([(speaker, text)]) if example_format == "turn" else add_role_prefix(text, speaker)


def _require_roles(columns: Sequence[str], role: str, folder: Path, key: str) -> None:
    if role not in columns:
        raise ConfigurationError(
            f"train.{key}: {folder.name}/ has no roles; curate conversations (input.text: messages)"
        )


def read_conversations(run: RunFolder, folder: Path) -> Iterator[str]:
    """The conversations of a side of ``run``, masked, or the originals of its vault, in order.

    One is private where one of its examples is, or was not processed: of that one nothing is left.
    ``ConfigurationError`` where a rule merges equal texts, whose turns would lie in other conversations.

    Formal guarantees: a conversation, its masked text and its side are functions of that document alone, as
    long as what becomes of an example is one of its document (``docs/guarantees.md``, "Conversations").
    """
    if folder == run.vault:
        yield from (text for _, text in read_original_conversations(run))
        return
    if read_manifest(run)["dedup"]["rule"] != "none":
        raise ConfigurationError(
            "train.chat: whole conversations need a run with dedup.mode none: otherwise a turn that repeats "
            "is kept in only one conversation; curate with it, or set train.chat.example to turn"
        )
    sides = {PUBLIC: (run.public,), PRIVATE: (run.public, run.private)}[folder.name]
    masked = dict(chain.from_iterable(read_columns(split, ["example_id", "text"]) for split in sides))
    columns = ["document", "turn", ROLE, "released_id", "decision"]
    for batch in read_batches(run.examples, columns):
        _require_roles(batch.schema.names, ROLE, run.examples, "chat")
    for _, document_rows in groupby(read_columns(run.examples, columns), itemgetter(0)):
        examples = list(document_rows)
        decisions = {decision for *_, decision in examples}
        if (decisions == {PUBLIC}) != (folder == run.public):
            continue
        if not decisions <= {PUBLIC, PRIVATE}:
            yield ""
            continue
        yield join_turns(
            (role, " ".join(masked[released_id] for *_, released_id, _ in turn_rows))
            for (_, role), turn_rows in groupby(examples, itemgetter(1, 2))
        )


def read_original_conversations(run: RunFolder) -> Iterator[tuple[int, str]]:
    """The documents of the vault as they were, each with the id of its first point.

    Where the beginning of a turn was not processed, the rest stays with whoever said it.
    """
    names = ["doc_id", "example_id", "speaker", "prefix", "text", "suffix"]
    for _, group in groupby(read_columns(run.vault, names), itemgetter(0)):
        rows, turns = list(group), list[tuple[str | None, str]]()
        for _, _, speaker, prefix, text, suffix in rows:
            before = prefix.rpartition(TURN_MARK)[2].rpartition(ROLE_MARK)[2]
            full_text = before + text + suffix.partition(TURN_MARK)[0]
            if turns and TURN_MARK not in prefix and turns[-1][0] == speaker:
                turns[-1] = speaker, turns[-1][1] + full_text
            else:
                turns.append((speaker, full_text))
        yield rows[0][1], join_turns(turns)


def read_columns(folder: Path, columns: list[str]) -> Iterator[tuple[Any, ...]]:
    """The ``columns`` of each row of a data folder, in order."""
    for batch in read_batches(folder, columns):
        yield from zip(*(batch[name].to_pylist() for name in columns), strict=True)


def add_role_prefix(text: str, role: str | None) -> str:
    """``text`` as a model with ``train.prefix`` reads it: ``role: text``, or alone where no role is known."""
    return text if role is None else f"{role}: {text}"


def read_public_texts(run: RunFolder, example_format: ExampleFormat = "texts") -> Iterator[str]:
    """The public texts; ``CheckFailed`` where one holds the mask, unless counts decided."""
    by_count = "route" in read_manifest(run)
    for row, text in enumerate(read_texts(run, run.public, example_format)):
        if MASK in text and not by_count:
            raise CheckFailed(f"row {row} of public/ contains the mask: such an example must be private")
        yield text


def count_public_occurrences(run: RunFolder) -> IntArray:
    """How many points of the corpus each row of ``public/`` stands for, itself and its duplicates.

    A point that repeats an earlier run of an index has no row here. Public by count, it is the noisy number of users
    who gave it: nothing else of the rows may be learnt. ``CheckFailed`` where a duplicate's original is not known.
    """
    if "route" in read_manifest(run):
        return np.fromiter((users for (users,) in read_columns(run.public, [USERS])), np.int64)
    released_ids: dict[int, str] = {}
    copies: Counter[int] = Counter()
    columns = ["example_id", "released_id", "split", "decision", "dup_of", "earlier_run"]
    for point, released_id, split, decision, original, earlier in read_columns(run.examples, columns):
        if decision == PUBLIC:
            released_ids[point] = released_id
        elif decision == "duplicate" and split == PUBLIC and earlier is None:
            if original is None:
                raise CheckFailed(
                    "a Bloom filter does not record which example a duplicate repeats (dedup.mode bloom): "
                    "train with public_weighting: unique"
                )
            copies[original] += 1
    counts = {released_id: 1 + copies[point] for point, released_id in released_ids.items()}
    return np.fromiter((counts[released_id] for (released_id,) in read_columns(run.public, ["example_id"])), np.int64)


def read_folder_classes(folder: Path) -> Iterator[str | None]:
    """The class of every row of a data folder, in order; ``ConfigurationError`` where the rows have none."""
    for batch in read_batches(folder, ["example_id", CLASS]):
        if CLASS not in batch.schema.names:
            raise ConfigurationError(
                f"train.task, train.prefix: {folder.name}/ has no classes; curate with input.label, the "
                "column of each row's class"
            )
        yield from batch[CLASS].to_pylist()


def read_classes(run: RunFolder, folder: Path) -> Iterator[str | None]:
    """The class of every row of a data folder of ``run``, in order: for a side, that of the row's original.

    ``ConfigurationError`` where a rule merges private texts: whose class stays then depends on other points,
    so that one point exchanged would exchange two (``docs/guarantees.md``, "Classes").
    """
    if folder == run.vault:
        yield from read_folder_classes(folder)
        return
    if read_manifest(run)["dedup"]["rule"] != "none":
        raise ConfigurationError(
            "train.task: classify, and train.prefix: class, on public/ and private/ need a run with "
            "dedup.mode none: otherwise the class of merged texts depends on other examples; curate with "
            "it, or train with dpsgd"
        )
    points = (point for (point,) in read_columns(run.vault, ["example_id"]))
    class_by_example = dict(zip(points, read_folder_classes(run.vault), strict=True))
    class_by_released = {
        released_id: class_by_example[point]
        for point, released_id in read_columns(run.examples, ["example_id", "released_id"])
    }
    yield from (class_by_released[released_id] for (released_id,) in read_columns(folder, ["example_id"]))


def encode_classes(names: Iterable[str | None], classes: Sequence[str]) -> IntArray:
    """The place of each of ``names`` in the public ``classes``, int64 [n]; ``NO_CLASS`` where it has none."""
    numbers: dict[str | None, int] = {name: number for number, name in enumerate(classes)}
    return np.fromiter((numbers.get(name, NO_CLASS) for name in names), np.int64)


# Text that is no part of the corpus: donated, or public anyway.


PUBLIC_TEXT_KEY = "train.public_text"


@dataclass(frozen=True)
class PublicText:
    """Rows of ``path``, a point each: JSON lines with the columns ``text`` and ``label``, or plain lines.

    For a ``chat`` model a row holds a conversation.
    """

    path: Path
    text_column: str = "text"
    label_column: str = "label"
    key: str = PUBLIC_TEXT_KEY
    is_chat: bool = False

    def __post_init__(self) -> None:
        if not self.path.is_file():
            raise ConfigurationError(f"{self.key}: there is no file {self.path.name}")

    @property
    def sha256(self) -> str:
        """Digest of the file: what was learnt from it is a function of it."""
        return file_sha256(self.path)

    def read_texts(self) -> Iterator[str]:
        """Every text, in order; ``InputError`` names file and row where one is missing."""
        return (text for text, _ in self.read_rows())

    def read_rows(self) -> Iterator[tuple[str, str | None]]:
        """Every text with its class, None where it has none; blank rows are passed over."""
        in_json = self.path.suffix in (".jsonl", ".ndjson", ".json")
        with self.path.open(encoding="utf-8", newline="\n") as lines:
            try:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield self._parse_row(number, line) if in_json else (line.rstrip("\r\n"), None)
            except UnicodeDecodeError:
                raise InputError(f"{self.key}: {self.path.name} is not UTF-8") from None

    def _parse_row(self, number: int, line: str) -> tuple[str, str | None]:
        try:
            row: Any = json.loads(line)
        except ValueError:
            row = None
        text = row.get(self.text_column) if isinstance(row, dict) else None
        if self.is_chat:
            text = messages_to_text(text)
        if not isinstance(text, str):
            kind = "conversation" if self.is_chat else "text"
            raise InputError(
                f"{self.key}: row {number} of {self.path.name} has no {kind} in column {self.text_column!r}"
            )
        label = row.get(self.label_column)
        return text, None if label is None else str(label)


def open_public_text(
    run: RunFolder, path: Path | None, key: str = PUBLIC_TEXT_KEY, chat: bool = False
) -> PublicText | None:
    """The public text at ``path`` (``key``), in the columns of the run's own input; None without one.

    ``ConfigurationError`` where it lies in the run, or is one of the files that the run was made of; under
    another key than the run's, which cannot tell, also where it is as long as one of them.
    """
    if path is None:
        return None
    manifest = read_manifest(run)
    columns = manifest.get("configuration", {}).get("input", {})
    public_text = PublicText(path, columns.get("text", "text"), columns.get("label") or "label", key, chat)
    in_run = path.resolve().is_relative_to(run.root.resolve())
    if in_run or any(_matches_input(path, entry, manifest) for entry in manifest.get("inputs", ())):
        raise ConfigurationError(f"{key}: {path.name} is part of the corpus; give public text that is not part of it")
    return public_text


def _matches_input(path: Path, entry: Mapping[str, Any], manifest: Mapping[str, Any]) -> bool:
    """Whether the file is the input ``entry``: by its digest, or by its size where the key is another."""
    if path.stat().st_size != entry["bytes"]:
        return False
    key = load_digest_key()
    return key.fingerprint != manifest["key"]["fingerprint"] or bool(
        key.file_digest(read_blocks(path)) == entry["digest"]
    )


# Points as ids: encoded once, kept flat, padded only for the moment of a step.


@dataclass(frozen=True)
class Batch:
    """``inputs`` and ``targets`` int64 [B, T]; ``real`` bool [B, T] is False where a row is padded.

    ``rows`` int64 [B], where given, are the points' numbers in their table: what dropout is drawn by;
    ``loss_mask`` bool [B, T] says which targets the loss is on, where those are not all of the real ones.
    For classification ``targets`` [B, 1] are class numbers, and ``real`` says which inputs are read.
    """

    inputs: Tensor
    targets: Tensor
    real: Tensor
    rows: Tensor | None = None
    loss_mask: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        """The same batch on ``device``."""
        parts = (self.inputs, self.targets, self.real, self.rows, self.loss_mask)
        return Batch(*(part if part is None else part.to(device) for part in parts))  # type: ignore[arg-type]

    def select_example(self, index: int) -> Batch:
        """The point at ``index`` by itself, without padding."""
        row_slice, length = slice(index, index + 1), int(self.real[index].sum())
        rows = None if self.rows is None else self.rows[row_slice]
        parts = (self.inputs[row_slice, :length], self.targets[row_slice, :length], self.real[row_slice, :length])
        return Batch(*parts, rows, None if self.loss_mask is None else self.loss_mask[row_slice, :length])


@dataclass(frozen=True)
class TokenizedExamples:
    """The targets of every point, one after the other; point i is ``ids[offsets[i]:offsets[i + 1]]``.

    ``labels`` int64 [n], where given, are the points' class numbers or ``NO_CLASS``: then a text is read whole and its
    class is the target.  ``loss_mask``, bool as ``ids``, says which targets the loss is on where those are not all.

    Formal guarantees: row i is a function of text i, class i and public constants alone, so a point
    exchanged exchanges one row (``docs/guarantees.md``, "Side channels", item 5).
    """

    ids: NDArray[np.int32]
    offsets: IntArray
    begin_id: int
    pad_id: int
    labels: IntArray | None = None
    loss_mask: NDArray[np.bool_] | None = None

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[int] | NDArray[np.int32]], begin_id: int, pad_id: int) -> Self:
        """The points whose targets are ``rows``."""
        arrays = [np.asarray(row, np.int32) for row in rows]
        offsets = np.cumsum([0, *map(len, arrays)]).astype(np.int64)
        return cls(np.concatenate([np.empty(0, np.int32), *arrays]), offsets, begin_id, pad_id)

    @classmethod
    def from_texts(cls, texts: Iterable[str], tokenizer: TextCodec, max_tokens: int | None) -> Self:
        """Each text's ids with the end token, cut to its own first ``max_tokens``.

        One text is one row: nothing is packed or joined, so no text moves another one's tokens.
        """
        marks = [np.empty(0, bool)]

        def rows() -> Iterator[list[int]]:
            for text in texts:
                if isinstance(tokenizer, ChatCodec):
                    ids, loss_mask = tokenizer.encode_with_loss_mask(text)
                    marks.append(np.array([*loss_mask, False][:max_tokens], bool))
                else:
                    ids = tokenizer.encode(text)
                yield [*ids, tokenizer.end_id][:max_tokens]

        examples = cls.from_rows(rows(), tokenizer.begin_id, tokenizer.pad_id)
        return replace(examples, loss_mask=np.concatenate(marks)) if isinstance(tokenizer, ChatCodec) else examples

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> IntArray:
        """Inputs of each point, int64 [n]: what it costs in memory."""
        return np.diff(self.offsets) + (self.labels is not None)

    def get_targets(self, row: int) -> NDArray[np.int32]:
        """The target ids of one point."""
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    def take(self, rows: RowIndices) -> TokenizedExamples:
        """The points ``rows`` as a table of their own, numbered from 0."""
        subset = TokenizedExamples.from_rows((self.get_targets(int(row)) for row in rows), self.begin_id, self.pad_id)
        numbers = np.asarray(rows, np.int64)
        return replace(
            subset,
            labels=None if self.labels is None else self.labels[numbers],
            loss_mask=None if self.loss_mask is None else np.concatenate(self._select_loss_masks(numbers)),
        )

    def _select_loss_masks(self, numbers: IntArray) -> list[NDArray[np.bool_]]:
        assert self.loss_mask is not None
        return [np.empty(0, bool), *(self.loss_mask[self.offsets[row] : self.offsets[row + 1]] for row in numbers)]

    @property
    def no_loss_mask(self) -> NDArray[np.bool_] | None:
        """Which points have no target that is learnt, bool [n]; None where all have one."""
        if self.loss_mask is None:
            return None
        before = np.concatenate([[0], np.cumsum(self.loss_mask)])[self.offsets]
        return np.asarray(np.diff(before) == 0)

    def make_batch(self, rows: RowIndices) -> Batch:
        """The points ``rows`` (at least one), padded on the right to the longest of them."""
        numbers = np.asarray(rows, np.int64)
        target_rows = [self.get_targets(row) for row in numbers]
        lengths = np.array([len(ids) for ids in target_rows])
        real = np.arange(lengths.max()) < lengths[:, None]
        targets = np.full(real.shape, self.pad_id, np.int64)
        targets[real] = np.concatenate(target_rows)
        loss_mask = None
        if self.loss_mask is not None:
            loss_mask = np.zeros(real.shape, bool)
            loss_mask[real] = np.concatenate(self._select_loss_masks(numbers))
        begin = np.full((len(target_rows), 1), self.begin_id, np.int64)
        inputs = np.concatenate([begin, targets if self.labels is not None else targets[:, :-1]], axis=1)
        if self.labels is not None:
            targets = self.labels[numbers][:, None]
            real = np.concatenate([np.ones_like(begin, bool), real], axis=1)
        batch = Batch(*map(torch.from_numpy, (inputs, targets, real, numbers)))
        return batch if loss_mask is None else replace(batch, loss_mask=torch.from_numpy(loss_mask))


# A step's rows in pieces: what is computed at once, and what processes share out.


MicroBatchFunction = Callable[[Any, Batch], Tensor]
"""From a network and a batch to one number for each of its trainable parameters, flat; can be pickled."""
MicroBatchMap = Callable[[Any, MicroBatchFunction, TokenizedExamples, Sequence[IntArray]], Iterator[Tensor]]
"""Carries out a work on pieces of points with the network as it is; results in the order of the pieces."""


def map_micro_batches(
    network: Any, compute: MicroBatchFunction, examples: TokenizedExamples, micro_batches: Sequence[IntArray]
) -> Iterator[Tensor]:
    """One piece after the other, in this process, where ``network`` lies."""
    for piece in micro_batches:
        yield compute(network, examples.make_batch(piece).to(network.device))


def split_micro_batches(rows: IntArray, lengths: IntArray, max_tokens: int) -> list[IntArray]:
    """``rows`` cut into pieces of at most ``max_tokens`` padded tokens (or one row), longest rows first.

    A piece of 32 rows or 2048 tokens ends where a row is under three quarters of its longest: that spares
    more padding than a piece costs.  How a batch is cut changes no gradient: a clipped sum does not know it.
    """
    ordered = rows[np.argsort(-lengths[rows], kind="stable")]
    pieces, start = [], 0
    for position in range(1, len(ordered)):
        longest = int(lengths[ordered[start]])
        is_full = (position - start + 1) * longest > max_tokens
        is_large = position - start >= 32 or (position - start) * longest >= 2048
        is_ragged = is_large and 4 * lengths[ordered[position]] < 3 * longest
        if is_full or is_ragged:
            pieces.append(ordered[start:position])
            start = position
    return [*pieces, ordered[start:]] if len(ordered) else []

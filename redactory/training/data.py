"""Training data: the checked texts of a finished run as rows of token ids, padded for one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, starmap
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from redactory.foundation.canonical import file_sha256, read_blocks, read_json_lines
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
"""The class number of an example without a known class: its loss is 0 and its gradient exactly 0."""
SPEAKER = "speaker"
"""The vault's column of roles."""
_NO_ROLES = "train.chat, train.prefix: {}/ has no roles; curate conversations (input.text: messages)"
_MISSING_COLUMN_ERRORS = {
    SPEAKER: _NO_ROLES,
    ROLE: _NO_ROLES,
    CLASS: "train.task, train.prefix: {}/ has no classes; curate with input.label, the column of each row's class",
}


def read_manifest_digest(run: RunFolder) -> str:
    """Return the sha256 of the run's manifest, which every model records; ``RunStateError`` if unfinished."""
    read_manifest(run)
    return file_sha256(run.manifest)


def require_unchanged_parts(run: RunFolder, folder: Path) -> None:
    """Raise ``CheckFailed`` if parts of ``folder`` differ from the manifest, ``RunStateError`` if purged."""
    require_not_purged(folder)
    prefix = folder.relative_to(run.root).as_posix() + "/part-"
    sealed_digests = {
        name: entry["sha256"] for name, entry in read_manifest(run)["files"].items() if name.startswith(prefix)
    }
    actual_digests = {path.relative_to(run.root).as_posix(): file_sha256(path) for path in list_parts(folder)}
    if sealed_digests != actual_digests:
        raise CheckFailed(f"the parts of {folder.name}/ are not those in manifest.json")


ExampleFormat = Literal["texts", "roles", "class", "turn", "conversation"]
"""How examples are read: unchanged, with their role or class as prefix, or as turns or conversations."""


def read_texts(run: RunFolder, folder: Path, example_format: ExampleFormat = "texts") -> Iterator[str]:
    """Yield the examples of a data folder in order; ``ConfigurationError`` if the format needs missing roles."""
    if example_format == "conversation":
        yield from read_conversations(run, folder)
    elif example_format == CLASS:
        yield from map(add_role_prefix, read_texts(run, folder), read_classes(run, folder))
    elif example_format == "texts":
        yield from (text for (text,) in read_columns(folder, ["text"]))
    else:
        for text, role in read_columns(folder, ["text", SPEAKER if folder == run.vault else ROLE]):
            yield join_turns([(role, text)]) if example_format == "turn" else add_role_prefix(text, role)


def read_conversations(run: RunFolder, folder: Path) -> Iterator[str]:
    """Yield the conversations of a split of ``run``, masked, or the vault's originals, in order.

    A conversation is private if one of its examples is private or was not processed; in the latter case it is empty.
    Raises ``ConfigurationError`` if deduplication merges equal texts: a turn could then come from another conversation.

    Formal guarantees: a conversation, its masked text and its split are functions of that document alone, provided that
    each example's decision depends only on its document (``docs/guarantees.md``, "Conversations").
    """
    if folder == run.vault:
        yield from (text for _, text in read_original_conversations(run))
        return
    if read_manifest(run)["dedup"]["rule"] != "none":
        raise ConfigurationError(
            "train.chat: whole conversations need a run with dedup.mode none: otherwise a turn that repeats "
            "is kept in only one conversation; curate with it, or set train.chat.example to turn"
        )
    splits = {PUBLIC: (run.public,), PRIVATE: (run.public, run.private)}[folder.name]
    masked_texts = dict(chain.from_iterable(read_columns(split, ["example_id", "text"]) for split in splits))
    rows = read_columns(run.examples, ["document", "turn", ROLE, "released_id", "decision"])
    for _, document_rows in groupby(rows, itemgetter(0)):
        examples = list(document_rows)
        decisions = {decision for *_, decision in examples}
        if (decisions == {PUBLIC}) != (folder == run.public):
            continue
        if not decisions <= {PUBLIC, PRIVATE}:
            yield ""
            continue
        yield join_turns(
            (role, " ".join(masked_texts[released_id] for *_, released_id, _ in turn_rows))
            for (_, role), turn_rows in groupby(examples, itemgetter(1, 2))
        )


def read_original_conversations(run: RunFolder) -> Iterator[tuple[int, str]]:
    """Yield the vault's documents with their first example's id; a cut turn's rest keeps its speaker."""
    columns = ["doc_id", "example_id", SPEAKER, "prefix", "text", "suffix"]
    for _, document_rows in groupby(read_columns(run.vault, columns), itemgetter(0)):
        rows, turns = list(document_rows), list[tuple[str | None, str]]()
        for _, _, speaker, prefix, text, suffix in rows:
            turn_start = prefix.rpartition(TURN_MARK)[2].rpartition(ROLE_MARK)[2]
            full_text = turn_start + text + suffix.partition(TURN_MARK)[0]
            if turns and TURN_MARK not in prefix and turns[-1][0] == speaker:
                turns[-1] = speaker, turns[-1][1] + full_text
            else:
                turns.append((speaker, full_text))
        yield rows[0][1], join_turns(turns)


def read_columns(folder: Path, columns: list[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the ``columns`` of each row of a data folder, in order; ``ConfigurationError`` without roles or classes."""
    for batch in read_batches(folder, columns):
        for column in _MISSING_COLUMN_ERRORS.keys() & set(columns) - set(batch.schema.names):
            raise ConfigurationError(_MISSING_COLUMN_ERRORS[column].format(folder.name))
        yield from zip(*(batch[name].to_pylist() for name in columns), strict=True)


def add_role_prefix(text: str, role: str | None) -> str:
    """Return ``role: text``, as ``train.prefix`` requires, or just ``text`` if the role is None."""
    return text if role is None else f"{role}: {text}"


def read_public_texts(run: RunFolder, example_format: ExampleFormat = "texts") -> Iterator[str]:
    """Yield the public texts; ``CheckFailed`` if one contains the mask, unless counts selected them."""
    is_selected_by_count = "route" in read_manifest(run)
    for row, text in enumerate(read_texts(run, run.public, example_format)):
        if MASK in text and not is_selected_by_count:
            raise CheckFailed(f"row {row} of public/ contains the mask: such an example must be private")
        yield text


def count_public_occurrences(run: RunFolder) -> IntArray:
    """Count the corpus examples that each row of ``public/`` represents, itself and its duplicates.

    Duplicates of an earlier run of an index have no row here. For texts public by count it is the noisy number of
    users: nothing else about the rows may be learned. Raises ``CheckFailed`` if a duplicate's original is not recorded.
    """
    if "route" in read_manifest(run):
        return np.fromiter((users for (users,) in read_columns(run.public, [USERS])), np.int64)
    released_ids: dict[int, str] = {}
    duplicate_counts: Counter[int] = Counter()
    columns = ["example_id", "released_id", "split", "decision", "dup_of", "earlier_run"]
    for example_id, released_id, split, decision, original_id, earlier_run in read_columns(run.examples, columns):
        if decision == PUBLIC:
            released_ids[example_id] = released_id
        elif decision == "duplicate" and split == PUBLIC and earlier_run is None:
            if original_id is None:
                raise CheckFailed(
                    "a Bloom filter does not record which example a duplicate repeats (dedup.mode bloom): "
                    "train with public_weighting: unique"
                )
            duplicate_counts[original_id] += 1
    counts = {released_id: 1 + duplicate_counts[example_id] for example_id, released_id in released_ids.items()}
    return np.fromiter((counts[released_id] for (released_id,) in read_columns(run.public, ["example_id"])), np.int64)


def read_folder_classes(folder: Path) -> Iterator[str | None]:
    """Yield the class of every row of a data folder; ``ConfigurationError`` if the rows have none."""
    return (name for _, name in read_columns(folder, ["example_id", CLASS]))


def read_classes(run: RunFolder, folder: Path) -> Iterator[str | None]:
    """Yield the class of every row of a data folder of ``run``, in order; in a split, the original's class.

    Raises ``ConfigurationError`` if deduplication merges private texts: the remaining class would depend on other
    examples, so exchanging one example would exchange two (``docs/guarantees.md``, "Classes").
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
    class_by_example = dict(read_columns(run.vault, ["example_id", CLASS]))
    class_by_released_id = {
        released_id: class_by_example[example_id]
        for example_id, released_id in read_columns(run.examples, ["example_id", "released_id"])
    }
    yield from (class_by_released_id[released_id] for (released_id,) in read_columns(folder, ["example_id"]))


def encode_classes(names: Iterable[str | None], classes: Sequence[str]) -> IntArray:
    """Map ``names`` to their indices in the public ``classes``, int64 [n]; ``NO_CLASS`` if unknown."""
    class_numbers: dict[str | None, int] = {name: number for number, name in enumerate(classes)}
    return np.fromiter((class_numbers.get(name, NO_CLASS) for name in names), np.int64)


PUBLIC_TEXT_KEY = "train.public_text"


@dataclass(frozen=True)
class PublicText:
    """A public text file, one example or (``is_chat``) conversation per row: JSON lines or plain lines."""

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
        """Digest of the file; identifies what was learned from."""
        return file_sha256(self.path)

    def read_texts(self) -> Iterator[str]:
        """Yield every text in order; ``InputError`` names file and row if one has no text."""
        return (text for text, _ in self.read_rows())

    def read_rows(self) -> Iterator[tuple[str, str | None]]:
        """Yield every text with its class or None; blank rows are skipped."""
        if self.path.suffix in (".jsonl", ".ndjson", ".json"):
            yield from starmap(self._parse_row, read_json_lines(self.path))
            return
        with self.path.open(encoding="utf-8", newline="\n") as file:
            try:
                yield from ((line.rstrip("\r\n"), None) for line in file if line.strip())
            except UnicodeDecodeError:
                raise InputError(f"{self.key}: {self.path.name} is not UTF-8") from None

    def _parse_row(self, row_number: int, row: dict[str, Any]) -> tuple[str, str | None]:
        text = row.get(self.text_column)
        if self.is_chat:
            text = messages_to_text(text)
        if not isinstance(text, str):
            kind = "conversation" if self.is_chat else "text"
            raise InputError(
                f"{self.key}: row {row_number} of {self.path.name} has no {kind} in column {self.text_column!r}"
            )
        label = row.get(self.label_column)
        return text, None if label is None else str(label)


def open_public_text(
    run: RunFolder, path: Path | None, key: str = PUBLIC_TEXT_KEY, is_chat: bool = False
) -> PublicText | None:
    """Open the public text at ``path`` with the run's input columns; None without a path.

    Raises ``ConfigurationError`` (naming ``key``) if the file is inside the run or is one of its inputs. If the digest
    key differs from the run's, an equal file size is enough for refusal.
    """
    if path is None:
        return None
    manifest = read_manifest(run)
    columns = manifest.get("configuration", {}).get("input", {})
    public_text = PublicText(path, columns.get("text", "text"), columns.get("label") or "label", key, is_chat)
    is_in_run = path.resolve().is_relative_to(run.root.resolve())
    if is_in_run or any(_matches_input(path, entry, manifest) for entry in manifest.get("inputs", ())):
        raise ConfigurationError(f"{key}: {path.name} is part of the corpus; give public text that is not part of it")
    return public_text


def _matches_input(path: Path, entry: Mapping[str, Any], manifest: Mapping[str, Any]) -> bool:
    """Compare the file with the input ``entry`` by digest, or by size if the digest key differs."""
    if path.stat().st_size != entry["bytes"]:
        return False
    key = load_digest_key()
    return key.fingerprint != manifest["key"]["fingerprint"] or bool(
        key.compute_file_digest(read_blocks(path)) == entry["digest"]
    )


@dataclass(frozen=True)
class Batch:
    """One padded batch: ``inputs`` and ``targets`` int64 [B, T], ``real`` bool [B, T], False for padding.

    ``rows`` int64 [B], if given, are the examples' row numbers, which key the dropout draws. ``loss_mask`` bool [B, T]
    marks the targets in the loss if not all real ones are. For classification ``targets`` [B, 1] are class numbers, and
    ``real`` marks the inputs to read.
    """

    inputs: Tensor
    targets: Tensor
    real: Tensor
    rows: Tensor | None = None
    loss_mask: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        """Return the same batch on ``device``."""
        parts = (self.inputs, self.targets, self.real, self.rows, self.loss_mask)
        return Batch(*(part if part is None else part.to(device) for part in parts))  # type: ignore[arg-type]

    def count_targets(self) -> int:
        """Count the tokens in the loss, or the examples for classification; at least 1."""
        if self.targets.shape[1] != self.real.shape[1]:
            return len(self.targets)
        return max(1, int((self.real if self.loss_mask is None else self.loss_mask).sum()))

    def select_example(self, index: int) -> Batch:
        """Return the example at ``index`` as a batch of one, without padding."""
        row_slice, length = slice(index, index + 1), int(self.real[index].sum())
        rows = None if self.rows is None else self.rows[row_slice]
        parts = (self.inputs[row_slice, :length], self.targets[row_slice, :length], self.real[row_slice, :length])
        return Batch(*parts, rows, None if self.loss_mask is None else self.loss_mask[row_slice, :length])


@dataclass(frozen=True)
class TokenizedExamples:
    """The target ids of all examples in one array; example i is ``ids[offsets[i]:offsets[i + 1]]``.

    ``labels`` int64 [n], if given, are class numbers or ``NO_CLASS``: the whole text is then input and its class the
    target. ``loss_mask``, bool of the shape of ``ids``, marks the targets in the loss if not all are.

    Formal guarantees: row i is a function of text i, class i and public constants alone, so exchanging one example
    exchanges one row (``docs/guarantees.md``, "Side channels", item 5).
    """

    ids: NDArray[np.int32]
    offsets: IntArray
    begin_id: int
    pad_id: int
    labels: IntArray | None = None
    loss_mask: NDArray[np.bool_] | None = None

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[int] | NDArray[np.int32]], begin_id: int, pad_id: int) -> Self:
        """Build the table from target ids, one sequence per example."""
        arrays = [np.asarray(row, np.int32) for row in rows]
        offsets = np.cumsum([0, *map(len, arrays)]).astype(np.int64)
        return cls(np.concatenate([np.empty(0, np.int32), *arrays]), offsets, begin_id, pad_id)

    @classmethod
    def from_texts(cls, texts: Iterable[str], tokenizer: TextCodec, max_tokens: int | None) -> Self:
        """Encode each text as its own row with an end token, cut to ``max_tokens``: texts never affect each other."""
        loss_masks = [np.empty(0, bool)]

        def encode_rows() -> Iterator[list[int]]:
            for text in texts:
                if isinstance(tokenizer, ChatCodec):
                    ids, loss_mask = tokenizer.encode_with_loss_mask(text)
                    loss_masks.append(np.array([*loss_mask, False][:max_tokens], bool))
                else:
                    ids = tokenizer.encode(text)
                yield [*ids, tokenizer.end_id][:max_tokens]

        examples = cls.from_rows(encode_rows(), tokenizer.begin_id, tokenizer.pad_id)
        return replace(examples, loss_mask=np.concatenate(loss_masks)) if isinstance(tokenizer, ChatCodec) else examples

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> IntArray:
        """Number of inputs of each example, int64 [n]; determines memory use."""
        return np.diff(self.offsets) + (self.labels is not None)

    def get_targets(self, row: int) -> NDArray[np.int32]:
        """Return the target ids of one example."""
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    def select_examples(self, rows: RowIndices) -> Self:
        """Return the examples ``rows`` as a new table, numbered from 0."""
        row_numbers = np.asarray(rows, np.int64)
        return replace(
            self,
            ids=self.select_values(self.ids, rows),
            offsets=np.cumsum([0, *(self.offsets[row_numbers + 1] - self.offsets[row_numbers])], dtype=np.int64),
            labels=None if self.labels is None else self.labels[row_numbers],
            loss_mask=None if self.loss_mask is None else self.select_values(self.loss_mask, rows),
        )

    def select_values(self, values: NDArray[Any], rows: RowIndices) -> NDArray[Any]:
        """Concatenate the part of the examples ``rows`` of ``values``, which are in the order of ``ids``."""
        return np.concatenate([values[:0], *(values[self.offsets[row] : self.offsets[row + 1]] for row in rows)])

    @property
    def examples_without_loss(self) -> NDArray[np.bool_] | None:
        """Mask of the examples without any target in the loss, bool [n]; None if all have one."""
        if self.loss_mask is None:
            return None
        cumulative_counts = np.concatenate([[0], np.cumsum(self.loss_mask)])[self.offsets]
        return np.asarray(np.diff(cumulative_counts) == 0)

    def make_batch(self, rows: RowIndices) -> Batch:
        """Make a batch of the examples ``rows`` (at least one), padded on the right to the longest."""
        row_numbers = np.asarray(rows, np.int64)
        lengths = self.offsets[row_numbers + 1] - self.offsets[row_numbers]
        real = np.arange(lengths.max()) < lengths[:, None]
        targets = np.full(real.shape, self.pad_id, np.int64)
        targets[real] = self.select_values(self.ids, rows)
        loss_mask = None
        if self.loss_mask is not None:
            loss_mask = np.zeros(real.shape, bool)
            loss_mask[real] = self.select_values(self.loss_mask, rows)
        begin = np.full((len(lengths), 1), self.begin_id, np.int64)
        inputs = np.concatenate([begin, targets if self.labels is not None else targets[:, :-1]], axis=1)
        if self.labels is not None:
            targets = self.labels[row_numbers][:, None]
            real = np.concatenate([np.ones_like(begin, bool), real], axis=1)
        batch = Batch(*map(torch.from_numpy, (inputs, targets, real, row_numbers)))
        return batch if loss_mask is None else replace(batch, loss_mask=torch.from_numpy(loss_mask))


def split_micro_batches(rows: IntArray, lengths: IntArray, max_tokens: int) -> list[IntArray]:
    """Split ``rows`` into micro-batches of at most ``max_tokens`` padded tokens (or one row), longest rows first.

    From 32 rows or 2048 tokens on, a micro-batch ends at a row below three quarters of its longest: that saves more
    padding than another micro-batch costs. The split changes no gradient: a clipped sum does not depend on it.
    """
    ordered = rows[np.argsort(-lengths[rows], kind="stable")]
    micro_batches, start = [], 0
    for position in range(1, len(ordered)):
        longest = int(lengths[ordered[start]])
        is_full = (position - start + 1) * longest > max_tokens
        is_large = position - start >= 32 or (position - start) * longest >= 2048
        is_ragged = is_large and 4 * lengths[ordered[position]] < 3 * longest
        if is_full or is_ragged:
            micro_batches.append(ordered[start:position])
            start = position
    return [*micro_batches, ordered[start:]] if len(ordered) else []

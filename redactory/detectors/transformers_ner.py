"""Run a Hugging Face token classifier from a local folder on texts."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from redactory.detectors.engine import (
    ENGINE_ERROR,
    MISALIGNED,
    Capability,
    EngineOutput,
    NonEntityScore,
    Span,
    find_public_spans,
    trim_range,
)
from redactory.detectors.settings import KNOWN_LABELS, TransformersSettings, get_kind
from redactory.detectors.torch_inference import identify_folder, isolate_inference, silence_model_libraries
from redactory.foundation.errors import ConfigurationError

if TYPE_CHECKING:
    import torch


MAX_WINDOW_TOKENS = 512
"""Maximum tokens per window, even if the model takes more: attention cost is quadratic."""
SHARED_TOKENS = 64
"""Tokens that neighbouring windows share, if the window is long enough."""

NAME = "transformers"
_ENTITY_THRESHOLD = 0.5
OUTSIDE_LABEL = "O"
"""The model's label for tokens outside every entity."""
_FIRST_POSITION = 2
"""RoBERTa-like models number positions from 2, so they lose that many."""


class WordPiece(NamedTuple):
    """One model token: code points [start, end), P(non-entity), and its most probable entity type.

    With public types, ``non_entity`` is P(non-entity or public) and ``kind`` is not a public type; ``public`` is
    P(public) and ``public_kind`` the most probable public type.
    """

    start: int
    end: int
    non_entity: float
    kind: str
    public: float = 0.0
    public_kind: str = ""


def _map_label_columns(id2label: Mapping[int, str]) -> tuple[int, list[str], dict[int, int]]:
    """Return the non-entity column, the kinds without tag prefixes, and the kind of each other column."""
    labels = {int(column): label for column, label in id2label.items()}
    plain = [column for column, label in labels.items() if label == OUTSIDE_LABEL]
    if len(plain) != 1:
        raise ConfigurationError(
            f"detect.transformers.folder: the model has no non-entity label '{OUTSIDE_LABEL}'; its labels are "
            f"{', '.join(sorted(labels.values()))}: rename that label in its config.json (id2label)"
        )
    kind_by_label = _strip_tag_prefixes(labels.values())
    kinds = sorted(set(kind_by_label.values()))
    if not kinds:
        raise ConfigurationError("detect.transformers.folder: the model has only the non-entity label")
    columns = {column: kinds.index(kind_by_label[label]) for column, label in labels.items() if column != plain[0]}
    return plain[0], kinds, columns


def _strip_tag_prefixes(labels: Iterable[str]) -> dict[str, str]:
    """Return the kind of each entity label: the label without a prefix of BIO, BIOES or BILOU tags.

    "_" ends a prefix only if every label has one: E_MAIL beside PERSON is no tag.
    """
    entities = {label for label in labels if label != OUTSIDE_LABEL}
    separators = "-_" if all(re.match("[BILUSE][-_].", label) for label in entities) else "-"
    return {label: re.sub(f"^[BILUSE][{separators}](?=.)", "", label) for label in entities}


def _compute_window_size(tokenizer: Any, config: Any) -> tuple[int, int]:
    """Return the maximum tokens per window, special tokens included, and the tokens that two windows share."""
    positions = getattr(config, "max_position_embeddings", None) or 0
    limits = [tokenizer.model_max_length, positions - _FIRST_POSITION]
    window = int(min([MAX_WINDOW_TOKENS, *(limit for limit in limits if limit > 0)]))
    inner = window - int(tokenizer.num_special_tokens_to_add())
    return window, max(0, min(SHARED_TOKENS, inner // 2))


def _load_model(settings: TransformersSettings) -> tuple[Any, Any]:
    """Load the fast tokenizer and the model of the folder; download nothing and run no code from it."""
    folder = Path(settings.folder)
    if not (folder / "config.json").is_file():
        raise ConfigurationError(f"detect.transformers.folder: '{folder}' is not a folder with a config.json")
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with silence_model_libraries(), hide_progress_bar():
            tokenizer: Any = AutoTokenizer.from_pretrained(folder, **local)
            model, info = AutoModelForTokenClassification.from_pretrained(folder, output_loading_info=True, **local)
    except Exception as error:
        raise ConfigurationError(
            f"detect.transformers.folder: cannot load a token classifier with its tokenizer from '{folder}' "
            f"({type(error).__name__})"
        ) from None
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigurationError(
            "detect.transformers.folder: its slow tokenizer does not give token positions; save a fast one "
            "(tokenizer.json)"
        )
    if info["missing_keys"]:
        raise ConfigurationError(
            "detect.transformers.folder: the weights lack parts of a token classifier, which would be "
            f"random: {', '.join(sorted(info['missing_keys']))}"
        )
    try:
        return tokenizer, model.float().eval().to(settings.device)
    except Exception as error:
        raise ConfigurationError(
            f"detect.transformers.device: the model cannot be moved to '{settings.device}' ({type(error).__name__})"
        ) from None


@contextlib.contextmanager
def hide_progress_bar() -> Iterator[None]:
    """Disable the model library's progress bar within the context."""
    bars: Any = importlib.import_module("transformers.utils.logging")
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()


class TransformersEngine:
    """Entities of a token classifier, and P(non-entity) of each word.

    A word takes P(non-entity) and the entity type of its most suspicious piece. Types are labels without the prefixes
    of IO, BIO, BIOES or BILOU tags, with their probabilities added. A word is part of an entity if P(non-entity) < 0.5,
    so everything that the best label alone would find is found too. Neighbouring words of one type form one span,
    scored by the mean of 1 - P(non-entity). Long texts are read in windows.
    """

    def __init__(self, settings: TransformersSettings, language: str) -> None:
        self._tokenizer, self._model = _load_model(settings)
        self._device = settings.device
        self._window, self._stride = _compute_window_size(self._tokenizer, self._model.config)
        self._non_entity_column, self._kinds, self._kind_by_column = _map_label_columns(self._model.config.id2label)
        self._public_kinds: list[int] = []
        # a full window, so that an undeclared limit of the model shows here
        for probe in ("Anna lives here", "a " * self._window):
            if self.read([probe])[0].failure:
                raise ConfigurationError("detect.transformers.folder: the model cannot read simple words")

    def treat_as_public(self, kinds: Collection[str]) -> None:
        """Count P(kind) of each of ``kinds`` as P(non-entity) from now on."""
        self._public_kinds = [number for number, label in enumerate(self._kinds) if get_kind(label) in kinds]

    @classmethod
    def collect_fingerprint(cls, settings: TransformersSettings, language: str) -> dict[str, Any]:
        """The folder's digests and the versions of the packages that read it."""
        readers = ("transformers", "tokenizers", "torch", "numpy")
        return identify_folder("detect.transformers.folder", settings.folder, "config.json", *readers)

    @classmethod
    def list_capabilities(cls, settings: TransformersSettings, language: str) -> list[Capability]:
        """Return the model's labels; the folder does not state a language."""
        try:
            config = (Path(settings.folder) / "config.json").read_text(encoding="utf-8")
            labels = json.loads(config).get("id2label", {}).values()
        except (OSError, ValueError):
            labels = []  # loading the model reports the error
        kinds = frozenset(_strip_tag_prefixes(labels).values())
        return [Capability(f"transformers {settings.folder}", kinds, None, kinds - KNOWN_LABELS)]

    def read(self, texts: Sequence[str]) -> list[EngineOutput]:
        """Return one output per text, each a function of that text alone."""
        with isolate_inference():
            return [self._read_text(text) for text in texts]

    def _read_text(self, text: str) -> EngineOutput:
        if not text.strip():
            return EngineOutput()
        try:
            pieces = self._read_pieces(text)
        except Exception:
            # the message may quote text: drop it
            return EngineOutput(failure=ENGINE_ERROR)
        if not _is_covered(text, pieces):
            return EngineOutput(failure=MISALIGNED)
        words = list(merge_pieces(text, pieces))
        plain = tuple(NonEntityScore(w.start, w.end, w.non_entity, NAME) for w in words)
        public = ((token, w.public, w.public_kind) for token, w in zip(plain, words, strict=True))
        return EngineOutput((*_iter_spans(words), *find_public_spans(public)), plain)

    def _read_pieces(self, text: str) -> list[WordPiece]:
        """Return the pieces of ``text`` in order, without surrounding white space, each range once.

        If several pieces share a range (two windows, for example), the smaller P(non-entity) counts. Windows run one at
        a time and unpadded, because the last bits of a float product depend on the batch's shape.
        """
        encoded = self._tokenizer(
            text,
            truncation=True,
            max_length=self._window,
            stride=self._stride,
            padding=False,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        pieces: dict[tuple[int, int], WordPiece] = {}
        for index, offsets in enumerate(encoded["offset_mapping"]):
            window = {name: encoded[name][index] for name in self._tokenizer.model_input_names}
            for (start, end), scores in zip(offsets, self._score_tokens(window), strict=True):
                place = trim_range(text, start, end)
                previous = pieces.get(place)
                if place[0] < place[1] and (previous is None or scores[0] < previous.non_entity):
                    pieces[place] = WordPiece(*place, *scores)
        return sorted(pieces.values())

    def _score_tokens(self, window: dict[str, list[int]]) -> Iterator[tuple[float, str, float, str]]:
        """Return the :class:`WordPiece` fields after the offsets, for each token of one window."""
        import torch

        inputs = {name: torch.tensor([ids], device=self._device) for name, ids in window.items()}
        logits: torch.Tensor = self._model(**inputs).logits[0].float().cpu().double()
        if not torch.isfinite(logits).all():
            raise ValueError("the model's scores are not finite")
        labels = torch.softmax(logits, dim=-1).numpy()
        kinds = np.zeros((len(labels), len(self._kinds)))
        for column, kind in self._kind_by_column.items():
            kinds[:, kind] += labels[:, column]
        public, plain = kinds[:, self._public_kinds], labels[:, self._non_entity_column]
        best = public.argmax(axis=1) if self._public_kinds else np.zeros(len(labels), np.intp)
        kinds[:, self._public_kinds] = -1.0
        for number, kind in enumerate(kinds.argmax(axis=1).tolist()):
            total = float(public[number].sum())
            name = self._kinds[self._public_kinds[best[number]]] if self._public_kinds else ""
            yield min(float(plain[number]) + total, 1.0), self._kinds[kind], total, name


def _is_covered(text: str, pieces: Sequence[WordPiece]) -> bool:
    """Return whether pieces cover every character of ``text`` except white space.

    Some tokenizers drop characters (such as control characters), so the model has not seen the whole text. ``pieces``
    are sorted by position.
    """
    position = 0
    for piece in pieces:
        if text[position : piece.start].strip():
            return False
        position = max(position, piece.end)
    return not text[position:].strip()


def merge_pieces(text: str, pieces: Sequence[WordPiece]) -> Iterator[WordPiece]:
    """Merge pieces that overlap or meet inside a word; each word keeps its smallest P(non-entity)."""
    word: WordPiece | None = None
    for piece in pieces:
        if word is None:
            word = piece
        elif piece.start < word.end or (
            piece.start == word.end
            and all(unicodedata.category(letter)[0] in "LMN" for letter in text[word.end - 1 : word.end + 1])
        ):
            worst = min(word, piece, key=lambda part: part.non_entity)
            word = worst._replace(start=word.start, end=max(word.end, piece.end))
        else:
            yield word
            word = piece
    if word is not None:
        yield word


def _iter_spans(words: Sequence[WordPiece]) -> Iterator[Span]:
    for kind, run in itertools.groupby(words, key=lambda w: w.kind if w.non_entity < _ENTITY_THRESHOLD else None):
        if kind is not None:
            parts = list(run)
            score = 1.0 - sum(word.non_entity for word in parts) / len(parts)
            yield Span(parts[0].start, parts[-1].end, kind, round(score, 6), NAME)

"""Read texts with a tagger: spans with hysteresis, and P(non-entity) of each token."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from redactory.detectors.engine import (
    PUBLIC_THRESHOLD,
    SURE_THRESHOLD,
    WEAK_THRESHOLD,
    Capability,
    EngineOutput,
    NonEntityScore,
    Span,
    merge_outputs,
)
from redactory.detectors.settings import TaggerSettings, get_kind
from redactory.detectors.spacy_model import (
    enter_memory_zone,
    get_package_versions,
    read_model_meta,
    speed_up_suffix_search,
)
from redactory.detectors.tagger.head import FACTORY, OUTSIDE_LABEL, import_tagger_spacy
from redactory.detectors.tagger.years import is_only_years
from redactory.encoder import DEFAULT_FOLDER as ENCODER_FOLDER
from redactory.encoder import read_encoder_facts
from redactory.foundation.canonical import folder_sha256
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import read_json

if TYPE_CHECKING:
    from spacy.tokens import Doc

    from redactory.detectors.tagger.component import EncoderTagger

NAME = "tagger"
PLAIN_LABELS = frozenset({OUTSIDE_LABEL, "MISC"})
"""Labels that count as non-entities: works, events and products are names, but nobody's."""
_DECIMAL = re.compile(r"\d+[.,]\d+")
HARMLESS_FORMS: dict[str, Callable[[Sequence[str]], bool]] = {
    "DATE_TIME": is_only_years,
    "IP_ADDRESS": lambda tokens: len(tokens) == 1 and _DECIMAL.fullmatch(tokens[0]) is not None,
}
"""By label, whether tokens have a form that reveals nothing: years alone, or a price."""
MIN_SURE_PROBABILITY = 0.98
"""Minimum P(non-entity) of a token whose form need not be read."""
MAX_CACHED_TEXTS, MAX_CACHED_CHARS = 2_000, 300
"""Texts whose outputs are kept, and the longest of them, in code points: about 20 MB."""
SENTENCE_SIGNS = frozenset(".,;:!?…")
ADDRESS = "STREET_ADDRESS"
ADDRESS_LABELS = frozenset({ADDRESS, "LOCATION", "POSTAL_CODE"})
"""Labels of address parts; punctuation between two of them belongs to the address."""
DEFAULT = "default"
"""Value in ``detect.tagger.models``: the built-in tagger."""
DEFAULT_FOLDER = Path(__file__).parent / DEFAULT


class TaggerEngine:
    """Runs every configured tagger on every text."""

    def __init__(self, settings: TaggerSettings, language: str) -> None:
        self._taggers = [_TaggerModel(find_tagger_folder(model)) for model in settings.models]

    def treat_as_public(self, kinds: Collection[str]) -> None:
        """Count tokens of ``kinds`` as non-entity tokens."""
        for tagger in self._taggers:
            tagger.treat_as_public(kinds)

    @classmethod
    def collect_fingerprint(cls, settings: TaggerSettings, language: str) -> dict[str, Any]:
        """The sha256 of each tagger's files, and the versions of the packages that compute with them."""
        folders = [folder_sha256(find_tagger_folder(model)) for model in settings.models]
        versions = get_package_versions("spacy", "numpy", "onnxruntime", "tokenizers")
        return {"sha256": folders, "encoder": read_encoder_facts(ENCODER_FOLDER)["sha256"], "versions": versions}

    @classmethod
    def list_capabilities(cls, settings: TaggerSettings, language: str) -> list[Capability]:
        """Return each tagger's labels, in every language; all labels of a configured tagger are requested."""
        capabilities = []
        for model in settings.models:
            labels = _read_labels(find_tagger_folder(model))
            requested = frozenset[str]() if model == DEFAULT else labels
            capabilities.append(Capability(f"tagger {model}", labels, "xx", requested))
        return capabilities

    def read(self, texts: Sequence[str]) -> list[EngineOutput]:
        """Return one output per text; scores do not depend on the other texts."""
        outputs = [tagger.read(texts) for tagger in self._taggers]
        return [merge_outputs(text_outputs) for text_outputs in zip(*outputs, strict=True)]


class TokenRange(NamedTuple):
    """Code points [start, end) of a token, whether it is white space, and whether it ends a sentence or a clause."""

    start: int
    end: int
    is_space: bool
    is_sentence_sign: bool


class _TaggerModel:
    _public_columns: tuple[int, ...] = ()

    def __init__(self, folder: Path) -> None:
        spacy = import_tagger_spacy()
        try:
            self._nlp = speed_up_suffix_search(spacy.load(folder))
        except ConfigurationError:
            raise
        except Exception as error:
            problem = type(error).__name__
            raise ConfigurationError(
                f"detect.tagger.models: {folder.name} cannot be loaded ({problem}); fit it again"
            ) from None
        if FACTORY not in self._nlp.pipe_names:
            raise ConfigurationError(f"detect.tagger.models: {folder.name} was not written by redactory fit tagger")
        pipe: Any = self._nlp.get_pipe(FACTORY)
        self._pipe: EncoderTagger = pipe
        self._labels = self._pipe.get_head().labels
        self._cache: dict[str, EngineOutput] = {}
        self._plain_columns = [n for n, label in enumerate(self._labels) if label in PLAIN_LABELS]

    def treat_as_public(self, kinds: Collection[str]) -> None:
        """Count P(kind) of each of ``kinds`` as P(non-entity) from now on."""
        self._public_columns = tuple(
            number
            for number, label in enumerate(self._labels)
            if label not in PLAIN_LABELS and get_kind(label) in kinds
        )
        self._cache.clear()

    def read(self, texts: Sequence[str]) -> list[EngineOutput]:
        """Read texts, each equal short one only once: greetings and signatures recur in most corpora."""
        # another thread may clear the cache at any moment
        cached = ((text, self._cache.get(text)) for text in dict.fromkeys(texts))
        outputs = {text: output for text, output in cached if output is not None}
        new = [text for text in dict.fromkeys(texts) if text not in outputs]
        outputs.update(zip(new, self._read_texts(new), strict=True))
        if len(self._cache) > MAX_CACHED_TEXTS:
            self._cache.clear()
        self._cache.update((text, outputs[text]) for text in new if len(text) <= MAX_CACHED_CHARS)
        return [outputs[text] for text in texts]

    def _read_texts(self, texts: Sequence[str]) -> list[EngineOutput]:
        with enter_memory_zone(self._nlp):
            docs = [self._nlp.make_doc(text) for text in texts]
            scores = self._pipe.predict(docs)
            return [
                self._build_output(doc, doc_scores) if len(doc) else EngineOutput()
                for doc, doc_scores in zip(docs, scores, strict=True)
            ]

    def _build_output(self, doc: Doc, scores: NDArray[np.float32]) -> EngineOutput:
        if not np.isfinite(scores).all():
            raise ValueError("the tagger returned scores that are not finite")
        open_ = scores[:, list(self._public_columns)].sum(axis=1)
        others = scores.copy()
        others[:, [*self._plain_columns, *self._public_columns]] = -1.0
        labels = others.argmax(axis=1).tolist()
        plain = np.minimum(scores[:, list(self._plain_columns)].sum(axis=1) + open_, 1.0)
        non_entity = self._add_harmless(doc, plain, labels, scores).astype(float).tolist()
        text, columns = doc.text, doc.to_array(["IDX", "LENGTH", "IS_SPACE"]).tolist()
        places = [
            TokenRange(start, start + length, bool(is_space), length == 1 and text[start] in SENTENCE_SIGNS)
            for start, length, is_space in columns
        ]
        tokens = tuple(
            NonEntityScore(start, end, value, NAME)
            for (start, end, space, _), value in zip(places, non_entity, strict=True)
            if not space
        )
        spans: tuple[Span, ...] = ()
        if min(non_entity) <= 1.0 - WEAK_THRESHOLD:
            spans = tuple(self._iter_spans(places, self._join_across_punctuation(doc, non_entity, labels), labels))
        if self._public_columns:
            best = np.asarray(self._public_columns)[scores[:, list(self._public_columns)].argmax(axis=1)].tolist()
            public = self._iter_spans(places, (1.0 - open_).astype(float).tolist(), best)
            # less likely public than a non-entity, but surely nothing else: treat as public
            surely = {place[:2] for place, value in zip(places, non_entity, strict=True) if value >= SURE_THRESHOLD}
            spans += tuple(
                span if span.score >= PUBLIC_THRESHOLD else span._replace(score=PUBLIC_THRESHOLD)
                for span in public
                if span.score >= PUBLIC_THRESHOLD or span[:2] in surely
            )
        return EngineOutput(spans, tokens)

    def _add_harmless(
        self, doc: Doc, plain: NDArray[np.float32], labels: list[int], scores: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return P(non-entity) with that of the label added where the tokens have a form of :data:`HARMLESS_FORMS`."""
        result = plain.copy()
        for label, is_harmless in HARMLESS_FORMS.items():
            column = self._labels.index(label) if label in self._labels else -1
            is_labelled = ((np.asarray(labels) == column) & (plain < MIN_SURE_PROBABILITY)).tolist()
            runs = groupby((t.i for t in doc if not t.is_space), is_labelled.__getitem__)
            for is_value, run in runs if any(is_labelled) else ():
                numbers = list(run)
                if is_value and is_harmless([doc[number].text for number in numbers]):
                    result[numbers] = np.minimum(plain[numbers] + scores[numbers, column], 1.0)
        return result

    def _join_across_punctuation(self, doc: Doc, non_entity: list[float], labels: list[int]) -> list[float]:
        """Give punctuation inside a span the P(non-entity) of its surroundings."""
        bridged = list(non_entity)
        gap: list[int] = []
        previous: int | None = None
        for token in doc:
            if token.is_space:
                continue
            if 1.0 - non_entity[token.i] >= WEAK_THRESHOLD:
                if previous is not None and self._is_same_address(labels[previous], labels[token.i]):
                    for number in gap:
                        bridged[number] = max(non_entity[previous], non_entity[token.i])
                        labels[number] = labels[previous]
                previous, gap = token.i, []
            elif token.is_punct:
                gap.append(token.i)
            else:
                previous, gap = None, []
        return bridged

    def _is_same_address(self, left: int, right: int) -> bool:
        """Return whether two neighbours are parts of one address; a name inside a street counts."""
        pair = {self._labels[left], self._labels[right]}
        return ADDRESS in pair or pair <= ADDRESS_LABELS

    def _iter_spans(self, token_ranges: list[TokenRange], non_entity: list[float], labels: list[int]) -> Iterator[Span]:
        """Yield runs of at least weakly sensitive tokens, cut where the label changes.

        Each span gets the highest score of its whole run: a strong token supports the weak ones beside it, as in "Rose
        Chase", where only the second is surely a name.
        """
        visible = (number for number, token in enumerate(token_ranges) if not token.is_space)
        for sensitive, run in groupby(visible, lambda number: 1.0 - non_entity[number] >= WEAK_THRESHOLD):
            if not sensitive:
                continue
            tokens = list(run)
            score = round(max(1.0 - non_entity[number] for number in tokens), 6)
            for label, label_run in groupby(tokens, labels.__getitem__):
                segment = list(label_run)
                while len(segment) > 1 and token_ranges[segment[-1]].is_sentence_sign:
                    segment.pop()
                yield Span(
                    token_ranges[segment[0]].start, token_ranges[segment[-1]].end, self._labels[label], score, NAME
                )


def _read_labels(folder: Path) -> frozenset[str]:
    """None if another program wrote the folder; the loader then reports it."""
    path = folder / FACTORY / "head.json"
    return frozenset(read_json(path).get("labels", ()) if path.is_file() else ()) - {OUTSIDE_LABEL}


def read_measured_languages(settings: TaggerSettings) -> dict[str, dict[str, Any]]:
    """Return the figures by language from the taggers' ``meta.json``; a fitted tagger has none."""
    metas = (read_model_meta(str(find_tagger_folder(model))) for model in settings.models)
    return {language: figures for meta in metas for language, figures in meta.get("measured", {}).items()}


def find_tagger_folder(model: str) -> Path:
    """Return the folder of a tagger: a path from ``redactory fit tagger``, or the built-in one."""
    folder = DEFAULT_FOLDER if model == DEFAULT else Path(model)
    if not (folder / "config.cfg").is_file():
        raise ConfigurationError(
            f"detect.tagger.models: '{model}' is not a folder that redactory fit tagger wrote; give its path or default"
        )
    return folder

"""Read texts with a tagger: spans with hysteresis, and P(non-entity) of each token."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redactory.detectors.coverage import detect_language
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
from redactory.detectors.settings import AUTO, TaggerSettings, get_kind
from redactory.detectors.spacy_model import (
    enter_memory_zone,
    get_package_versions,
    import_lean_spacy,
    read_model_meta,
    speed_up_suffix_search,
)
from redactory.detectors.tagger.fitting import OUTSIDE_LABEL
from redactory.foundation.canonical import folder_sha256
from redactory.foundation.errors import ConfigurationError, join_words
from redactory.foundation.files import read_json

if TYPE_CHECKING:
    from spacy.tokens import Doc

NAME = "tagger"
ADDRESS = "STREET_ADDRESS"
ADDRESS_LABELS = frozenset({ADDRESS, "LOCATION", "POSTAL_CODE"})
"""Labels of address parts; punctuation between two of them belongs to the address."""
DEFAULT = "default"
"""Value in ``detect.tagger.models``: the built-in tagger of the language; with ``auto``, all of them."""
_BUILTIN_TAGGERS = {"default": ("en",), "european": ("de", "es", "fr", "it", "nl", "pt")}
"""The folders beside this file, and the languages of each."""


class TaggerEngine:
    """Runs every configured tagger; with ``auto``, only those of a text's language if it is certain."""

    def __init__(self, settings: TaggerSettings, language: str) -> None:
        self._taggers = [_TaggerModel(folder) for _, folder in _resolve_folders(settings, language)]
        self._routes_by_language = language == AUTO

    def treat_as_public(self, kinds: Collection[str]) -> None:
        """Count tokens of ``kinds`` as non-entity tokens."""
        for tagger in self._taggers:
            tagger.treat_as_public(kinds)

    @classmethod
    def collect_fingerprint(cls, settings: TaggerSettings, language: str) -> dict[str, Any]:
        """The sha256 of each tagger's files, and the versions of the packages that compute with them."""
        folders = [folder_sha256(folder) for _, folder in _resolve_folders(settings, language)]
        return {"sha256": folders, "versions": get_package_versions("spacy", "thinc", "blis", "numpy")}

    @classmethod
    def list_capabilities(cls, settings: TaggerSettings, language: str) -> list[Capability]:
        """Return each tagger's labels and language; all labels of a configured tagger are requested."""
        capabilities = []
        for model, folder in _resolve_folders(settings, language):
            labels = _read_labels(folder)
            asked_for = frozenset[str]() if model in _BUILTIN_TAGGERS else labels
            for code in _read_languages(folder):
                capabilities.append(Capability(f"tagger {model}", labels, code, asked_for))
        return capabilities

    def read(self, texts: Sequence[str]) -> list[EngineOutput]:
        """Return one output per text; scores do not depend on the other texts."""
        readers = [self._choose_taggers(text) for text in texts]
        of_each: list[list[EngineOutput]] = [[] for _ in texts]
        for tagger in self._taggers:
            numbers = [number for number, taggers in enumerate(readers) if tagger in taggers]
            for number, output in zip(numbers, tagger.read([texts[number] for number in numbers]), strict=True):
                of_each[number].append(output)
        return [merge_outputs(text_outputs) for text_outputs in of_each]

    def _choose_taggers(self, text: str) -> list[_TaggerModel]:
        """Return the taggers of the text's language, or all of them if there is none.

        A text of uncertain language is public only if its words are common words of English.
        """
        if not self._routes_by_language:
            return self._taggers
        language = detect_language(text) or "en"
        return [tagger for tagger in self._taggers if language in tagger.languages] or self._taggers


class _TaggerModel:
    _public_columns: tuple[int, ...] = ()

    def __init__(self, folder: Path) -> None:
        spacy = import_lean_spacy()
        self.languages = _read_languages(folder)
        try:
            self._nlp = speed_up_suffix_search(spacy.load(folder))
        except Exception as error:
            problem = type(error).__name__
            raise ConfigurationError(
                f"detect.tagger.models: {folder.name} cannot be loaded ({problem}); fit it again"
            ) from None
        pipe: Any = self._nlp.get_pipe("tagger") if "tagger" in self._nlp.pipe_names else None
        if pipe is None or OUTSIDE_LABEL not in pipe.labels:
            raise ConfigurationError(f"detect.tagger.models: {folder.name} was not written by redactory fit tagger")
        self._model, self._labels = pipe.model, pipe.labels
        self._non_entity_column = self._labels.index(OUTSIDE_LABEL)

    def treat_as_public(self, kinds: Collection[str]) -> None:
        """Count P(kind) of each of ``kinds`` as P(non-entity) from now on."""
        self._public_columns = tuple(
            number for number, label in enumerate(self._labels) if label != OUTSIDE_LABEL and get_kind(label) in kinds
        )

    def read(self, texts: Sequence[str]) -> list[EngineOutput]:
        with enter_memory_zone(self._nlp):
            docs = [self._nlp.make_doc(text) for text in texts]
            full = [doc for doc in docs if len(doc)]
            scores = iter(self._model.predict(full) if full else ())
            return [self._build_output(doc, next(scores)) if len(doc) else EngineOutput() for doc in docs]

    def _build_output(self, doc: Doc, scores: NDArray[np.float32]) -> EngineOutput:
        if not np.isfinite(scores).all():
            raise ValueError("the tagger returned scores that are not finite")
        open_ = scores[:, list(self._public_columns)].sum(axis=1)
        others = scores.copy()
        others[:, [self._non_entity_column, *self._public_columns]] = -1.0
        labels = others.argmax(axis=1).tolist()
        non_entity = np.minimum(scores[:, self._non_entity_column] + open_, 1.0).astype(float).tolist()
        places = [(t.idx, t.idx + len(t), t.is_space) for t in doc]
        tokens = tuple(
            NonEntityScore(start, end, value, NAME)
            for (start, end, space), value in zip(places, non_entity, strict=True)
            if not space
        )
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

    def _iter_spans(
        self, token_ranges: list[tuple[int, int, bool]], non_entity: list[float], labels: list[int]
    ) -> Iterator[Span]:
        """Yield runs of at least weakly sensitive tokens, cut where the label changes.

        Each span gets the highest score of its whole run: a strong token supports the weak ones beside it, as in "Rose
        Chase", where only the second is surely a name.
        """
        visible = (number for number, (_, _, space) in enumerate(token_ranges) if not space)
        for sensitive, run in groupby(visible, lambda number: 1.0 - non_entity[number] >= WEAK_THRESHOLD):
            if not sensitive:
                continue
            tokens = list(run)
            score = round(max(1.0 - non_entity[number] for number in tokens), 6)
            for label, label_run in groupby(tokens, labels.__getitem__):
                segment = list(label_run)
                yield Span(token_ranges[segment[0]][0], token_ranges[segment[-1]][1], self._labels[label], score, NAME)


def _read_labels(folder: Path) -> frozenset[str]:
    """None if another program wrote the folder; the loader then reports it."""
    cfg = folder / "tagger" / "cfg"
    return frozenset(read_json(cfg).get("labels", ()) if cfg.is_file() else ()) - {OUTSIDE_LABEL}


def _read_languages(folder: Path) -> list[str | None]:
    """Return the training languages from ``meta.json``; None if it does not tell."""
    meta = read_model_meta(str(folder))
    languages: list[str | None] = meta.get("languages") or [meta.get("lang")]
    return languages


def _resolve_folders(settings: TaggerSettings, language: str) -> list[tuple[str, Path]]:
    """Return name and folder of each tagger; ``default`` gives the built-in ones for ``language``."""
    folders = []
    for model in settings.models:
        builtin = [name for name, codes in _BUILTIN_TAGGERS.items() if language in (*codes, AUTO)]
        if model == DEFAULT and not builtin:
            languages = sorted(code for codes in _BUILTIN_TAGGERS.values() for code in codes)
            raise ConfigurationError(
                f"detect.tagger: the shipped taggers read {join_words(languages)}, but detect.language is "
                f"'{language}'; set detect.tagger to null, or name a tagger of that language under models"
            )
        for name in builtin if model == DEFAULT else [model]:
            folders.append((name, find_tagger_folder(name)))
    return folders


def choose_builtin_tagger(language: str) -> str:
    """Return the name of the built-in tagger for ``language``, by default the English one."""
    return next((name for name, codes in _BUILTIN_TAGGERS.items() if language in codes), DEFAULT)


def find_tagger_folder(model: str) -> Path:
    """Return the folder of a tagger: a path from ``redactory fit tagger``, or a built-in name."""
    folder = Path(__file__).parent / model if model in _BUILTIN_TAGGERS else Path(model)
    if not (folder / "config.cfg").is_file():
        raise ConfigurationError(
            f"detect.tagger.models: '{model}' is not a folder that redactory fit tagger wrote; give its path or default"
        )
    return folder

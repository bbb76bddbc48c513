"""Reading texts with a tagger: spans with hysteresis, and the confidence that a plain token is plain."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redactory.detectors.blind import language_of
from redactory.detectors.engine import LIKELY, SURELY, WEAK, Finds, Plain, Reading, Span, joined
from redactory.detectors.settings import AUTO, TaggerSettings, kind_of
from redactory.detectors.spacy_model import lean_spacy, memory_zone, meta_of, versions, with_quick_suffixes
from redactory.detectors.tagger.fitting import PLAIN
from redactory.foundation.canonical import folder_sha256
from redactory.foundation.errors import ConfigurationError, listed
from redactory.foundation.files import read_json

if TYPE_CHECKING:
    from spacy.tokens import Doc

NAME = "tagger"
ADDRESS = "STREET_ADDRESS"
PLACES = frozenset({ADDRESS, "LOCATION", "POSTAL_CODE"})
"""Labels of the parts of an address: the punctuation between two of them belongs to it."""
DEFAULT = "default"
"""As one of ``detect.tagger.models``: what is shipped for the language, or for each with ``auto``."""
_SHIPPED = {"default": ("en",), "european": ("de", "es", "fr", "it", "nl", "pt")}
"""The folders beside this file, and the languages that each is for."""


class TaggerEngine:
    """Every configured tagger; each reads every text.

    With ``detect.language: auto`` a text that is surely in the language of some of them is read by those.
    """

    def __init__(self, settings: TaggerSettings, language: str) -> None:
        self._taggers = [_Tagger(folder) for _, folder in _folders(settings, language)]
        self._routes = language == AUTO

    def fold(self, kinds: Collection[str]) -> None:
        """Hold tokens of ``kinds`` for as plain as those that nothing is found in."""
        for tagger in self._taggers:
            tagger.fold(kinds)

    @classmethod
    def identity(cls, settings: TaggerSettings, language: str) -> dict[str, Any]:
        """The sha256 over each tagger's files, and the versions that compute with them."""
        folders = [folder_sha256(folder) for _, folder in _folders(settings, language)]
        return {"sha256": folders, "versions": versions("spacy", "thinc", "blis", "numpy")}

    @classmethod
    def finds(cls, settings: TaggerSettings, language: str) -> list[Finds]:
        """Each tagger's labels and language; all of one that the configuration names are asked for."""
        found = []
        for model, folder in _folders(settings, language):
            labels = _labels(folder)
            asked_for = frozenset[str]() if model in _SHIPPED else labels
            for read in _languages(folder):
                found.append(Finds(f"tagger {model}", labels, read, asked_for))
        return found

    def read(self, texts: Sequence[str]) -> list[Reading]:
        """One reading a text; its scores do not depend on the other texts."""
        readers = [self._readers(text) for text in texts]
        of_each: list[list[Reading]] = [[] for _ in texts]
        for tagger in self._taggers:
            own = [number for number, chosen in enumerate(readers) if tagger in chosen]
            for number, reading in zip(own, tagger.read([texts[number] for number in own]), strict=True):
                of_each[number].append(reading)
        return [joined(found) for found in of_each]

    def _readers(self, text: str) -> list[_Tagger]:
        """The taggers of a text's own language, or all of them where it is nobody's.

        One whose language is not certain is public only where its words are ordinary ones of English.
        """
        if not self._routes:
            return self._taggers
        language = language_of(text) or "en"
        return [tagger for tagger in self._taggers if language in tagger.languages] or self._taggers


class _Tagger:
    _public: tuple[int, ...] = ()

    def __init__(self, folder: Path) -> None:
        spacy = lean_spacy()
        self.languages = _languages(folder)
        try:
            self._nlp = with_quick_suffixes(spacy.load(folder))
        except Exception as error:
            problem = type(error).__name__
            raise ConfigurationError(
                f"detect.tagger.models: {folder.name} cannot be loaded ({problem}); fit it again"
            ) from None
        pipe: Any = self._nlp.get_pipe("tagger") if "tagger" in self._nlp.pipe_names else None
        if pipe is None or PLAIN not in pipe.labels:
            raise ConfigurationError(f"detect.tagger.models: {folder.name} was not written by redactory fit tagger")
        self._model, self._labels = pipe.model, pipe.labels
        self._plain = self._labels.index(PLAIN)

    def fold(self, kinds: Collection[str]) -> None:
        """From now on a token is as plain as it is plain or of one of ``kinds``."""
        self._public = tuple(
            number for number, label in enumerate(self._labels) if label != PLAIN and kind_of(label) in kinds
        )

    def read(self, texts: Sequence[str]) -> list[Reading]:
        with memory_zone(self._nlp):
            docs = [self._nlp.make_doc(text) for text in texts]
            full = [doc for doc in docs if len(doc)]
            scores = iter(self._model.predict(full) if full else ())
            return [self._reading(doc, next(scores)) if len(doc) else Reading() for doc in docs]

    def _reading(self, doc: Doc, scores: NDArray[np.float32]) -> Reading:
        if not np.isfinite(scores).all():
            raise ValueError("the tagger returned scores that are not finite")
        open_ = scores[:, list(self._public)].sum(axis=1)
        others = scores.copy()
        others[:, [self._plain, *self._public]] = -1.0
        labels = others.argmax(axis=1).tolist()
        outside = np.minimum(scores[:, self._plain] + open_, 1.0).astype(float).tolist()
        places = [(t.idx, t.idx + len(t), t.is_space) for t in doc]
        tokens = tuple(
            Plain(start, end, value, NAME)
            for (start, end, space), value in zip(places, outside, strict=True)
            if not space
        )
        spans = tuple(self._spans(places, self._bridged(doc, outside, labels), labels))
        if self._public:
            best = np.asarray(self._public)[scores[:, list(self._public)].argmax(axis=1)].tolist()
            public = self._spans(places, (1.0 - open_).astype(float).tolist(), best)
            # what is less likely public than plain, and surely nothing else, is as good as public
            surely = {place[:2] for place, value in zip(places, outside, strict=True) if value >= SURELY}
            spans += tuple(
                span if span.score >= LIKELY else span._replace(score=LIKELY)
                for span in public
                if span.score >= LIKELY or span[:2] in surely
            )
        return Reading(spans, tokens)

    def _bridged(self, doc: Doc, outside: list[float], labels: list[int]) -> list[float]:
        """``outside`` with the punctuation inside a place as sensitive as what stands around it."""
        bridged = list(outside)
        gap: list[int] = []
        before: int | None = None
        for token in doc:
            if token.is_space:
                continue
            if 1.0 - outside[token.i] >= WEAK:
                if before is not None and self._one_place(labels[before], labels[token.i]):
                    for number in gap:
                        bridged[number] = max(outside[before], outside[token.i])
                        labels[number] = labels[before]
                before, gap = token.i, []
            elif token.is_punct:
                gap.append(token.i)
            else:
                before, gap = None, []
        return bridged

    def _one_place(self, left: int, right: int) -> bool:
        """Whether two neighbours are parts of one address; what is named inside a street is too."""
        both = {self._labels[left], self._labels[right]}
        return ADDRESS in both or both <= PLACES

    def _spans(self, places: list[tuple[int, int, bool]], outside: list[float], labels: list[int]) -> Iterator[Span]:
        """Runs of tokens that are at least weakly sensitive, cut where the label changes.

        Each piece carries the highest score of its whole run: a strong token vouches for the weak ones
        beside it, as in "Rose Chase", where only the second is surely a name.
        """
        solid = (number for number, (_, _, space) in enumerate(places) if not space)
        for sensitive, run in groupby(solid, lambda number: 1.0 - outside[number] >= WEAK):
            if not sensitive:
                continue
            tokens = list(run)
            score = round(max(1.0 - outside[number] for number in tokens), 6)
            for label, of_label in groupby(tokens, labels.__getitem__):
                piece = list(of_label)
                yield Span(places[piece[0]][0], places[piece[-1]][1], self._labels[label], score, NAME)


def _labels(folder: Path) -> frozenset[str]:
    """None where another program wrote the folder: whoever loads it says so."""
    cfg = folder / "tagger" / "cfg"
    return frozenset(read_json(cfg).get("labels", ()) if cfg.is_file() else ()) - {PLAIN}


def _languages(folder: Path) -> list[str | None]:
    """Those that a tagger was trained on, as its ``meta.json`` tells; None where it does not."""
    meta = meta_of(str(folder))
    languages: list[str | None] = meta.get("languages") or [meta.get("lang")]
    return languages


def _folders(settings: TaggerSettings, language: str) -> list[tuple[str, Path]]:
    """The name and the folder of each tagger; of ``default``, those that are shipped for ``language``."""
    found = []
    for model in settings.models:
        shipped = [name for name, read in _SHIPPED.items() if language in (*read, AUTO)]
        if model == DEFAULT and not shipped:
            languages = sorted(code for read in _SHIPPED.values() for code in read)
            raise ConfigurationError(
                f"detect.tagger: the shipped taggers read {listed(languages)}, but detect.language is "
                f"'{language}'; set detect.tagger to null, or name a tagger of that language under models"
            )
        for name in shipped if model == DEFAULT else [model]:
            found.append((name, tagger_folder(name)))
    return found


def shipped_for(language: str) -> str:
    """The name of the tagger that is shipped for ``language``, the English one where none is."""
    return next((name for name, read in _SHIPPED.items() if language in read), DEFAULT)


def tagger_folder(model: str) -> Path:
    """The folder of a tagger: that of ``redactory fit tagger``, or the name of one that is shipped."""
    folder = Path(__file__).parent / model if model in _SHIPPED else Path(model)
    if not (folder / "config.cfg").is_file():
        raise ConfigurationError(
            f"detect.tagger.models: '{model}' is not a folder that redactory fit tagger wrote; give its path or default"
        )
    return folder

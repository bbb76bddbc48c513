"""Stanza's entity recognizer with the marginals of its CRF, which Stanza itself throws away.

The tokens are those of spaCy's blank tokenizer for the language, not of Stanza's tokenizer model: each
one is a place in the text by construction, there are no multi-word tokens without a place, no second
network whose padding could let a text's batch speak, and no model file to have.  Each line of a text is
one sequence for the tagger.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from redactory.detectors.engine import ENGINE_ERROR, MISALIGNED, Finds, Plain, Reading
from redactory.detectors.lean_imports import lean_spacy
from redactory.detectors.settings import KNOWN_LABELS, StanzaSettings
from redactory.detectors.span import Span
from redactory.detectors.stanza.model import StanzaTagger, tags_in
from redactory.detectors.torch_reading import closed_reading, folder_identity
from redactory.foundation.errors import ConfigurationError

if TYPE_CHECKING:
    from spacy.language import Language

NAME = "stanza"
RUN = 100
"""Most characters between white space that are read as one; a longer run is cut.  The tokenizer takes
the square of a run's length, and the character network pads every token of a line to the longest one."""

_LINE = re.compile(r"[^\r\n]+")
_RUN = re.compile(rf"\S{{1,{RUN}}}")
_PROBE = "Anna Schmidt doesn't live in Paris."


class Word(NamedTuple):
    """One token: code points [start, end) of the text, and what stands there."""

    start: int
    end: int
    text: str


class StanzaEngine:
    """Entities of a Stanza model, with P(plain) of each token from the CRF's marginals.

    Spans are those of the most probable tag sequence, each scored by the mean of 1 - P(plain) over its
    tokens.  Lines are read one at a time: sequences in one batch are padded, and the last bits of a float
    product depend on the batch's shape.  ``ConfigurationError`` where the folder holds no such model.
    """

    def __init__(self, settings: StanzaSettings, language: str) -> None:
        self._nlp = _tokenizer(language)
        self._tagger = StanzaTagger(settings, language)
        if self.read([_PROBE])[0].failure:
            raise ConfigurationError("detect.stanza: the model cannot read a plain English sentence")

    @classmethod
    def identity(cls, settings: StanzaSettings, language: str) -> dict[str, Any]:
        """Content of the folder and versions of what reads it."""
        readers = ("stanza", "torch", "spacy", "numpy")
        return folder_identity("detect.stanza.folder", settings.folder, "resources.json", *readers)

    @classmethod
    def finds(cls, settings: StanzaSettings, language: str) -> list[Finds]:
        """The kinds of entity among the model's tags; its package is one of ``language``."""
        cls.identity(settings, language)  # refuses a folder that is not there
        tags = tags_in(settings.folder, settings.package, language)
        kinds = frozenset(kind for tag in tags for *_, kind in entities([tag]))
        return [Finds(f"Stanza {settings.folder}", kinds, language, kinds - KNOWN_LABELS)]

    def read(self, texts: Sequence[str]) -> list[Reading]:
        """One reading a text, each a function of that text alone."""
        # the zone gives back what spaCy's string store learns from these texts
        with closed_reading(), self._nlp.memory_zone():
            return [self._read(text) for text in texts]

    def _read(self, text: str) -> Reading:
        try:
            lines = list(self._lines(text))
            if not aligned(text, [word for line in lines for word in line]):
                return Reading(failure=MISALIGNED)
            spans: list[Span] = []
            plain: list[Plain] = []
            for line in lines:
                tags, outside = self._tagger.read([word.text for word in line])
                spans += _spans(line, tags, outside)
                plain += [Plain(w.start, w.end, p, NAME) for w, p in zip(line, outside, strict=True)]
        except Exception:
            # whatever its message quotes, it ends here
            return Reading(failure=ENGINE_ERROR)
        return Reading(tuple(spans), tuple(plain))

    def _lines(self, text: str) -> Iterator[list[Word]]:
        """The words of each line that has any."""
        for line in _LINE.finditer(text):
            words = [word for run in _RUN.finditer(text, *line.span()) for word in self._words(run)]
            if words:
                yield words

    def _words(self, run: re.Match[str]) -> Iterator[Word]:
        for token in self._nlp.make_doc(run.group()):
            start = run.start() + token.idx
            yield Word(start, start + len(token), token.text)


def aligned(text: str, words: Sequence[Word]) -> bool:
    """Whether ``words`` follow each other in ``text`` and leave out nothing but white space."""
    reached = 0
    for start, end, word in words:
        if start < reached or start >= end or text[start:end] != word or text[reached:start].strip():
            return False
        reached = end
    return not text[reached:].strip()


def entities(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """(first token, end, type) of each run of one type, cut before B- and S- and after E- and S-.

    Every token whose tag is not O lies in exactly one of them, also where the scheme is broken.
    """
    found: list[tuple[int, int, str]] = []
    closed = True
    for index, tag in enumerate(tags):
        if tag == "O":
            closed = True
            continue
        place, kind = ("", tag) if tag[1:2] not in ("-", "_") else (tag[0], tag[2:])
        if closed or place in ("B", "S") or kind != found[-1][2]:
            found.append((index, index + 1, kind))
        else:
            found[-1] = (found[-1][0], index + 1, kind)
        closed = place in ("E", "S")
    return found


def _spans(line: Sequence[Word], tags: Sequence[str], outside: Sequence[float]) -> Iterator[Span]:
    for first, end, kind in entities(tags):
        score = 1.0 - sum(outside[first:end]) / (end - first)
        yield Span(line[first].start, line[end - 1].end, kind, round(max(score, 0.0), 6), NAME)


def _tokenizer(language: str) -> Language:
    spacy: Any = lean_spacy()
    try:
        nlp: Language = spacy.blank(language)
        return nlp
    except ImportError:
        raise ConfigurationError(
            f"detect.language: spaCy has no tokenizer for '{language}' here, and the Stanza engine needs it"
        ) from None

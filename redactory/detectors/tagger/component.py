"""The tagger as a spaCy component: a linear head on the pretrained encoder.

``spacy.load`` finds the component by its entry point, so a folder with a tagger works in any spaCy program, and as
Presidio's NLP engine. It sets ``doc.ents``; Redactory itself uses :meth:`EncoderTagger.predict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.tokens import Span as SpacySpan

from redactory.encoder import EncodedText, Encoder, load_encoder
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import read_json, write_json

if TYPE_CHECKING:
    from spacy.tokens import Doc

FACTORY = "redactory_tagger"
OUTSIDE_LABEL = "O"
UNKNOWN_LABEL = "IDENTIFIER"
"""The label of a token that the encoder cannot read."""
MAX_UNKNOWN_PROBABILITY = 0.5
"""Maximum P(non-entity) of a token with letters that the encoder does not know: it is never surely harmless."""
_SETTINGS, _WEIGHTS = "head.json", "head.npz"


class Head(NamedTuple):
    """Softmax regression on the encoder's vectors: ``weights`` [labels, width] and ``bias`` [labels], of logits.

    The logits are calibrated: they were divided by the temperature. ``labels[0]`` is "O".
    """

    labels: tuple[str, ...]
    weights: NDArray[np.float32]
    bias: NDArray[np.float32]

    def compute_probabilities(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the probability of each label, [n, labels], of ``vectors`` [n, width]."""
        logits = vectors @ self.weights.T + self.bias
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities: NDArray[np.float32] = scores / scores.sum(axis=1, keepdims=True)
        return probabilities


class EncoderTagger:
    """A component that labels tokens; ``threshold`` is the minimum P(entity) of a token of ``doc.ents``."""

    def __init__(self, name: str = FACTORY, threshold: float = 0.5, head: Head | None = None) -> None:
        self.name, self.threshold, self.head = name, threshold, head
        self._encoder: Encoder = load_encoder()

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, without "O"; none before the head is loaded, when spaCy asks for the first time."""
        return () if self.head is None else self.head.labels[1:]

    def get_head(self) -> Head:
        """Return the head; ``ConfigurationError`` for a component that was neither loaded nor fitted."""
        if self.head is None:
            raise ConfigurationError(f"the component {self.name} has no head: load a folder that has one")
        return self.head

    def predict(self, docs: Iterable[Doc]) -> list[NDArray[np.float32]]:
        """Return the probabilities of each doc's tokens, [tokens, labels]; independent of the other docs."""
        return [self._score_tokens(doc) for doc in docs]

    def __call__(self, doc: Doc) -> Doc:
        """Set ``doc.ents`` to runs of tokens of one label, whose P(entity) is at least ``threshold``."""
        head = self.get_head()
        probabilities = self._score_tokens(doc)
        best = 1 + probabilities[:, 1:].argmax(axis=1) if len(doc) else ()
        sensitive = probabilities[:, 0] <= 1 - self.threshold
        labels = [int(label) if is_sensitive else 0 for label, is_sensitive in zip(best, sensitive, strict=True)]
        entities = []
        for label, run in groupby((t.i for t in doc if not t.is_space), labels.__getitem__):
            tokens = list(run)
            if label:
                entities.append(SpacySpan(doc, tokens[0], tokens[-1] + 1, label=head.labels[label]))
        doc.set_ents(entities)
        return doc

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 0) -> Iterator[Doc]:
        """Label a stream of docs, one by one."""
        return map(self, stream)

    def _score_tokens(self, doc: Doc) -> NDArray[np.float32]:
        head, encoded = self.get_head(), self._encoder.encode(doc.text)
        ranges = np.array([(token.idx, token.idx + len(token)) for token in doc], np.int64).reshape(-1, 2)
        return align_probabilities(doc.text, ranges, encoded, head)

    def to_disk(self, path: str | Path, *, exclude: Sequence[str] = ()) -> None:
        """Write the head below ``path``."""
        folder, head = Path(path), self.get_head()
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / _SETTINGS, {"labels": head.labels, "encoder": self._encoder.sha256}, 0o644)
        np.savez(folder / _WEIGHTS, weights=head.weights, bias=head.bias)

    def from_disk(self, path: str | Path, *, exclude: Sequence[str] = ()) -> EncoderTagger:
        """Read the head below ``path``; ``ConfigurationError`` if it was made for another encoder."""
        self.head = load_head(Path(path).parent)
        return self


def load_head(tagger_folder: Path) -> Head:
    """Load the head of a tagger; ``ConfigurationError`` if it is missing, damaged or made for another encoder."""
    folder, name = tagger_folder / FACTORY, tagger_folder.name
    if not (folder / _SETTINGS).is_file():
        raise ConfigurationError(f"{name}: no tagger of redactory fit tagger is in this folder")
    encoder = load_encoder()
    try:
        settings: dict[str, Any] = read_json(folder / _SETTINGS)
        with np.load(folder / _WEIGHTS) as arrays:
            head = Head(tuple(settings["labels"]), arrays["weights"], arrays["bias"])
        sha256 = settings["encoder"]
    except (EOFError, KeyError, OSError, TypeError, ValueError, BadZipFile) as error:
        raise ConfigurationError(f"{name}: the head is damaged ({type(error).__name__}); fit it again") from None
    if sha256 != encoder.sha256:
        raise ConfigurationError(f"{name}: this tagger was fitted for another encoder; fit it again")
    count = len(head.labels)
    if (head.weights.shape, head.bias.shape) != ((count, encoder.width), (count,)):
        raise ConfigurationError(
            f"{name}: the head is damaged ({_WEIGHTS} has other labels than {_SETTINGS}); fit it again"
        )
    return head


def align_probabilities(text: str, tokens: NDArray[np.int64], encoded: EncodedText, head: Head) -> NDArray[np.float32]:
    """Return the probabilities of ``tokens`` (code points [start, end) of each) from those of the pieces in them.

    A token gets those of its piece with the lowest P(non-entity). A visible token without a piece is sensitive.
    """
    unread = np.zeros(len(head.labels), np.float32)
    unread[head.labels.index(UNKNOWN_LABEL) if UNKNOWN_LABEL in head.labels else 1] = 1
    result = np.tile(unread, (len(tokens), 1))
    if not len(tokens) or not len(encoded.ranges):
        return result
    pieces = head.compute_probabilities(encoded.vectors)
    for number in np.flatnonzero(~encoded.is_known & (pieces[:, 0] > MAX_UNKNOWN_PROBABILITY)):
        start, end = encoded.ranges[number]
        if any(map(str.isalnum, text[start:end])):
            pieces[number] = MAX_UNKNOWN_PROBABILITY * unread
            pieces[number, 0] = MAX_UNKNOWN_PROBABILITY
    first = np.searchsorted(tokens[:, 1], encoded.ranges[:, 0], side="right")
    last = np.searchsorted(tokens[:, 0], encoded.ranges[:, 1], side="left")
    counts = np.maximum(last - first, 0)
    owners = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    numbers = np.repeat(np.arange(len(pieces)), counts)
    # the last of equal owners wins: sorted by falling P(non-entity)
    order = np.argsort(-pieces[numbers, 0], kind="stable")
    result[owners[order]] = pieces[numbers[order]]
    return result


@Language.factory(FACTORY, assigns=["doc.ents", "token.ent_iob", "token.ent_type"], default_config={"threshold": 0.5})
def make_encoder_tagger(nlp: Language, name: str, threshold: float) -> EncoderTagger:
    """Make the component; its head comes from :meth:`EncoderTagger.from_disk`."""
    return EncoderTagger(name, threshold)

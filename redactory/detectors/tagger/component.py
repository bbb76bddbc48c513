"""The tagger as a spaCy component: a linear head on the pretrained encoder.

``spacy.load`` finds the component by its entry point, so a folder with a tagger works in any spaCy program, and as
Presidio's NLP engine. It sets ``doc.ents``; Redactory itself uses :meth:`EncoderTagger.predict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.tokens import Span as SpacySpan

from redactory.detectors.tagger.head import FACTORY, Head, align_probabilities, load_head, save_head
from redactory.encoder import load_encoder
from redactory.foundation.errors import ConfigurationError

if TYPE_CHECKING:
    from spacy.tokens import Doc


class EncoderTagger:
    """A component that labels tokens; ``threshold`` is the minimum P(entity) of a token of ``doc.ents``."""

    def __init__(self, name: str = FACTORY, threshold: float = 0.5, head: Head | None = None) -> None:
        self.name, self.threshold, self.head = name, threshold, head
        self._encoder = load_encoder()

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
        starts, lengths = doc.to_array(["IDX", "LENGTH"]).astype(np.int64).reshape(-1, 2).T
        return align_probabilities(doc.text, np.stack((starts, starts + lengths), axis=1), encoded, head)

    def to_disk(self, path: str | Path, *, exclude: Sequence[str] = ()) -> None:
        """Write the head below ``path``."""
        save_head(self.get_head(), Path(path))

    def from_disk(self, path: str | Path, *, exclude: Sequence[str] = ()) -> EncoderTagger:
        """Read the head below ``path``; ``ConfigurationError`` if it was made for another encoder."""
        self.head = load_head(Path(path).parent)
        return self


@Language.factory(FACTORY, assigns=["doc.ents", "token.ent_iob", "token.ent_type"], default_config={"threshold": 0.5})
def make_encoder_tagger(nlp: Language, name: str, threshold: float) -> EncoderTagger:
    """Make the component; its head comes from :meth:`EncoderTagger.from_disk`."""
    return EncoderTagger(name, threshold)

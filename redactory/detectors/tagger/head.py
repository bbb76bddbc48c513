"""The head of a tagger: softmax regression on the encoder's vectors, and how pieces become tokens."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from redactory.detectors.spacy_model import import_lean_spacy
from redactory.encoder import EncodedText, load_encoder
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import read_json, write_json

FACTORY = "redactory_tagger"
OUTSIDE_LABEL = "O"
UNKNOWN_LABEL = "IDENTIFIER"
"""The label of a token that the encoder cannot read."""
MAX_UNKNOWN_PROBABILITY = 0.5
"""Maximum P(non-entity) of a token with letters that the encoder does not know: it is never surely harmless."""
_SETTINGS, _WEIGHTS = "head.json", "head.npz"


def import_tagger_spacy() -> ModuleType:
    """Import spaCy without the packages it does not need, and the component, also where no entry point is installed."""
    spacy = import_lean_spacy()
    import_module("redactory.detectors.tagger.component")
    return spacy


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


def save_head(head: Head, folder: Path) -> None:
    """Write a head made for the encoder of the package."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / _SETTINGS, {"labels": head.labels, "encoder": load_encoder().sha256}, 0o644)
    np.savez(folder / _WEIGHTS, weights=head.weights, bias=head.bias)


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

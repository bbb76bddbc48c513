"""What a finished run would do to any text: side and masked text, by its own policies or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redactory.detectors import Detector, DetectSettings, changed_since
from redactory.detectors.rules import words_if_any
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.keys import DigestKey
from redactory.redaction import RunFolder, ValueDigests, open_values, read_batches, route
from redactory.redaction.values import LONGEST


def detect_fates(manifest: dict[str, Any]) -> Callable[[Sequence[str]], list[tuple[str, str]]]:
    """F of a finished run: texts of points to (side, masked text) of each.

    ``ConfigurationError`` where it is another function by now: what that one misses says nothing of the run.
    """
    settings = DetectSettings.read_back(manifest["configuration"]["detect"])
    if changed := changed_since(settings, manifest["policies"]):
        raise ConfigurationError(f"{changed}; bring back what it was, or curate again")
    detector = Detector(settings)

    def fates(texts: Sequence[str]) -> list[tuple[str, str]]:
        routed = (route(t, d) for t, d in zip(texts, detector.detect(texts), strict=True))
        return [("quarantined" if f.failure else f.side, f.text) for f in routed]

    return fates


# Public points that show a value which was masked elsewhere, found without the value being known.


def find_open_values(run: RunFolder, key: DigestKey, language: str) -> list[dict[str, Any]]:
    """``[{"point_id", "labels"}]`` of the public points that hold a masked value, in shard order.

    Of a value of ordinary words of ``language`` ("the", "city centre") nothing is told: masked in one place,
    it stands open in a thousand others.
    """
    masked: dict[bytes, str] = {}
    lengths = set()
    for batch in read_batches(run.spans, ["label", "value_digest", "tokens"]):
        for label, digest, tokens in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if digest is not None and 0 < tokens <= LONGEST:
                masked[digest] = label
                lengths.add(tokens)
    words = words_if_any(language)
    digests, chosen = ValueDigests(key), frozenset(lengths)
    return [
        {"point_id": point, "labels": sorted(labels)}
        for batch in read_batches(run.public)
        for point, text in zip(batch["point_id"].to_pylist(), batch["text"].to_pylist(), strict=True)
        if (labels := open_values(digests, masked, chosen, text, words))
    ]

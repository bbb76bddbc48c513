"""Public points that show a value which was masked elsewhere, found without the value being known."""

from __future__ import annotations

from typing import Any

from redactory.detectors.words import words_if_any
from redactory.foundation.keys import DigestKey
from redactory.redaction import RunFolder, ValueDigests, open_values, read_batches
from redactory.redaction.values import LONGEST


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

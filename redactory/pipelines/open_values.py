"""Public points that show a value which was masked elsewhere, found without the value being known."""

from __future__ import annotations

from typing import Any

from redactory.foundation.keys import DigestKey
from redactory.redaction import RunFolder, ValueDigests, open_values, read_batches
from redactory.redaction.values import LONGEST


def find_open_values(run: RunFolder, key: DigestKey) -> list[dict[str, Any]]:
    """``[{"point_id", "labels"}]`` of the public points that hold a masked value, in shard order.

    A word like "today" can be a masked date in one place and plain in another, so this is a list to
    look through, not a proof of a leak.
    """
    masked: dict[bytes, str] = {}
    lengths = set()
    for batch in read_batches(run.spans, ["label", "value_digest", "tokens"]):
        for label, digest, tokens in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if digest is not None and 0 < tokens <= LONGEST:
                masked[digest] = label
                lengths.add(tokens)
    digests, chosen = ValueDigests(key), frozenset(lengths)
    return [
        {"point_id": point, "labels": sorted(labels)}
        for batch in read_batches(run.public)
        for point, text in zip(batch["point_id"].to_pylist(), batch["text"].to_pylist(), strict=True)
        if (labels := open_values(digests, masked, chosen, text))
    ]

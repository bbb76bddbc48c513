"""F run twice on every labelled secret of a sample: what π misses, and that F is the one that ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from redactory.evaluation.recall import DetectFate
from redactory.evaluation.sample_bounds import PUBLIC
from redactory.evaluation.sample_labels import LabelledText
from redactory.foundation.errors import CheckFailed
from redactory.foundation.progress import Progress, silent
from redactory.redaction.mask import MASK, mask
from redactory.redaction.sides import PRIVATE

_CHUNK_SECRETS = 1024


@dataclass(frozen=True)
class MeasuredText:
    """A labelled text, and of each of its secrets, in their order, whether π misses it."""

    row: LabelledText
    missed: tuple[bool, ...]


def measure_sample(
    rows: Sequence[LabelledText], detect_fate: DetectFate, progress: Progress = silent
) -> list[MeasuredText]:
    """Whether F(s) ≠ F(s') for every labelled secret, s' being s with that one secret as ``<MASK>``.

    ``CheckFailed`` unless F gives each text the side and the masks that the run gave it, and each s' the
    private side (a quarantined point counts as private): then both policies miss the secrets of public
    points and no others, on which the bounds of a sample rest.
    """
    whole = [tuple(fate) for fate in detect_fate([row.text for row in rows])]
    for row, fate in zip(rows, whole, strict=True):
        side = PUBLIC if row.drawn.stratum == PUBLIC else PRIVATE
        if fate != (side, mask(row.text, row.drawn.masked)):
            raise CheckFailed(
                f"point {row.drawn.point_id}: its fate is not that of the run any more, though the policies "
                "are the same; nothing is measured"
            )
    without = _without(rows, detect_fate, progress)
    return [
        MeasuredText(row, tuple(fate != other for other in islice(without, len(row.secrets))))
        for row, fate in zip(rows, whole, strict=True)
    ]


def _without(
    rows: Sequence[LabelledText], detect_fate: DetectFate, progress: Progress
) -> Iterator[tuple[str, str]]:
    """The fate of each text without each of its secrets."""
    secrets = [(row, secret) for row in rows for secret in row.secrets]
    for start in range(0, len(secrets), _CHUNK_SECRETS):
        chunk = secrets[start : start + _CHUNK_SECRETS]
        texts = [row.text[: secret.start] + MASK + row.text[secret.end :] for row, secret in chunk]
        for (row, _), (side, text) in zip(chunk, detect_fate(texts), strict=True):
            if side == PUBLIC:
                raise CheckFailed(
                    f"point {row.drawn.point_id}: it would be public with a secret masked, though whatever "
                    "holds a mask is private; nothing is measured"
                )
            yield side, text
        progress("recall", start + len(chunk), len(secrets), "secrets")

"""The labelled secrets of a file, one drawn of each unit that is independent of the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from redactory.foundation.stream import RandomStream
from redactory.pipelines.config import SegmentSettings
from redactory.pipelines.labelling.labelled import labelled_points, labelled_rows
from redactory.pipelines.segment import segmenter

_NUMBER = "number"
_SEED_DIGITS = 16

Secret = tuple[str, ...]
"""The texts of the points in which any part of one labelled span stands."""


@dataclass
class Labels:
    """What a labelled file holds.

    ``rows`` are the rows' texts; ``points`` counts the occurrences of each distinct text of a point,
    ``clean`` those of points without any labelled span; ``secrets`` has the secrets of each unit: of each
    user where rows name one (a row without one is its own user), else of each row.
    """

    rows: list[str] = field(default_factory=list)
    points: Counter[str] = field(default_factory=Counter)
    clean: Counter[str] = field(default_factory=Counter)
    secrets: dict[Hashable, list[Secret]] = field(default_factory=lambda: defaultdict(list))
    unit: Literal["user", "row"] = "row"

    def texts(self) -> set[str]:
        """The texts by which the rows are told again: their own, and of each point with a secret."""
        return {*self.rows, *(text for own in self.secrets.values() for secret in own for text in secret)}


def read_labels(path: Path, segment: SegmentSettings) -> Labels:
    """The labels of a JSONL file in the span schema, its rows cut into points; ``InputError`` as there.

    A span that lies in no point (a speaker's name, say) is no secret here: it stands in no shard.
    """
    cut, labels = segmenter(segment), Labels()
    for number, row in enumerate(labelled_rows(path)):
        user = row.get("user_id")
        unit = ("row", number) if user is None else ("user", user)
        labels.unit = labels.unit if user is None else "user"
        labels.rows.append(row["text"])
        spans = [{**span, _NUMBER: i} for i, span in enumerate(row["spans"])]
        secrets: dict[int, list[str]] = defaultdict(list)
        for text, inside in labelled_points({**row, "spans": spans}, cut):
            labels.points[text] += 1
            labels.clean[text] += not inside
            for span in inside:
                secrets[span[_NUMBER]].append(text)
        if secrets:
            labels.secrets[unit] += [tuple(texts) for texts in secrets.values()]
    return labels


def draw_secrets(labels: Labels, file_sha256: str) -> list[Secret]:
    """One secret of each unit, each of its secrets alike.

    The draw is seeded by the file's digest: the same file gives the same draw, and there is no seed that
    could be tried again until the result pleases.
    """
    stream = RandomStream.from_seed(int(file_sha256[:_SEED_DIGITS], 16))
    draws = stream.uniform("one secret of each unit", 0, len(labels.secrets))
    return [own[int(draw * len(own))] for own, draw in zip(labels.secrets.values(), draws, strict=True)]

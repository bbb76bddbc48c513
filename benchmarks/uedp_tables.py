"""Counts of the corpora, as in Table II of the UeDP paper."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
from uedp_corpora import PARTS, Corpus, Source, one_line_each

from redactory.evaluation.labelled import split_labelled_row
from redactory.pipelines.curation.config import SegmentSettings
from redactory.pipelines.curation.segment import make_segmenter
from redactory.training.uedp.bounded_accounting import count_examples_by_label
from redactory.training.uedp.incidence import count_degrees
from redactory.training.uedp.units import read_unit_incidence
from redactory.training.unit_settings import UnitSettings


def table(corpus: Corpus) -> dict[str, Any]:
    """Counts as in the paper's Table II, of what is trained on, and of the parts."""
    units = read_unit_incidence(corpus.run, UnitSettings())
    entities, users = count_degrees(units.entities), count_degrees(units.users)
    labels = count_examples_by_label(units)
    return {
        "corpus": corpus.source.name,
        "whole": whole(corpus.source),
        "users": int((users > 0).sum()),
        "examples": len(units),
        "points_per_user": {
            "mean": float(users[users > 0].mean()),
            "median": float(np.median(users[users > 0])),
            "most": int(users.max()),
        },
        "entities": int((entities > 0).sum()),
        "points_by_label": labels,
        "points_with_an_entity": len(units) - int(units.extended_mask.sum()),
        "most_points_of_an_entity": int(entities.max()),
        "most_users_of_an_entity": _spread(units),
        "parts": {
            name: {
                "users": len({row["user_id"] for row in corpus.parts[name]}),
                "examples": sum(1 for _ in corpus.points(name)),
            }
            for name in PARTS
        },
        "mean_words": float(np.mean([len(text.split()) for text, *_ in corpus.points("private")])),
    }


def _spread(units: Any) -> int:
    seen: dict[int, set[int]] = {}
    for point in range(len(units)):
        owners = units.users.indices[units.users.indptr[point] : units.users.indptr[point + 1]]
        start, end = units.entities.indptr[point : point + 2]
        for entity in units.entities.indices[start:end]:
            seen.setdefault(int(entity), set()).update(int(u) for u in owners)
    return max(map(len, seen.values()))


def whole(source: Source) -> dict[str, Any]:
    """Counts of a corpus as it lies in its file: every row, no word cut off."""
    with source.path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    rows = rows if source.words is None else [*one_line_each(rows, 1_000_000)]
    cut = make_segmenter(SegmentSettings(mode="turn"))
    points = [(row["user_id"], *point) for row in rows for point in split_labelled_row(row, cut)]
    values = {
        (span["label"], text[span["start"] : span["end"]].casefold()) for _, text, spans in points for span in spans
    }
    of_label = Counter(label for _, _, spans in points for label in {s["label"] for s in spans})
    return {
        "rows": len(rows),
        "users": len({row["user_id"] for row in rows}),
        "examples": len(points),
        "points_with_an_entity": sum(bool(spans) for _, _, spans in points),
        "points_by_label": dict(sorted(of_label.items())),
        "entities_by_label": dict(sorted(Counter(label for label, _ in values).items())),
        "mean_words": float(np.mean([len(text.split()) for _, text, _ in points])),
    }

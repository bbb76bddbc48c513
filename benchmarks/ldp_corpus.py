"""CUAD clauses for local privacy: contracts are donated (public), users' or held out; clauses, and pairs."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from uedp_corpora import one_line_each

from redactory.foundation.stream import RandomStream

PARTS, SHARES = ("public", "users", "test"), (0.4, 0.4)
"""Shares of the contracts; the rest is for the test."""
WORDS = 48
SAME, DIFFERENT = "same", "different"

Row = dict[str, Any]


@dataclass(frozen=True)
class Clauses:
    """The files of a corpus in ``folder``: a part each, of clauses and of pairs of clauses."""

    folder: Path

    def path(self, part: str, pairs: bool = False) -> Path:
        """The rows of a part."""
        return self.folder / f"{part}{'-pairs' if pairs else ''}.jsonl"

    @classmethod
    def prepared(cls, source: Path, folder: Path, types: int) -> Clauses:
        """The ``types`` clause types that donated contracts have most of; split by contract, written once."""
        found = cls(folder)
        if found.path(PARTS[-1], pairs=True).exists():
            return found
        folder.mkdir(parents=True, exist_ok=True)
        parts = _split([*one_line_each([json.loads(line) for line in source.open(encoding="utf-8")], WORDS)])
        counted = Counter(row["label"] for row in parts["public"])
        kept = {label for label, _ in counted.most_common(types)}
        for number, (part, rows) in enumerate(parts.items()):
            clauses = [row for row in rows if row["label"] in kept]
            _write(found.path(part), clauses)
            _write(found.path(part, pairs=True), _pairs(clauses, number))
        return found


def _split(rows: Sequence[Row]) -> dict[str, list[Row]]:
    contracts = sorted({row["user_id"] for row in rows})
    order = RandomStream.from_seed(8).permutation("contracts", 0, len(contracts))
    cuts = np.cumsum([round(share * len(contracts)) for share in SHARES])
    part = {contracts[c]: PARTS[int(np.searchsorted(cuts, rank, "right"))] for rank, c in enumerate(order)}
    found: dict[str, list[Row]] = {name: [] for name in PARTS}
    for row in rows:
        kept = {"user_id": row["user_id"], "text": row["text"], "label": row["label"]}
        found[part[row["user_id"]]].append(kept)
    return found


def _pairs(rows: Sequence[Row], number: int) -> Iterator[Row]:
    """Each clause with another of the same part: of its own type by a fair coin, else of any other type."""
    by_type = defaultdict(list)
    for row in rows:
        by_type[row["label"]].append(row)
    stream = RandomStream.from_seed(9)
    coins, picks = (stream.uniform(name, number, len(rows)) for name in ("coins", "picks"))
    for row, coin, pick in zip(rows, coins, picks, strict=True):
        same = coin < 0.5
        others = by_type[row["label"]] if same else [o for o in rows if o["label"] != row["label"]]
        other = others[int(pick * len(others))]
        yield {**row, "text_b": other["text"], "label": SAME if same else DIFFERENT}


def _write(path: Path, rows: Any) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)

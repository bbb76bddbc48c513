"""The corpora of ``benchmarks/expert.py``, from clones of two public repositories.

    python benchmarks/expert_corpora.py --clinc CLONE --goemotions CLONE OUT

clinc/oos-eval (CLINC150, CC BY 3.0): what people ask an assistant, with the ten domains as topics.
monologg/GoEmotions-pytorch (GoEmotions, Apache 2.0): comments that are positive or negative, and nothing
else.  Both are others' work, unchanged but for this choice; a fifth of the training rows is public.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

Row = tuple[str, str]


def main() -> None:
    """Write ``public``, ``train``, ``valid`` and ``test`` of each corpus."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clinc", type=Path, required=True)
    parser.add_argument("--goemotions", type=Path, required=True)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    for name, parts in {"clinc": clinc(given.clinc), "goemotions": goemotions(given.goemotions)}.items():
        folder = given.out / name
        folder.mkdir(parents=True)
        rows = parts.pop("train")
        random.Random(1).shuffle(rows)
        cut = len(rows) // 5
        for part, own in {"public": rows[:cut], "train": rows[cut:], **parts}.items():
            lines = [json.dumps({"text": text, "label": label}) + "\n" for text, label in own]
            (folder / f"{part}.jsonl").write_text("".join(lines), encoding="utf-8")


def clinc(clone: Path) -> dict[str, list[Row]]:
    """A question and its domain."""
    intents = json.loads((clone / "data/domains.json").read_text(encoding="utf-8"))
    domains = {intent: domain for domain, own in intents.items() for intent in own}
    found = json.loads((clone / "data/data_full.json").read_text(encoding="utf-8"))
    names = {"train": "train", "valid": "val", "test": "test"}
    return {part: [(text, domains[intent]) for text, intent in found[name]] for part, name in names.items()}


def goemotions(clone: Path) -> dict[str, list[Row]]:
    """A comment and its sentiment, of those with exactly one of the two."""

    def rows(name: str) -> Iterator[Row]:
        for line in (clone / f"data/group/{name}.tsv").read_text(encoding="utf-8").splitlines():
            text, groups, _ = line.split("\t")
            if groups in ("1", "3"):
                yield text, {"1": "negative", "3": "positive"}[groups]

    return {part: list(rows(name)) for part, name in (("train", "train"), ("valid", "dev"), ("test", "test"))}


if __name__ == "__main__":
    main()

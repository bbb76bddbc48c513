"""The public corpora that the recipe was chosen on (``benchmarks/recipe.py``): never AG News or SST-2.

    python benchmarks/recipe_corpora.py --clones FOLDER OUT

FOLDER has clones of harvardnlp/sent-conv-torch, uds-lsv/GermEval-2018-Data and PolyAI-LDN/task-specific-datasets, each
under its repository's name. Writes ``NAME_train.jsonl`` and ``NAME_test.jsonl`` to OUT: rows of text and label. Where a
corpus has no test part, 15% of its rows, drawn with a fixed seed, are one. Film reviews (MR) are left out, because
SST-2 has the same sentences.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable
from pathlib import Path

from classify_corpora import Parts, Row, parse_folders, read_germeval, write_parts

TEST_SHARE, SEED = 0.15, 7
CORPORA = {
    "trec": "TREC: kinds of question (Li and Roth 2002)",
    "subj": "subjectivity of sentences about films (Pang and Lee 2004)",
    "cr": "customer reviews: sentiment (Hu and Liu 2004)",
    "mpqa": "MPQA: polarity of phrases (Wiebe, Wilson and Cardie 2005)",
    "germeval": "GermEval 2018: offensive tweets, German (CC BY 4.0)",
    "banking": "Banking77: intents of bank customers (Casanueva et al. 2020, CC BY 4.0)",
    "dstc8": "DSTC8: the service that a turn is about, of four (Rastogi et al. 2020, CC BY-SA 4.0)",
}
_SERVICES = ("Buses_1", "Events_1", "Homes_1", "RentalCars_1")


def main() -> None:
    """Write every corpus."""
    arguments = parse_folders(__doc__)
    sentences, tasks = arguments.clones / "sent-conv-torch/data", arguments.clones / "task-specific-datasets"
    readers: dict[str, Callable[[], Parts]] = {
        "trec": lambda: (read_sentences(sentences / "TREC.train.all"), read_sentences(sentences / "TREC.test.all")),
        "subj": lambda: split_rows(read_sentences(sentences / "subj.all")),
        "cr": lambda: split_rows(read_sentences(sentences / "custrev.all")),
        "mpqa": lambda: split_rows(read_sentences(sentences / "mpqa.all")),
        "germeval": lambda: read_germeval(arguments.clones / "GermEval-2018-Data"),
        "banking": lambda: (read_banking(tasks, "train"), read_banking(tasks, "test")),
        "dstc8": lambda: split_rows(read_services(tasks / "span_extraction/dstc8")),
    }
    for name, read in readers.items():
        write_parts(arguments.out, name, read())


def read_sentences(path: Path) -> list[Row]:
    """Read lines of a class number and a sentence."""
    rows = (line.split(" ", 1) for line in path.read_text(encoding="latin-1").removesuffix("\n").split("\n"))
    return [(text.strip(), label) for label, text in rows]


def read_banking(clone: Path, part: str) -> list[Row]:
    """Read one part of Banking77."""
    content = io.StringIO((clone / f"banking_data/{part}.csv").read_text(encoding="utf-8"))
    return [(row["text"], row["category"]) for row in csv.DictReader(content)]


def read_services(folder: Path) -> list[Row]:
    """Read users' turns to four services, each text once."""
    rows = {
        (turn["userInput"]["text"], service)
        for service in _SERVICES
        for part in ("train_0", "test")
        for turn in json.loads((folder / service / f"{part}.json").read_text(encoding="utf-8"))
    }
    return sorted(rows)


def split_rows(rows: list[Row]) -> Parts:
    """Draw the test part."""
    random.Random(SEED).shuffle(rows)
    count = int(TEST_SHARE * len(rows))
    return rows[count:], rows[:count]


if __name__ == "__main__":
    main()

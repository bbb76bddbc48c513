"""The sets of ``benchmarks/classify.py``: four from clones of public repositories, and one that is simulated.

    python benchmarks/classify_corpora.py --clones FOLDER OUT

FOLDER has clones of mhjabreel/CharCnn_Keras, forest-snow/alps, uds-lsv/GermEval-2018-Data and tblock/10kGNAD, each
under its repository's name. Writes ``NAME_train.jsonl`` and ``NAME_test.jsonl`` to OUT: rows of text and label.

The simulated messages are written by this file from ``data/departments.yaml``, so no pretraining corpus has them. A
tenth of their labels is drawn at random from all classes, in both parts: a classifier can be expected to be right at
most 1 - 0.1 + 0.1/6 of the time.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

Row = tuple[str, str]
Parts = tuple[list[Row], list[Row]]
RANDOM_LABELS, SIMULATED_TRAIN, SIMULATED_TEST = 0.1, 4_000, 1_000


class Source(NamedTuple):
    """Where a set is from, what it is, and under which licence."""

    repository: str
    files: str
    licence: str
    task: str
    language: str


SOURCES = {
    "ag": Source(
        "mhjabreel/CharCnn_Keras",
        "data/ag_news_csv/test.csv: the first 6,738 rows for training, the other 862 for the test",
        "provided for research and other non-commercial activity",
        "AG News: topics of news",
        "en",
    ),
    "sst": Source(
        "forest-snow/alps",
        "data/SST-2/dev.tsv for training, data/SST-2/test.tsv for the test",
        "MIT (the repository); Stanford Sentiment Treebank (Socher et al. 2013) for the sentences",
        "SST-2: sentiment of sentences from film reviews",
        "en",
    ),
    "germeval": Source(
        "uds-lsv/GermEval-2018-Data",
        "germeval2018.training.txt for training, germeval2018.test.txt for the test",
        "CC BY 4.0",
        "GermEval 2018: offensive tweets",
        "de",
    ),
    "gnad": Source(
        "tblock/10kGNAD",
        "test.csv, shuffled: 771 rows for training, 257 for the test",
        "CC BY-NC-SA 4.0",
        "10kGNAD: topics of news",
        "de",
    ),
    "departments": Source(
        "this repository",
        "benchmarks/classify_corpora.py with benchmarks/data/departments.yaml",
        "Apache-2.0",
        "Departments: simulated support messages; a tenth of the labels is random",
        "en",
    ),
}


def main() -> None:
    """Write every set."""
    arguments = parse_folders(__doc__)
    readers: dict[str, Callable[[Path], Parts]] = {
        "ag": read_ag_news,
        "sst": read_sst,
        "germeval": read_germeval,
        "gnad": read_gnad,
    }
    for name, read in readers.items():
        write_parts(arguments.out, name, read(arguments.clones / SOURCES[name].repository.partition("/")[2]))
    write_parts(arguments.out, "departments", simulate_departments())


def parse_folders(description: str | None) -> argparse.Namespace:
    """Parse ``clones``, the folder of clones, and ``out``, which is made."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clones", type=Path, required=True)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    return arguments


def write_parts(folder: Path, name: str, parts: Parts) -> None:
    """Write the two parts of a set."""
    for part, rows in zip(("train", "test"), parts, strict=True):
        lines = [json.dumps({"text": text, "label": label}, ensure_ascii=False) + "\n" for text, label in rows]
        (folder / f"{name}_{part}.jsonl").write_text("".join(lines), encoding="utf-8")


def read_ag_news(clone: Path) -> Parts:
    """Read title and description of news, by topic."""
    names = ("World", "Sports", "Business", "Sci/Tech")
    content = io.StringIO((clone / "data/ag_news_csv/test.csv").read_text(encoding="utf-8"))
    rows = [
        (f"{title}\n{text}".replace("\\", " "), names[int(number) - 1]) for number, title, text in csv.reader(content)
    ]
    return rows[:6738], rows[6738:]


def read_sst(clone: Path) -> Parts:
    """Read sentences of film reviews, by sentiment."""

    def read_part(name: str) -> list[Row]:
        content = io.StringIO((clone / f"data/SST-2/{name}.tsv").read_text(encoding="utf-8"))
        rows = csv.DictReader(content, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["sentence"], ("negative", "positive")[int(row["label"])]) for row in rows]

    return read_part("dev"), read_part("test")


def read_germeval(clone: Path) -> Parts:
    """Read German tweets, offensive or not."""

    def read_part(name: str) -> list[Row]:
        lines = (clone / f"germeval2018.{name}.txt").read_text(encoding="utf-8").splitlines()
        rows = [line.split("\t") for line in lines if line.strip()]
        return [(row[0].replace("|LBR|", "\n"), row[1]) for row in rows]

    return read_part("training"), read_part("test")


def read_gnad(clone: Path) -> Parts:
    """Read German news, by topic."""
    content = io.StringIO((clone / "test.csv").read_text(encoding="utf-8"))
    rows = [(";".join(row[1:]), row[0]) for row in csv.reader(content, delimiter=";", quotechar="'")]
    random.Random(1).shuffle(rows)
    return rows[:771], rows[771:]


def simulate_departments(seed: int = 43) -> Parts:
    """Simulate messages, no two alike, by the department that they are for."""
    data: dict[str, Any] = yaml.safe_load(
        Path(__file__).with_name("data").joinpath("departments.yaml").read_text("utf-8")
    )
    draw, names = random.Random(seed), sorted(data["departments"])
    slots = ("product", "part", "feature", "place", "time")

    def fill(template: str) -> str:
        text = template.format(**{slot: draw.choice(data[f"{slot}s"]) for slot in slots})
        return text[:1].upper() + text[1:]

    def write_message(department: str) -> str:
        sentences = [fill(draw.choice(data["departments"][department]))]
        sentences += map(fill, draw.sample(data["asides"], draw.choice((0, 1, 1, 2))))
        draw.shuffle(sentences)
        parts = [draw.choice(data["openings"]), *sentences, draw.choice(data["closings"])]
        return " ".join(part for part in parts if part)

    rows: dict[str, str] = {}
    while len(rows) < SIMULATED_TRAIN + SIMULATED_TEST:
        department = draw.choice(names)
        label = draw.choice(names) if draw.random() < RANDOM_LABELS else department
        rows.setdefault(write_message(department), label)
    pairs = list(rows.items())
    return pairs[:SIMULATED_TRAIN], pairs[SIMULATED_TRAIN:]


if __name__ == "__main__":
    main()

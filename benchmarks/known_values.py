"""Known values: names that still stand open in documents, without and with ``release.known_values``.

Labelled sentences (JSONL: id, text, spans) are put together as documents: those of one source document where
the ids say so (Universal NER's EWT), else so many in a row.  A labelled value counts once for each place
where it is labelled, persons' names also by themselves.  ``curate`` is measured on its private side, both
times with ``release.unit: document``, ``redact`` on its copy.  Prints JSON: places, those open, and the open
ones whose value is masked elsewhere in the same document.

    python benchmarks/known_values.py uner_ewt_dev.jsonl uner_ewt_test.jsonl
    python benchmarks/known_values.py --sentences 20 wikigold.jsonl
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import redactory
from redactory.detectors.settings import get_kind
from redactory.redaction import RunFolder, read_batches

LONG = 20
Rows = list[dict[str, Any]]
Texts = dict[str, str]


def main() -> None:
    """All documents and the long ones, by curation and by masked copy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--sentences", type=int, help="so many make a document; by source where absent")
    arguments = parser.parse_args()
    rows = [json.loads(line) for path in arguments.data for line in path.open(encoding="utf-8")]
    documents = list(documents_of(rows, arguments.sentences))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        source = folder / "documents.jsonl"
        with source.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({k: d[k] for k in ("id", "text")}) + "\n" for d in documents)
        ways: dict[str, Callable[[bool], Texts]] = {
            "private side of curate": lambda known: curated(source, folder / f"run-{known}", known),
            "redact": lambda known: copied(source, folder / f"copy-{known}.jsonl", known),
        }
        result = {name: compared(way, documents) for name, way in ways.items()}
    print(json.dumps({"documents": len(documents), "sentences": len(rows), **result}, indent=2))


def documents_of(rows: Rows, sentences: int | None) -> Iterator[dict[str, Any]]:
    """Documents: ``id``, ``text``, its ``sentences``, how often each ``PERSON`` and each ``value`` stands."""
    numbered = enumerate(rows)

    def source(row: tuple[int, dict[str, Any]]) -> Any:
        return row[0] // sentences if sentences else row[1]["id"].rpartition("-")[0]

    for name, own in groupby(numbered, source):
        inside = [row for _, row in own]
        labelled = [
            (get_kind(span["label"]), row["text"][span["start"] : span["end"]])
            for row in inside
            for span in row["spans"]
        ]
        yield {
            "id": str(name),
            "text": "\n".join(row["text"] for row in inside),
            "sentences": len(inside),
            "PERSON": Counter(value for kind, value in labelled if kind == "PERSON"),
            "value": Counter(value for _, value in labelled),
        }


def curated(source: Path, run: Path, known: bool) -> Texts:
    """The masked text of each private document."""
    release = {"unit": "document", "known_values": known}
    redactory.curate({"input": str(source), "release": release, "dedup": {"mode": "none"}}, output=run)
    folder = RunFolder(run)
    masked = {row["example_id"]: row["text"] for b in read_batches(folder.private) for row in b.to_pylist()}
    names = {row["example_id"]: row["doc_id"] for b in read_batches(folder.vault) for row in b.to_pylist()}
    found = defaultdict[str, list[str]](list)
    for batch in read_batches(folder.examples):
        for row in batch.to_pylist():
            if row["decision"] == "private":
                found[names[row["example_id"]]].append(masked[row["released_id"]])
    return {name: "\n".join(own) for name, own in found.items()}


def copied(source: Path, out: Path, known: bool) -> Texts:
    """The masked text of each document in a copy of the file."""
    redactory.redact(source, out, {"known_values": known, "columns": {"id": "keep"}}, text_columns=("text",))
    return {row["id"]: row["text"] for row in map(json.loads, out.open(encoding="utf-8"))}


def compared(way: Callable[[bool], Texts], documents: Rows) -> dict[str, Any]:
    """Without and with what is known, of the documents that both have."""
    without, with_known = way(False), way(True)
    assert without.keys() == with_known.keys()
    own = [document for document in documents if document["id"] in without]
    return {
        name: {
            "documents": len(chosen),
            **{
                f"{what}, {way}": counted(chosen, texts, what)
                for what in ("PERSON", "value")
                for way, texts in (("without", without), ("with", with_known))
            },
        }
        for name, chosen in (("all", own), ("long", [document for document in own if document["sentences"] >= LONG]))
    }


def counted(documents: Rows, texts: Texts, what: str) -> dict[str, int | float]:
    """Places where labelled values stand, those that are open, and those open that are masked elsewhere."""
    found: Counter[str] = Counter()
    for document in documents:
        for value, places in document[what].items():
            left = min(places, standing(value, texts[document["id"]]))
            masked = left < standing(value, document["text"])
            found.update(places=places, open=left, masked_elsewhere=left * masked)
    recall = 1 - found["open"] / found["places"] if found["places"] else 1.0
    return {**{key: found[key] for key in ("places", "open", "masked_elsewhere")}, "recall": round(recall, 4)}


def standing(value: str, text: str) -> int:
    """How often ``value`` stands in ``text`` as a word of its own."""
    return len(re.findall(rf"(?<!\w){re.escape(value)}(?!\w)", text))


if __name__ == "__main__":
    main()

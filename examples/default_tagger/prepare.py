"""Write the rows that the default tagger is trained on, as JSON lines in the span schema.

    python examples/default_tagger/prepare.py CORPORA OUT [--varied N]
    redactory fit tagger OUT/*.jsonl --out TAGGER

CORPORA is a folder with the files that ``corpora.py`` names, ``clauses.jsonl`` (CUAD v1, CC BY 4.0) and
``multiwoz_valid.jsonl`` (MultiWOZ 2.1, MIT).
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from corpora import Row, gold_rows
from renamed import renamed
from silver import filled, taught

SUPPORT_LABELS = {"ADDRESS": "STREET_ADDRESS", "ORDER_NUMBER": "IDENTIFIER", "TRACKING_NUMBER": "IDENTIFIER"}
CLAUSES, CLAUSE_CHARS = 3_000, 400
_DIGIT = re.compile(r"\d")


def main() -> None:
    """Write the files and print how many rows each has."""
    parser = argparse.ArgumentParser(description="rows for the default tagger")
    parser.add_argument("corpora", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--varied", type=int, default=60_000, help="simulated varied rows")
    parser.add_argument("--support", type=int, default=1_000, help="simulated support dialogues")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, rows in (
        ("gold", filled(gold_rows(arguments.corpora))),
        ("renamed", renamed(filled(gold_rows(arguments.corpora)), seed=7)),
        ("clauses", taught(_clauses(arguments.corpora / "clauses.jsonl"))),
        ("talk", _talk(arguments.corpora / "multiwoz_valid.jsonl")),
        ("support", _support(arguments.support)),
        ("varied", _varied(arguments.varied)),
    ):
        print(name, _write(arguments.out / f"{name}.jsonl", rows), flush=True)


def _write(path: Path, rows: Iterable[Row]) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for text, spans in rows:
            count += 1
            row = {"text": text, "spans": [{"start": s, "end": e, "label": label} for s, e, label in spans]}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return count


def _clauses(path: Path) -> Iterator[str]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        if number % 3 == 0 and number < 3 * CLAUSES:
            text = json.loads(line)["text"]
            yield text if len(text) <= CLAUSE_CHARS else text[: text.rfind(" ", 0, CLAUSE_CHARS)]


def _talk(path: Path) -> Iterator[Row]:
    """Turns of human dialogues in which neither their annotation nor spaCy finds anything: plain talk."""
    turns = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        position = 0
        for turn in row["text"].split("\n"):
            start, position = position, position + len(turn) + 1
            spoken = turn.removeprefix("USR: ").removeprefix("SYS: ")
            if not any(start <= s["start"] < position for s in row["spans"]) and not _DIGIT.search(spoken):
                turns[spoken] = None
    return ((text, spans) for text, spans in taught(turns) if not spans)


def _support(dialogues: int) -> Iterator[Row]:
    """Turns of simulated support dialogues, each once."""
    from redactory.evaluation.simulator import simulate_dialogues

    seen = set()
    for row in simulate_dialogues(dialogues, seed=7).rows:
        position = 0
        for line in row["text"].split("\n"):
            start, position = position, position + len(line) + 1
            inside = [s for s in row["spans"] if start <= s["start"] and s["end"] <= start + len(line)]
            if line not in seen:
                seen.add(line)
                yield (
                    line,
                    [
                        (s["start"] - start, s["end"] - start, SUPPORT_LABELS.get(s["label"], s["label"]))
                        for s in inside
                    ],
                )


def _varied(rows: int) -> Iterator[Row]:
    from varied import varied_rows

    for row in varied_rows(rows, seed=7):
        yield row["text"], [(s["start"], s["end"], s["label"]) for s in row["spans"]]


if __name__ == "__main__":
    main()

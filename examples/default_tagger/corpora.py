"""Public corpora as rows of the span schema: what the default tagger is trained on.

Every reader yields (text, spans); labels are mapped onto the tagger's own.  The corpora, none of which is
part of this repository, with their licences:

==========================================  ==============================================  ============
file                                        corpus                                          licence
==========================================  ==============================================  ============
``en_ewt-ud-train.iob2``, ``uner_ewt_dev``  Universal NER v1 on UD English-EWT (web text)   CC BY-SA 4.0
``btc.train.conll``                         Broad Twitter Corpus                            CC BY 4.0
``wnut17_train``, ``wnut17_dev``            WNUT-17 emerging entities                       CC BY 4.0
``wikigold`` (its first 1,356 rows)         Wikigold                                        CC BY 4.0
``fin5_train``                              SEC-filings NER, FIN5                           CC BY 3.0
==========================================  ==============================================  ============
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

Mark = tuple[int, int, str]
Row = tuple[str, list[Mark]]

LABELS = {
    "PER": "PERSON",
    "person": "PERSON",
    "LOC": "LOCATION",
    "location": "LOCATION",
    "ORG": "ORGANIZATION",
    "corporation": "ORGANIZATION",
    "group": "ORGANIZATION",
    "MISC": "MISC",
    "OTH": "MISC",
    "product": "MISC",
    "creative-work": "MISC",
}
ROLES = {"borrower", "lender", "bank"}
"""Role nouns that the SEC filings label as persons and organisations."""
WIKIGOLD_ROWS = 1_356


def gold_rows(folder: Path) -> Iterator[Row]:
    """Every training row below ``folder``, in a fixed order of files."""
    yield from _iob2(folder / "en_ewt-ud-train.iob2")
    yield from _conll(folder / "btc.train.conll")
    for name in ("uner_ewt_dev", "wnut17_train", "wnut17_dev", "wikigold", "fin5_train"):
        for number, row in enumerate(_jsonl(folder / f"{name}.jsonl")):
            if name != "wikigold" or number < WIKIGOLD_ROWS:
                yield row


def _jsonl(path: Path) -> Iterator[Row]:
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        text = row["text"]
        spans = [(s["start"], s["end"], LABELS[s["label"]]) for s in row["spans"]]
        yield text, [s for s in spans if text[s[0] : s[1]].lower() not in ROLES]


def _iob2(path: Path) -> Iterator[Row]:
    """UNER's form: the raw sentence in a comment, then number, token, tag."""
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        lines = block.splitlines()
        text = next((line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")), "")
        tokens = [line.split("\t") for line in lines if line[:1].isdigit()]
        row = _aligned(text, [(fields[1], fields[2]) for fields in tokens])
        if row is not None:
            yield row


def _conll(path: Path) -> Iterator[Row]:
    """Token and tag; the sentence is the tokens with a space between them."""
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        tokens = [tuple(line.split("\t")) for line in block.splitlines() if line.count("\t") == 1]
        if tokens:
            row = _aligned(" ".join(token for token, _ in tokens), tokens)  # type: ignore[arg-type]
            if row is not None:
                yield row


def _aligned(text: str, tokens: list[tuple[str, str]]) -> Row | None:
    """Spans of a text out of its tagged tokens; None where a token is not found in its order."""
    spans: list[Mark] = []
    position, inside = 0, False
    for token, tag in tokens:
        start = text.find(token, position)
        if start < 0:
            return None
        position = start + len(token)
        label = LABELS.get(tag[2:])
        if label is None:
            inside = False
        elif inside and tag.startswith("I-"):
            spans[-1] = (spans[-1][0], position, label)
        else:
            spans.append((start, position, label))
            inside = True
    return (text, spans) if text else None

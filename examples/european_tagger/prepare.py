"""Write the rows that the European tagger is trained on.

    python examples/european_tagger/prepare.py CORPORA OUT [--first TAGGER]

CORPORA is a folder with clones of the repositories that ``sources.py`` names.  TAGGER was trained on rows
that were written without it: it labels the sentences in which only some names are labelled, and those that
leave it in doubt are left out.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from letters import LOCALES, letters, name_of
from sources import NAME, Corpora, Mark, Row

from redactory.detectors.settings import TaggerSettings
from redactory.detectors.tagger import TaggerEngine

MOST = {"gold": 10_000, "linked": 20_000, "trees": 6_000}
"""Rows of a language from one kind of source."""
LETTERS = 3_000
RENAMED = {"PERSON", "LOCATION", "ORGANIZATION"}
_KEPT = 0.15
_SURE = 0.9
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_MONTHS = (
    "januari februari maart mei juni juli augustus oktober januar februar märz mai dezember enero febrero "
    "marzo mayo junio julio agosto septiembre octubre noviembre diciembre janvier février mars avril juin "
    "juillet août septembre octobre novembre décembre gennaio febbraio aprile maggio giugno luglio "
    "settembre ottobre dicembre janeiro fevereiro março maio junho julho setembro outubro novembro dezembro "
    "april abril september oktober november december jänner"
).replace(" ", "|")
_DATE = re.compile(
    rf"(?i)\b(?:\d{{1,2}}(?:\.|º|er|°)?\s+(?:de\s+|di\s+)?)?(?:{_MONTHS})\b(?:\s+(?:de[l]?\s+|di\s+)?\d{{4}}\b)?"
    r"|\b\d{1,2}[./-]\d{1,2}[./-]\d{2,4}\b"
)
_DATED = re.compile(r"\d")


def main() -> None:
    """One file a language; how many rows of each kind it has is printed."""
    parser = argparse.ArgumentParser(description="rows for the European tagger")
    parser.add_argument("corpora", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--first", type=Path, help="a tagger for what is labelled in part")
    arguments = parser.parse_args()
    first = TaggerEngine(TaggerSettings(models=(str(arguments.first),)), "xx") if arguments.first else None
    arguments.out.mkdir(parents=True, exist_ok=True)
    corpora = Corpora(arguments.corpora)
    labelled = (row for one in LOCALES for row in (*corpora.gold(one), *corpora.linked(one)))
    kinds = _kinds(labelled)
    for language in LOCALES:
        counts: Counter[str] = Counter()
        with (arguments.out / f"{language}.jsonl").open("w", encoding="utf-8") as file:
            for source, (text, spans) in _rows(corpora, language, kinds, first):
                counts[source] += 1
                marks = [{"start": s, "end": e, "label": label} for s, e, label in spans]
                file.write(json.dumps({"text": text, "spans": marks}, ensure_ascii=False) + "\n")
        print(language, dict(counts), flush=True)
    sources = json.dumps(corpora.digests(), indent=1)
    (arguments.out / "sources.json").write_text(sources + "\n", encoding="utf-8")


def _rows(
    corpora: Corpora, language: str, kinds: Mapping[str, str], first: TaggerEngine | None
) -> Iterator[tuple[str, Row]]:
    gold, linked = list(corpora.gold(language)), list(corpora.linked(language))
    trees = list(corpora.treebanks(language))
    free = [(text, list[Mark]()) for text in corpora.unlabelled(language)]
    plain = _plain_words(text for text, _ in (*gold, *linked, *trees, *free))
    draw = random.Random(language)
    linked = [row for row in (*linked, *free) if _whole(row, plain)]
    if first is not None:
        linked = list(_taught(linked, first))
    elif language == "de":
        # among German nouns a name that is not labelled passes for one
        linked = [row for row in linked if row[1]][:4_000]
    for source, rows in {"gold": gold, "linked": linked, "trees": trees}.items():
        draw.shuffle(rows)
        for row in rows[: MOST[source]]:
            done = _dated(_kinded(row if language == "de" else _capitals(row), kinds))
            yield source, done
            if source != "linked" and any(label in RENAMED for *_, label in done[1]):
                yield f"{source} renamed", _renamed(done, language, draw)
    yield from (("letters", _dated(row)) for row in letters(language, LETTERS, seed=7))


def _plain_words(texts: Iterable[str]) -> frozenset[str]:
    """The words that are written small, twice or more."""
    counts = Counter(word for text in texts for word in _WORD.findall(text) if word.islower())
    return frozenset(word for word, count in counts.items() if count > 1)


def _kinds(rows: Iterable[Row]) -> dict[str, str]:
    """Each word of a name with the kind that it most often is of."""
    counts: dict[str, Counter[str]] = {}
    for text, spans in rows:
        for start, end, label in spans:
            if label in RENAMED:
                for word in _WORD.findall(text[start:end]):
                    if not word.islower():
                        counts.setdefault(word, Counter())[label] += 1
    return {word: own.most_common(1)[0][0] for word, own in counts.items()}


def _whole(row: Row, plain: frozenset[str]) -> bool:
    """Whether a sentence whose labels may be incomplete is safe: names are capitals that no rule asks for."""
    text, spans = row
    words = list(_WORD.finditer(text))
    small = sum(word[0].islower() for word in words)
    if small < 3 or 5 * small < 2 * len(words):
        return False
    first = words[0]
    labelled = any(start <= first.start() < end for start, end, _ in spans)
    return labelled or first[0].islower() or first[0].lower() in plain


def _taught(rows: list[Row], first: TaggerEngine) -> Iterator[Row]:
    """The rows with what ``first`` finds outside their labels, where it is sure of all the rest."""
    for start in range(0, len(rows), 256):
        batch = rows[start : start + 256]
        for (text, spans), reading in zip(batch, first.read([text for text, _ in batch]), strict=True):

            def free(begin: int, end: int, spans: list[Mark] = spans) -> bool:
                return not any(s < end and begin < e for s, e, _ in spans)

            doubts = [
                p for p in reading.non_entity_scores if _SURE > p.probability > 1 - _SURE and free(p.start, p.end)
            ]
            if not doubts:
                extra = [(s.start, s.end, s.label) for s in reading.spans if s.score >= _SURE]
                yield text, sorted([*spans, *(mark for mark in extra if free(mark[0], mark[1]))])


def _capitals(row: Row) -> Row:
    """With every capitalised word inside a sentence a name: most corpora label some kinds of names alone."""
    text, spans = row
    found = list(spans)
    for word in _WORD.finditer(text):
        before = text[: word.start()].rstrip(" \"'“”«»([{-–—*")
        inside = before and before[-1] not in ".!?:;…\n"
        free = not any(start < word.end() and word.start() < end for start, end, _ in spans)
        if inside and free and not word[0].islower() and len(word[0]) > 1:
            found.append((word.start(), word.end(), NAME))
    return text, _joined(text, sorted(found))


def _joined(text: str, spans: list[Mark]) -> list[Mark]:
    """Neighbours without a kind of their own belong to one name."""
    joined: list[Mark] = []
    for start, end, label in spans:
        near = joined and text[joined[-1][1] : start] in (" ", "-")
        if near and NAME in (label, joined[-1][2]):
            first, _, other = joined.pop()
            start, label = first, other if label == NAME else label
        joined.append((start, end, label))
    return joined


def _kinded(row: Row, kinds: Mapping[str, str]) -> Row:
    text, spans = row
    return text, [(s, e, _kind(text[s:e], kinds) if label == NAME else label) for s, e, label in spans]


def _kind(name: str, kinds: Mapping[str, str]) -> str:
    votes = Counter(kinds[word] for word in _WORD.findall(name) if word in kinds)
    return votes.most_common(1)[0][0] if votes else "MISC"


def _dated(row: Row) -> Row:
    """With dates in words or digits, where nothing is labelled."""
    text, spans = row
    dates = [(*match.span(), "DATE_TIME") for match in _DATE.finditer(text) if _DATED.search(match[0])]
    free = [d for d in dates if not any(s < d[1] and d[0] < e for s, e, _ in spans)]
    return text, sorted([*spans, *free])


def _renamed(row: Row, language: str, draw: random.Random) -> Row:
    """The row with most of its names drawn anew: what counts is the place of a name."""
    text, spans = row
    pieces, moved, position, length = list[str](), list[Mark](), 0, 0
    for start, end, label in spans:
        value = text[start:end]
        if label in RENAMED and draw.random() >= _KEPT:
            value = name_of(label, language, draw, len(value.split()))
        pieces += (text[position:start], value)
        length += start - position
        moved.append((length, length + len(value), label))
        length, position = length + len(value), end
    return "".join(pieces) + text[position:], moved


if __name__ == "__main__":
    main()

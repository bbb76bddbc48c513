"""German letters of invented people whose every secret is known; the same files every time.

    python make_letters.py          writes labelled.jsonl, letters.jsonl and other-hand.jsonl

- ``labelled.jsonl``: single lines, to fit a tagger on;
- ``letters.jsonl``: the corpus, whole letters by the same hand, of people who are in no line of the first;
- ``other-hand.jsonl``: lines by another hand about those people, in sentences that no tagger is
  fitted on.

A row has ``text`` and ``spans``, each with ``start``, ``end`` (code points, end exclusive) and ``label``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

import letters_text as words

SEED = 8
LABELS = {
    "person": "PERSON", "given": "PERSON", "family": "PERSON", "street": "STREET_ADDRESS",
    "place": "LOCATION", "town": "LOCATION", "phone": "PHONE_NUMBER", "mail": "EMAIL_ADDRESS",
    "iban": "IBAN_CODE", "date": "DATE", "customer": "IDENTIFIER", "company": "ORGANIZATION",
    "tax": "DE_TAX_ID", "plate": "DE_KFZ",
}  # fmt: skip
# blocks that the German regulator keeps for films: nobody has such a number
_PHONES = (
    "030 23125{:03d}",
    "(069) 90009-{:03d}",
    "+49 40 66969 {:03d}",
    "0221 / 4710{:03d}",
    "0171 39200{:02d}",
)


class Letters:
    """Draws names, numbers and lines; ``part`` 0 and 1 share no name of a person, a company or a street."""

    def __init__(self, part: int) -> None:
        self.draw = random.Random(f"letters-{SEED}-{part}")
        self._given = words.GIVEN[part::2]
        self._family = _joined(words.FAMILY, words.FAMILY_ENDS)[part::2]
        self._streets = _joined(words.STREETS, words.STREET_ENDS)[part::2]
        self._companies = [f"{n} {end}" for n in words.COMPANIES[part::2] for end in words.COMPANY_ENDS]

    def line(self, template: str) -> tuple[str, list[dict[str, Any]]]:
        """The template filled, and the spans of what was filled in."""
        values = self._values()
        text, spans = "", []
        for literal, field, _, _ in Formatter().parse(template):
            text += literal
            if field is not None:
                start = len(text)
                text += values[field]
                if field in LABELS:
                    spans.append({"start": start, "end": len(text), "label": LABELS[field]})
        return text[:1].upper() + text[1:], spans

    def lines(self, templates: Sequence[str], count: int) -> Iterator[dict[str, Any]]:
        """Single lines as rows."""
        for _ in range(count):
            text, spans = self.line(self.draw.choice(templates))
            yield {"text": text, "spans": spans}

    def letters(self, templates: Sequence[str], count: int) -> Iterator[dict[str, Any]]:
        """Letters of a few lines, each of one writer."""
        for number in range(count):
            text, spans = "", []
            for template in self.draw.sample(templates, self.draw.randint(3, 6)):
                line, own = self.line(template)
                spans += [{**s, "start": s["start"] + len(text), "end": s["end"] + len(text)} for s in own]
                text += f"{line}\n"
            yield {"id": f"brief-{number}", "user_id": f"kunde-{number % 25}", "text": text, "spans": spans}

    def _values(self) -> dict[str, str]:
        draw = self.draw
        given, family, town = draw.choice(self._given), draw.choice(self._family), draw.choice(words.TOWNS)
        house, plate = draw.randrange(1, 140), draw.choice(("AB", "KX", "M"))
        day, month, year = draw.randrange(1, 29), draw.randrange(12), draw.randrange(1950, 2026)
        in_words = f"{day}. {words.MONTHS[month]} {year}"
        thing, other = draw.sample(words.THINGS, 2)
        return {
            "thing": thing,
            "thing2": other,
            "fault": draw.choice(words.FAULTS),
            "time": draw.choice(words.TIMES),
            "since": draw.choice(words.SINCES),
            "dative": draw.choice(words.DATIVES),
            "person": f"{given} {family}",
            "given": given,
            "family": family,
            "street": f"{draw.choice(self._streets)} {house}{draw.choice(('', '', '', 'a'))}",
            "place": f"{draw.randrange(10_000, 99_999)} {town}",
            "town": town,
            "phone": (form := draw.choice(_PHONES)).format(draw.randrange(1000 if "3d" in form else 100)),
            "mail": f"{_plain(given)}.{_plain(family)}@{draw.choice(('beispiel', 'post'))}.example",
            "iban": iban(draw),
            "date": draw.choice((f"{day:02d}.{month + 1:02d}.{year}", in_words)),
            "customer": f"KD-{draw.randrange(100_000, 1_000_000)}",
            "company": draw.choice(self._companies),
            "tax": tax_number(draw),
            "plate": f"{draw.choice(words.PLATE_TOWNS)}-{plate} {draw.randrange(1, 10_000)}",
        }


def iban(draw: random.Random) -> str:
    """A German IBAN with its checksum, at a bank that cannot be: no bank code begins with 9."""
    account = f"9{draw.randrange(10**17):017d}"
    check = 98 - int(f"{account}131400") % 97
    written = f"DE{check:02d}{account}"
    return written if draw.random() < 0.4 else " ".join(written[i : i + 4] for i in range(0, 22, 4))


def tax_number(draw: random.Random) -> str:
    """Eleven digits, the last one the checksum of the others (ISO 7064, mod 11, 10)."""
    digits = draw.sample(range(10), 10)
    if digits[0] == 0:
        digits.reverse()
    digits[-1] = digits[0]
    product = 10
    for digit in digits:
        product = ((digit + product) % 10 or 10) * 2 % 11
    return "".join(map(str, [*digits, (11 - product) % 10]))


def _plain(name: str) -> str:
    return name.lower().translate(str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"}))


def _joined(starts: Iterable[str], ends: Sequence[str]) -> list[str]:
    return [start + end for start in starts for end in ends]


def write(file: str, rows: Iterable[dict[str, Any]]) -> None:
    """The rows as JSON lines, in this folder."""
    Path(file).write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")


def main() -> None:
    """Write the three files."""
    write("labelled.jsonl", Letters(0).lines(words.HAND, 1500))
    write("letters.jsonl", Letters(1).letters(words.HAND, 80))
    write("other-hand.jsonl", Letters(1).lines(words.OTHER_HAND, 250))


if __name__ == "__main__":
    main()

"""A corpus with planted secrets of every kind, each of them unique, and kept only where it is caught.

A secret that π does not mask is a miss, which is measured elsewhere; what is asked here is whether one that
is caught, or that stands where no text belongs (ids, rejected rows), is seen in any place but its own.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faker import Faker

from redactory.detectors import Detector, DetectSettings
from redactory.redaction import route_example

PUBLIC = [
    f"{start} {middle}{end}"
    for start in ("thank you", "yes please", "sure", "of course", "all right")
    for middle in ("that is what we want", "we will see", "it works again", "this is fine", "that would help")
    for end in (".", "!")
]
DETECTED_CHARS = 2_000
ROW_BYTES = 20_000


@dataclass(frozen=True)
class Secret:
    """A planted value: its kind, the text of its point, and the parts of it that nothing else can hold."""

    kind: str
    value: str
    text: str
    parts: tuple[str, ...]


def planted(count: int, seed: int) -> tuple[list[Secret], int]:
    """``count`` secrets that π masks whole, of every kind in turn; and how many others it did not."""
    detector, kept, missed = Detector(DetectSettings()), list[Secret](), 0
    drawn = _draws(seed)
    while len(kept) < count:
        some = [next(drawn) for _ in range(max(32, count - len(kept)))]
        for secret, detection in zip(some, detector.detect([s.text for s in some]), strict=True):
            decision = route_example(secret.text, detection)
            caught = decision.failure is None and not any(part in decision.text for part in secret.parts)
            missed += not caught
            kept += [secret] if caught and len(kept) < count else []
    return kept, missed


def _draws(seed: int) -> Iterator[Secret]:
    draw, seen = _Draw(seed), set[str]()
    while True:
        for kind, sentence, value, *parts in draw.one_of_each():
            secret = Secret(kind, value, sentence.format(value), (value, *parts))
            if not seen & set(secret.parts):
                seen.update(secret.parts)
                yield secret


class _Draw:
    """Invented values, none of them a word."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._faker = Faker("en_US")
        self._faker.seed_instance(seed)

    def digits(self, pattern: str) -> str:
        return "".join(self._random.choice(string.digits) if c == "#" else c for c in pattern)

    def name(self) -> str:
        letters = (self._random.choice(kind) for _ in range(3) for kind in ("aeiou", "bdfgklmnprstvz"))
        start = self._random.choice(("Bro", "Quill", "Vand", "Ostr", "Kael", "Tarv"))
        return start + "".join(letters) + self._random.choice(("wick", "feld", "mare", "stone", "ovich"))

    def address(self, end: str) -> str:
        return f"{self.name().lower()}@{self.name().lower()}.{end}"

    def one_of_each(self) -> Iterator[tuple[str, ...]]:
        """The kind, a sentence with a gap, the value, telling parts of the value."""
        surname, letter, far, site, street = (self.name() for _ in range(5))
        far += "ów"
        first = self._random.choice(("Zoë", "Łucja", "Jürgen", "Søren"))
        host = ".".join(str(self._random.randint(101, 199)) for _ in range(4))
        month = self._random.choice(("March", "August", "December"))
        born = f"{self._random.randint(1, 28)} {month} {self._random.randint(1931, 1999)}"
        number = self._random.randint(100, 9999)
        yield "person", "My name is {}.", f"{self._faker.first_name()} {surname}", surname
        yield "letter", "Please give the letter to Mr. {} tomorrow.", letter, letter
        yield "far_name", "My name is {}.", f"{first} {far}", far
        yield "email", "You can write to {} any time.", self.address("com")
        yield "phone", "My phone number is {}.", self.digits("(212) 55#-####")
        yield "ssn", "My social security number is {}.", self.digits("41#-5#-8###")
        yield "card", "Please charge my credit card {}.", self._faker.credit_card_number("visa16")
        yield "iban", "My IBAN is {}.", self._faker.iban()
        yield "ip", "The server answers at {} only.", host
        yield "url", "My page is https://www.{}.com/me now.", site.lower(), site.lower()
        yield "street", "I live at {} in the old town.", f"{number} {street} Street", street
        yield "birth", "I was born on {}.", born
        yield "account", "My account number is {}.", self.digits("48##########")
        yield "passport", "My passport number is {}.", self.digits("X########")


def _write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_corpus(folder: Path, secrets: Sequence[Secret], seed: int) -> list[Secret]:
    """Write corpus, held-out text and labelled rows; the secrets, and those of ids and of bad rows."""
    draw = _Draw(seed + 1)
    ids: list[Secret] = []

    def row(number: int, secret: Secret) -> dict[str, Any]:
        doc, user = f"case-{draw.digits('##########')}", draw.address("org")
        ids.extend((Secret("doc_id", doc, "", (doc,)), Secret("user_id", user, "", (user,))))
        calm = [PUBLIC[(3 * number + n) % len(PUBLIC)] for n in range(2)]
        return {"id": doc, "user_id": user, "text": f"SYS: {calm[0]}\nUSR: {secret.text}\nSYS: {calm[1]}"}

    rows = [row(number, secret) for number, secret in enumerate(secrets)]
    lines = [json.dumps(r, ensure_ascii=bool(n % 2)).encode() for n, r in enumerate(rows)]
    # the first row is the one that names the columns, if any does
    bad = _bad_rows(draw)
    lines = [bad[0][0], *lines, *(line for line, _ in bad[1:])]
    (folder / "corpus.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (folder / "words.txt").write_text("".join(f"{part}\n" for s in secrets for part in s.parts))
    public = [{"text": text, "label": "ab"[n % 2]} for n, text in enumerate(PUBLIC)]
    spoken = [{"text": s.text, "label": "ab"[n % 2], "user_id": f"{n % 7}"} for n, s in enumerate(secrets)]
    held_out = [{"text": f"USR: {s.text}\nSYS: {PUBLIC[n % len(PUBLIC)]}"} for n, s in enumerate(secrets)]
    labelled = [{"id": f"l{n}", "text": s.text, "spans": [_span(s)]} for n, s in enumerate(secrets)]
    _write_rows(folder / "public.jsonl", public)
    _write_rows(folder / "spoken.jsonl", spoken[:40])
    _write_rows(folder / "held-out.jsonl", held_out[:20])
    _write_rows(folder / "labelled.jsonl", labelled)
    return [*secrets, *ids, *(secret for _, secret in bad)]


def _span(secret: Secret) -> dict[str, Any]:
    start = secret.text.index(secret.value)
    return {"start": start, "end": start + len(secret.value), "label": "SECRET"}


def _bad_rows(draw: _Draw) -> list[tuple[bytes, Secret]]:
    """Rows that are rejected, each for another reason, and one that is quarantined; each holds a secret."""
    shapes = {
        "data_as_key": b'{"%s": "hello"}',
        "broken_json": b'{"text": "I am %s',
        "not_an_object": b'["I am %s"]',
        "text_not_string": b'{"text": ["I am %s"]}',
        "nul": b'{"text": "I am \\u0000 %s"}',
        "lone_surrogate": b'{"text": "I am \\ud800 %s"}',
        "id_not_string": b'{"id": {"a": "%s"}, "text": "hello"}',
        "row_too_long": b'{"text": "%s' + b"x" * ROW_BYTES + b'"}',
        "undecodable": b'{"text": "\xff %s"}',
        "too_long_to_detect": b'{"text": "USR: %s ' + b"so it goes on " * (DETECTED_CHARS // 10) + b'"}',
    }
    values = {kind: draw.name() + draw.digits("####") for kind in shapes}
    return [(shapes[kind] % value.encode(), Secret(kind, value, "", (value,))) for kind, value in values.items()]

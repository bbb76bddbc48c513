"""A corpus with planted secrets of every kind, each of them unique, and kept only where it is caught.

A secret that π does not mask is a miss, which is measured elsewhere; what is asked here is whether one that
is caught, or that stands where no text belongs (ids, rejected rows), is seen in any place but its own.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faker import Faker

from redactory.detectors import Detector, DetectSettings
from redactory.redaction import route

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
            fate = route(secret.text, detection)
            caught = fate.failure is None and not any(part in fate.text for part in secret.parts)
            missed += not caught
            kept += [secret] if caught and len(kept) < count else []
    return kept, missed


def _draws(seed: int) -> Iterator[Secret]:
    draw = _Draw(seed)
    makers = [getattr(draw, name) for name in dir(draw) if name.startswith("a_")]
    seen: set[str] = set()
    while True:
        for make in makers:
            sentence, value, *parts = make()
            secret = Secret(make.__name__[2:], value, sentence.format(value), (value, *parts))
            if not seen & set(secret.parts):
                seen.update(secret.parts)
                yield secret


class _Draw:
    """One method a kind: a sentence with a gap, the value, and telling parts of the value."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._faker = Faker("en_US")
        self._faker.seed_instance(seed)

    def _digits(self, pattern: str) -> str:
        return "".join(self._random.choice(string.digits) if c == "#" else c for c in pattern)

    def _invented(self) -> str:
        starts, ends = (
            ("Bro", "Quill", "Vand", "Ostr", "Kael", "Tarv"),
            ("wick", "feld", "mare", "stone", "ovich"),
        )
        middle = "".join(
            self._random.choice("aeiou") + self._random.choice("bdfgklmnprstvz") for _ in range(3)
        )
        return self._random.choice(starts) + middle + self._random.choice(ends)

    def a_person(self) -> tuple[str, ...]:
        surname = self._invented()
        return "My name is {}.", f"{self._faker.first_name()} {surname}", surname

    def a_letter(self) -> tuple[str, ...]:
        surname = self._invented()
        return "Please give the letter to Mr. {} tomorrow.", surname, surname

    def a_far_name(self) -> tuple[str, ...]:
        first, last = self._random.choice(("Zoë", "Łucja", "Jürgen", "Søren")), self._invented() + "ów"
        return "My name is {}.", f"{first} {last}", last

    def a_email(self) -> tuple[str, ...]:
        return "You can write to {} any time.", f"{self._invented().lower()}@{self._invented().lower()}.com"

    def a_phone(self) -> tuple[str, ...]:
        return "My phone number is {}.", self._digits("(212) 55#-####-#").replace("-#", "#")[:14]

    def a_ssn(self) -> tuple[str, ...]:
        return "My social security number is {}.", self._digits("41#-5#-8###")

    def a_card(self) -> tuple[str, ...]:
        return "Please charge my credit card {}.", self._faker.credit_card_number("visa16")

    def a_iban(self) -> tuple[str, ...]:
        return "My IBAN is {}.", self._faker.iban()

    def a_ip(self) -> tuple[str, ...]:
        octets = [self._random.randint(101, 199) for _ in range(4)]
        return "The server answers at {} only.", ".".join(map(str, octets))

    def a_url(self) -> tuple[str, ...]:
        name = self._invented().lower()
        return "My page is https://www.{}.com/me now.", name, name

    def a_street(self) -> tuple[str, ...]:
        street = self._invented()
        return "I live at {} in the old town.", f"{self._random.randint(100, 9999)} {street} Street", street

    def a_birth(self) -> tuple[str, ...]:
        year, month = self._random.randint(1931, 1999), self._random.choice(("March", "August", "December"))
        return "I was born on {}.", f"{self._random.randint(1, 28)} {month} {year}"

    def a_account(self) -> tuple[str, ...]:
        return "My account number is {}.", self._digits("48##########")

    def a_passport(self) -> tuple[str, ...]:
        return "My passport number is {}.", self._digits("X########")


def write_corpus(folder: Path, secrets: Sequence[Secret], seed: int) -> list[Secret]:
    """Write corpus, held-out text and labelled rows; the secrets, and those of ids and of bad rows."""
    draw = _Draw(seed + 1)
    ids: list[Secret] = []

    def row(number: int, secret: Secret) -> dict[str, Any]:
        doc, user = (
            f"case-{draw._digits('##########')}",
            f"{draw._invented().lower()}@{draw._invented().lower()}.org",
        )
        ids.extend((Secret("doc_id", doc, "", (doc,)), Secret("user_id", user, "", (user,))))
        calm = [PUBLIC[(3 * number + n) % len(PUBLIC)] for n in range(2)]
        return {"id": doc, "user_id": user, "text": f"SYS: {calm[0]}\nUSR: {secret.text}\nSYS: {calm[1]}"}

    rows = [row(number, secret) for number, secret in enumerate(secrets)]
    lines = [json.dumps(r, ensure_ascii=bool(n % 2)).encode() for n, r in enumerate(rows)]
    bad, sick = _bad_rows(draw)
    # the first row is the one that names the columns, if any does
    lines = [bad[0][0], *lines, *(line for line, _ in bad[1:]), *(json.dumps(r).encode() for r, _ in sick)]
    (folder / "corpus.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    labelled = [
        {"id": f"l{n}", "text": s.text, "spans": [_span(s)]}
        for n, s in enumerate(secrets)
        if s.value in s.text
    ]
    (folder / "labelled.jsonl").write_text("".join(json.dumps(r) + "\n" for r in labelled), encoding="utf-8")
    words = [part for secret in secrets for part in secret.parts]
    (folder / "words.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    held_out = [
        {"text": f"USR: {s.text}\nSYS: {PUBLIC[n % len(PUBLIC)]}"} for n, s in enumerate(secrets[:20])
    ]
    (folder / "held-out.jsonl").write_text("".join(json.dumps(r) + "\n" for r in held_out), encoding="utf-8")
    _write_classes(folder, secrets)
    return [*secrets, *ids, *(s for _, s in bad), *(s for _, s in sick)]


def _write_classes(folder: Path, secrets: Sequence[Secret]) -> None:
    """Public sentences and the secrets' own, each with a class, and the latter with a user."""
    public = [{"text": text, "label": "ab"[n % 2]} for n, text in enumerate(PUBLIC)]
    spoken = [
        {"text": s.text, "label": "ab"[n % 2], "user_id": f"user {n % 7}"} for n, s in enumerate(secrets[:40])
    ]
    for name, rows in (("public", public), ("spoken", spoken)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def _span(secret: Secret) -> dict[str, Any]:
    start = secret.text.index(secret.value)
    return {"start": start, "end": start + len(secret.value), "label": "SECRET"}


def _bad_rows(draw: _Draw) -> tuple[list[tuple[bytes, Secret]], list[tuple[dict[str, Any], Secret]]]:
    """Rows that are rejected, each for another reason, and one that is quarantined; each holds a secret."""

    def secret(kind: str) -> Secret:
        value = draw._invented() + draw._digits("####")
        return Secret(kind, value, "", (value,))

    shapes = {
        "data_as_key": '{{"{0}": "hello"}}',
        "broken_json": '{{"text": "I am {0}',
        "not_an_object": '["I am {0}"]',
        "text_not_string": '{{"text": ["I am {0}"]}}',
        "nul": '{{"text": "I am \\u0000 {0}"}}',
        "lone_surrogate": '{{"text": "I am \\ud800 {0}"}}',
        "id_not_string": '{{"id": {{"a": "{0}"}}, "text": "hello {0}"}}',
        "row_too_long": '{{"text": "{0}' + "x" * ROW_BYTES + '"}}',
    }
    bad = [
        (shape.format(one.value).encode(), one) for kind, shape in shapes.items() for one in [secret(kind)]
    ]
    undecodable = secret("undecodable")
    bad.append((b'{"text": "\xff ' + undecodable.value.encode() + b'"}', undecodable))
    long = secret("too_long_to_detect")
    return bad, [({"text": f"USR: {long.value} " + "so it goes on " * (DETECTED_CHARS // 10)}, long)]

"""Sentences of many kinds; none of the people, numbers or places in them is real."""

from __future__ import annotations

import random

from redactory.detectors.settings import FitSettings
from redactory.detectors.tagger import LabelledText

TEXTS = [
    "Hello, how can I help you today?",
    "My name is Anna Smith and I live at 12 Oak Street, Springfield, IL 62704.",
    "My social security number is 536-22-8726.",
    "You can write to john.doe@example.co.uk or call (212) 555-0187.",
    "The order AB12CD34 was shipped on March 3rd, 2021 to Berlin.",
    "Please pay 1,250.00 dollars to DE89370400440532013000.",
    "card: 4111 1111 1111 1111, exp 05/27",
    "the server is at 192.168.1.17, its hardware address aa:bb:cc:dd:ee:ff",
    "aa:bb:cc:dd:ee:ff",
    "connect to fe::ab please",
    "My code is QWERTYUIOP.",
    "I waited...in the rain",
    "See https://example.com/a?b=c and www.example.org.",
    "id 123e4567-e89b-12d3-a456-426614174000",
    "Dr. Maria Garcia-Lopez moved from Paris to New York in 1999.",
    "I'm fine, thanks; I'll call O'Brien on Tuesday.",
    "MICROSOFT AND APPLE ANNOUNCED A DEAL WITH THE UNITED NATIONS.",
    "barack obama went to london with angela merkel",
    "Is this seat taken?",
    "Yes.",
    "ok",
    "?",
    "",
    " ",
    "\n\n\t",
    "\u200b",
    "😀",
    "👨‍👩‍👧‍👦 We love you, Emma! 🎉",
    "שלום, קוראים לי דוד ואני גר בתל אביב.",
    "اسمي محمد وأعيش في القاهرة، رقمي ٠١٢٣٤٥٦٧٨٩",
    "我叫王小明,住在北京。",
    "Москва — столица России.",
    "e\u0301cole de Zoe\u0308 a\u0300 Lyon",
    "ﬁnance ½ ② ⅷ ᴬ",
    "x" * 300,
    "a-b_c/d\\e#f|g~h`i^j",
    "<MASK> said that <MASK> would come.",
    "   leading and trailing   spaces   ",
    "line one\nline two by Peter Parker\r\nline three",
    "He paid $5 in May; she paid €7 in June; they paid £9 in July.",
    "The patient's NHS number is 943 476 5919, licence BB1388568.",
    "passport 912803456 and driver licence H12345678",
    "1 2 3 4 5 6 7 8 9 10",
    "U.S.A. vs. U.K., Inc. and Ltd.",
    "“Quoted,” said Jane. ‘Single,’ said Joe.",
    "A sentence without any name, number or place in it, only plain words.",
    "To be, or not to be, that is the question. " * 40,
    "Anna met Bob in Rome. Bob met Carl in Oslo. " * 30,
]

SMALL_FIT = FitSettings(
    width=32, depth=2, table_rows=(500, 200, 200, 200), epochs=6, batch_words=300, learning_rate=8e-3
)
"""A tagger that learns :func:`labelled_texts` in about a second."""

GIVEN = ["Anna", "Maria", "Carla", "Robert", "Peter", "Susan", "Emma", "Oliver"]
FAMILY = ["Smith", "Miller", "Garcia", "Kowalski", "Brown", "Lopez", "Nowak", "Stone"]
TOWNS = ["Paris", "Berlin", "Oslo", "Lyon", "Boston", "Madrid", "Vienna", "Dublin"]
CLAUSES = [
    "the weather is fine today",
    "please call me back later",
    "I would like to return my order",
    "thank you for your help",
    "it does not work any more",
    "can you check the status of it",
]


def labelled_texts(count: int, seed: int) -> list[LabelledText]:
    """Distinct sentences of a few forms with a person, a place, a code or nothing to hide in them."""
    draw = random.Random(seed)
    rows: dict[str, LabelledText] = {}
    while len(rows) < count:
        row = _labelled_text(draw)
        rows[row.text] = row
    return list(rows.values())


def _labelled_text(draw: random.Random) -> LabelledText:
    clause, number = draw.choice(CLAUSES), draw.randrange(1000)
    secret, label, before, after = draw.choice(
        [
            (f"{draw.choice(GIVEN)} {draw.choice(FAMILY)}", "PERSON", "My name is ", f", {clause}."),
            (draw.choice(TOWNS), "LOCATION", f"I live in house {number} in ", f" and {clause}."),
            (f"{number:03}-{draw.randrange(9999):04}", "IDENTIFIER", "The code is ", f"; {clause}."),
            ("", "", f"{clause.capitalize()}, ", f"{draw.choice(CLAUSES)} and {draw.choice(CLAUSES)}."),
        ]
    )
    spans = ((len(before), len(before) + len(secret), label),) if secret else ()
    return LabelledText(before + secret + after, spans)

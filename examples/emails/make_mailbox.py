"""A mailbox of an invented office: one .eml file a message, the same files every time.

    python make_mailbox.py          writes the folder mail/ and address_book.txt

Mail comes in many forms, and so does this: text alone, text with an HTML version, letters outside of ASCII in
quoted-printable and base64, encoded headers, answers that quote what they answer, a message without any
text, and a file that is no message.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path
from typing import NamedTuple

SEED = 4
MESSAGES = 90
DOMAIN = "harrowgate-seeds.example"
PEOPLE = (
    ("Ottoline", "Brackenridge"), ("Jürgen", "Stanislav"), ("Maëlle", "Pettibone"), ("Thaddeus", "Okonkwo"),
    ("Zuzana", "Whitcombe"), ("Ignacio", "Fairweather"), ("Priya", "Lindqvist"), ("Cormac", "Abernathy"),
)  # fmt: skip
SUBJECTS = ["the spring catalogue", "an order that is late", "the meeting", "the broken scales", "new labels"]
OPENINGS = ["Hello {first},", "Dear {first},", "Hi {first},", "Good morning,"]
LINES = (
    "Thank you for your message.",
    "Could you send me the figures of last week?",
    "The customer {customer} called about order {order} and wants it sent to {address}.",
    "I have put the samples on the table by the window.",
    "Please call me back at {phone} before noon.",
    "The scales in the packing room show two grams too much.",
    "We can meet at three if that suits you.",
    "My private address is {private} while I am away.",
    "The printer promised the labels for the end of the week.",
    "{customer} paid by transfer, the reference was {order}.",
    "I think the second picture is better than the first one.",
    "Nothing else has changed since yesterday.",
)
CUSTOMERS = ["Barnaby Quill", "Leocadia Moss", "Håkon Thistle", "Seraphina Doyle", "Ambrose Kettle"]
STREETS = ["Larkspur Lane", "Mill Street", "Orchard Road", "Quarry Hill", "Station Road"]
TOWNS = ["Wexcombe", "Lower Ashby", "Thornley", "Marwick"]


class Person(NamedTuple):
    """Somebody of the office."""

    first: str
    last: str
    mail: str
    phone: str


def office(draw: random.Random) -> list[Person]:
    """Everybody who writes."""
    plain = str.maketrans("üë", "ue")
    return [
        Person(first, last, f"{first.translate(plain)}.{last}@{DOMAIN}".lower(), phone(draw)) for first, last in PEOPLE
    ]


def phone(draw: random.Random) -> str:
    """A number of the block that is kept for invented people."""
    return f"+44 1632 960{draw.randrange(1000):03d}"


def body(draw: random.Random, sender: Person, to: Person) -> str:
    """What somebody writes: a greeting, some lines, a name and a number below."""
    lines = draw.sample(LINES, draw.randint(2, 4))
    text = "\n".join([draw.choice(OPENINGS), "", *lines, "", "Best wishes", sender.first, sender.phone])
    return text.format(
        first=to.first,
        customer=draw.choice(CUSTOMERS),
        order=f"{draw.randrange(100, 1000)}-{draw.randrange(10_000, 100_000)}",
        address=f"{draw.randrange(1, 90)} {draw.choice(STREETS)}, {draw.choice(TOWNS)}",
        phone=phone(draw),
        private=f"{sender.first.lower()}{draw.randrange(10, 99)}@mail.example",
    )


def message(draw: random.Random, number: int, sender: Person, to: Person, answered: str | None) -> EmailMessage:
    """One message; ``answered`` is quoted below it."""
    made = EmailMessage()
    made["From"] = f"{sender.first} {sender.last} <{sender.mail}>"
    made["To"] = f"{to.first} {to.last} <{to.mail}>"
    made["Subject"] = f"{'Re: ' if answered else ''}About {draw.choice(SUBJECTS)}"
    made["Date"] = format_datetime(datetime(2026, 3, 2, 9, tzinfo=UTC) + timedelta(hours=3 * number))
    made["Message-ID"] = f"<{number:04d}@{DOMAIN}>"
    text = body(draw, sender, to)
    if answered:
        quoted = "\n".join(f"> {line}" for line in answered.splitlines())
        text = f"{text}\n\nOn Monday {to.first} {to.last} wrote:\n{quoted}"
    made.set_content(text, cte=draw.choice(("quoted-printable", "base64")))
    if draw.random() < 0.4:
        made.add_alternative(f"<html><body><pre>{text}</pre></body></html>", subtype="html")
    return made


def main() -> None:
    """Write the mailbox and the address book."""
    draw = random.Random(SEED)
    people = office(draw)
    folder = Path("mail")
    folder.mkdir(exist_ok=True)
    before: str | None = None
    for number in range(MESSAGES):
        sender, to = draw.sample(people, 2)
        made = message(draw, number, sender, to, before if draw.random() < 0.3 else None)
        before = made.get_body(("plain",)).get_content()
        (folder / f"{number:04d}.eml").write_bytes(made.as_bytes())
    empty = EmailMessage()
    empty["From"], empty["Subject"] = people[0].mail, "(no text)"
    (folder / "empty.eml").write_bytes(empty.as_bytes())
    (folder / "torn.eml").write_bytes(b"\x00\xff this was a message once")
    book = [name for p in people for name in (f"{p.first} {p.last}", p.first, p.last, p.mail)]
    Path("address_book.txt").write_text("\n".join(book) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

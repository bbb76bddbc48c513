"""Contracts of invented companies, a clause a row; the same files every time.

    python make_contracts.py        writes contracts.jsonl, held-out.jsonl, donated.jsonl,
                                    parties.txt and aliases.txt into this folder

A row has an ``id``, the ``client`` whose contract it is from, and the ``text`` of the clause.  The contracts
of ``donated.jsonl`` are those of other companies, which gave them away: no name of the others is in them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


def listed(words: str) -> list[str]:
    """The words of a line."""
    return words.split()


SEED = 10
FIRST = listed("Alder Brine Corbel Dunmore Eskdale Farrow Gannet Hexley Inver Juniper Kestrel Lorimer")
SECOND = listed("bank bridge croft dale field gate haven mere moor stone wick wold")
TRADES = ["Shipping", "Mills", "Foundry", "Textiles", "Software", "Catering", "Timber", "Printing"]
GIVEN = listed("Anneli Boas Carlotta Dunja Ephraim Fenna Gustavo Halina Ivor Jocasta Kasimir Ludmila")
FAMILY = listed("Abernethy Bjork Castellan Drummond Eisler Fontaine Grabowski Holloway Ibarra Jansson")
COUNTRIES = ["Norway", "Portugal", "Canada", "Ireland", "Denmark", "Chile"]
MONTHS = ["January", "March", "May", "July", "October", "November"]

CLAUSES = (
    "This agreement is made between {party} and {other} and takes effect in {month}.",
    "{short} shall deliver the goods within {days} days after the order is received.",
    "Payment is due {days} days after the invoice, without any deduction.",
    "Notices to {other} are sent to the attention of {person}.",
    "Either party may end this agreement with {days} days of notice in writing.",
    "{short} keeps all information that it receives under this agreement confidential.",
    "This agreement is governed by the laws of {country}.",
    "{person} acts as the agent of {party} for the purposes of this clause.",
    "Neither party is liable for a delay that is caused by events beyond its control.",
    "No change of this agreement is valid unless both parties have signed it.",
    "If a part of this agreement is invalid, the other parts remain in force.",
    "The goods remain the property of {party} until they are paid for in full.",
    "{other} may inspect the books of {short} once a year, in {month}.",
    "The rights under this agreement may not be passed on without the consent of {other}.",
)


class Company(NamedTuple):
    """A company and the person who signs for it."""

    name: str
    short: str
    person: str


def companies(draw: random.Random, count: int) -> list[Company]:
    """So many companies, no two of one name."""
    shorts = [first + second for first in FIRST for second in SECOND]
    return [
        Company(
            f"{short} {draw.choice(TRADES)} {draw.choice(('Ltd', 'LLC', 'plc'))}",
            short,
            f"{draw.choice(GIVEN)} {draw.choice(FAMILY)}",
        )
        for short in draw.sample(shorts, count)
    ]


def clauses(draw: random.Random, clients: Iterable[Company], others: list[Company]) -> Iterator[dict[str, str]]:
    """One contract a client, with another company that others deal with too."""
    for client in clients:
        other = draw.choice([company for company in others if company != client])
        for number, clause in enumerate(draw.sample(CLAUSES, 8), 1):
            text = clause.format(
                party=client.name,
                short=client.short,
                other=other.name,
                person=draw.choice((client, other)).person,
                month=draw.choice(MONTHS),
                country=draw.choice(COUNTRIES),
                days=draw.choice((10, 14, 30, 60, 90)),
            )
            yield {"id": f"{client.short}/{number}", "client": client.short.lower(), "text": text}


def write(file: str, lines: Iterable[str]) -> None:
    """The lines, into this folder."""
    Path(file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def main() -> None:
    """Write the five files."""
    draw = random.Random(SEED)
    everybody = companies(draw, 80)
    clients, later, donors = everybody[:40], everybody[40:50], everybody[50:]
    for file, own in (("contracts", clients), ("held-out", later), ("donated", donors)):
        write(f"{file}.jsonl", map(json.dumps, clauses(draw, own, own[:12])))
    # what the law firm knows by itself: with whom its clients deal, and how they are called for short
    write("parties.txt", (name for client in clients for name in client))
    write("aliases.txt", (f"{company.short}\t{company.name}" for company in clients))


if __name__ == "__main__":
    main()

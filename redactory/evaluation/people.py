"""Invented customers: who they are, how to reach them, and when they come back."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass

_PHONE_FORMS = ("{}-{}-{}", "({}) {}-{}", "{}.{}.{}", "{} {} {}", "+1 {} {} {}")
_MAIL_DOMAINS = ("example.com", "example.org", "example.net")
_RETURN_SHARE = 0.25
_MOST_RETURNS = 3
_RETURN_WINDOW = 200


@dataclass(frozen=True)
class Customer:
    """One invented person; every field but ``user_id`` is a secret of hers."""

    user_id: str
    name: str
    first: str
    phone: str
    address: str
    email: str


class People:
    """Draws customers from an own, seeded Faker and an own random stream.

    Nothing here reads or moves the state that Faker's instances or ``random`` share by default.
    """

    def __init__(self, seed: int) -> None:
        # a tenth of a second that only a simulation needs
        from faker import Faker

        self.draw = random.Random(f"people-{seed}")
        self._faker = Faker("en_US", use_weighting=False)  # every name as likely, and twice as fast
        self._faker.seed_instance(seed)
        self._count = 0

    def new_customer(self) -> Customer:
        """A person not met before (two may share a name, as people do)."""
        first, last = self._faker.first_name(), self._faker.last_name()
        self._count += 1
        mail = f"{first}.{last}{self.draw.randrange(10, 100)}@{self.draw.choice(_MAIL_DOMAINS)}".lower()
        phone = self.draw.choice(_PHONE_FORMS).format(self._digits(3), self._digits(3), self._digits(4))
        return Customer(f"cust-{self._count:07d}", f"{first} {last}", first, phone, self.new_address(), mail)

    def new_address(self) -> str:
        """A postal address on one line."""
        return str(self._faker.address()).replace("\n", " ")

    def new_order_number(self) -> str:
        """Three, five and three digits."""
        return f"{self._digits(3)}-{self._digits(5)}-{self._digits(3)}"

    def new_tracking_number(self) -> str:
        """Ten of A-Z and 0-9, with at least one digit."""
        letters = self.draw.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", k=10)
        letters[self.draw.randrange(10)] = self.draw.choice("0123456789")
        return "".join(letters)

    def visits(self) -> Iterator[Customer]:
        """Customers as they write, without end: about a quarter come back, one to three times.

        A return lies at most a few hundred dialogues later, so what is kept in mind stays small.
        """
        due: list[tuple[int, int, int, Customer]] = []
        row = order = 0
        while True:
            if due and due[0][0] <= row:
                _, _, left, customer = heapq.heappop(due)
            else:
                customer = self.new_customer()
                left = self.draw.randint(1, _MOST_RETURNS) if self.draw.random() < _RETURN_SHARE else 0
            if left:
                order += 1
                heapq.heappush(due, (row + self.draw.randint(1, _RETURN_WINDOW), order, left - 1, customer))
            yield customer
            row += 1

    def _digits(self, count: int) -> str:
        return f"{self.draw.randrange(10 ** (count - 1), 10**count)}"

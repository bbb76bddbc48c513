"""Simulate a support corpus with exact ground truth, in the spirit of CRT's CustomerSim (CRT, section 5.1).

Its people are invented; ``dialogues.yaml`` holds what they and the shop say.
"""

from __future__ import annotations

import functools
import heapq
import json
import os
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple

from redactory.evaluation.canary import DIGITS_PLACEHOLDER
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import commit_file, write_json
from redactory.foundation.progress import Progress, ignore_progress

CANARY_TEMPLATE, CANARY_DIGITS, CANARY_LABEL = f"My ID is: {DIGITS_PLACEHOLDER}", 6, "CANARY"
DEFAULT_TEMPLATE = f"My ID is: {{{CANARY_DIGITS}}}"
_MAX_DIGITS = 18
_TEMPLATE = re.compile(r"(?P<before>[^{}]*[^{}0-9])\{(?P<digits>[0-9]{1,2})\}")
_SYSTEM, _USER = "SYS: ", "USR: "
_SECOND_QUESTION_SHARE, _GOODBYE_SHARE = 0.25, 0.7
_PHONE_FORMS = ("{}-{}-{}", "({}) {}-{}", "{}.{}.{}", "{} {} {}", "+1 {} {} {}")
_MAIL_DOMAINS = ("example.com", "example.org", "example.net")
_RETURN_SHARE, _MAX_RETURNS, _RETURN_WINDOW = 0.25, 3, 200
_PROGRESS_ROWS = 1000


@dataclass(frozen=True)
class Simulation:
    """``rows`` ({id, user_id, text, spans}, an iterator) and ``canaries`` in the form of their file."""

    rows: Iterator[dict[str, Any]]
    canaries: dict[str, Any]


class DialogueTurn(NamedTuple):
    """One utterance: its text, its spans (start, end, label), and whether a policy is to miss them."""

    text: str
    spans: tuple[tuple[int, int, str], ...] = ()
    is_missed: bool = False


def get_canary_path(corpus: Path) -> Path:
    """Return the path of a simulated corpus's canaries: its name plus ``.canaries.json``."""
    return corpus.with_name(f"{corpus.name}.canaries.json")


def simulate_dialogues(
    rows: int,
    seed: int,
    canaries: int = 0,
    copies: int = 1,
    undetectable_canary_rate: float = 0.0,
    templates: Sequence[str] = (DEFAULT_TEMPLATE,),
) -> Simulation:
    """Simulate ``rows`` support dialogues that hide ``copies`` of each of ``canaries`` random numbers.

    A row's ``spans`` are [{start, end, label, value}] in code points, in order, not overlapping; the labels are those
    of ``dialogues.yaml`` and ``CANARY``. A canary is a user's turn "My ID is: <6 digits>" (CRT, section 5.4), equally
    many of each of ``templates``; as many controls are drawn and never inserted. A policy is to miss a canary with
    probability ``undetectable_canary_rate`` (CRT, Figure 3): its spans have ``"missed": true``; a higher rate misses at
    least the same canaries. The other dialogues are those of the seed without canaries. ``ConfigurationError`` for
    impossible numbers or templates.
    """
    if rows < 0 or canaries < 0 or copies < 1:
        raise ConfigurationError("simulate: rows and canaries must be at least 0, copies at least 1")
    if canaries and not rows:
        raise ConfigurationError("simulate: canaries need at least one row to be planted in")
    if not 0.0 <= undetectable_canary_rate <= 1.0:
        raise ConfigurationError("simulate: the canaries' miss rate must be between 0 and 1")
    if not templates or len(set(templates)) != len(templates):
        raise ConfigurationError("simulate: needs at least one canary template, without repetition")
    draw, miss_source = random.Random(f"canaries-{seed}"), random.Random(f"canary misses-{seed}")
    planted: dict[int, list[DialogueTurn]] = defaultdict(list)
    sets, taken = [], set[str]()
    for template in templates:
        prefix, digits = _parse_template(template)
        space, wanted = 10**digits, 2 * canaries + len(taken)
        if wanted > space:
            raise ConfigurationError(f"simulate: at most {space // 2} different canaries are possible")
        drawn = (f"{n:0{digits}d}" for n in draw.sample(range(space), wanted))
        numbers = [number for number in drawn if number not in taken][: 2 * canaries]
        taken.update(numbers)
        missed = [index for index in range(canaries) if miss_source.random() < undetectable_canary_rate]
        for index, number in enumerate(numbers[:canaries]):
            text = _USER + prefix + number
            turn = DialogueTurn(text, ((len(text) - digits, len(text), CANARY_LABEL),), index in missed)
            for _ in range(copies):
                planted[draw.randrange(rows)].append(turn)
        sets.append(
            {
                "template": prefix + DIGITS_PLACEHOLDER,
                "inserted": numbers[:canaries],
                "control": numbers[canaries:],
                "copies": copies,
                "seed": seed,
                "undetectable_canary_rate": undetectable_canary_rate,
                "missed": missed,
            }
        )
    return Simulation(_simulate_rows(rows, seed, planted, draw), sets[0] if len(sets) == 1 else {"sets": sets})


def _parse_template(template: str) -> tuple[str, int]:
    """Return the words and the number of digits of a template such as "My ID is: {6}"."""
    match = _TEMPLATE.fullmatch(template)
    digits = int(match["digits"]) if match else 0
    if match is None or not 1 <= digits <= _MAX_DIGITS or not match["before"].isprintable():
        raise ConfigurationError(
            "simulate: a canary template is one line of words followed by a number of digits in braces, at "
            f"most {_MAX_DIGITS}, such as '{DEFAULT_TEMPLATE}'"
        )
    return match["before"], digits


def simulate(
    out: str | os.PathLike[str],
    rows: int,
    seed: int,
    canaries: int = 0,
    copies: int = 1,
    progress: Progress = ignore_progress,
    undetectable_canary_rate: float = 0.0,
    templates: Sequence[str] = (DEFAULT_TEMPLATE,),
) -> dict[str, Any]:
    """Write :func:`simulate_dialogues` to ``out`` as JSON lines, and the canaries beside it.

    Returns counts: {rows, users, bytes, secrets: {label: n}, canaries (of one template), canaries_missed, copies, seed,
    out, canaries_file}.
    """
    simulation = simulate_dialogues(rows, seed, canaries, copies, undetectable_canary_rate, templates)
    secrets, users, out = Counter[str](), set[str](), Path(out)
    with commit_file(out) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for number, row in enumerate(simulation.rows, start=1):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            secrets.update(span["label"] for span in row["spans"])
            users.add(row["user_id"])
            if number % _PROGRESS_ROWS == 0 or number == rows:
                progress("simulate", number, rows, "rows")
    write_json(get_canary_path(out), simulation.canaries)
    sets = simulation.canaries.get("sets", [simulation.canaries])
    return {
        "rows": rows,
        "users": len(users),
        "bytes": out.stat().st_size,
        "secrets": dict(sorted(secrets.items())),
        "canaries": canaries,
        "canaries_missed": sum(len(canary_set["missed"]) for canary_set in sets),
        "copies": copies,
        "seed": seed,
        "out": str(out),
        "canaries_file": str(get_canary_path(out)),
    }


class CustomerGenerator:
    """Invented customers, from a private Faker and random stream, without shared state.

    A customer fills the fields of a dialogue's templates; every field but ``user_id`` is a secret.
    """

    def __init__(self, seed: int) -> None:
        # imported here: a tenth of a second that only a simulation needs
        from faker import Faker

        self.random_source = random.Random(f"people-{seed}")
        self._faker = Faker("en_US", use_weighting=False)  # equally likely names, and twice as fast
        self._faker.seed_instance(seed)
        self._count = 0

    def iter_visits(self) -> Iterator[dict[str, str]]:
        """Yield customers in the order of their dialogues, endlessly: about a quarter return, one to three times.

        A return is at most a few hundred dialogues later, so memory stays small.
        """
        due: list[tuple[int, int, int, dict[str, str]]] = []
        row = order = 0
        while True:
            if due and due[0][0] <= row:
                _, _, left, customer = heapq.heappop(due)
            else:
                customer = self._draw_customer()
                left = self.random_source.randint(1, _MAX_RETURNS) if self.random_source.random() < _RETURN_SHARE else 0
            if left:
                order += 1
                heapq.heappush(due, (row + self.random_source.randint(1, _RETURN_WINDOW), order, left - 1, customer))
            yield customer
            row += 1

    def draw_template_values(self, customer: dict[str, str]) -> dict[str, str]:
        """Draw the values for the fields of one dialogue's templates."""
        new_address = self._draw_address()
        order = f"{self._draw_digits(3)}-{self._draw_digits(5)}-{self._draw_digits(3)}"
        tracking = self.random_source.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", k=10)
        tracking[self.random_source.randrange(10)] = self.random_source.choice("0123456789")
        item, when = (self.random_source.choice(_load_dialogues()[kind]) for kind in ("items", "when"))
        mine = {"new_address": new_address, "order": order, "tracking": "".join(tracking)}
        return {**customer, **mine, "item": item, "when": when}

    def _draw_customer(self) -> dict[str, str]:
        first, last = self._faker.first_name(), self._faker.last_name()
        self._count += 1
        number = self.random_source.randrange(10, 100)
        mail = f"{first}.{last}{number}@{self.random_source.choice(_MAIL_DOMAINS)}".lower()
        phone = self.random_source.choice(_PHONE_FORMS).format(
            self._draw_digits(3), self._draw_digits(3), self._draw_digits(4)
        )
        who = {"user_id": f"cust-{self._count:07d}", "name": f"{first} {last}", "first": first}
        return {**who, "phone": phone, "address": self._draw_address(), "email": mail}

    def _draw_address(self) -> str:
        return str(self._faker.address()).replace("\n", " ")

    def _draw_digits(self, count: int) -> str:
        return f"{self.random_source.randrange(10 ** (count - 1), 10**count)}"


@functools.cache
def _load_dialogues() -> Any:
    import yaml

    return yaml.safe_load(files(__package__).joinpath("dialogues.yaml").read_text("utf-8"))


def _simulate_rows(
    rows: int, seed: int, canary_turns: Mapping[int, Sequence[DialogueTurn]], random_source: random.Random
) -> Iterator[dict[str, Any]]:
    customers = CustomerGenerator(seed)
    for number, customer in zip(range(rows), customers.iter_visits(), strict=False):
        turns = _simulate_dialogue(customers, customer)
        for canary in canary_turns.get(number, ()):
            turns.insert(random_source.randrange(1, len(turns)), canary)
        spans: list[dict[str, Any]] = []
        offset = 0
        for text, turn_spans, is_missed in turns:
            for start, end, label in turn_spans:
                span = {"start": offset + start, "end": offset + end, "label": label, "value": text[start:end]}
                spans.append({**span, "missed": True} if is_missed else span)
            offset += len(text) + 1
        text = "\n".join(turn.text for turn in turns)
        yield {"id": f"sim-{seed}-{number}", "user_id": customer["user_id"], "text": text, "spans": spans}


def _simulate_dialogue(customers: CustomerGenerator, customer: dict[str, str]) -> list[DialogueTurn]:
    phrases, draw, values = _load_dialogues(), customers.random_source, customers.draw_template_values(customer)

    def draw_turn(speaker: str, *choices: Sequence[str]) -> DialogueTurn:
        return _fill_template(speaker + " ".join(filter(None, map(draw.choice, choices))), values)

    turns = [draw_turn(_SYSTEM, phrases["greetings"])]
    hello = [phrases["hellos"]]
    rounds = 2 if draw.random() < _SECOND_QUESTION_SHARE else 1
    for issue in draw.choices(phrases["issues"], [issue["weight"] for issue in phrases["issues"]], k=rounds):
        turns.append(draw_turn(_USER, *hello, issue["openings"]))
        for detail_name in draw.choice(issue["asked"]):
            turns.append(draw_turn(_SYSTEM, phrases["asks"][detail_name]))
            turns.append(draw_turn(_USER, phrases["answers"][detail_name]))
        turns.append(draw_turn(_SYSTEM, issue["resolutions"], phrases["more"]))
        hello = []
    turns.append(draw_turn(_USER, phrases["thanks"]))
    if draw.random() < _GOODBYE_SHARE:
        turns.append(draw_turn(_SYSTEM, phrases["goodbyes"]))
    return turns


def _fill_template(template: str, values: Mapping[str, str]) -> DialogueTurn:
    text, spans, labels = "", list[tuple[int, int, str]](), _load_dialogues()["secret_labels"]
    for literal, name, _, _ in Formatter().parse(template):
        text += literal
        if name is not None:
            if name in labels:
                spans.append((len(text), len(text) + len(values[name]), labels[name]))
            text += values[name]
    return DialogueTurn(text, tuple(spans))

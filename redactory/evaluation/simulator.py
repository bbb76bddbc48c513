"""A simulated support corpus with exact ground truth, in the spirit of CRT's CustomerSim (CRT, section 5.1).

Every person, address and number is invented.  Rows come one after another from a generator, so a million
of them need no memory, and the same seed gives the same bytes.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

from redactory.evaluation import dialogue_templates as say
from redactory.evaluation.people import Customer, People
from redactory.evaluation.planting import CANARY_DIGITS as CANARY_DIGITS
from redactory.evaluation.planting import CANARY_TEMPLATE as CANARY_TEMPLATE
from redactory.evaluation.planting import DEFAULT_TEMPLATE, Canary, CanaryPlan, sets_of
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import commit, write_json
from redactory.foundation.progress import Progress, silent

CANARY_LABEL = "CANARY"
_SYSTEM, _USER = "SYS: ", "USR: "
_SECOND_QUESTION_SHARE = 0.25
_GOODBYE_SHARE = 0.7
_PROGRESS_ROWS = 1000


@dataclass(frozen=True)
class Turn:
    """One utterance: its text and the spans (start, end, label) in it."""

    text: str
    spans: tuple[tuple[int, int, str], ...] = ()
    missed: bool = False


@dataclass(frozen=True)
class Simulation:
    """``rows`` ({id, user_id, text, spans}, to be read once) and ``canaries`` as their file holds them."""

    rows: Iterator[dict[str, Any]]
    canaries: dict[str, Any]


def canary_file(corpus: Path) -> Path:
    """Where the canaries of a simulated corpus lie: its name with ``.canaries.json`` behind."""
    return corpus.with_name(f"{corpus.name}.canaries.json")


def simulate_customersim(
    rows: int,
    seed: int,
    canaries: int = 0,
    copies: int = 1,
    miss_rate: float = 0.0,
    templates: Sequence[str] = (DEFAULT_TEMPLATE,),
) -> Simulation:
    """``rows`` support dialogues, with ``copies`` of each of ``canaries`` random numbers hidden in them.

    A row's ``spans`` are [{start, end, label, value}] in code points, in order, not overlapping, and
    ``text[start:end] == value``; the labels are those of ``SECRET_LABELS`` and ``CANARY``.  A canary is
    a user's turn "My ID is: <6 digits>" (CRT, section 5.4), as many of each of ``templates``; as many control
    canaries are drawn and never inserted.  The dialogues around the canaries are those that the seed gives
    without them.

    A canary is one that a policy is to miss with probability ``miss_rate`` (CRT, Figure 3): its spans have
    ``"missed": true``, for a policy made from labelled rows to go by.  Whether it is depends on the seed
    and the rate alone, and whatever a rate makes missed a higher rate does too.

    Raises ``ConfigurationError`` for negative numbers, canaries without rows, more canaries than the digits
    can tell apart, a rate outside [0, 1], a template that is none.
    """
    if rows < 0 or canaries < 0 or copies < 1:
        raise ConfigurationError("simulate: rows and canaries must be at least 0, copies at least 1")
    if canaries and not rows:
        raise ConfigurationError("simulate: canaries need at least one row to stand in")
    draw = random.Random(f"canaries-{seed}")
    plan = CanaryPlan.drawn(draw, rows, canaries, copies, miss_rate, templates, seed)
    return Simulation(_rows(rows, seed, plan.planted, draw), plan.told)


def write_simulation(
    out: str | os.PathLike[str],
    rows: int,
    seed: int,
    canaries: int = 0,
    copies: int = 1,
    progress: Progress = silent,
    miss_rate: float = 0.0,
    templates: Sequence[str] = (DEFAULT_TEMPLATE,),
) -> dict[str, Any]:
    """Write :func:`simulate_customersim` to ``out`` as JSON lines, and the canaries beside it.

    Returns counts: {rows, users, bytes, secrets: {label: n}, canaries, canaries_missed, copies, seed, out,
    canaries_file}; ``canaries`` are those of one template.
    """
    simulation = simulate_customersim(rows, seed, canaries, copies, miss_rate, templates)
    secrets: Counter[str] = Counter()
    users = 0
    out = Path(out)
    with commit(out) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for number, row in enumerate(simulation.rows, start=1):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            secrets.update(span["label"] for span in row["spans"])
            users = max(users, int(row["user_id"].removeprefix("cust-")))
            if number % _PROGRESS_ROWS == 0 or number == rows:
                progress("simulate", number, rows, "rows")
    write_json(canary_file(out), simulation.canaries)
    return {
        "rows": rows,
        "users": users,
        "bytes": out.stat().st_size,
        "secrets": dict(sorted(secrets.items())),
        "canaries": canaries,
        "canaries_missed": sum(len(one["missed"]) for one in sets_of(simulation.canaries)),
        "copies": copies,
        "seed": seed,
        "out": str(out),
        "canaries_file": str(canary_file(out)),
    }


def _rows(
    rows: int, seed: int, planted: Mapping[int, Sequence[Canary]], place: random.Random
) -> Iterator[dict[str, Any]]:
    people = People(seed)
    for number, customer in zip(range(rows), people.visits(), strict=False):
        turns = _dialogue(people, customer)
        for canary in planted.get(number, ()):
            turns.insert(place.randrange(1, len(turns)), _canary_turn(canary))
        text, spans = _join(turns)
        yield {"id": f"sim-{seed}-{number}", "user_id": customer.user_id, "text": text, "spans": spans}


def _dialogue(people: People, customer: Customer) -> list[Turn]:
    draw = people.draw
    values = {
        "name": customer.name,
        "first": customer.first,
        "phone": customer.phone,
        "address": customer.address,
        "email": customer.email,
        "new_address": people.new_address(),
        "order": people.new_order_number(),
        "tracking": people.new_tracking_number(),
        "item": draw.choice(say.ITEMS),
        "when": draw.choice(say.WHEN),
    }

    def turn(speaker: str, *choices: tuple[str, ...]) -> Turn:
        return _fill(speaker + " ".join(filter(None, map(draw.choice, choices))), values)

    turns = [turn(_SYSTEM, say.GREETINGS)]
    hello: tuple[tuple[str, ...], ...] = (say.HELLOS,)
    rounds = 2 if draw.random() < _SECOND_QUESTION_SHARE else 1
    for issue in draw.choices(say.ISSUES, say.ISSUE_WEIGHTS, k=rounds):
        turns.append(turn(_USER, *hello, issue.openings))
        for field in draw.choice(issue.asked):
            turns += [turn(_SYSTEM, say.ASKS[field]), turn(_USER, say.ANSWERS[field])]
        turns.append(turn(_SYSTEM, issue.resolutions, say.MORE))
        hello = ()
    turns.append(turn(_USER, say.THANKS))
    if draw.random() < _GOODBYE_SHARE:
        turns.append(turn(_SYSTEM, say.GOODBYES))
    return turns


def _fill(template: str, values: dict[str, str]) -> Turn:
    """The template with its fields filled, and the spans of those that are secrets."""
    text = ""
    spans: list[tuple[int, int, str]] = []
    for literal, field, _, _ in Formatter().parse(template):
        text += literal
        if field is None:
            continue
        if field in say.SECRET_LABELS:
            spans.append((len(text), len(text) + len(values[field]), say.SECRET_LABELS[field]))
        text += values[field]
    return Turn(text, tuple(spans))


def _canary_turn(canary: Canary) -> Turn:
    text = _USER + canary.before + canary.digits
    return Turn(text, ((len(text) - len(canary.digits), len(text), CANARY_LABEL),), canary.missed)


def _join(turns: list[Turn]) -> tuple[str, list[dict[str, Any]]]:
    """One line a turn, and every span moved to where its turn begins."""
    text = "\n".join(turn.text for turn in turns)
    spans: list[dict[str, Any]] = []
    offset = 0
    for turn in turns:
        for start, end, label in turn.spans:
            value = turn.text[start:end]
            span = {"start": offset + start, "end": offset + end, "label": label, "value": value}
            spans.append({**span, "missed": True} if turn.missed else span)
        offset += len(turn.text) + 1
    return text, spans

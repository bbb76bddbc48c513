"""Small worlds that can be computed whole: laws on the line, and hypergraphs of a few points."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from redactory.training.uedp.entities import Mention
from redactory.training.uedp.incidence import Incidence, IncidenceBuilder

World = dict[int, tuple[int, frozenset[int]]]
"""Points by id: their user and their entities."""
Law = dict[float, float]
"""Probabilities by place."""


def hypergraph(world: World, priorities: dict[int, int] | None = None) -> Incidence:
    """``world`` as the product holds it; the priority of a point follows from its id."""
    collector = IncidenceBuilder()
    for point, (user, entities) in sorted(world.items()):
        priority = mixed(point) if priorities is None else priorities[point]
        collector.add(point, priority, [unit(user)], [Mention(unit(1000 + e), f"L{e % 3}") for e in sorted(entities)])
    return collector.build()


def mixed(point: int) -> int:
    """A fixed 64-bit scramble of an id."""
    value = (point + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    value = (value ^ value >> 31) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
    return value ^ value >> 29


def unit(number: int) -> bytes:
    return number.to_bytes(16, "big")


def without_user(world: World, user: int) -> World:
    return {point: row for point, row in world.items() if row[0] != user}


def without_entity(world: World, entity: int) -> World:
    return {point: row for point, row in world.items() if entity not in row[1]}


def kept_ids(incidence: Incidence, kept: NDArray[np.bool_]) -> set[int]:
    return set(incidence.example_ids[kept].tolist())


def hockey_stick(p: Law, q: Law, deviation: float, epsilon: float) -> float:
    """∫ (p − e^ε·q)₊ of two mixtures of Gaussians, on a fine grid."""
    places = [*p, *q]
    x = np.linspace(min(places) - 9 * deviation, max(places) + 9 * deviation, 40_001)

    def density(law: Law) -> NDArray[np.float64]:
        parts = [w * np.exp(-((x - m) ** 2) / (2 * deviation**2)) for m, w in law.items()]
        return np.asarray(np.sum(parts, axis=0)) / (deviation * np.sqrt(2 * np.pi))

    return float(np.maximum(density(p) - np.exp(epsilon) * density(q), 0.0).sum() * (x[1] - x[0]))


def sampled_sum(values: Sequence[float], rate: float) -> Law:
    """The law of a Poisson-sampled sum of ``values``, by every subset."""
    law: Law = {0.0: 1.0}
    for value in values:
        law = added(
            (place, w * c) for place, w in law.items() for place, c in ((place, 1 - rate), (place + value, rate))
        )
    return law


def added(parts: Iterable[tuple[float, float]]) -> Law:
    law: Law = {}
    for place, weight in parts:
        place = round(place, 12)
        law[place] = law.get(place, 0.0) + weight
    return law


def convolved(one: Law, other: Law) -> Law:
    return added((a + b, v * w) for (a, v), (b, w) in itertools.product(one.items(), other.items()))


def repeated(law: Law, steps: int) -> Law:
    """The law of the sum of ``steps`` independent draws."""
    whole: Law = {0.0: 1.0}
    for _ in range(steps):
        whole = convolved(whole, law)
    return whole

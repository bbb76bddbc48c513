"""Exact epsilons at 50 digits: tests/training/accounting/exact_epsilons.json, for both accountants.

    python benchmarks/exact_epsilons.py OUT.json [--first 0] [--settings 200]

``--first`` is the number of the first setting that is drawn: parts can be computed side by side.

Of one noisy step M(z) = E_P (dP/dQ)^z is an integral over the line, by the trapezoidal rule (its error falls
exponentially); of T steps

    delta(eps) = 1/(2 pi i) * integral over c + iR of M(z)^T e^(-z eps) / (z (z + 1)) dz,  c > 0,

by the same rule, in fixed-point arithmetic of 200 bits.  Nothing is cut into a grid of losses; nothing is
shared with the product but the formula of the pair of worlds (docs/guarantees.md).  Where every point is in
every step (q = 1) the closed form is taken.  Settings of which M falls off too slowly for a minute's work
(few steps at a small rate) are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

import mpmath as mp
import numpy as np

mp.mp.dps = 50
BITS = 200
ONE = 1 << BITS
SMALL = mp.mpf(10) ** -28
MOST_WORK = 1_200_000


@dataclass(frozen=True)
class Setting:
    """What is accounted: so many steps at a rate and a noise, under a relation, at a delta."""

    relation: str
    sampling_rate: float
    noise: float
    steps: int
    delta: float

    @property
    def shift(self) -> int:
        """How many clips the sums of the two worlds lie apart where every point is in every step."""
        return 2 if self.relation == "substitution" else 1


def worlds(own: Setting, order: int) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """(weight, mean) of the parts of P and Q, so that log dP/dQ rises."""
    q = own.sampling_rate
    there = [(1.0 - q, 0.0), (q, 1.0)]
    if own.relation == "substitution":
        return there, [(1.0 - q, 0.0), (q, -1.0)]
    return (there, [(1.0, 0.0)]) if order == 0 else ([(1.0, 0.0)], [(1.0 - q, 0.0), (q, -1.0)])


def log_ratio(parts: list[tuple[float, float]], noise: float, x: np.ndarray) -> np.ndarray:
    """log of the density of ``parts`` against that of N(0, noise²), at each ``x``."""
    terms = [math.log(w) + (m * x - m * m / 2) / noise**2 for w, m in parts if w > 0.0]
    return np.logaddexp.reduce(terms, axis=0)


def exact_ratio(parts: list[tuple[float, float]], noise: mp.mpf, x: mp.mpf) -> mp.mpf:
    """:func:`log_ratio` at 50 digits."""
    # 1 - q is taken from q at 50 digits, as the worlds' weights are
    rest = 1 - mp.fsum(mp.mpf(w) for w, m in parts if m)
    return mp.log(
        mp.fsum((mp.mpf(w) if m else rest) * mp.exp((m * x - mp.mpf(m) ** 2 / 2) / noise**2) for w, m in parts)
    )


class TooSlow(Exception):
    """M falls off too slowly for this many nodes."""


class Inversion:
    """delta(eps) of T steps in one order, at a tilt c that suits ``about``, a near value of epsilon."""

    def __init__(self, own: Setting, order: int, about: float) -> None:
        self.own, s, steps = own, own.noise, own.steps
        p, q = worlds(own, order)
        x = np.linspace(-40 * s - 2, 40 * s + 2, 40_001) if s > 1 else np.linspace(-60, 60, 120_001)
        base = log_ratio(p, s, x) - x**2 / (2 * s**2)
        loss = log_ratio(p, s, x) - log_ratio(q, s, x)

        def tilted(c: float) -> tuple[float, float, float, np.ndarray]:
            logs = base + c * loss
            weights = np.exp(logs - logs.max())
            top = logs.max() + math.log(weights.sum()) - (base.max() + math.log(np.exp(base - base.max()).sum()))
            weights /= weights.sum()
            mean = float((weights * loss).sum())
            return top, mean, float((weights * (loss - mean) ** 2).sum()), logs

        def bound(log_c: float) -> float:
            c = math.exp(log_c)
            return steps * tilted(c)[0] - c * about + c * log_c - (1 + c) * math.log1p(c)

        grid = np.linspace(math.log(0.05), math.log(5e5), 160)
        self.c = c = math.exp(float(grid[int(np.argmin([bound(g) for g in grid]))]))
        _, _, variance, logs = tilted(c)
        inside = x[logs > logs.max() - 75]
        low, high = float(inside[0]), float(inside[-1])
        if low <= x[1] or high >= x[-2]:
            raise TooSlow
        deviation = math.sqrt(steps * variance)
        # the distance after which the sum of aliases is under 1e-25 of delta
        period = max(
            24 * deviation + 60 / (c + 1) + 4 * float(np.ptp(loss[logs > logs.max() - 60])),
            (90 - math.log(own.delta)) / c,
        )
        self.step = 2 * math.pi / period
        most = 12 / deviation + 3 * self.step
        steepest = own.shift / s**2
        width = min(0.9 * math.pi * s**2, 8 * s)
        self.theta = 0
        for _ in range(7):
            apart = 2 * math.pi * width / (100 + most * width * steepest)
            if (high - low) / apart * most / self.step > MOST_WORK:
                raise TooSlow
            values = self._spectrum(p, q, low, high, apart, most)
            if values is not None:
                self.values = values
                return
            most *= 1.7
        raise TooSlow

    def _spectrum(self, p: list, q: list, low: float, high: float, apart: float, most: float) -> list | None:
        """(z, (M(z)/M(c))^T) at c + ij·step; None where it has not fallen off by ``most``."""
        s, c = mp.mpf(self.own.noise), mp.mpf(self.c)
        count = int((high - low) / apart) + 2
        xs = [mp.mpf(low) + k * mp.mpf(apart) for k in range(count)]
        there = [exact_ratio(p, s, x) for x in xs]
        losses = [a - exact_ratio(q, s, x) for a, x in zip(there, xs, strict=True)]
        logs = [a - x**2 / (2 * s**2) + c * loss for a, x, loss in zip(there, xs, losses, strict=True)]
        weights = [mp.exp(v) for v in logs]
        total = mp.fsum(weights)
        self.log_moment = mp.log(total * mp.mpf(apart) / (s * mp.sqrt(2 * mp.pi)))
        step = mp.mpf(self.step)

        def fixed(values: list) -> np.ndarray:
            return np.array([int(mp.floor(v * ONE)) for v in values], object)

        real, imaginary = fixed([w / total for w in weights]), fixed([mp.mpf(0)] * count)
        turn_r, turn_i = (fixed([turn(step * v) for v in losses]) for turn in (mp.cos, mp.sin))
        found = []
        for place in range(int(most / self.step) + 1):
            value = mp.mpc(int(real.sum()), int(imaginary.sum())) / ONE
            power = value**self.own.steps
            found.append((mp.mpc(c, place * step), power))
            if abs(power) < SMALL:
                return found
            real, imaginary = (
                (real * turn_r - imaginary * turn_i) >> BITS,
                (real * turn_i + imaginary * turn_r) >> BITS,
            )
        return None

    def log_delta(self, epsilon: mp.mpf) -> mp.mpf:
        """log delta(``epsilon``); minus infinity where the sum is not positive."""
        parts = [(f * mp.exp(-1j * z.imag * epsilon) / (z * (z + 1))).real for z, f in self.values]
        total = 2 * mp.fsum(parts) - parts[0]
        if total <= 0:
            return mp.ninf
        return self.own.steps * self.log_moment - self.c * epsilon + mp.log(total * mp.mpf(self.step) / (2 * mp.pi))


def gaussian_log_delta(mu: mp.mpf, epsilon: mp.mpf) -> mp.mpf:
    """The closed form for N(0, 1) against N(``mu``, 1)."""
    return mp.log(mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu))


def root(log_delta, delta: float, about: float) -> mp.mpf:
    """Where ``log_delta`` is log ``delta``; 0 where it begins below."""
    wanted = mp.log(mp.mpf(delta))
    return mp.findroot(
        lambda e: log_delta(e) - wanted,
        (mp.mpf(about), mp.mpf(about) * mp.mpf("1.001") + mp.mpf("1e-9")),
        tol=1e-24,
        maxsteps=60,
    )


def exact(own: Setting, about: float) -> mp.mpf:
    """The smallest epsilon of ``own``, both orders; ``about``, a near value, says where to look."""
    if own.sampling_rate == 1.0:
        mu = own.shift * mp.sqrt(own.steps) / mp.mpf(own.noise)
        return root(lambda e: gaussian_log_delta(mu, e), own.delta, about)
    orders = (0,) if own.relation == "substitution" else (0, 1)
    found = [Inversion(own, order, about) for order in orders]
    # at the larger of the two epsilons the delta of its order is the larger one
    worst = max(found, key=lambda one: one.log_delta(mp.mpf(about)))
    return root(worst.log_delta, own.delta, about)


def drawn(rng: random.Random) -> Setting:
    """A setting; a tenth of them have every point in every step."""
    rate = 1.0 if rng.random() < 0.1 else 10 ** rng.uniform(-4, 0)
    noise = 10 ** rng.uniform(-0.2, 1.0)
    steps = round(10 ** rng.uniform(0, 5))
    if rate == 1.0:
        noise *= math.sqrt(steps)
    return Setting(rng.choice(["substitution", "add_or_remove"]), rate, noise, steps, 10 ** rng.uniform(-15, -3))


def main() -> None:
    """Write the file, a setting at a time, so that what is computed is kept."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--settings", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    from redactory.training.accounting import Spending, compare_examples
    from redactory.training.mechanisms.mechanism import PoissonGaussian, Relation

    rows, place = [], args.first
    while len(rows) < args.settings:
        own = drawn(random.Random(place))
        place += 1
        spent = Spending(PoissonGaussian(own.sampling_rate, own.noise, 1.0, 1.0), own.steps)
        about = compare_examples((spent,), Relation(own.relation)).estimate_epsilon(own.delta)
        if not 1e-3 < about < 100:
            continue
        try:
            value = exact(own, about)
        except TooSlow:
            print(place, "too slow", own, flush=True)
            continue
        rows.append({**own.__dict__, "epsilon": mp.nstr(value, 30)})
        print(place, own, about, mp.nstr(value, 12), f"{about / float(value) - 1:.2e}", flush=True)
        args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

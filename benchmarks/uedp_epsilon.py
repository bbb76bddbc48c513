"""Epsilon against steps, by accounting alone: as published, sound, and of bounded contributions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from line_plot import Axes, Line, line_plot

from redactory.training.accounting.published_epsilons import compute_moments_epsilon
from redactory.training.mechanisms.users import EntitySampling, PoissonUsersGaussian
from redactory.training.uedp.bounded_accounting import BoundedTraining, confirm_zero_out_epsilon, suggest_cap
from redactory.training.uedp.federated_accounting import confirm_federated_epsilon
from redactory.training.unit_settings import PrivacyUnit

COLOURS = {
    "noiseless": "#444444",
    "de-identification": "#8a8a8a",
    "user-level": "#b58900",
    "uedp-alg1": "#cb4b16",
    "uedp-alg1-all-users": "#d33682",
    "uedp-bounded": "#268bd2",
}
Z, USER_RATE, ENTITY_RATE, DELTA, MOST = 2.0, 0.05, 0.5, 1e-5, 500


def curves(table: Mapping[str, Any]) -> dict[str, Any]:
    """Epsilon at some numbers of steps, from the counts of a corpus (a row of the table of data sets).

    Algorithm 1 has the paper's noise z = 2, q_u = 0.05 and q_e = 0.5; ``bounded`` the same noise on the mean
    in units of its clip, the same sampling rate, and caps k = n/U for users and entities alike.
    """
    users, points = table["users"], table["examples"]
    share = table["points_with_an_entity"] / points
    zeta = Z * (USER_RATE * users + 1.0)
    cap = suggest_cap(points, users)
    sigma = zeta / (USER_RATE * users) * USER_RATE * points
    spread = int(table["most_users_of_an_entity"])
    rate = USER_RATE * ENTITY_RATE * share
    rows = []
    # about twenty, closer together at the start
    for steps in sorted({round(float(n)) for n in np.geomspace(1, MOST, 20)}):
        own = BoundedTraining(USER_RATE, sigma, steps, cap, cap)
        rows.append(
            {
                "steps": steps,
                "as_published": compute_moments_epsilon(rate, Z, steps, DELTA),
                "sound": _alg1(zeta, users, None, steps),
                "sound_enforced_spread": _alg1(zeta, users, spread, steps),
                "bounded": confirm_zero_out_epsilon(own, DELTA).value,
            }
        )
    return {
        "corpus": table["corpus"],
        "users": users,
        "examples": points,
        "sensitive_share": share,
        "z": Z,
        "user_rate": USER_RATE,
        "entity_rate": ENTITY_RATE,
        "delta": DELTA,
        "zeta": zeta,
        "M": spread,
        "k": cap,
        "sigma": sigma,
        "noise_on_the_mean_in_clips": zeta / (USER_RATE * users),
        "rows": rows,
    }


def _alg1(zeta: float, users: int, cap: int | None, steps: int) -> float | None:
    entities = EntitySampling(ENTITY_RATE, 1.0, cap)
    mechanism = PoissonUsersGaussian(
        sampling_rate=USER_RATE, noise_multiplier=zeta, clip_norm=1.0, normaliser=1.0, users=users, entities=entities
    )
    return confirm_federated_epsilon(mechanism, steps, DELTA, PrivacyUnit.BOTH).value


def drawn(told: Mapping[str, Any]) -> str:
    """The plot of :func:`curves`."""

    def line(key: str, name: str, colour: str, style: str = "-") -> Line:
        return Line(name, colour, [(r["steps"], r[key]) for r in told["rows"] if r[key]], style)

    title = f"{told['corpus']}: epsilon of a user and an entity together, against steps"
    note = (
        f"{told['users']} users, q_u = {USER_RATE}, q_e = {ENTITY_RATE}, z = {Z:g}, delta = {DELTA:g}; "
        "the same noise on the mean, in clips"
    )
    return line_plot(
        [
            line("sound", "Algorithm 1, sound, M = |U|", COLOURS["uedp-alg1-all-users"]),
            line("sound_enforced_spread", f"Algorithm 1, sound, M = {told['M']}", COLOURS["uedp-alg1"]),
            line("as_published", "as published: no guarantee", "#888888", "--"),
            line("bounded", f"uedp-bounded, k = {told['k']}", COLOURS["uedp-bounded"]),
        ],
        Axes(title, "steps T", "epsilon", True, True, notes=(note,), ticks=(1, 10, 100, MOST)),
    )

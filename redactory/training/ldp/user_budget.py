"""What one user's messages may spend together, in training and queries: booked before the first one leaves.

A card's epsilon is that of one sentence.  Here the unit is the user: two worlds differ in every sentence of
hers, and the mechanisms of all her messages compose (``docs/guarantees.md``, "Local differential privacy").
"""

from __future__ import annotations

import hmac
import math
import os
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from redactory.foundation.errors import GuaranteeError
from redactory.foundation.files import make_private_folder, sync, write_bytes
from redactory.foundation.keys import forms_of
from redactory.foundation.wording import upwards
from redactory.training.accounting import Spending, Spendings
from redactory.training.accounting.bounds import gaussian_epsilon
from redactory.training.budget import Budget, BudgetExceeded, exchanged
from redactory.training.ldp.accounting import booked
from redactory.training.ldp.settings import LdpSettings
from redactory.training.mechanism import Mechanism, PoissonGaussian
from redactory.training.settings import BudgetSettings

Purpose = Literal["train", "query"]
UNIT = "one user: all her messages, in training and queries, every sentence of hers exchanged for another"
_WHAT = {"train": "training", "query": "queries"}
_KEY, _KEY_BYTES = "names.key", 32


def spending_of(settings: LdpSettings, sentences: int) -> Spendings:
    """What the messages of ``sentences`` of one user spend; a query is sent as a training sentence is.

    Coins that show are booked as the most that they can send.
    """
    spent = booked(settings.noise(), settings.vectors, settings.participation)
    return tuple(replace(one, steps=one.steps * sentences) for one in spent)


def together(spent: Spendings, delta: float) -> float | None:
    """Epsilon of everything that one user ``spent``; None where it is not finite.

    Sends that are certain are one Gaussian, whose curve is exact: GDP √(Σ steps·(2/z)²).  With others among
    them it is that of the composed privacy loss distributions.
    """
    counts: Counter[Mechanism] = Counter()
    for one in spent:
        counts[one.mechanism] += one.steps
    if all(isinstance(mechanism, PoissonGaussian) and mechanism.sampling_rate == 1.0 for mechanism in counts):
        mu = math.sqrt(sum(n * (2.0 / mechanism.noise_multiplier) ** 2 for mechanism, n in counts.items()))
        found = gaussian_epsilon(mu, delta)
        return found if math.isfinite(found) else None
    return exchanged(tuple(Spending(mechanism, n) for mechanism, n in counts.items()), delta)


class UserBudget:
    """One user's chain of bookings at ``limits.path``, held against ``limits.epsilon`` at ``limits.delta``.

    Formal guarantees: as long as the file is kept and every message of the user is booked here, all of them
    together are (``limits.epsilon``, ``limits.delta``)-DP for the user.  A booking is on the disk before
    :meth:`book` returns, and is never taken back: after a crash, messages count as sent.
    """

    def __init__(self, limits: BudgetSettings, earlier: Sequence[Path] = ()) -> None:
        self._limits = limits
        # booked under another spelling of the user's name, by an earlier version
        self._before = tuple(
            one
            for path in earlier
            for one in Budget(limits.model_copy(update={"path": path}), UNIT, together).spent()
        )
        self._chain = Budget(limits, UNIT, self._together)

    def _together(self, spent: Spendings, delta: float) -> float | None:
        return together((*self._before, *spent), delta)

    def require_room(self, purpose: Purpose, settings: LdpSettings, sentences: int) -> None:
        """``BudgetExceeded`` where messages of ``sentences`` would go over the limit; nothing is written."""
        spent = (*self._chain.spent(), *spending_of(settings, sentences))
        found = self._together(spent, self._limits.delta)
        if found is None or found > self._limits.epsilon:
            raise self._refusal(purpose, sentences, found)

    def book(self, purpose: Purpose, settings: LdpSettings, sentences: int) -> None:
        """Book the messages of ``sentences`` that are about to leave, or ``BudgetExceeded``.

        Each call is a booking of its own: messages that are made again carry new noise.
        """
        for spent in spending_of(settings, sentences):
            if not spent.steps:
                continue
            try:
                self._chain.reserve(secrets.token_hex(16), f"{sentences} {_WHAT[purpose]}", spent)
            except BudgetExceeded:
                found = self._together((*self._chain.spent(), spent), self._limits.delta)
                raise self._refusal(purpose, sentences, found) from None

    def epsilon(self) -> float | None:
        """Epsilon of the user for all that was booked so far, at the limit's delta."""
        return self._together(self._chain.spent(), self._limits.delta)

    def _refusal(self, purpose: Purpose, sentences: int, found: float | None) -> BudgetExceeded:
        limits, before = self._limits, self.epsilon()
        told = "infinite" if found is None else upwards(found)
        return BudgetExceeded(
            f"budget {limits.path.name}: with the {_WHAT[purpose]} of {sentences} more sentences epsilon of "
            f"this user would be {told} at delta {limits.delta:g}; the limit is {limits.epsilon:g}, of which "
            f"{upwards(before or 0.0)} is spent. Nothing was sent for this user."
        )


class BudgetFolder:
    """The budgets of several users, a file each, named by a digest of the user under the folder's own key.

    Two spellings of a name that Unicode calls the same are one user: what either has booked counts.
    ``GuaranteeError`` where the key is not whole and there are files: nobody's count could be found.
    """

    def __init__(self, folder: Path, epsilon: float, delta: float) -> None:
        self._folder, self._epsilon, self._delta = make_private_folder(folder), epsilon, delta
        self._key = _key(folder / _KEY)

    def of(self, user: str) -> UserBudget:
        """The budget of ``user``; text without an id is that of the user ``""``."""
        own, *others = self._paths(user)
        limits = BudgetSettings(path=own, epsilon=self._epsilon, delta=self._delta)
        return UserBudget(limits, [path for path in others if path.exists()])

    def others_than(self, user: str) -> bool:
        """Whether somebody besides ``user`` has booked here."""
        return any(path not in self._paths(user) for path in self._folder.glob("*.jsonl"))

    def require_room(self, settings: LdpSettings, sentences: Mapping[str, int]) -> None:
        """``BudgetExceeded`` where the training messages of any user's ``sentences`` go over her limit."""
        for user, count in sentences.items():
            self.of(user).require_room("train", settings, count)

    def most(self, users: Sequence[str]) -> float | None:
        """The largest epsilon that any of ``users`` has spent; None where one is not finite."""
        found = [self.of(user).epsilon() for user in users]
        return None if None in found else max((one for one in found if one is not None), default=0.0)

    def _paths(self, user: str) -> list[Path]:
        """The file of ``user``, and those of other spellings of the same name."""
        forms = (form.encode("utf-8", "backslashreplace") for form in forms_of(user))
        names = (hmac.digest(self._key, form, "sha256").hex()[:32] for form in forms)
        return [self._folder / f"{name}.jsonl" for name in names]


def _key(path: Path) -> bytes:
    """The key of the file names, made once; whoever comes second takes the first one's."""
    if not path.exists() and not any(path.parent.glob("*.jsonl")):
        fresh = path.with_name(f"{secrets.token_hex(8)}.new")
        write_bytes(fresh, secrets.token_bytes(_KEY_BYTES))
        with suppress(FileExistsError):
            os.link(fresh, path)
        fresh.unlink()
        sync(path.parent)
    found = path.read_bytes() if path.exists() else b""
    if len(found) != _KEY_BYTES:
        raise GuaranteeError(
            f"budget {path.parent.name}: {_KEY} is missing or broken, so that what was spent is found no "
            "more: restore it from a copy"
        )
    return found

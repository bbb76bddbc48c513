"""The budget file: what all models trained on one corpus have spent, and what is left.

A chain of records (``foundation/records.py``): a head with the unit, and one ``reserved`` record for each
training, written before its first noisy step. A reservation is never undone: drawn noise is spent, whatever
happened to the model (``docs/guarantees.md``, "Several models").
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redactory.foundation.bounds import format_upper, round_up
from redactory.foundation.errors import CheckFailed, GuaranteeError, RunStateError
from redactory.foundation.records import Record, RecordLog, read_records
from redactory.training.accounting import Spending, Spendings, compare_examples, compare_units, confirm_epsilon
from redactory.training.count_selection import CountSelection
from redactory.training.guarantee.spec import IN_PRIVATE_SPLIT, TrainingSpec
from redactory.training.mechanisms.mechanism import Relation, parse_mechanism_json
from redactory.training.settings import BudgetSettings, TrainSettings
from redactory.training.unit_settings import PrivacyUnit

FORMAT = "redactory-budget/1"
HEAD, RESERVED = "head", "reserved"
_LOCK_TIMEOUT = 20.0
_NOTHING_TRAINED = "Nothing was trained."
_NOTHING_SELECTED = (
    "Nothing was counted: select less often (once a month, over the month's rows), raise the budget, or let "
    "policies decide (route.strategy: policies), with another dedup.index if there is one."
)


class BudgetExceeded(CheckFailed):
    """The training would spend more than the budget has left; nothing was trained."""


class Budget:
    """The record at ``settings.path``, compared with ``settings.epsilon`` at ``settings.delta``.

    Every epsilon covers one ``unit`` in all trainings together. For examples it is one exchanged example, which
    also covers ``crt-drop``, whose masked examples are a special case of an exchange. For other units, the unit's
    examples are null in the other world, K of them in each training.
    """

    def __init__(
        self, settings: BudgetSettings, unit: str, is_removal: bool = False, protects_entities: bool = False
    ) -> None:
        self._settings, self._unit, self._is_removal = settings, unit, is_removal
        self._protects_entities = protects_entities

    @classmethod
    def from_settings(cls, settings: TrainSettings) -> Budget | None:
        """Return the budget that a training's settings name, for what that training protects; None without one."""
        if settings.budget is None:
            return None
        # of trainings whose vocabulary is public or not, all protect the examples of the private split
        spec = TrainingSpec(settings, None, 0, public=False)
        hides = spec.trainer.hides_units
        hides_entities = hides and spec.protected_unit is not PrivacyUnit.USERS
        return cls(settings.budget, spec.privacy_unit_description, hides, hides_entities)

    def require_available_budget(self, training: str, spending: Spending | None, refusal: str | None = None) -> None:
        """Raise ``BudgetExceeded`` if ``spending`` exceeds the budget; write nothing.

        A training without a guarantee, because of ``refusal`` or without a mechanism, would spend without bound.
        """
        if refusal is not None or spending is None:
            reason = refusal or "it has no privacy mechanism that can be composed"
            raise BudgetExceeded(
                f"{training} cannot be trained under a budget: {reason}. Nothing was trained: fix that, or "
                "remove train.budget"
            )
        self._require_remaining_budget(self._read_reservations(), training, spending)

    def require_reservation(self, identity: str, training: str, advice: str = _NOTHING_TRAINED) -> None:
        """Raise ``BudgetExceeded`` if ``training``, which another one starts from, is not in the record."""
        if not any(body["id"] == identity for body in self._read_reservations()):
            raise BudgetExceeded(
                f"budget {self._settings.path}: {training} is not recorded in it, so its spending is not "
                f"counted. {advice}"
            )

    def reserve_spending(
        self, identity: str, training: str, spending: Spending, advice: str = _NOTHING_TRAINED
    ) -> None:
        """Reserve ``spending`` under ``identity``, only once, if there is room.

        ``identity`` names one training for good (the digest of its ledger's head), so a resumed training finds its own
        reservation. ``advice`` completes the error if there is no room.
        """
        with self._open_log() as log:
            known = self._parse_records(log.records)
            if any(body["id"] == identity for body in known):
                return
            spent = self._require_remaining_budget(known, training, spending, advice)
            if not log.records:
                log.append(HEAD, {"format": FORMAT, "unit": self._unit})
            body = {
                "id": identity,
                "training": training,
                "mechanism": spending.mechanism.to_json(),
                "steps": spending.steps,
                "rows": spending.rows,
                "delta": self._settings.delta,
                "epsilon_after": spent,
            }
            log.append(RESERVED, body)

    def reserve_selection(self, selection: CountSelection, run: str) -> None:
        """Reserve the selection by counts of ``run``, once, at its cost for the budget's unit.

        ``GuaranteeError`` if it does not hide such a unit: entities are not counted by user.
        """
        if self._protects_entities:
            raise GuaranteeError(
                "route.strategy: counts of users do not hide entities, so a budget of entities cannot cover "
                "them: protect users (train.units.privacy_unit), or remove the budget"
            )
        spending = selection.compute_user_spending() if self._is_removal else selection.compute_example_spending()
        self.reserve_spending(selection.id, f"{run}/public by count", spending, _NOTHING_SELECTED)

    def compute_epsilon(self, spendings: Spendings) -> float | None:
        """Compute the epsilon of ``spendings`` at the budget's delta, twice; None if it is not finite."""
        delta = self._settings.delta
        compared = (
            compare_units(spendings, 1) if self._is_removal else compare_examples(spendings, Relation.SUBSTITUTION)
        )
        return confirm_epsilon(compared, delta, "the budget").value

    def summarize(self) -> dict[str, Any]:
        """Return {unit, epsilon, delta, spent, trainings}: the limit, and what is spent of it, rounded up.

        ``trainings`` are {training, steps, delta, epsilon_after} in order; the last one is what was spent at that
        ``delta`` with this training. ``spent`` is for all together: 0 if nothing is reserved, null if it is not finite.
        """
        known, delta = self._read_reservations(), self._settings.delta
        spent = self.compute_epsilon(_parse_spendings(known))
        columns = ("training", "steps", "delta", "epsilon_after")
        return {
            "unit": self._unit,
            "epsilon": self._settings.epsilon,
            "delta": delta,
            "spent": None if spent is None else round_up(spent, places=4),
            "trainings": [{name: body[name] for name in columns} for body in known],
        }

    def _require_remaining_budget(
        self, reservations: list[dict[str, Any]], training: str, spending: Spending, advice: str = _NOTHING_TRAINED
    ) -> float:
        before, delta = _parse_spendings(reservations), self._settings.delta
        epsilon = self.compute_epsilon((*before, spending))
        if epsilon is None or epsilon > self._settings.epsilon:
            already = self.compute_epsilon(before) or 0.0
            cost = "infinite" if epsilon is None else format_upper(epsilon, places=4)
            models = ", ".join(dict.fromkeys(body["training"] for body in reservations)) or "nothing"
            raise BudgetExceeded(
                f"budget {self._settings.path.name}: {training} would raise epsilon to {cost} at delta "
                f"{format_upper(delta)}; the budget is {format_upper(self._settings.epsilon)}, of which "
                f"{format_upper(already, places=4)} is spent ({models}). {advice}"
            )
        return round_up(epsilon, places=4)

    def _read_reservations(self) -> list[dict[str, Any]]:
        """Read the reservations; none if there is no file yet."""
        path = self._settings.path
        return self._parse_records(read_records(path)) if path.exists() else []

    def _parse_records(self, records: list[Record]) -> list[dict[str, Any]]:
        """Parse the reservations; ``GuaranteeError`` if the file is of another kind of unit or delta."""
        if not records:
            return []
        head, rest = records[0], records[1:]
        if head.type != HEAD or head.body.get("format") != FORMAT or any(r.type != RESERVED for r in rest):
            raise GuaranteeError(f"{self._settings.path.name} is not a budget file of this version")
        if head.body["unit"] not in (self._unit, self._unit.removesuffix(f", {IN_PRIVATE_SPLIT}")):
            raise GuaranteeError(
                f"{self._settings.path.name} counts another privacy unit ('{head.body['unit']}'): use another"
            )
        if others := {record.body["delta"] for record in rest} - {self._settings.delta}:
            raise GuaranteeError(
                f"{self._settings.path.name} counts at delta {format_upper(min(others))}, but "
                f"train.budget.delta is {format_upper(self._settings.delta)}: set the same, or use another "
                "file"
            )
        return [record.body for record in rest]

    @contextmanager
    def _open_log(self) -> Iterator[RecordLog]:
        """Open the file, locked; wait for another training that is reserving at this moment."""
        end = time.monotonic() + _LOCK_TIMEOUT
        while True:
            try:
                # the folder is the user's own to link to
                path = self._settings.path
                log = RecordLog(path.parent.resolve() / path.name)
                break
            except RunStateError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
        with log:
            yield log


def _parse_spendings(reservations: list[dict[str, Any]]) -> Spendings:
    spendings = []
    for body in reservations:
        mechanism = parse_mechanism_json(body["mechanism"])
        if mechanism.samples_users:
            raise GuaranteeError("the budget describes a mechanism that cannot be composed")
        spendings.append(Spending(mechanism, body["steps"], body["rows"]))
    return tuple(spendings)

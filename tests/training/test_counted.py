"""A training on a run that is public by count: one composition, no detector, each selection once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant

from redactory.foundation.errors import GuaranteeError
from redactory.pipelines.evaluate import _p_value
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.redaction.sealing import seal
from redactory.redaction.shards import COUNTED, parts, write_part
from redactory.training import train_model
from redactory.training.accounting import Spending, epsilon_of, group_epsilon_of
from redactory.training.accounting.second import one_exchanged
from redactory.training.counted import Selection, lost
from redactory.training.data import public_occurrences, public_texts
from redactory.training.guarantee.budget import Budget
from redactory.training.guarantee.card import guarantee_page
from redactory.training.guarantee.compose import composed_card
from redactory.training.mechanism import PoissonGaussian, Relation, mechanism_from_json
from redactory.training.settings import BudgetSettings
from tests.training.conftest import PUBLIC_TEXTS, small, write_run

OWN = Selection.calibrated(1.0, 1e-6, 4)
ROUTE: dict[str, Any] = {"by": "count", "epsilon": 1.0, "delta": 1e-6, "texts_per_user": 4}
TEXTS = [*PUBLIC_TEXTS[:10], f"my name is {MASK}"]


def counted_run(root: Path, name: str) -> RunFolder:
    """A run whose public side was counted, with a mask in one text."""
    route = {**ROUTE, **OWN.to_json(), "id": name.encode().hex().zfill(32)}
    run = write_run(
        root / name,
        public=TEXTS,
        policies={"strict": {"hash": "a"}, "conservative": {"hash": "b"}},
        route=route,
    )
    columns = {
        "point_id": [f"p{n}" for n in range(len(TEXTS))],
        "text": TEXTS,
        "users": [70 + n for n in range(len(TEXTS))],
    }
    write_part(run.public / "part-00000.parquet", pa.table(columns, schema=COUNTED))
    body = {
        "format": "redactory-run/1",
        "blind": {"kinds": {}, "languages": {}},
        "policies": {"strict": {"hash": "a"}, "conservative": {"hash": "b"}},
        "dedup": {"mode": "exact", "scope": "corpus", "rule": "S1", "group_size": 1},
        "route": route,
    }
    seal(run, body, [path for folder in (run.public, run.private, run.vault) for path in parts(folder)])
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """With two models, the second under a budget."""
    made = counted_run(tmp_path_factory.mktemp("counted"), "monday")
    train_model(made, unseeded(public_epoch="occurrences"))
    return made


def unseeded(**changes: Any) -> Any:
    return small(**{"seed": None, "group_sizes": (2,), **changes})


def test_selection_and_training_are_one_composition() -> None:
    """Against dp_accounting: the Gaussians of both together, at what the threshold leaves of delta."""
    training = Spending(PoissonGaussian(0.01, 1.0, 1.0, 256.0), 200)
    found = one_exchanged((training, OWN.of_point()), 1e-5, Relation.SUBSTITUTION, "test").value
    assert found is not None
    accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0)), 200)
    accountant.compose(dp_event.GaussianDpEvent(math.sqrt(2.0) * OWN.deviation))
    d = lost(OWN.deviation, OWN.threshold, 1)
    assert found == pytest.approx(accountant.get_epsilon(1e-5 - d) - math.log1p(-d), rel=0.01)
    # less than the sum of both, more than either
    alone = one_exchanged((training,), 1e-5, Relation.SUBSTITUTION, "test").value
    assert alone is not None
    assert alone < found < alone + OWN.epsilon(1e-6)


def test_what_is_not_proved_of_a_selection_is_refused() -> None:
    for wrong in (
        lambda: epsilon_of((OWN.of_point(),), 1e-5, Relation.ADD_OR_REMOVE),
        lambda: group_epsilon_of((OWN.of_point(),), 1e-5, 2),
        lambda: mechanism_from_json({**OWN.of_point().mechanism.to_json(), "clip_norm": 2}),
    ):
        with pytest.raises(GuaranteeError):
            wrong()
    for one in (OWN.of_point(), OWN.of_user()):
        assert mechanism_from_json(one.mechanism.to_json()) == one.mechanism


def test_the_card_has_a_figure_for_every_secret_and_no_detector(run: RunFolder) -> None:
    from redactory.training.guarantee.card import guarantee_card

    card = guarantee_card(run, "crt")
    spent = (Spending(PoissonGaussian(0.25, 1.0, 1.0, 256.0), 8), OWN.of_point())
    assert card["epsilon_confidentiality"] == one_exchanged(spent, 1e-5, Relation.SUBSTITUTION, "test").value
    assert (card["holds"], card["coverage_failure"], card["epsilon_group"]) == (True, 0.0, {"2": None})
    assert {card[name] for name in ("epsilon", "epsilon_substitution", "epsilon_bayesian")} == {
        card["epsilon_confidentiality"]
    }
    assert "both policies missed them" not in " ".join(card["not_covered"])
    assert "Counts of users" in guarantee_page(card)
    assert _p_value(run, "crt", {"canaries": 9, "by_share": []}, "epsilon") is None


def test_noise_is_found_for_both_together(tmp_path: Path) -> None:
    made = counted_run(tmp_path, "wednesday")
    card = train_model(made, unseeded(noise_multiplier=None, epsilon=3.0))["guarantee"]
    assert 2.97 < card["epsilon_confidentiality"] <= 3.0


def test_what_trains_publicly_is_the_text_and_its_noisy_number(run: RunFolder) -> None:
    assert list(public_texts(run)) == TEXTS
    assert public_occurrences(run).tolist() == [70 + n for n in range(len(TEXTS))]


def test_each_selection_is_composed_once_and_booked_once(run: RunFolder, tmp_path: Path) -> None:
    budget = BudgetSettings(path=tmp_path / "budget", epsilon=50.0)
    train_model(run, unseeded(name="again", budget=budget))
    train_model(run, unseeded(name="third", budget=budget))
    known = Budget.of(unseeded(budget=budget))
    assert known is not None
    assert [one["training"] for one in known.summary()["trainings"]] == [
        "monday/public by count",
        "monday/again",
        "monday/third",
    ]
    own = Spending(PoissonGaussian(0.25, 1.0, 1.0, 256.0), 8)
    both = composed_card([(run, "crt"), (run, "again")])
    due = one_exchanged((own, own, OWN.of_point()), 1e-5, Relation.SUBSTITUTION, "test").value
    assert both["epsilon_confidentiality"] == pytest.approx(due, rel=1e-6)
    by_policy = write_run(
        tmp_path / "tuesday", policies={"strict": {"hash": "a"}, "conservative": {"hash": "b"}}
    )
    train_model(by_policy, unseeded())
    with pytest.raises(GuaranteeError, match="ways to decide what is public"):
        composed_card([(run, "crt"), (by_policy, "crt")])

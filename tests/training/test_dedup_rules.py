"""What the card makes of each rule of deduplication: figures where it is stable, what is lost where not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from redactory.dedup import RULES
from redactory.dedup.settings import Mode
from redactory.foundation.errors import CheckFailed
from redactory.redaction.shards import EXAMPLES, write_part
from redactory.training import make_guarantee_card, train_model
from redactory.training.accounting import Spending
from redactory.training.data import count_public_occurrences
from redactory.training.guarantee import WORDS
from redactory.training.mechanisms.mechanism import PoissonGaussian, Relation
from redactory.training.trainers import TRAINERS
from tests.training.accounting.worlds import prove_epsilon, prove_group_epsilon
from tests.training.conftest import make_small_settings, write_run

OWN = PoissonGaussian(0.25, 1.0, 1.0, 256.0)
FIGURES = ("epsilon_confidentiality", "epsilon_bayesian", "epsilon_substitution", "epsilon_add_remove")


def card_of(folder: Path, mode: Mode, trainer: str = "crt", **manifest: Any) -> dict[str, Any]:
    rule = RULES[mode]
    dedup = {"mode": mode, "scope": "corpus", "rule": rule.name, "group_size": rule.group_size, **manifest}
    run = write_run(folder / "RUN", dedup=dedup)
    train_model(run, make_small_settings(seed=None, group_sizes=(2,), trainer=trainer))
    return make_guarantee_card(run, trainer)


def test_under_s2_every_figure_is_of_two_points_exchanged(tmp_path: Path) -> None:
    card = card_of(tmp_path, "folded")
    assert card["epsilon_substitution"] == prove_group_epsilon((Spending(OWN, 8),), 1e-5, 2, 2)
    # the chain leaves too little delta for the main accountant: the proved bound is printed
    assert card["epsilon_group"]["2"] == prove_group_epsilon((Spending(OWN, 8),), 1e-5, 4, 4)
    assert card["accountants"]["alone"] == ["epsilon_group 2"]
    assert card["epsilon_add_remove"] == prove_epsilon((Spending(OWN, 8),), 1e-5, Relation.SUBSTITUTION)
    assert card["epsilon_bayesian"] == pytest.approx(card["epsilon_substitution"])
    assert card["epsilon_substitution"] > 1.5 * prove_epsilon((Spending(OWN, 8),), 1e-5, Relation.SUBSTITUTION)  # type: ignore[operator]
    assert card["sensitivity"] == 4.0
    assert any("rule S2" in text and "at most two" in text for text in card["assumptions"])


@pytest.mark.parametrize("mode", ["minhash", "bloom"])
def test_a_mode_without_a_proof_has_no_figure_and_says_what_is_lost(tmp_path: Path, mode: Mode) -> None:
    card = card_of(tmp_path, mode)
    for name in (*FIGURES, "epsilon_group"):
        reason = card["reasons"][name]
        assert "no finite epsilon" in reason
        assert f"({mode})" in reason
        assert "without a stability proof" in reason
    assert all(card[name] is None for name in FIGURES)
    assert card["epsilon_group"] == {"2": None}


def test_a_rule_with_another_size_than_it_proves_has_no_figure(tmp_path: Path) -> None:
    card = card_of(tmp_path, "folded", group_size=1)
    assert card["epsilon_substitution"] is None
    assert "not a known stable rule" in card["reasons"]["epsilon_substitution"]


def test_every_rule_has_its_words() -> None:
    stable = {rule.name for rule in RULES.values() if rule.group_size is not None}
    assert set(WORDS["deduplication"]) == stable
    assert set(WORDS["lost"]) == {rule.name for rule in RULES.values()} - stable


def test_dpsgd_trains_on_originals_whatever_the_rule(tmp_path: Path) -> None:
    card = card_of(tmp_path, "minhash", trainer="dpsgd")
    assert card["epsilon_substitution"] == prove_epsilon((Spending(OWN, 8),), 1e-5, Relation.SUBSTITUTION)
    assert card["sensitivity"] == 2.0


def test_noise_is_calibrated_to_what_one_point_exchanges() -> None:
    own = make_small_settings(noise_multiplier=None, epsilon=4.0)
    one, two = (TRAINERS["crt"].calibrate_noise(own, 8, rows) for rows in (1, 2))
    assert one < two
    found: Any = prove_group_epsilon((Spending(PoissonGaussian(0.25, two, 1.0, 1.0), 8),), 1e-5, 2, 2)
    assert 3.99 < found <= 4.0


@pytest.mark.parametrize(
    ("origin", "expected"), [({"dup_of": 0}, [2]), ({"earlier_run": "000001-a"}, [1]), ({"dup_of": None}, None)]
)
def test_occurrences_of_public_texts_need_to_be_known(
    origin: dict[str, Any], expected: list[int] | None, tmp_path: Path
) -> None:
    """A copy of an example of an earlier run has no row to count."""
    run = write_run(tmp_path / "RUN", public=["so"])
    row = {"example_id": 0, "released_id": "p0", "document": "d", "user": "u", "split": "public", "decision": "public"}
    copy = {**row, "example_id": 1, "released_id": "p1", "decision": "duplicate", **origin}
    write_part(run.examples / "part-00000.parquet", pa.Table.from_pylist([row, copy], EXAMPLES))
    if expected is None:
        with pytest.raises(CheckFailed, match="public_weighting: unique"):
            count_public_occurrences(run)
    else:
        assert count_public_occurrences(run).tolist() == expected


INDEX: dict[str, Any] = {
    "id": "0123456789abcdef",
    "runs": ["000001-a", "000002-b"],
    "duplicate_earlier": {"public": 1, "private": 2},
}


def test_an_index_leaves_the_figures_and_says_what_composes(tmp_path: Path) -> None:
    with_it, without = (card_of(tmp_path / name, "exact", index=index) for name, index in (("a", INDEX), ("b", None)))
    assert {name: with_it[name] for name in FIGURES} == {name: without[name] for name in FIGURES}
    said, channel = " ".join(with_it["assumptions"]), with_it["side_channels"][22]
    assert channel["channel"] == "an index or warm start from earlier runs"
    assert "2 earlier runs of the index 0123456789abcdef" in channel["ensured_by"]
    assert channel["ensured_by"] in said
    assert any("for this model alone" in text and "2 earlier runs" in text for text in with_it["not_covered"])
    assert "no index" in without["side_channels"][22]["ensured_by"]
    assert len(with_it["not_covered"]) == len(without["not_covered"]) + 1


def test_an_index_says_nothing_where_it_did_not_choose_the_private_texts(tmp_path: Path) -> None:
    for number, (mode, trainer) in enumerate((("none", "crt"), ("exact", "dpsgd"))):
        card = card_of(tmp_path / str(number), mode, trainer, index=INDEX)  # type: ignore[arg-type]
        assert INDEX["id"] not in str(card)
    one = card_of(tmp_path / "one", "exact", index={**INDEX, "runs": ["000001-a"]})
    assert "1 earlier run of the index" in str(one["assumptions"])

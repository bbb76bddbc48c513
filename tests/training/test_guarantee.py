"""The card says what the ledger proves, null with a reason otherwise, and refuses what does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.evaluation.report import list_promises
from redactory.foundation.bounds import format_upper
from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.foundation.records import Record, RecordLog, compute_chain_head, read_records
from redactory.redaction.folder import RunFolder
from redactory.training import RecallMeasurement, TrainSettings, make_guarantee_card, render_guarantee_page, train_model
from redactory.training.accounting import Spending
from redactory.training.guarantee.compose import make_composed_card
from redactory.training.guarantee.metrics import EpsilonInputs, compute_epsilons, compute_unit_metrics
from redactory.training.guarantee.spec import MissRates, TrainingSpec
from redactory.training.mechanisms.mechanism import PoissonGaussian, Relation
from tests.training.accounting.worlds import prove_epsilon
from tests.training.conftest import make_small_settings, write_run

FIELDS = {
    "epsilon_confidentiality",
    "epsilon_bayesian",
    "coverage_failure",
    "epsilon_substitution",
    "epsilon_add_remove",
}
OWN = PoissonGaussian(0.25, 1.0, 1.0, 256.0)
GOOD = RecallMeasurement(labels=400_000, missed_by_strict=20_000, missed_by_both=0)


@pytest.fixture(scope="module")
def unseeded(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    run = write_run(tmp_path_factory.mktemp("unseeded") / "RUN")
    train_model(run, make_small_settings(seed=None, group_sizes=(2,)))
    return run


def trained_card(
    root: Path, recall: RecallMeasurement | None = None, changes: dict[str, Any] | None = None, **run: Any
) -> dict[str, Any]:
    """The card of a training without a seed on a run of its own."""
    made = write_run(root / "RUN", **run)
    settings = make_small_settings(**{"seed": None, **(changes or {})})
    train_model(made, settings)
    return make_guarantee_card(made, settings.model_name, recall)


def test_the_figures_are_those_of_the_ledger(unseeded: RunFolder) -> None:
    card = make_guarantee_card(unseeded, "crt")
    assert card["holds"] is True
    assert card["epsilon_substitution"] == prove_epsilon((Spending(OWN, 8),), 1e-5, Relation.SUBSTITUTION)
    assert card["epsilon_add_remove"] == prove_epsilon((Spending(OWN, 8),), 1e-5, Relation.ADD_OR_REMOVE)
    assert card["epsilon_add_remove"] < card["epsilon_substitution"] < card["epsilon_group"]["2"]
    assert (card["sensitivity"], card["clip_norm"], card["steps"]) == (2.0, 1.0, 8)
    assert card["sampler_run"] == card["sampler_accounted"] == "poisson"
    assert card["ledger"]["head"] == compute_chain_head(unseeded.get_model_folder("crt").ledger)
    assert len(card["side_channels"]) == 25
    json.dumps(card, allow_nan=False)


def test_without_measured_recall_nothing_is_promised_for_every_secret(unseeded: RunFolder) -> None:
    card = make_guarantee_card(unseeded, "crt")
    for name in ("epsilon_confidentiality", "coverage_failure"):
        assert card[name] is None
        assert "not measured" in card["reasons"][name]
    assert card["miss_rates"]["gamma_upper"] == 1.0
    assert card["epsilon_bayesian"] == pytest.approx(card["epsilon_substitution"])


@pytest.mark.filterwarnings("error:.*encountered:RuntimeWarning")
def test_a_training_with_next_to_no_noise_has_a_card_with_the_reason(tmp_path: Path) -> None:
    card = trained_card(tmp_path, changes={"noise_multiplier": 0.002, "group_sizes": (2,)})
    assert card["epsilon"] is None
    assert "the noise is too small" in card["reasons"]["epsilon"]
    assert "the noise is too small" in render_guarantee_page(card)


def test_a_measurement_gives_figures_only_above_its_upper_bound(unseeded: RunFolder) -> None:
    few = RecallMeasurement(labels=30_552, missed_by_strict=1500, missed_by_both=0)
    card = make_guarantee_card(unseeded, "crt", few)
    assert card["coverage_failure"] == pytest.approx(9.8e-5, rel=1e-2)
    assert card["epsilon_confidentiality"] is None
    assert "not above" in card["reasons"]["epsilon_confidentiality"]
    many = make_guarantee_card(unseeded, "crt", GOOD)
    assert many["coverage_failure"] < 1e-5
    assert many["epsilon_bayesian"] < many["epsilon_confidentiality"] < many["epsilon_substitution"]


def test_over_a_run_that_is_blind_to_names_no_coverage_is_stated(tmp_path: Path) -> None:
    """Before, labels without names in them gave a coverage; no engine there could have found a name."""
    uncovered = {"kinds": {"PERSON": ["es"]}, "languages": {"es": 1.0}}
    card = trained_card(tmp_path, GOOD, uncovered=uncovered)
    assert card["uncovered"].startswith("Not covered: no engine and no rule")
    assert card["coverage_failure"] is None
    assert card["reasons"]["coverage_failure"] == card["uncovered"] == card["recall"]
    assert card["epsilon_confidentiality"] is None
    assert card["miss_rates"] == {"gamma_upper": 1.0, "delta_2_upper": None, "measured": None}
    assert render_guarantee_page(card).partition("# crt\n\n")[2].startswith(f"> **{card['uncovered']}**")


ROUTED = {"strategy": "count", "deviation": 9.0, "threshold": 60, "texts_per_user": 1, "id": "0" * 32}


@pytest.mark.parametrize("known_in", [None, "example", "document"])
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("route", [None, ROUTED, {**ROUTED, "strategy": "both"}])
@pytest.mark.parametrize("language", ["en", "de"])
def test_where_something_is_blind_to_names_a_measurement_is_worth_nothing(
    language: str, route: dict[str, Any] | None, everything: bool, known_in: str | None
) -> None:
    """Whatever decides what is public, and whichever kinds: the rates are those of no measurement."""
    seen = {
        "configuration": {"detect": {"language": language}},
        "policies": {"strict": {}, "conservative": {"flags_everything": everything}},
        "known_in": known_in,
        **({} if route is None else {"route": route}),
    }
    hidden = 0.0 if route else None
    for kinds in (
        {"PERSON": [language]},
        {"LOCATION": ["fr", language]},
        {"PERSON": [language], "ORGANIZATION": ["es"]},
    ):
        blind = {**seen, "uncovered": {"kinds": kinds, "languages": {language: 1.0}}}
        for recall in (GOOD, None):
            assert MissRates.from_run(recall, blind) == MissRates(1.0, hidden)
    elsewhere = {**seen, "uncovered": {"kinds": {"PERSON": ["fr"]}, "languages": {"fr": 1.0}}}
    sighted = {**seen, "uncovered": {"kinds": {}, "languages": {}}}
    if route is None:
        assert MissRates.from_run(GOOD, elsewhere) == MissRates(1.0, None)
        assert MissRates.from_run(None, sighted) == MissRates(1.0, 0.0 if everything else None)
    else:  # what languages the corpus is in follows from private text, and decides nothing
        assert MissRates.from_run(GOOD, elsewhere) == MissRates.from_run(GOOD, sighted)
    assert (MissRates.from_run(GOOD, sighted).gamma < 1.0) is (known_in != "document")


@settings(max_examples=40)
@given(*[st.tuples(st.floats(0.0, 1.0), st.none() | st.floats(0.0, 1.0))] * 2)
def test_the_larger_bounds_are_kept(one: tuple[float, float | None], other: tuple[float, float | None]) -> None:
    both = MissRates(*one).merge_larger_bounds(MissRates(*other))
    assert both == MissRates(*other).merge_larger_bounds(MissRates(*one))
    assert both.gamma == max(one[0], other[0])
    unknown = one[1] is None or other[1] is None
    assert both.delta_2 == (None if unknown else max(one[1] or 0.0, other[1] or 0.0))


def test_public_labels_are_named_as_what_is_not_covered(tmp_path: Path) -> None:
    configuration = {"detect": {"public_labels": ["ORGANIZATION", "DATE"]}}
    run = write_run(tmp_path / "RUN", configuration=configuration)
    train_model(run, make_small_settings(seed=None))
    card = make_guarantee_card(run, "crt", GOOD.model_copy(update={"public_labels": ("ORG", "DATE")}))
    assert card["public_labels"] == ["ORGANIZATION", "DATE"]
    assert "what is confidently ORGANIZATION or DATE does not count as a secret" in card["not_covered"][0]
    assert card["not_covered"][0] in render_guarantee_page(card)
    assert any("ORGANIZATION or DATE" in sentence for sentence in list_promises(card))
    with pytest.raises(ConfigurationError, match="measured with other public labels"):
        make_guarantee_card(run, "crt", GOOD)
    other = write_run(tmp_path / "other")
    train_model(other, make_small_settings(seed=None))
    with pytest.raises(GuaranteeError, match="the public labels of these models differ"):
        make_composed_card([(run, "crt"), (other, "crt")])
    assert make_composed_card([(run, "crt")])["public_labels"] == ["DATE", "ORGANIZATION"]


def test_a_policy_that_flags_everything_leaves_no_secret_uncovered(tmp_path: Path) -> None:
    policies = {"strict": {}, "conservative": {"flags_everything": True}}
    card = trained_card(tmp_path, policies=policies, public=[])
    assert card["coverage_failure"] == 0.0
    assert card["epsilon_confidentiality"] == pytest.approx(card["epsilon_substitution"])


def test_what_a_training_does_not_promise_has_its_reason(trained: RunFolder) -> None:
    seeded, plain, points = (make_guarantee_card(trained, name) for name in ("crt", "sgd", "dpsgd"))
    assert (seeded["seeded"], seeded["holds"]) == (True, False)
    assert "seed" in seeded["holds_reason"]
    assert seeded["epsilon_substitution"] > 0
    assert plain["holds"] is False
    assert plain["epsilon_group"] == {}
    assert all(plain[name] is None and "no noise" in plain["reasons"][name] for name in FIELDS)
    assert "no noise" in plain["reasons"]["epsilon_group"]
    # dpsgd on originals speaks of points and not of policies
    assert points["epsilon_substitution"] > 0
    assert points["epsilon_bayesian"] is points["epsilon_confidentiality"] is None
    assert "policies do not decide" in points["reasons"]["epsilon_confidentiality"]
    assert "not applicable" in points["reasons"]["coverage_failure"]


def test_rules_of_deduplication_that_this_card_does_not_rest_on(tmp_path: Path) -> None:
    none = {"mode": "none", "scope": "corpus", "rule": "none", "group_size": 1}
    card = trained_card(tmp_path / "none", dedup=none)
    assert card["epsilon_substitution"] is not None
    assert "rule S1" not in " ".join(card["assumptions"])
    assert "nothing is deduplicated" in " ".join(card["assumptions"])
    unknown = {"mode": "minhash", "scope": "corpus", "rule": "components", "group_size": None}
    card = trained_card(tmp_path / "unknown", dedup=unknown)
    assert all(card[name] is None for name in FIELDS)
    assert "stable" in card["reasons"]["epsilon_substitution"]


Change = Callable[[list[tuple[str, dict[str, Any]]]], None]


def rewritten(run: RunFolder, change: Change) -> None:
    """The ledger of ``crt`` with its records changed and its chain made whole again."""
    path = run.get_model_folder("crt").ledger
    records: list[Record] = read_records(path)
    bodies = [(record.type, record.body) for record in records]
    change(bodies)
    path.unlink()
    with RecordLog(path) as log:
        for kind, body in bodies:
            log.append(kind, body)


def _set(value: Any, number: int, *keys: str) -> Change:
    """A record's body with ``value`` at ``keys``."""

    def change(bodies: list[tuple[str, dict[str, Any]]]) -> None:
        body = bodies[number][1]
        for key in keys[:-1]:
            body = body[key]
        body[keys[-1]] = value

    return change


def promise_fewer(bodies: list[tuple[str, dict[str, Any]]]) -> None:
    bodies[0][1]["steps"] = bodies[-1][1]["steps"] = 7


CHANGES: dict[str, Change] = {
    "a step is missing": lambda bodies: bodies.__delitem__(3),
    "the last step is missing": lambda bodies: bodies.__delitem__(-2),
    "a step is there twice": lambda bodies: bodies.insert(3, bodies[3]),
    "no end": lambda bodies: bodies.__delitem__(-1),
    "fewer steps were promised": promise_fewer,
    "another sampler": _set("shuffle", 0, "sampler"),
    "a realised normaliser": _set("realised batch size", 0, "mechanism", "normaliser", "kind"),
    "another event": _set({"class": "GaussianDpEvent", "noise_multiplier": 1.0}, 4, "event"),
    "half the sensitivity": _set(1.0, 0, "mechanism", "sensitivity", "substitution"),
    "another run": _set("0" * 64, 0, "parent"),
    "other weights": _set("0" * 64, -1, "weights"),
    "a setting that is not known": _set(1, 0, "settings", "recall_file"),
}


@pytest.fixture(scope="module")
def tampered(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    run = write_run(tmp_path_factory.mktemp("tampered") / "RUN")
    train_model(run, make_small_settings())
    return run


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_ledger_that_does_not_fit_is_refused(change: Change, tampered: RunFolder) -> None:
    whole = tampered.get_model_folder("crt").ledger.read_bytes()
    try:
        rewritten(tampered, change)
        with pytest.raises(GuaranteeError):
            make_guarantee_card(tampered, "crt")
    finally:
        tampered.get_model_folder("crt").ledger.write_bytes(whole)


def test_a_broken_or_missing_ledger_is_refused(tampered: RunFolder) -> None:
    path = tampered.get_model_folder("crt").ledger
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"step":3', b'"step":4', 1))
    for spoil in (lambda: None, path.unlink):
        spoil()
        with pytest.raises(GuaranteeError):
            make_guarantee_card(tampered, "crt")
    path.write_bytes(whole)
    assert make_guarantee_card(tampered, "crt")["steps"] == 8


@pytest.mark.parametrize("name", ["crt", "dpsgd", "sgd"])
def test_the_page_says_what_the_card_says(name: str, trained: RunFolder) -> None:
    card = make_guarantee_card(trained, name)
    page = render_guarantee_page(card)
    assert page.startswith("---\n")
    assert card["holds_reason"] in page
    stated = {"crt": FIELDS, "dpsgd": {"epsilon_substitution", "epsilon_add_remove"}, "sgd": set()}[name]
    for field in FIELDS:
        assert (f"({field})" in page) == (field in stated)
        if field not in stated:
            continue
        if card[field] is None:
            assert card["reasons"][field] in page
        else:
            assert format_upper(card[field]) in page


def test_recall_settings_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="missed_by_both"):
        RecallMeasurement(labels=10, missed_by_strict=2, missed_by_both=3)
    path = tmp_path / "recall.json"
    path.write_text(json.dumps({"labels": 10, "missed_by_strict": 2, "missed_by_both": 0}), encoding="utf-8")
    expected = RecallMeasurement(labels=10, missed_by_strict=2, missed_by_both=0)
    assert TrainSettings.model_validate({"detector_recall_file": path}).detector_recall_file == expected
    misses = {"n": 10, "gamma": {"misses": 2}, "delta_2": {"misses": 0}, "confidence": 0.95}
    path.write_text(json.dumps({"misses": misses, "left": {}, "date": None}), encoding="utf-8")
    assert TrainSettings.model_validate({"detector_recall_file": path}).detector_recall_file == expected
    for wrong in ("[]", "{", '{"misses": {"n": 3}}'):
        path.write_text(wrong, encoding="utf-8")
        with pytest.raises(ValueError, match="recall"):
            TrainSettings.model_validate({"detector_recall_file": path})


def test_a_fitted_policy_is_named_as_a_side_channel(unseeded: RunFolder, tmp_path: Path) -> None:
    hashes = {"strict": "1", "conservative": "2"}
    fitted = {"date": "2030-01-02", "secrets": 2995, "rows": 3100, "policies": hashes}
    policies: dict[str, Any] = {name: {"hash": value} for name, value in hashes.items()}
    policies["conservative"]["fitted"] = fitted
    card = trained_card(tmp_path, policies=policies)
    told = card["side_channels"][1]
    assert told["channel"] == "policies tuned on private text"
    assert "fitted on 2030-01-02, to labels of 2,995 secrets" in told["ensured_by"]
    assert told["ensured_by"] in card["assumptions"]
    assert told["ensured_by"] in render_guarantee_page(card)
    plain = make_guarantee_card(unseeded, "crt")
    assert plain["side_channels"][1]["ensured_by"].startswith("assumed: policies are frozen")


@pytest.mark.parametrize("trainer", ["crt", "crt-drop", "dpsgd"])
def test_where_a_points_fate_follows_from_its_document_there_is_no_figure(tmp_path: Path, trainer: str) -> None:
    card = trained_card(tmp_path, GOOD, {"group_sizes": (2,), "trainer": trainer}, known_in="document")
    assert card["holds"] is False
    assert all(card[name] is None for name in (*FIELDS, "epsilon"))
    assert card["epsilon_group"] == {"2": None}
    for name in ("epsilon", "epsilon_substitution", "epsilon_group"):
        assert "release.known_values" in card["reasons"][name]


def test_where_the_point_is_the_document_figures_are_of_documents(tmp_path: Path) -> None:
    declared = {"input": {"known_value_columns": {"name": "PERSON"}}}
    # measured on texts by themselves, which do not say what their rows declare
    card = trained_card(tmp_path, GOOD, known_in="example", configuration=declared)
    assert (card["coverage_failure"], card["miss_rates"]["gamma_upper"]) == (None, 1.0)
    assert card["unit"] == "one secret in one document, replaced by <MASK>"
    assert card["epsilon_substitution"] == prove_epsilon((Spending(OWN, 8),), 1e-5, Relation.SUBSTITUTION)
    assert any("a function of that document alone" in text for text in card["assumptions"])


@pytest.mark.parametrize(
    ("own", "hidden"),
    [
        ({"trainer": "user-level", "federated": {"users": 50}, "public_text": Path("donated.txt")}, True),
        ({"trainer": "crt"}, False),
    ],
)
def test_users_are_hidden_whatever_follows_from_their_documents(own: dict[str, Any], hidden: bool) -> None:
    spec = TrainingSpec.from_settings(
        make_small_settings(seed=None, **own), {"rule": "S1", "group_size": 1}, known_in="document"
    )
    assert (spec.refusal_reason is None) is hidden


BOUNDED = {"trainer": "uedp-bounded", "bounding": {"k_user": 4, "k_entity": 4}}
R_LOC = {**BOUNDED, "bounding": {"k_user": 4, "k_entity": 4, "rule": "r-loc", "entities_per_point": 2}}
FEDERATED = {"trainer": "user-level", "federated": {"users": 500, "user_rate": 0.05}}
ALGORITHM_1 = {"trainer": "uedp-alg1", "federated": {"users": 500, "user_rate": 0.05, "max_users_per_entity": 3}}


@pytest.mark.parametrize(
    "noise", [8.0, pytest.param(0.5, marks=pytest.mark.slow), pytest.param(0.1, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("trainer", [{"trainer": "crt"}, {"trainer": "dpsgd"}, BOUNDED, R_LOC, FEDERATED, ALGORITHM_1])
def test_a_figure_is_confirmed_by_a_second_accountant_or_listed_as_not(trainer: dict[str, Any], noise: float) -> None:
    training = TrainSettings(
        public_text="x.txt", noise_multiplier=noise, sampling_rate=0.01, expected_batch_size=10,
        group_sizes=(2,), **trainer,
    )  # fmt: skip
    spec = TrainingSpec.from_settings(training, {"rule": "S1", "group_size": 1}, 100)
    found = compute_unit_metrics(spec) if spec.trainer.hides_units else compute_epsilons(EpsilonInputs.from_spec(spec))
    restated = {"epsilon"} if spec.trainer.hides_units else set()
    assert all(found.values[name] == found.values["epsilon_sound"] for name in restated)
    for name in found.values.keys() - restated - {"epsilon_as_published"}:
        value = found.values[name]
        finite = [one for one in (value.values() if isinstance(value, dict) else [value]) if one is not None]
        once = {one.partition(" ")[0] for one in found.unconfirmed}
        assert bool(finite) == (bool(found.bounds.get(name)) or name in once), name


def test_too_little_noise_guarantees_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    card = train_model(run, make_small_settings(seed=None, noise_multiplier=1e-4))["guarantee"]
    assert card["epsilon"] is None
    assert not card["holds"]
    assert "the noise is too small" in card["holds_reason"]
    composed = make_composed_card([(run, "crt")])
    assert (composed["holds"], composed["holds_reason"]) == (False, card["holds_reason"])

"""A user's budget: what all their messages cost together, booked before the first one leaves, and kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from redactory.foundation.errors import CheckFailed, GuaranteeError
from redactory.training.accounting import Spending, Spendings
from redactory.training.accounting.bounds import compute_gaussian_epsilon
from redactory.training.guarantee.budget import Budget, BudgetExceeded
from redactory.training.ldp.accounting import FixedSends, HiddenSampling, VisibleSampling, make_message_spending
from redactory.training.ldp.settings import LdpSettings
from redactory.training.ldp.user import BudgetFolder, LdpClient, UserBudget, make_user_spending
from redactory.training.mechanisms.mechanism import Relation
from redactory.training.settings import BudgetSettings
from tests.training.accounting.worlds import prove_epsilon
from tests.training.conftest import read_spendings
from tests.training.ldp.ldp_sides import WordEncoder

AT_TWO = LdpSettings(noise_multiplier=2.0, classes=("no", "yes"), dimension=4)


def budget(path: Path, epsilon: float) -> UserBudget:
    return UserBudget(BudgetSettings(path=path, epsilon=epsilon, delta=1e-5))


def spent(own: UserBudget) -> float | None:
    path = own._settings.path
    return own.compute_epsilon(read_spendings(path) if path.exists() else ())


def compute_user_epsilon(spendings: Spendings, delta: float) -> float | None:
    return UserBudget(BudgetSettings(path=Path("absent"), epsilon=1.0, delta=delta)).compute_epsilon(spendings)


def test_training_and_queries_compose_and_what_goes_over_the_limit_is_not_booked(tmp_path: Path) -> None:
    path = tmp_path / "spent.jsonl"
    one = budget(path, 20.0)
    assert spent(one) == 0.0
    for purpose, sentences, expected in (("train", 1, 4.38), ("query", 2, 8.39), ("query", 7, 17.9)):
        one.reserve_messages(purpose, AT_TWO, sentences)  # type: ignore[arg-type]
        assert spent(one) == pytest.approx(expected, abs=0.05)
    tight = budget(tmp_path / "tight.jsonl", 8.38)
    tight.reserve_messages("train", AT_TWO, 2)
    before = (tmp_path / "tight.jsonl").read_bytes()
    with pytest.raises(
        BudgetExceeded,
        match=r"queries would raise epsilon to 8\.38[6-9].*budget is 8\.38.*\(training messages\)\. Nothing was sent",
    ):
        tight.reserve_messages("query", AT_TWO, 1)
    with pytest.raises(BudgetExceeded, match="Nothing was sent"):
        tight.require_room("query", AT_TWO, 1)
    assert (tmp_path / "tight.jsonl").read_bytes() == before
    budget(tmp_path / "tight.jsonl", 8.40).reserve_messages("query", AT_TWO, 1)
    with pytest.raises(BudgetExceeded, match="infinite"):
        tight.reserve_messages("train", LdpSettings(noise_multiplier=0.01), 5)


def test_it_is_booked_before_the_first_message_and_stays_booked(tmp_path: Path) -> None:
    path = tmp_path / "spent.jsonl"
    side = LdpClient(WordEncoder(), AT_TWO, budget=budget(path, 10.0))
    messages = side.make_training_messages(["alpha", "beta", "gamma"], [0, 1, 0])
    assert not path.exists()
    next(messages)
    del messages  # the process ends here: two messages never left
    assert spent(budget(path, 10.0)) == pytest.approx(8.39, abs=0.005)
    with pytest.raises(BudgetExceeded):
        next(LdpClient(WordEncoder(), AT_TWO, budget=budget(path, 10.0)).make_query_messages(["delta", "epsilon"]))


def test_a_torn_line_is_not_counted_and_a_changed_one_or_another_unit_s_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "spent.jsonl"
    budget(path, 20.0).reserve_messages("train", AT_TWO, 1)
    with path.open("ab") as file:
        file.write(b'{"seq":2,"prev"')  # a crash in the middle of an append
    assert spent(budget(path, 20.0)) == pytest.approx(4.38, abs=0.005)
    budget(path, 20.0).reserve_messages("train", AT_TWO, 2)
    assert spent(budget(path, 20.0)) == pytest.approx(8.39, abs=0.005)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1].replace('"steps":1', '"steps":0'), *lines[2:]]) + "\n")
    with pytest.raises(CheckFailed, match="breaks at line"):
        budget(path, 20.0).reserve_messages("train", AT_TWO, 1)
    limits = BudgetSettings(path=tmp_path / "other.jsonl", epsilon=50.0)
    Budget(limits, "one secret in one example").reserve_spending("a", "crt", make_user_spending(AT_TWO, 1))
    with pytest.raises(GuaranteeError, match="another privacy unit"):
        UserBudget(limits).reserve_messages("train", AT_TWO, 1)


def test_a_folder_holds_a_user_each_and_names_nobody(tmp_path: Path) -> None:
    folder, (composed, apart) = tmp_path / "budgets", ("Jos\u00e9", "Jose\u0301")
    budgets = BudgetFolder(folder, 5.0, 1e-5)
    budgets.open_budget(composed).reserve_messages("train", AT_TWO, 1)
    # two spellings of a name are one user
    assert list(folder.glob("*.jsonl")) == [budgets.get_path(apart)]
    again = BudgetFolder(folder, 5.0, 1e-5)
    with pytest.raises(BudgetExceeded):
        again.open_budget(apart).reserve_messages("query", AT_TWO, 1)
    again.open_budget("bob").reserve_messages("query", AT_TWO, 1)
    with pytest.raises(BudgetExceeded):
        again.open_budget("bob").require_room("train", AT_TWO, 1)
    names = {path.name for path in folder.glob("*.jsonl")}
    assert len(names) == 2
    assert not list(folder.glob("*.new"))
    written = b"".join(path.name.encode() + path.read_bytes() for path in folder.iterdir())
    assert not any(name in written for name in (b"Jos", b"bob"))
    other = BudgetFolder(tmp_path / "other", 5.0, 1e-5)
    other.open_budget("bob").reserve_messages("query", AT_TWO, 1)
    assert names.isdisjoint(path.name for path in (tmp_path / "other").glob("*.jsonl"))


@pytest.mark.parametrize("left", [None, b"short"])
def test_without_its_key_a_folder_with_bookings_forgets_nobody(tmp_path: Path, left: bytes | None) -> None:
    """A new key would name new files: every user's count would begin again."""
    folder = tmp_path / "budgets"
    BudgetFolder(folder, 5.0, 1e-5).open_budget("ann").reserve_messages("train", AT_TWO, 1)
    key = folder / "names.key"
    key.unlink()
    if left is not None:
        key.write_bytes(left)
    with pytest.raises(GuaranteeError, match=r"names\.key"):
        BudgetFolder(folder, 5.0, 1e-5)


def test_an_encoder_that_spent_on_private_text_has_no_budget(tmp_path: Path) -> None:
    made = WordEncoder()
    made.spendings = (make_user_spending(AT_TWO, 1),)
    with pytest.raises(GuaranteeError, match="public encoder"):
        LdpClient(made, AT_TWO, budget=budget(tmp_path / "spent.jsonl", 100.0))
    LdpClient(made, AT_TWO)


def test_visible_coins_are_booked_as_the_most_they_can_send_and_hidden_ones_compose() -> None:
    coins = VisibleSampling(kind="public_bernoulli", rate=0.1, steps=10)
    visible = LdpSettings(noise_multiplier=8.0, sampling=coins)
    fixed = LdpSettings(noise_multiplier=8.0, sampling=FixedSends(sends=10))
    assert make_user_spending(visible, 1) == make_user_spending(fixed, 1)
    assert compute_user_epsilon((make_user_spending(fixed, 1),), 1e-5) == pytest.approx(3.34, abs=0.005)
    hidden = LdpSettings(noise_multiplier=2.0, sampling=HiddenSampling(kind="secret_bernoulli", rate=0.1, steps=4))
    two = make_user_spending(hidden, 2)
    assert two.steps == 8
    straight = prove_epsilon((two,), 1e-5, Relation.SUBSTITUTION)
    assert compute_user_epsilon((make_user_spending(hidden, 1), make_user_spending(hidden, 1)), 1e-5) == straight
    assert compute_user_epsilon((two, make_user_spending(AT_TWO, 1)), 1e-5) > straight  # type: ignore[operator]
    classes = LdpSettings(
        noise_multiplier=2.0, sampling=HiddenSampling(kind="secret_bernoulli", rate=0.1, steps=4, classes=5)
    )
    assert compute_user_epsilon((make_user_spending(classes, 2),), 1e-5) > straight  # type: ignore[operator]


@given(
    parts=st.lists(st.tuples(st.sampled_from([1.0, 2.0, 5.0]), st.integers(1, 9)), min_size=1, max_size=4),
    pairs=st.booleans(),
)
@hypothesis_settings(max_examples=25, deadline=None)
def test_certain_sends_add_up_as_squares(parts: list[tuple[float, int]], pairs: bool) -> None:
    vectors = 2 if pairs else 1
    whole = tuple(Spending(make_message_spending(noise, vectors, FixedSends()).mechanism, n) for noise, n in parts)
    mu = sum(n * vectors * (2.0 / noise) ** 2 for noise, n in parts) ** 0.5
    exact = compute_gaussian_epsilon(mu, 1e-6)
    assert exact < compute_user_epsilon(whole, 1e-6) < 1.005 * exact

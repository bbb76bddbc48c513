"""The user's side: what leaves is the mechanism that is accounted, and nothing leaves unbooked."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from redactory.foundation.errors import GuaranteeError, InputError
from redactory.foundation.stream import RandomStream
from redactory.training.ldp.message import Message
from redactory.training.ldp.settings import LdpSettings
from redactory.training.ldp.user import UserSide
from tests.training.ldp.ldp_sides import DIMENSION, WordEncoder, settings_with, sides

HIDDEN = {"kind": "hidden", "rate": 0.3, "steps": 6}
VISIBLE = {"kind": "visible", "rate": 0.3, "steps": 6}
PARTICIPATIONS: list[dict[str, Any]] = [
    {"kind": "fixed", "sends": 1},
    {"kind": "fixed", "sends": 3},
    HIDDEN,
    VISIBLE,
]
LEVEL = 1e-6


class Books:
    """A budget that counts."""

    def __init__(self) -> None:
        self.booked: list[tuple[str, float | None, int]] = []

    def book(self, purpose: str, settings: LdpSettings, sentences: int) -> None:
        self.booked.append((purpose, settings.noise_multiplier, sentences))


def _sent(texts: Any, labels: list[int] | None = None, **changes: Any) -> list[Message]:
    user, _ = sides(**changes)
    return list(user.training_messages(texts, [0] * len(texts) if labels is None else labels))


# ------------------------------------------------------------------------------ the mechanism


@pytest.mark.parametrize(
    "participation", PARTICIPATIONS, ids=lambda p: f"{p['kind']}-{len(p)}-{p.get('sends')}"
)
@pytest.mark.parametrize("kind", ["latent", "token", "pairs"])
def test_an_exchanged_sentence_moves_its_own_messages_alone_and_no_further_than_accounted(
    participation: dict[str, Any], kind: str
) -> None:
    """Two worlds under the same draws: everything else is equal to the last bit."""
    changes: dict[str, Any] = {"participation": participation, "clip_norm": 0.5}
    rows: list[Any] = [f"word{n} again more" for n in range(9)]
    other: Any = "entirely different words"
    if kind == "token":
        changes["represent"] = "token"
    if kind == "pairs":
        changes["pairs"], rows, other = True, [(row, "second") for row in rows], (other, "otherwise")
    bound = 2 * 0.5 * (2**0.5 if kind == "pairs" else 1)
    ours = _sent(rows, **changes)
    theirs = _sent([*rows[:4], other, *rows[5:]], **changes)
    assert [(m.slot, m.step, m.label) for m in ours] == [(m.slot, m.step, m.label) for m in theirs]
    moved = {m.slot: 0.0 for m in ours}
    for mine, yours in zip(ours, theirs, strict=True):
        moved[mine.slot] = max(moved[mine.slot], float(np.linalg.norm(mine.values - yours.values)))
    assert sum(distance > 0 for distance in moved.values()) <= 1
    assert max(moved.values()) <= bound * (1 + 1e-5)
    if participation["kind"] != "visible":
        assert max(moved.values()) > 0


def test_what_stands_behind_the_cut_moves_nothing_and_an_empty_sentence_is_one() -> None:
    rows = ["one two three", "two three", ""]
    for kind in ("latent", "token"):
        first = _sent(rows, represent=kind)
        behind = _sent(["one two three four", "two three", ""], represent=kind)
        assert all(np.array_equal(a.values, b.values) for a, b in zip(first, behind, strict=True))
        moved = [
            float(np.linalg.norm(a.values - b.values))
            for a, b in zip(first, _sent(["", "two three", ""], represent=kind), strict=True)
        ]
        assert sorted(distance > 0 for distance in moved) == [False, False, True]
        assert max(moved) <= 2.0 * (1 + 1e-5)


def test_antipodal_sentences_reach_the_bounds() -> None:
    """2C, and 2√2·C for pairs: no smaller sensitivity would be true."""

    class Poles(WordEncoder):
        def represent(self, texts: Any, kind: str) -> torch.Tensor:
            if not isinstance(texts[0], str):
                return torch.stack([self.represent(pair, kind) for pair in texts])
            return torch.stack([torch.full((DIMENSION,), 9.0 if text == "north" else -9.0) for text in texts])

    def apart(one: Any, other: Any, **changes: Any) -> float:
        settings = settings_with(clip_norm=2.0, **changes)
        found = [next(UserSide(Poles(), settings).query_messages([text])).values for text in (one, other)]
        return float(np.linalg.norm(found[0] - found[1]))

    assert apart("north", "south") == pytest.approx(4.0, rel=1e-4)
    assert apart(("north",) * 2, ("south",) * 2, pairs=True) == pytest.approx(4.0 * 2**0.5, rel=1e-4)


def _residuals(messages: list[Message], clip: float) -> NDArray[np.float64]:
    vector = WordEncoder().represent(["one sentence"], "latent").numpy()[0].astype(np.float64)
    clean = vector * min(1.0, clip / np.linalg.norm(vector))
    return np.stack([message.values for message in messages]) - clean


def _has_deviation(residuals: NDArray[np.float64], deviation: float) -> bool:
    """A two-sided chi-squared test of N(0, deviation²), mean and all, at LEVEL."""
    statistic = float((residuals**2).sum()) / deviation**2
    tail = stats.chi2.cdf(statistic, residuals.size)
    shifted = abs(residuals.mean()) * residuals.size**0.5 / deviation
    return bool(LEVEL < tail < 1 - LEVEL and shifted < 6)


def test_noise_is_that_of_the_settings_and_a_tenth_less_is_told_from_it() -> None:
    found = _residuals(_sent(["one sentence"] * 1200, clip_norm=0.5, noise_multiplier=2.0), 0.5)
    assert _has_deviation(found, 1.0)
    assert not _has_deviation(found, 0.9)
    assert not _has_deviation(found + 0.1, 1.0)


def test_the_mean_of_four_sends_carries_what_one_send_at_half_the_noise_does() -> None:
    sent = _sent(["one sentence"] * 500, participation={"kind": "fixed", "sends": 4}, noise_multiplier=2.0)
    by_slot: dict[str, list[Any]] = {}
    for message in sent:
        by_slot.setdefault(message.slot, []).append(message.values)
    means = np.stack([np.mean(values, axis=0) for values in by_slot.values()])
    clean = _residuals(sent[:1], 1.0)[0] - sent[0].values
    assert _has_deviation(means + clean, 1.0)
    assert not _has_deviation(means + clean, 2.0)


@pytest.mark.parametrize("pairs", [False, True])
def test_what_is_no_text_is_refused_by_its_row_before_anything_leaves(pairs: bool) -> None:
    """Wherever it stands: a stream of messages that ends at it would tell of it."""
    books = Books()
    side = UserSide(WordEncoder(), settings_with(seed=None, pairs=pairs), budget=books)
    rows: Any = [f"word{n}" for n in range(600)]
    rows[598] = "half \ud800"
    rows = [(row, "other") for row in rows] if pairs else rows
    with pytest.raises(InputError, match="row 599"):
        next(side.training_messages(rows, [0] * 600))
    assert books.booked == []


# ------------------------------------------------------------------------------ participation


def _is_real(message: Message) -> bool:
    return float(np.linalg.norm(message.values)) > 0.5


def test_hidden_coins_every_slot_sends_in_every_step_under_its_own_label() -> None:
    labels = [row % 2 for row in range(400)]
    sent = _sent(["one sentence"] * 400, labels, participation=HIDDEN, noise_multiplier=0.01)
    assert Counter(m.step for m in sent) == dict.fromkeys(range(6), 400)
    assert len({(m.slot, m.step) for m in sent}) == len(sent) == 2400
    of_slot = {m.slot: m.label for m in sent}
    assert all(m.label == of_slot[m.slot] for m in sent)
    assert sum(label == 1 for label in of_slot.values()) == 200
    real = [_is_real(m) for m in sent]
    assert stats.binomtest(sum(real), 2400, 0.3).pvalue > LEVEL
    assert stats.binomtest(sum(real), 2400, 0.4).pvalue < LEVEL
    # coins of a slot are independent: real sends of a slot are binomial
    own = Counter(message.slot for message, is_real in zip(sent, real, strict=True) if is_real)
    counts = Counter(own[slot] for slot in of_slot)
    expected = 400 * stats.binom.pmf(np.arange(5), 6, 0.3)
    observed = np.array([counts[k] for k in range(5)])
    assert stats.chi2.sf(float(((observed - expected) ** 2 / expected).sum()), 4) > LEVEL


def test_a_dummy_is_the_noise_of_a_message_around_zero() -> None:
    coins = {"kind": "hidden", "rate": 1e-12, "steps": 3}
    values = np.stack(
        [m.values for m in _sent(["one sentence"] * 400, participation=coins, noise_multiplier=1.0)]
    )
    assert _has_deviation(values.astype(np.float64), 1.0)
    assert not _has_deviation(values.astype(np.float64), 1.1)


def test_visible_coins_send_the_sentence_or_nothing() -> None:
    sent = _sent(["one sentence"] * 400, participation=VISIBLE, noise_multiplier=0.01)
    assert all(_is_real(message) for message in sent)
    assert stats.binomtest(len(sent), 2400, 0.3).pvalue > LEVEL
    assert stats.binomtest(len(sent), 2400, 0.4).pvalue < LEVEL


def test_the_order_of_every_step_is_drawn_and_slots_are_fresh() -> None:
    user, _ = sides(participation={"kind": "fixed", "sends": 2}, noise_multiplier=1e-4)
    texts = [f"word{n}" for n in range(40)]
    sent = list(user.training_messages(texts, [0] * 40))
    orders = [[m.slot for m in sent if m.step == step] for step in (0, 1)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    clean = WordEncoder().represent(texts, "latent").numpy()
    clean /= np.maximum(1, np.linalg.norm(clean, axis=1, keepdims=True))
    places = [int(np.linalg.norm(clean - m.values, axis=1).argmin()) for m in sent[:40]]
    assert sorted(places) == list(range(40)) != places
    again = {m.slot for m in user.training_messages(texts, [0] * 40)}
    assert not again & set(orders[0])


def test_without_a_seed_nothing_is_drawn_twice() -> None:
    settings = settings_with(seed=None)
    stream = RandomStream.from_entropy()
    first, second = (UserSide(WordEncoder(), settings, stream) for _ in range(2))
    assert not first.seeded
    seen = [next(side.query_messages(["one sentence"])) for side in (first, second, first)]
    assert len({message.slot for message in seen}) == 3
    assert len({message.values.tobytes() for message in seen}) == 3


# ------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=lambda p: f"{p['kind']}-{p.get('sends')}")
def test_the_budget_is_booked_once_before_the_first_message(participation: dict[str, Any]) -> None:
    books = Books()
    settings = settings_with(seed=None, participation=participation)
    user = UserSide(WordEncoder(), settings, budget=books)
    messages = user.training_messages(["one", "two"] * 20, [0, 1] * 20)
    assert not books.booked
    next(messages)
    assert books.booked == [("train", 0.5, 40)]
    assert len(list(messages)) >= 1
    list(user.query_messages(["three"]))
    assert books.booked[1:] == [("query", 0.5, 1)]
    assert not list(user.query_messages([]))
    assert len(books.booked) == 2


def test_a_budget_books_no_epsilon_in_test_mode() -> None:
    with pytest.raises(GuaranteeError, match=r"test mode \(seed\)"):
        UserSide(WordEncoder(), settings_with(seed=3), budget=Books())
    with pytest.raises(GuaranteeError, match=r"test mode \(seed\)"):
        UserSide(WordEncoder(), settings_with(seed=None), RandomStream.from_seed(1), Books())


def test_a_question_that_no_coin_sends_is_booked_too() -> None:
    books, rare = Books(), {"kind": "visible", "rate": 1e-12, "steps": 2}
    user = UserSide(WordEncoder(), settings_with(seed=None, participation=rare), budget=books)
    assert not list(user.query_messages(["one"]))
    assert books.booked == [("query", 0.5, 1)]
    assert user.read([]) == [None]


def test_noise_that_was_calibrated_is_what_is_booked() -> None:
    books, settings = Books(), settings_with(seed=None, noise_multiplier=None, epsilon=4.38)
    list(UserSide(WordEncoder(), settings, budget=books).query_messages(["one"]))
    assert books.booked[0][1] == pytest.approx(2.0, abs=0.01)


@pytest.mark.parametrize("sends", [1, 2])
def test_an_encoder_that_learns_is_refused_before_its_messages_leave(sends: int) -> None:
    encoder, books = WordEncoder(), Books()
    settings = settings_with(seed=None, participation={"kind": "fixed", "sends": sends})
    user = UserSide(encoder, settings, budget=books)
    texts = [f"word{n}" for n in range(600)]
    messages = user.training_messages(texts, [0] * 600)
    before = next(messages)
    encoder.weight *= 1.5
    if sends == 1:
        with pytest.raises(GuaranteeError, match="encoder changed"):
            list(messages)
    else:
        # all was encoded at once, before the change
        assert len(list(messages)) == 1199
    with pytest.raises(GuaranteeError, match="encoder changed"):
        next(user.query_messages(["one"]))
    assert [purpose for purpose, *_ in books.booked] == ["train"]
    assert before.encoder == WordEncoder().digest


def test_labels_are_numbers_of_classes() -> None:
    books = Books()
    user = UserSide(WordEncoder(), settings_with(seed=None), budget=books)
    with pytest.raises(InputError, match="one each"):
        list(user.training_messages(["one", "two"], [0]))
    with pytest.raises(InputError, match="row 2: label"):
        list(user.training_messages(["zanzibarian", "quokka"], [0, 2]))
    assert not books.booked

"""The user's side: what leaves is the mechanism that is accounted, and nothing leaves unbooked."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ldp_wire import format_message
from numpy.typing import NDArray
from scipy import stats

from redactory.foundation.errors import ConfigurationError, GuaranteeError, InputError
from redactory.foundation.stream import RandomStream
from redactory.training.ldp.accounting import HiddenSampling, StepSends, draw_step_sends
from redactory.training.ldp.server import Message
from redactory.training.ldp.settings import LdpSettings
from redactory.training.ldp.user import DPLayer, LdpClient
from redactory.training.mechanisms.lattice import choose_lattice_spacing
from tests.training.ldp.ldp_sides import DIMENSION, WordEncoder, settings_with, sides

FIXED = {"kind": "fixed", "sends": 1}
HIDDEN = {"kind": "secret_bernoulli", "rate": 0.3, "steps": 6}
VISIBLE = {"kind": "public_bernoulli", "rate": 0.3, "steps": 6}
CLASSES = {"kind": "secret_bernoulli", "rate": 0.3, "steps": 6, "classes": 4}
PARTICIPATIONS: list[dict[str, Any]] = [FIXED, {"kind": "fixed", "sends": 3}, HIDDEN, VISIBLE]
LEVEL = 1e-6
SEED = RandomStream.from_seed(5)


class Books:
    """A budget that counts."""

    def __init__(self) -> None:
        self.booked: list[tuple[str, float | None, int]] = []

    def reserve_messages(self, purpose: str, settings: LdpSettings, sentences: int) -> None:
        self.booked.append((purpose, settings.noise_multiplier, sentences))


def _sent(texts: Any, labels: list[int] | None = None, **changes: Any) -> list[Message]:
    user, _ = sides(**changes)
    return list(user.make_training_messages(texts, [0] * len(texts) if labels is None else labels))


def _booking(**changes: Any) -> tuple[LdpClient, Books]:
    books = Books()
    return LdpClient(WordEncoder(), settings_with(seed=None, **changes), budget=books), books


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(width=64), min_size=3, max_size=3), min_size=1, max_size=4), st.floats(1e-3, 1e3))
@example([[0.0, 1.5, 0.0], [0.6, 0.0, -0.8]], 1.0)
def test_clipping_is_that_of_the_paper_whatever_comes(rows: list[list[float]], clip: float) -> None:
    layer = DPLayer(clip, 1.0)
    found = layer.clip(torch.tensor(rows, dtype=torch.float64)).numpy()
    for row, own in zip(rows, found, strict=True):
        length = math.hypot(*row)
        assert math.hypot(*own) <= clip * (1 + 1e-12)
        if not np.isfinite(row).all():
            assert not own.any()
        elif length <= clip * (1 - 1e-12):
            np.testing.assert_array_equal(own, row)
        elif math.isfinite(length):
            np.testing.assert_allclose(own, np.array(row) * (clip / length), rtol=1e-9, atol=1e-300)


def _noise(multiplier: float) -> NDArray[np.float64]:
    return DPLayer(2.0, multiplier, SEED)(torch.zeros(1500, 8)).numpy().astype(np.float64).ravel()


def test_the_noise_is_the_accounted_one_and_a_weaker_one_is_told_from_it() -> None:
    drawn = _noise(1.5)
    assert stats.kstest(drawn / 3.0, "norm").pvalue > 1e-3
    assert stats.kstest(_noise(1.4) / 3.0, "norm").pvalue < 1e-4
    # two values of one example, and two examples: no dependence
    table = drawn.reshape(-1, 8)
    assert abs(np.corrcoef(table[:, 0], table[:, 1])[0, 1]) < 4 / math.sqrt(len(table))
    assert abs(np.corrcoef(table[:-1, 0], table[1:, 0])[0, 1]) < 4 / math.sqrt(len(table))


def test_an_example_is_its_whole_tensor_and_its_noise_is_of_the_lattice_and_of_nothing_else() -> None:
    clipped = DPLayer(0.5, 1.0).clip(torch.randn(4, 7, 3))
    np.testing.assert_allclose(clipped.flatten(1).norm(dim=1).numpy(), 0.5, rtol=1e-12)
    x = torch.randn(20, 6) * 3
    own, bare = DPLayer(1.0, 0.5, SEED), DPLayer(1.0, 0.5, SEED)
    np.testing.assert_allclose(own(x) - bare(torch.zeros(20, 6)), own.clip(x), atol=3e-6)
    found = DPLayer(1.0, 0.01)(torch.zeros(50, 16)).double().numpy() / choose_lattice_spacing(1.0, 16)
    np.testing.assert_array_equal(found, np.rint(found))
    assert (found % 2).any()


def test_noise_is_never_used_twice_in_evaluation_neither_and_no_gradient_passes() -> None:
    layer, zeros = DPLayer(1.0, 1.0).eval(), torch.zeros(3, 4, requires_grad=True)
    copied, stored = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))
    own = [layer(zeros), layer(zeros), copied(zeros), stored(zeros), DPLayer(1.0, 1.0, SEED)(zeros)]
    own += [DPLayer(1.0, 1.0, RandomStream(bytes(32)))(zeros) for _ in range(2)]
    rows = torch.cat(own)
    assert len(torch.unique(rows, dim=0)) == len(rows)
    assert not rows.requires_grad
    assert not list(layer.parameters())
    # a seed repeats it, step by step
    first, again = DPLayer(1.0, 1.0, SEED), DPLayer(1.0, 1.0, SEED)
    parts = torch.cat([first(torch.zeros(2, 3)), first(torch.zeros(1, 3))])
    assert torch.equal(parts, again(torch.zeros(3, 3)))


def test_what_cannot_be_promised_is_refused() -> None:
    for clip, noise in ((-1.0, 1.0), (1.0, 0.0), (1.0, math.inf)):
        with pytest.raises(ConfigurationError, match=r"ldp\."):
            DPLayer(clip, noise)
    with pytest.raises(ConfigurationError, match="clip"):
        DPLayer(1.0, 1.0).add_noise(torch.tensor([[1.0, 0.1]]))
    with pytest.raises(ConfigurationError, match="examples"):
        DPLayer(1.0, 1.0)(torch.zeros(3))


@pytest.mark.parametrize("sampling", PARTICIPATIONS, ids=lambda p: f"{p['kind']}-{p.get('sends')}")
@pytest.mark.parametrize("kind", ["latent", "token", "pairs"])
def test_an_exchanged_sentence_moves_its_messages_as_accounted(sampling: dict[str, Any], kind: str) -> None:
    """Two worlds under the same draws: everything else is equal to the last bit."""
    changes: dict[str, Any] = {"sampling": sampling, "clip_norm": 0.5}
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
    assert max(moved.values()) > 0 or sampling == VISIBLE


def test_what_stands_behind_the_cut_moves_nothing() -> None:
    for kind in ("latent", "token"):
        first = _sent(["one two three", ""], represent=kind)
        behind = _sent(["one two three four", ""], represent=kind)
        assert all(np.array_equal(a.values, b.values) for a, b in zip(first, behind, strict=True))


def test_antipodal_sentences_reach_the_bounds() -> None:
    """2C, and 2√2·C for pairs: no smaller sensitivity would be true."""

    class Poles(WordEncoder):
        def represent(self, texts: Any, kind: str) -> torch.Tensor:
            if not isinstance(texts[0], str):
                return torch.stack([self.represent(pair, kind) for pair in texts])
            return torch.stack([torch.full((DIMENSION,), 9.0 if text == "north" else -9.0) for text in texts])

    def apart(one: Any, other: Any, **changes: Any) -> float:
        own = settings_with(clip_norm=2.0, **changes)
        found = [next(LdpClient(Poles(), own).make_query_messages([text])).values for text in (one, other)]
        return float(np.linalg.norm(found[0] - found[1]))

    assert apart("north", "south") == pytest.approx(4.0, rel=1e-4)
    assert apart(("north",) * 2, ("south",) * 2, pairs=True) == pytest.approx(4.0 * 2**0.5, rel=1e-4)


def _residuals(messages: list[Message], clip: float) -> NDArray[np.float64]:
    vector = WordEncoder().represent(["one sentence"], "latent").numpy()[0].astype(np.float64)
    clean = vector * min(1.0, clip / np.linalg.norm(vector))
    return np.stack([message.values for message in messages]) - clean


def _has_deviation(residuals: NDArray[np.float64], deviation: float) -> bool:
    """A two-sided chi-squared test of N(0, deviation²), mean and all, at LEVEL."""
    tail = stats.chi2.cdf(float((residuals**2).sum()) / deviation**2, residuals.size)
    shifted = abs(residuals.mean()) * residuals.size**0.5 / deviation
    return bool(LEVEL < tail < 1 - LEVEL and shifted < 6)


def test_noise_is_that_of_the_settings_and_a_tenth_less_is_told_from_it() -> None:
    found = _residuals(_sent(["one sentence"] * 1200, clip_norm=0.5, noise_multiplier=2.0), 0.5)
    assert _has_deviation(found, 1.0)
    assert not _has_deviation(found, 0.9)
    assert not _has_deviation(found + 0.1, 1.0)
    # a dummy is the noise of a message around zero
    coins = {"kind": "secret_bernoulli", "rate": 1e-12, "steps": 3}
    sent = _sent(["one sentence"] * 400, sampling=coins, noise_multiplier=1.0)
    values = np.stack([m.values for m in sent]).astype(np.float64)
    assert _has_deviation(values, 1.0)
    assert not _has_deviation(values, 1.1)


def test_the_mean_of_four_sends_carries_what_one_send_at_half_the_noise_does() -> None:
    sent = _sent(["one sentence"] * 500, sampling={"kind": "fixed", "sends": 4}, noise_multiplier=2.0)
    by_slot: dict[str, list[Any]] = {}
    for message in sent:
        by_slot.setdefault(message.slot, []).append(message.values)
    means = np.stack([np.mean(values, axis=0) for values in by_slot.values()])
    clean = _residuals(sent[:1], 1.0)[0] - sent[0].values
    assert _has_deviation(means + clean, 1.0)
    assert not _has_deviation(means + clean, 2.0)


def _is_real(message: Message) -> bool:
    return float(np.linalg.norm(message.values)) > 0.5


def test_hidden_coins_every_slot_sends_in_every_step_under_its_own_label() -> None:
    labels = [row % 2 for row in range(400)]
    sent = _sent(["one sentence"] * 400, labels, sampling=HIDDEN, noise_multiplier=0.01)
    assert Counter(m.step for m in sent) == dict.fromkeys(range(6), 400)
    assert len({(m.slot, m.step) for m in sent}) == len(sent) == 2400
    of_slot = {m.slot: m.label for m in sent}
    assert all(m.label == of_slot[m.slot] for m in sent)
    assert sum(label == 1 for label in of_slot.values()) == 200
    own = Counter(message.slot for message in sent if _is_real(message))
    assert stats.binomtest(own.total(), 2400, 0.3).pvalue > LEVEL
    assert stats.binomtest(own.total(), 2400, 0.4).pvalue < LEVEL
    # coins of a slot are independent: real sends of a slot are binomial
    counts = Counter(own[slot] for slot in of_slot)
    expected = 400 * stats.binom.pmf(np.arange(5), 6, 0.3)
    observed = np.array([counts[k] for k in range(5)])
    assert stats.chi2.sf(float(((observed - expected) ** 2 / expected).sum()), 4) > LEVEL


TEXTS = [f"word{row % 40} again" for row in range(200)]


def _given_away(send: Callable[[], list[Message]]) -> set[str]:
    """By what messages of TEXTS, classes 0 to 3 in turn, tell noise alone from a sentence, or know a coin."""
    first, second = send(), send()
    found = set()
    if len({len(format_message(message)) for message in first}) > 1:
        found.add("length")
    if {*Counter((m.slot, m.step) for m in first).values()} != {1} or len(first) != 1200:
        return found | {"number"}
    drawn, of_slot = Counter(m.label for m in first if not _is_real(m)), {}
    for message in first:
        if _is_real(message):
            of_slot[message.slot] = message.label
    same = sum(m.label == of_slot[m.slot] for m in first if not _is_real(m) and m.slot in of_slot)
    of_known = sum(not _is_real(m) and m.slot in of_slot for m in first)
    uniform = stats.chisquare([drawn[label] for label in range(4)]).pvalue
    if min(uniform, stats.binomtest(same, of_known, 0.25).pvalue) < LEVEL:
        found.add("class")
    # two calls have the same texts in the same places: their coins must agree as independent ones do
    clean = WordEncoder().represent(TEXTS[:40], "latent").numpy()
    clean /= np.maximum(1, np.linalg.norm(clean, axis=1, keepdims=True))
    coins = []
    for sent in (first, second):
        heads = Counter()
        for message in filter(_is_real, sent):
            place = int(np.linalg.norm(clean - message.values, axis=1).argmin())
            heads[place, message.step] += 1
        coins.append([heads[place, step] for place in range(40) for step in range(6)])
    spread = stats.chi2.sf(float(((np.array(coins[0]) - 1.5) ** 2).sum()) / (5 * 0.3 * 0.7), 240)
    together = abs(np.corrcoef(*coins)[0, 1]) * math.sqrt(240)
    if spread < LEVEL or together > 5:
        found.add("coin")
    return found


def _sending(**changes: Any) -> list[Message]:
    user = LdpClient(
        WordEncoder(), settings_with(seed=None, noise_multiplier=0.01, classes=("a", "b", "c", "d"), **changes)
    )
    return list(user.make_training_messages(TEXTS, [row % 4 for row in range(200)]))


def test_nothing_tells_a_fictitious_message_from_a_true_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _given_away(lambda: _sending(sampling=CLASSES)) == set()
    assert _given_away(lambda: _sending(sampling=HIDDEN)) == {"class"}
    assert _given_away(lambda: _sending(sampling=VISIBLE)) == {"number"}

    def shorter() -> list[Message]:
        sent = _sending(sampling=CLASSES)
        return [m if _is_real(m) else dataclasses.replace(m, values=m.values[:3]) for m in sent]

    assert _given_away(shorter) == {"length"}

    def of_the_text(*told: Any) -> StepSends:
        step, honest = told[2], draw_step_sends(*told)
        own = [hashlib.sha256(f"{TEXTS[place]}{step}".encode()).digest()[0] < 77 for place in honest.slots]
        return honest._replace(is_real=np.array(own))

    monkeypatch.setattr("redactory.training.ldp.user.draw_step_sends", of_the_text)
    assert _given_away(lambda: _sending(sampling=CLASSES)) == {"coin"}


Sampled = Callable[..., StepSends]


def _looks_fresh(sampled: Sampled, classes: int) -> bool:
    """Of 200 slots in 60 steps, coins and drawn classes are uniform and independent of all others."""
    way = HiddenSampling(kind="secret_bernoulli", rate=0.3, steps=60, classes=classes)
    shape = 60, 200
    coins, drawn, places = np.zeros(shape, bool), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for step in range(60):
        found = sampled(way, SEED, step, 200, 1)
        coins[step, found.slots], drawn[step, found.slots] = found.is_real, found.drawn_classes
        places[step] = found.slots
    # which class a message carries where it is of noise alone: with its neighbours in time and in place
    fake = ~coins
    values = []
    for lag in (1, 2, 7, 30):
        for both, same in (
            (fake[lag:] & fake[:-lag], drawn[lag:] == drawn[:-lag]),
            (fake[:, lag:] & fake[:, :-lag], drawn[:, lag:] == drawn[:, :-lag]),
        ):
            values.append(stats.binomtest(int(same[both].sum()), int(both.sum()), 1 / classes).pvalue)
        for both, rate in ((coins[lag:] & coins[:-lag], 0.09), (coins[:, lag:] & coins[:, :-lag], 0.09)):
            values.append(stats.binomtest(int(both.sum()), both.size, rate).pvalue)
    # with the slot, the step and its own coin
    for table in (fake, coins):
        counts = [int((table & (drawn == one)).sum()) for one in range(classes)]
        values.append(stats.chisquare(counts).pvalue)
    per_slot = np.stack([((drawn == one) & fake).sum(0) for one in range(classes)])
    expected = per_slot.sum(0) / classes
    values.append(stats.chi2.sf(float(((per_slot - expected) ** 2 / expected).sum()), 200 * (classes - 1)))
    # and the order with anything
    for table in (drawn, coins.astype(int), np.tile(np.arange(200), (60, 1))):
        own = np.take_along_axis(table, places, 1)
        own = (own - own.mean(1, keepdims=True)) / (own.std(1, keepdims=True) + 1e-9)
        moved = own @ (np.arange(200) - 99.5) / (200 / math.sqrt(12))
        values.append(2 * stats.norm.sf(abs(moved.sum()) / math.sqrt(200 * 60)))
    return min(values) > LEVEL


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_a_fictitious_class_is_fresh_in_every_step_and_slot(classes: int) -> None:
    """Two of one slot agree as often as two of different slots: once in K."""
    assert _looks_fresh(draw_step_sends, classes)

    def of_the_slot(*told: Any) -> StepSends:
        honest = draw_step_sends(*told)
        return honest._replace(
            drawn_classes=np.floor(SEED.uniform("classes", 0, 200, 1)[honest.slots] * classes).astype(int)
        )

    def of_the_step(*told: Any) -> StepSends:
        honest = draw_step_sends(*told)
        return honest._replace(drawn_classes=np.full(200, honest.drawn_classes[0]))  # type: ignore[index]

    def of_the_coin(*told: Any) -> StepSends:
        honest = draw_step_sends(*told)
        coins = SEED.uniform("coins", told[2], 200, 1)[honest.slots]
        return honest._replace(drawn_classes=np.floor(coins * classes).astype(int))

    def in_order(*told: Any) -> StepSends:
        honest = draw_step_sends(*told)
        rank = np.argsort(honest.drawn_classes, kind="stable")
        return StepSends(honest.slots[rank], honest.is_real[rank], honest.drawn_classes[rank])  # type: ignore[index]

    for broken in (of_the_slot, of_the_step, of_the_coin, in_order):
        assert not _looks_fresh(broken, classes)


def test_visible_coins_send_the_sentence_or_nothing() -> None:
    sent = _sent(["one sentence"] * 400, sampling=VISIBLE, noise_multiplier=0.01)
    assert all(_is_real(message) for message in sent)
    assert stats.binomtest(len(sent), 2400, 0.3).pvalue > LEVEL
    assert stats.binomtest(len(sent), 2400, 0.4).pvalue < LEVEL


def test_the_order_of_every_step_is_drawn_and_slots_are_fresh() -> None:
    user, _ = sides(sampling={"kind": "fixed", "sends": 2}, noise_multiplier=1e-4)
    texts = [f"word{n}" for n in range(40)]
    sent = list(user.make_training_messages(texts, [0] * 40))
    orders = [[m.slot for m in sent if m.step == step] for step in (0, 1)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    clean = WordEncoder().represent(texts, "latent").numpy()
    clean /= np.maximum(1, np.linalg.norm(clean, axis=1, keepdims=True))
    places = [int(np.linalg.norm(clean - m.values, axis=1).argmin()) for m in sent[:40]]
    assert sorted(places) == list(range(40)) != places
    assert not {m.slot for m in user.make_training_messages(texts, [0] * 40)} & set(orders[0])


def test_without_a_seed_nothing_is_drawn_twice() -> None:
    first, second = (LdpClient(WordEncoder(), settings_with(seed=None)) for _ in range(2))
    seen = [next(side.make_query_messages(["one sentence"])) for side in (first, second, first)]
    assert len({message.slot for message in seen}) == 3
    assert len({message.values.tobytes() for message in seen}) == 3


@pytest.mark.parametrize("sampling", PARTICIPATIONS, ids=lambda p: f"{p['kind']}-{p.get('sends')}")
def test_the_budget_is_booked_once_before_the_first_message(sampling: dict[str, Any]) -> None:
    user, books = _booking(sampling=sampling)
    messages = user.make_training_messages(["one", "two"] * 20, [0, 1] * 20)
    assert not books.booked
    next(messages)
    assert books.booked == [("train", 0.5, 40)]
    assert len(list(messages)) >= 1
    list(user.make_query_messages(["three"]))
    assert not list(user.make_query_messages([]))
    assert books.booked[1:] == [("query", 0.5, 1)]


def test_a_question_is_sent_and_booked_in_a_way_of_its_own_with_noise_of_its_own() -> None:
    query = {"sampling": HIDDEN, "noise_multiplier": 0.75}
    user, books = _booking(query=query)
    assert len(list(user.make_training_messages(["one"], [0]))) == 1
    assert len(list(user.make_query_messages(["one"] * 2))) == 12
    assert books.booked == [("train", 0.5, 1), ("query", 0.75, 2)]
    coins = {"kind": "secret_bernoulli", "rate": 1e-12, "steps": 400}
    user, _ = sides(query={"sampling": coins, "noise_multiplier": 2.0})
    values = np.stack([m.values for m in user.make_query_messages(["one sentence"])]).astype(np.float64)
    assert _has_deviation(values, 2.0)
    assert not _has_deviation(values, 0.5)
    # in test mode, too, a question's noise is not that of a training message
    trained = _residuals(list(user.make_training_messages(["one sentence"] * 400, [0] * 400)), 1.0)
    assert abs(np.corrcoef(trained.ravel(), values.ravel())[0, 1]) < 5 / math.sqrt(values.size)


def test_a_question_that_no_coin_sends_is_booked_too_and_at_calibrated_noise() -> None:
    user, books = _booking(sampling={"kind": "public_bernoulli", "rate": 1e-12, "steps": 2})
    assert not list(user.make_query_messages(["one"]))
    assert books.booked == [("query", 0.5, 1)]
    assert user.combine_answers([]) == [None]
    user, books = _booking(noise_multiplier=None, epsilon=4.38)
    list(user.make_query_messages(["one"]))
    assert books.booked[0][1] == pytest.approx(2.0, abs=0.01)


def test_a_budget_books_no_epsilon_in_test_mode() -> None:
    with pytest.raises(GuaranteeError, match=r"test mode \(seed\)"):
        LdpClient(WordEncoder(), settings_with(seed=3), Books())  # type: ignore[arg-type]


@pytest.mark.parametrize("pairs", [False, True])
def test_what_is_no_text_or_label_is_refused_by_its_row_before_anything_leaves(pairs: bool) -> None:
    """Wherever it stands: a stream of messages that ends at it would tell of it."""
    user, books = _booking(pairs=pairs)
    rows: Any = [f"word{n}" for n in range(600)]
    bad = [*rows[:598], "half \ud800", rows[599]]
    rows, bad = ([(row, "other") for row in some] if pairs else some for some in (rows, bad))
    for texts, labels, match in (
        (bad, [0] * 600, "row 599"),
        (rows, [0] * 599, "one each"),
        (rows, [0, 2, *[0] * 598], "row 2: label"),
    ):
        with pytest.raises(InputError, match=match):
            next(user.make_training_messages(texts, labels))
    assert books.booked == []


@pytest.mark.parametrize("sends", [1, 2])
def test_an_encoder_that_learns_is_refused_before_its_messages_leave(sends: int) -> None:
    encoder, books = WordEncoder(), Books()
    own = settings_with(seed=None, sampling={"kind": "fixed", "sends": sends})
    user = LdpClient(encoder, own, budget=books)
    messages = user.make_training_messages([f"word{n}" for n in range(600)], [0] * 600)
    next(messages)
    encoder.weight *= 1.5
    # all was encoded at once, before the change
    assert len(list(messages)) == 600 * sends - 1
    with pytest.raises(GuaranteeError, match="encoder changed"):
        next(user.make_query_messages(["one"]))
    assert [purpose for purpose, *_ in books.booked] == ["train"]

"""Public by count: what one user moves, what the noise and the threshold let through, and what breaks it."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from redactory.dedup import plan
from redactory.dedup.counting import (
    COUNTED,
    DIGEST,
    NoiseFunction,
    bound_contributions,
    count_users,
    write_contributions,
)
from redactory.dedup.plan import PIECES, Ids, write_entries
from redactory.foundation.intervals import clopper_pearson_upper
from redactory.foundation.stream import RandomStream
from redactory.training.accounting.bounds import compute_gaussian_epsilon
from redactory.training.count_selection import CountSelection, compute_threshold_failure_delta
from redactory.training.mechanisms.lattice import draw_rounded_normal
from tests.dedup.worlds import KEY

Corpus = list[list[str]]
"""Of each user, the texts of their rows."""
Counts = dict[str, int]
RANGES, EVERYTHING = 4, -(10**9)
WORDS = "abcde"


def digest(purpose: str, text: str) -> bytes:
    return KEY.compute_text_digest(KEY.derive_subkey(purpose), text.encode())


def rank(user: int, text: str) -> bytes:
    return digest("choice", f"{user} {text}")


def no_noise(piece: int, texts: int) -> Ids:
    return np.zeros(texts, np.int64)


def counted(corpus: Corpus, most: int, noise: NoiseFunction = no_noise, threshold: int = EVERYTHING) -> Counts:
    """Through the real files, in two partitions: each text's number."""
    rows = [(user, text) for user, own in enumerate(corpus) for text in own]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        given_files = [folder / "0", folder / "1"]
        for path, part in zip(given_files, (rows[::2], rows[1::2]), strict=True):
            users, texts = ([digest("user", str(u)) for u, _ in part], [digest("text", t) for _, t in part])
            write_contributions(path, users, [rank(*row) for row in part], texts)
        bounded = [folder / f"bounded-{number}" for number in range(RANGES)]
        found = [np.empty(0, COUNTED)]
        for number, out in enumerate(bounded):
            bound_contributions(given_files, number, RANGES, most, out)
        for number in range(RANGES):
            count_users(bounded, number, RANGES, threshold, noise, folder / "out")
            found.append(np.load(folder / "out"))
    numbers = np.concatenate(found)
    names = {np.frombuffer(digest("text", text), ">u8").tolist()[0]: text for _, text in rows}
    assert numbers["high"].tolist() == sorted(numbers["high"].tolist())
    return {names[high]: users for high, users in zip(*(numbers[n].tolist() for n in ("high", "users")), strict=True)}


def in_python(corpus: Corpus, most: int) -> Counts:
    kept = [sorted(set(own), key=lambda text: rank(user, text)[:8])[:most] for user, own in enumerate(corpus)]
    return dict(Counter(text for own in kept for text in own))


def moved(one: Counts, other: Counts) -> tuple[int, int]:
    """In how many places two counts differ, and by how much at most."""
    changes = [abs(one.get(text, 0) - other.get(text, 0)) for text in {*one, *other}]
    return sum(change > 0 for change in changes), max(changes, default=0)


corpora = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6), min_size=1, max_size=5)


@settings(max_examples=15)
@given(corpora, st.integers(1, 3))
def test_what_is_counted_is_users_of_at_most_k_distinct_texts_each(corpus: Corpus, most: int) -> None:
    assert counted(corpus, most) == in_python(corpus, most)


@settings(max_examples=15)
@given(corpora, st.lists(st.sampled_from(WORDS), min_size=1, max_size=6), st.sampled_from(WORDS))
def test_a_user_moves_2k_counts_by_one_and_a_point_moves_two(corpus: Corpus, other: list[str], text: str) -> None:
    for most in (1, 2):
        found = counted(corpus, most)
        places, size = moved(found, counted([other, *corpus[1:]], most))
        assert (places <= 2 * most, size <= 1) == (True, True)
        places, size = moved(found, counted([[text, *corpus[0][1:]], *corpus[1:]], most))
        assert (places <= 2, size <= 1) == (True, True)


# Noise and threshold, of the law that they are drawn from.


def many(folder: Path, users: int, texts: int) -> list[Path]:
    """So many texts with so many users each, bounded already."""
    rows = np.zeros(users * texts, DIGEST)
    rows["high"] = np.repeat(np.arange(texts, dtype=np.uint64), users)
    write_entries(folder / f"of-{users}", rows)
    return [folder / f"of-{users}"]


def drawn(selection: CountSelection, seed: int) -> NoiseFunction:
    stream = RandomStream.from_seed(seed)
    return lambda piece, texts: draw_rounded_normal(stream, "counts", piece, texts, selection.deviation)


def published(folder: Path, users: int, texts: int, threshold: int, noise: NoiseFunction) -> list[int]:
    """The numbers of the texts that are public, of so many with so many users each."""
    count_users(many(folder, users, texts), 0, 1, threshold, noise, folder / "out")
    found: list[int] = np.load(folder / "out")["users"].tolist()
    return found


@pytest.mark.parametrize("whole", [plan.MAX_UNDIVIDED_DIGESTS, 0])
def test_every_piece_of_every_range_is_named_once(whole: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MAX_UNDIVIDED_DIGESTS", whole)
    rows = np.zeros(64, DIGEST)
    rows["high"] = np.arange(64, dtype=np.uint64) << np.uint64(58)
    write_entries(tmp_path / "bounded", rows)
    for hash_ranges in (1, 2, 4):
        asked: list[tuple[int, int]] = []

        def noise(piece: int, texts: int, asked: list[tuple[int, int]] = asked) -> Ids:
            asked.append((piece, texts))
            return np.zeros(texts, np.int64)

        for number in range(hash_ranges):
            count_users([tmp_path / "bounded"], number, hash_ranges, EVERYTHING, noise, tmp_path / "out")
        pieces = [piece for piece, _ in asked]
        assert len(set(pieces)) == len(pieces) == hash_ranges * (1 if whole else PIECES)
        assert sum(texts for _, texts in asked) == 64


def test_every_text_has_a_draw_of_its_own(tmp_path: Path) -> None:
    asked: list[int] = []

    def noise(piece: int, texts: int) -> Ids:
        asked.append(texts)
        return np.arange(texts) * 1000

    found = published(tmp_path, 3, 7, EVERYTHING, noise)
    assert (asked, found) == ([7], [1000 * place + 3 for place in range(7)])


LOOSE, TRIED = CountSelection.calibrate(1.0, 0.05, 1), 200_000


def test_what_one_user_alone_gave_passes_as_seldom_as_the_theorem_says(tmp_path: Path) -> None:
    """And with a threshold a fifth too low it does not: the test has the power to see that."""
    d = compute_threshold_failure_delta(LOOSE.deviation, LOOSE.threshold, 1)
    passed = len(published(tmp_path, 1, TRIED, LOOSE.threshold, drawn(LOOSE, 1)))
    assert 0.8 * d < passed / TRIED < 1.2 * d
    low = len(published(tmp_path, 1, TRIED, math.floor(0.8 * LOOSE.threshold), drawn(LOOSE, 2)))
    assert 1.0 - clopper_pearson_upper(TRIED - low, TRIED, 0.999) > d


def violated(one: Counter[int], other: Counter[int]) -> bool:
    """Whether an event shows that two worlds are not (ε, δ)-close, surely."""
    return any(
        1.0 - clopper_pearson_upper(TRIED - one[value], TRIED, 0.9999)
        > math.exp(1.0) * clopper_pearson_upper(other[value], TRIED, 0.9999) + 0.05
        for value in {*one, *other}
    )


@pytest.mark.parametrize("breaks", [None, "dropped", "quiet"])
def test_no_number_tells_one_user_more_by_more_than_epsilon(breaks: str | None, tmp_path: Path) -> None:
    """It shows where texts whose noise is zero are left out, and where large counts have none."""
    worlds = []
    for seed, users in enumerate((30, 31)):
        own = drawn(LOOSE, seed)

        def noise(piece: int, texts: int, own: NoiseFunction = own) -> Ids:
            found = own(piece, texts)
            if breaks == "quiet":
                return found * 0
            return np.where(found == 0, EVERYTHING, found) if breaks == "dropped" else found

        worlds.append(Counter(published(tmp_path, users, TRIED, LOOSE.threshold, noise)))
    assert (violated(*worlds) or violated(*worlds[::-1])) == (breaks is not None)


def test_a_threshold_that_is_chosen_by_the_counts_lets_one_user_through() -> None:
    """With "the most frequent one is public" what a single user gave passes far too often."""
    noise = drawn(LOOSE, 3)(0, TRIED).reshape(-1, 2)
    first = (1 + noise[:, 0] > 3 + noise[:, 1]).mean()
    assert first > 10 * compute_threshold_failure_delta(LOOSE.deviation, LOOSE.threshold, 1)


# The threshold: from (ε, δ, k) alone.


@pytest.mark.parametrize(
    ("texts", "deviation", "threshold", "epsilon", "chance", "total"),
    [
        (4, 10.0, 60, 1.108, 7.3e-9, 5.03e-6),
        (4, 20.0, 110, 0.5215, 1.0e-7, 5.27e-6),
        (1, 6.0, 35, 0.908, 7.3e-9, 5.03e-6),
    ],
)
def test_the_figures_of_the_theorem(
    texts: int, deviation: float, threshold: int, epsilon: float, chance: float, total: float
) -> None:
    """Computed apart from the product, over the reals: rounded noise has its threshold half a place lower."""
    found = compute_gaussian_epsilon(math.sqrt(2 * texts) / deviation, 5e-6)
    d = compute_threshold_failure_delta(deviation, threshold + 0.5, texts)  # type: ignore[arg-type]
    assert (found, d) == (pytest.approx(epsilon, rel=1e-3), pytest.approx(chance, rel=0.01))
    assert 5e-6 + (1 + math.exp(found)) * d == pytest.approx(total, rel=1e-3)
    # the whole as it is stated here, which needs less of delta
    own = CountSelection(deviation, threshold, texts)
    assert found < own.compute_user_epsilon(total) + math.log1p(-total) + 0.01
    assert own.compute_user_epsilon(
        5e-6 + compute_threshold_failure_delta(deviation, threshold, texts)
    ) == pytest.approx(found, rel=1e-6)


@settings(max_examples=20)
@given(st.floats(0.1, 6.0), st.floats(-9.0, -3.0), st.integers(1, 32), st.integers(1, 40))
def test_the_threshold_is_the_least_that_keeps_epsilon_and_delta(
    epsilon: float, power: float, texts: int, times: int
) -> None:
    own = CountSelection.calibrate(epsilon, 10.0**power, texts, times)

    def delta(threshold: float) -> float:
        mu = math.sqrt(2 * texts * times) / own.deviation
        d = -math.expm1(texts * math.log1p(-norm.sf((threshold - 1.5) / own.deviation)))
        left = epsilon + times * math.log1p(-d)
        spent = norm.cdf(mu / 2 - left / mu) - math.exp(left) * norm.cdf(-mu / 2 - left / mu)
        return float(spent + times * d)

    assert delta(own.threshold) <= 10.0**power * (1 + 1e-9)
    assert delta(own.threshold - 1) > 10.0**power * 0.99
    assert own.compute_user_epsilon(10.0**power, times) <= epsilon * (1 + 1e-4)

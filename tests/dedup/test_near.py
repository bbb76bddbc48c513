"""Near-duplicates: brute force says which there are; order, partitions, the other side are nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.dedup import near as room
from redactory.dedup.near import MAX_SMALL_GROUP, drop_near_duplicates, find_root, merge_to_forest
from redactory.dedup.plan import PAIR
from redactory.dedup.signatures import compute_jaccard
from tests.dedup.worlds import NearWorld, Text, substitutions

BOILER = "this message and what is attached to it is meant for the one it names and for nobody else"


def corpus(seed: int, families: int = 60) -> list[Text]:
    """Distinct texts in families: a text, and copies with words changed, in capitals, with a tail put on."""
    chance = np.random.default_rng(seed)
    stock = [f"w{n}" for n in range(400)]
    texts: dict[str, int] = {}
    for _ in range(families):
        side = int(chance.integers(2))
        words = chance.choice(stock, chance.integers(4, 40)).tolist()
        texts[" ".join(words)] = side
        for _ in range(chance.integers(0, 5)):
            copy = list(words)
            for _ in range(chance.integers(0, 4)):
                copy[chance.integers(len(copy))] = str(chance.choice(stock))
            style = chance.integers(4)
            text = " ".join(copy) + (f" {BOILER}" if style == 3 else "")
            text = text.upper() if style == 1 else text.replace(" ", ", ") + "!" if style == 2 else text
            texts[text] = side if chance.random() < 0.8 else 1 - side
    return list(texts.items())


def cut(texts: list[Text], partitions: int) -> list[list[Text]]:
    return [texts[number::partitions] for number in range(partitions)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> NearWorld:
    made = NearWorld(tmp_path_factory.mktemp("near"), cut(corpus(1), 3), 0.7)
    made.compare()
    return made


def test_who_is_dropped_has_a_near_duplicate_that_stays(world: NearWorld) -> None:
    dropped = world.dropped
    assert dropped
    for point, own in dropped.items():
        assert own not in dropped
        assert world.similarity(point, own) >= 0.7
        assert world.texts[point][1] == world.texts[own][1], "within a side"


def test_of_the_pairs_above_the_threshold_nearly_all_lose_one(world: NearWorld) -> None:
    dropped = world.dropped
    pairs = world.similar(0.8)
    left = [pair for pair in pairs if not set(pair) & set(dropped)]
    assert len(pairs) > 30
    assert len(left) <= 0.02 * len(pairs)


def test_public_points_that_nearly_duplicate_a_private_one_are_found(world: NearWorld) -> None:
    found = world.across
    private = [point for point, (_, side) in world.texts.items() if side == 1]
    public = [point for point, (_, side) in world.texts.items() if side == 0]
    nearest = {p: max(world.similarity(p, q) for q in private) for p in public}
    due = {p for p in public if nearest[p] >= 0.8}
    assert len(due) >= 5
    assert len(due - set(found)) <= 0.02 * len(due)
    for point, (other, similarity) in found.items():
        assert similarity >= np.float32(0.7)
        assert similarity == np.float32(world.similarity(point, other))
        assert world.texts[other][1] == 1


@pytest.mark.parametrize(("partitions", "backwards", "whole"), [(1, False, 0), (7, True, room.MAX_UNDIVIDED_BUCKETS)])
def test_the_order_of_texts_partitions_and_pieces_is_nothing(
    world: NearWorld, partitions: int, backwards: bool, whole: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MAX_UNDIVIDED_BUCKETS", whole)
    texts = corpus(1)[::-1] if backwards else corpus(1)
    other = NearWorld(tmp_path, cut(texts, partitions), 0.7)
    other.compare()
    assert sorted(other.kept()) == sorted(world.kept())
    assert (other.grouped, other.largest) == (world.grouped, world.largest)


def test_nor_where_buckets_are_crowded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There not all texts are compared: which ones must follow from the texts, not from their places."""
    monkeypatch.setattr(room, "MAX_PAIRWISE_TEXTS", 2)
    chance = np.random.default_rng(11)
    template = [f"w{n}" for n in range(16)]
    texts: list[Text] = []
    for _ in range(120):
        words = list(template)
        for place in chance.choice(16, chance.integers(1, 4), replace=False).tolist():
            words[place] = f"x{place}"
        texts += [(" ".join(words), 1)] * ((" ".join(words), 1) not in texts)
    found = set()
    for number, (partitions, whole) in enumerate(
        [(1, room.MAX_UNDIVIDED_BUCKETS), (5, room.MAX_UNDIVIDED_BUCKETS), (3, 0)]
    ):
        monkeypatch.setattr(room, "MAX_UNDIVIDED_BUCKETS", whole)
        order = chance.permutation(len(texts)).tolist()
        world = NearWorld(tmp_path / str(number), cut([texts[n] for n in order], partitions), 0.7)
        world.compare(across=False)
        assert world.counts["crowded"]
        assert len(world.kept()) < len(texts)
        found.add((world.grouped, world.largest, *sorted(world.kept())))
    assert len(found) == 1


@settings(max_examples=3, deadline=None)
@given(st.integers(10, 10_000))
def test_what_is_dropped_of_one_side_hangs_on_that_side_alone(seed: int) -> None:
    """Private text must not decide whether a public point is kept, nor the other way round."""
    public = [text for text in corpus(1, 25) if text[1] == 0]
    alike = [(f"{text} more", 1) for text, _ in public[::2]]
    kept = []
    for private in ([], [*(t for t in corpus(seed, 25) if t[1] == 1), *alike]):
        with tempfile.TemporaryDirectory() as folder:
            world = NearWorld(Path(folder), [private, public] if private else [public], 0.7)
            world.compare()
            kept.append(sorted({text for text in world.kept() if (text, 0) in set(public)}))
    assert kept[0] == kept[1]


def test_a_crowded_bucket_costs_a_bounded_number_of_comparisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More texts than are compared each with each, all in one group: still one stays, and it is counted."""
    monkeypatch.setattr(room, "MAX_PAIRWISE_TEXTS", 8)
    words = [f"v{n}" for n in range(60)]
    copies = [(" ".join([*words, f"end{n}"]), 1) for n in range(150)]
    world = NearWorld(tmp_path, cut(copies, 2), 0.7)
    world.compare(across=False)
    assert len(world.kept()) == 1
    assert world.largest == 150
    bands = 16
    assert world.counts["compared"] <= bands * len(copies) * 8


SETS = st.lists(st.sets(st.integers(0, 14), min_size=1, max_size=10).map(frozenset), max_size=14)


@settings(max_examples=200, deadline=None)
@given(SETS, st.sampled_from([0.3, 0.5, 2 / 3, 0.7, 0.75, 0.8, 0.9, 1.0]), st.sampled_from([0, MAX_SMALL_GROUP]))
def test_the_choice_is_greedy_in_the_order_of_ranks(sets: list[frozenset[int]], threshold: float, small: int) -> None:
    stay: list[int] = []
    expected = []
    for number, values in enumerate(sets):
        own = next((s for s in stay if compute_jaccard(values, sets[s]) >= threshold), None)
        if own is None:
            stay.append(number)
        else:
            expected.append((number, own))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "MAX_SMALL_GROUP", small)
        assert list(drop_near_duplicates(range(len(sets)), sets.__getitem__, threshold)) == expected


def test_a_phrase_that_all_use_does_not_make_the_choice_quadratic() -> None:
    """Eight stock phrases in every text of a large group, of which none is near another."""
    looked_up = 0
    sets = [frozenset({*range(8), *range(100 * n, 100 * n + 7)}) for n in range(1, 1_001)]

    def shingles_of(number: int) -> frozenset[int]:
        nonlocal looked_up
        looked_up += 1
        return sets[number]

    assert not list(drop_near_duplicates(range(len(sets)), shingles_of, 0.7))
    assert looked_up < 3 * len(sets)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=25))
def test_a_forest_joins_what_a_flood_does(edges: list[tuple[int, int]]) -> None:
    lowest = {point: point for edge in edges for point in edge}
    for _ in lowest:
        for one, other in edges:
            lowest[one] = lowest[other] = min(lowest[one], lowest[other])
    parents = list(range(21))
    for one, other in edges:
        parents[find_root(parents, one)] = find_root(parents, other)
    expected = sorted(lowest.items())
    for pairs in (edges, [(node, parents[node]) for node in lowest]):
        assert merge_to_forest(np.array(pairs, PAIR)).tolist() == expected


def test_on_average_over_keys_one_text_moves_few_others() -> None:
    """No proof, but why ranks are keyed: the middle of a star comes first in one of nine orders only."""
    star = [frozenset(range(5)), *(frozenset({0, 1, 2, 3, *range(9 * n, 9 * n + 3)}) for n in range(1, 9))]
    assert all(compute_jaccard(star[0], leaf) >= 0.5 for leaf in star[1:])
    chance = np.random.default_rng(9)
    moved = []
    for _ in range(300):
        ranks = chance.permutation(10).tolist()
        kept = []
        for middle in (star[0], frozenset({99})):
            texts = [middle, *star[1:], frozenset({98})]
            dropped = dict(drop_near_duplicates(ranks, texts.__getitem__, 0.5))
            kept.append([str(sorted(values)) for number, values in enumerate(texts) if number not in dropped])
        moved.append(substitutions(*kept))
    assert np.mean(moved) < 2 < 7 <= max(moved)

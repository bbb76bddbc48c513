"""Group sizes: what is claimed of each mode, tried on every corpus of a small world; and what breaks.

Exchange one point for any other: the multiset of kept texts must change by no more substitutions than
the mode's rule says.  A mode without a claim must be seen to exceed the largest claim there is.
"""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from redactory.dedup import RULES, DedupSettings
from redactory.dedup.plan import BloomPass
from redactory.dedup.settings import Mode
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.keys import DigestKey
from redactory.pipelines.curation.loading import load_config
from tests.dedup.worlds import KEY, WORDS, NearWorld, planned, substitutions

Kept = Callable[[list[str]], list[str]]
LARGEST_CLAIM = max(rule.group_size or 0 for rule in RULES.values())
# two keys with variants, a text that is its own key, and one that is all signs
WORLD = ["call me", "Call me!", "CALL  ME", "tel 1", "tel 22", "so", "?!"]


def digest(text: str, purpose: str = "dedup/private") -> bytes:
    return KEY.compute_text_digest(KEY.derive_subkey(purpose), text.encode())


def exact(texts: list[str]) -> list[str]:
    return sorted(set(texts))


def folded(texts: list[str]) -> list[str]:
    """Rule S2 in two lines: of each key's texts the one with the smallest digest."""
    of_key = {WORDS.fold_text(t): [o for o in texts if WORDS.fold_text(o) == WORDS.fold_text(t)] for t in texts}
    return [min(own, key=digest) for own in of_key.values()]


def none(texts: list[str]) -> list[str]:
    return texts


def worst(kept: Kept, world: list[str], size: int) -> int:
    """The most substitutions that exchanging one point causes, over every corpus of ``size`` texts.

    What is kept depends on the multiset alone, so exchanging any place of it is exchanging the last.
    """
    known = {texts: kept(list(texts)) for texts in itertools.combinations_with_replacement(world, size)}
    most = 0
    for rest in itertools.combinations_with_replacement(world, size - 1):
        worlds = [known[tuple(sorted((*rest, last), key=world.index))] for last in world]
        most = max(most, *(substitutions(one, other) for one, other in itertools.combinations(worlds, 2)))
    return most


@pytest.mark.parametrize(("mode", "kept"), [("exact", exact), ("folded", folded), ("none", none)])
def test_the_claim_is_kept_and_is_the_least_there_is(mode: Mode, kept: Kept) -> None:
    most = max(worst(kept, WORLD, size) for size in (1, 2, 3, 4))
    assert most == RULES[mode].group_size


@pytest.mark.parametrize(("mode", "kept"), [("exact", exact), ("folded", folded)])
def test_the_room_keeps_what_the_rule_says(mode: Mode, kept: Kept, tmp_path: Path) -> None:
    corpora = [list(pair) for pair in itertools.permutations(WORLD[:4], 2)]
    corpora += [WORLD, [*WORLD[::-1], *WORLD]]
    for number, texts in enumerate(corpora):
        own = planned(tmp_path / str(number), texts, mode)
        assert sorted(own) == sorted(kept(texts)), texts


def test_the_smallest_digest_stays_whatever_the_order_and_the_first_would_not_be_stable(tmp_path: Path) -> None:
    texts = ["call me", "Call me!", "CALL  ME"]
    orders = enumerate(itertools.permutations(texts))
    assert {tuple(planned(tmp_path / str(n), list(order), "folded")) for n, order in orders} == {
        (min(texts, key=digest),)
    }


def bloom(texts: list[str], capacity: int = 3) -> list[str]:
    """Mode ``bloom`` as it runs, on a filter so small that it takes some texts for others."""
    numbers = [int.from_bytes(digest(text), "big", signed=True) for text in texts]
    repeats = BloomPass(capacity, 0.1).mark_repeats(numbers)
    return [text for text, repeat in zip(texts, repeats, strict=True) if not repeat]


def test_a_bloom_filter_exceeds_every_claim() -> None:
    """Later texts hang on the bits of one: exchange it, and they are there or not."""
    chance = np.random.default_rng(7)
    texts = [f"t{n}" for n in range(40)]
    most = 0
    for _ in range(3000):
        own = chance.choice(texts, 14, replace=False).tolist()
        most = max(most, substitutions(bloom(own), bloom([f"s{chance.integers(40)}", *own[1:]])))
    assert most > LARGEST_CLAIM
    assert RULES["bloom"].group_size is None


def star(leaves: int) -> list[str]:
    """A text that shares half its shingles with each of many, which share little with each other."""
    return ["a b c d e f"] + [
        f"a b c d e {' '.join(f'x{leaf}{place}' for place in range(3))}" for leaf in range(leaves)
    ]


def near(folder: Path, texts: list[str], key: DigestKey) -> list[str]:
    world = NearWorld(folder, [[(text, 1) for text in texts]], 0.5, key)
    world.compare(across=False)
    return world.kept()


def test_near_duplicates_exceed_every_claim(tmp_path: Path) -> None:
    """The middle of a star stands for all its leaves; exchange it, and they are all there again."""
    texts = star(8)
    for number in range(60):
        key = DigestKey(f"key number {number:04d}".encode())
        kept = near(tmp_path / f"{number}a", texts, key)
        if texts[0] in kept:
            other = near(tmp_path / f"{number}b", ["another text altogether", *texts[1:]], key)
            assert substitutions(kept, other) > LARGEST_CLAIM
            assert RULES["minhash"].group_size is None
            return
    pytest.fail("the middle never stayed")


# The settings: each side's mode, and what cannot be asked for.


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "near"},
        {"private_mode": "greedy"},
        {"scope": "splits"},
        {"near": True},
        {"near": {"threshold": 0.2}},
        {"near": {"threshold": 1.1}},
    ],
)
def test_what_is_unknown_or_senseless_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        DedupSettings.model_validate(wrong)


def test_every_mode_has_a_rule_and_the_default_a_proof() -> None:
    assert set(RULES) == set(Mode.__args__)  # type: ignore[attr-defined]
    assert DedupSettings() == DedupSettings(mode="exact", scope="corpus")
    assert RULES[DedupSettings().mode].group_size == 1


def test_the_private_side_follows_the_other_unless_it_is_told() -> None:
    assert DedupSettings(mode="folded").mode_for("private") == "folded"
    both = DedupSettings(mode="minhash", private_mode="exact")
    assert (both.mode_for("public"), both.mode_for("private")) == ("minhash", "exact")


def test_a_limit_across_the_split_needs_the_count() -> None:
    config = {"input": "x.jsonl", "release": {"max_cross_split_duplicates": 0}}
    assert load_config(config).release.max_cross_split_duplicates == 0
    with pytest.raises(ConfigurationError, match=r"max_cross_split_duplicates needs dedup\.report_cross_split"):
        load_config({**config, "dedup": {"report_cross_split": False}})


# Rule S1: one text more, less or other changes the kept texts by one substitution at most; sabotage is found.


Rule = Callable[[list[str]], list[str]]
PHRASES = st.sampled_from(["ssn 1", "ssn 2", "ssn 34", "ssn <MASK>", "hello", "hello you", "Hello", ""])


def redact(text: str) -> str:
    """A perfect policy for secrets that are digits; a function of the text alone."""
    return re.sub(r"\d+", "<MASK>", text)


def kept_by_the_room(texts: list[str]) -> list[str]:
    """Redact, then keep the first of each digest: the real digests, ranges and plan, in two partitions."""
    with tempfile.TemporaryDirectory() as folder:
        return planned(Path(folder), [redact(text) for text in texts], "exact")


@settings(max_examples=12, deadline=None)
@given(st.lists(PHRASES, min_size=1, max_size=8), st.data())
def test_one_text_changes_at_most_one_and_a_caught_secret_nothing(texts: list[str], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(texts) - 1))
    other = data.draw(st.none() | PHRASES)
    changed = texts[:place] + ([] if other is None else [other]) + texts[place + 1 :]
    kept = kept_by_the_room(texts)
    assert len(kept) == len(set(kept)), "the kept texts are a set"
    assert set(kept) == {redact(text) for text in texts}
    assert substitutions(kept, kept_by_the_room(changed)) <= 1
    secrets = [kept_by_the_room([*texts[:place], secret, *texts[place:]]) for secret in ("ssn 1", "ssn <MASK>")]
    assert secrets[0] == secrets[1]

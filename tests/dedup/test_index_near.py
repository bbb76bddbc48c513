"""Near-duplicates of earlier runs, against the true similarity of every pair."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from redactory.dedup.index import write_earlier
from redactory.dedup.near import NEAR_RANGES, choose_range, copy_signed, near_earlier
from redactory.dedup.signatures import ROW, SignedFiles, jaccard
from tests.dedup.worlds import NearWorld, Text

THRESHOLD = 0.6
SENTENCE = "the parcel that was sent to our house last week is not here yet and we wait for it"
WORDS = SENTENCE.split()


def variants(seed: int, count: int) -> list[Text]:
    """Texts of a family or two: some words exchanged, so that similarities lie all over the scale."""
    chance = np.random.default_rng(seed)
    texts: list[Text] = []
    for number in range(count):
        words = list(WORDS if number % 3 else reversed(WORDS))
        for place in chance.choice(len(words), chance.integers(0, 5), replace=False):
            words[place] = f"w{chance.integers(4)}"
        texts.append((" ".join(words), int(number % 4 == 0)))
    return texts


def entry(folder: Path, world: NearWorld, side: int, kept: list[int]) -> list[SignedFiles]:
    """The copy of a world's texts that an entry of the index holds."""
    out = []
    for number, files in enumerate(world.files):
        names = [folder / f"{name}-{side}-{number}" for name in ("buckets", "rows", "shingles")]
        out.append(SignedFiles(*names))
        copy_signed(files, np.array(kept, np.int64), side, out[-1])
    return out


def found(new: NearWorld, old: list[SignedFiles], side: int) -> set[int]:
    hits: set[int] = set()
    for number in range(NEAR_RANGES):
        hits |= near_earlier(new.files, old, side, number, THRESHOLD)[0]
    return hits


def test_found_are_those_near_a_kept_text_of_their_side_and_no_others(tmp_path: Path) -> None:
    old = NearWorld(tmp_path / "old", [variants(1, 20), variants(2, 17)], THRESHOLD)
    new = NearWorld(tmp_path / "new", [variants(3, 25), [], variants(4, 15)], THRESHOLD)
    kept = [point for point in old.texts if point % 3]
    for side in (0, 1):
        mine = [p for p in kept if old.texts[p][1] == side]
        files = entry(tmp_path / "entry", old, side, kept)
        assert sum(len(np.load(one.rows)) for one in files) == len(mine)
        best = {
            point: max(jaccard(new.sets[point], old.sets[other]) for other in mine)
            for point, (_, own) in new.texts.items()
            if own == side
        }
        hits = found(new, files, side)
        assert hits <= {point for point, similarity in best.items() if similarity >= THRESHOLD}
        assert {point for point, similarity in best.items() if similarity >= THRESHOLD + 0.1} <= hits
        assert 0 < len(hits) < len(best)


def test_sides_and_groups_never_meet(tmp_path: Path) -> None:
    texts: list[Text] = [(" ".join(WORDS), 0), (" ".join(WORDS[:9]), 1)]
    old, new = (NearWorld(tmp_path / name, [texts], THRESHOLD) for name in ("old", "new"))
    public, private = (entry(tmp_path / "entry", old, side, [0, 1]) for side in (0, 1))
    assert found(new, public, 0) == {0}
    assert found(new, private, 1) == {1}
    # sabotage: an entry's files of the other side
    assert found(new, private, 0) == found(new, public, 1) == set()
    rows = np.load(public[0].rows)
    rows["group"] = 7
    with public[0].rows.open("wb") as file:
        np.save(file, rows)
    assert rows.dtype == ROW
    assert found(new, public, 0) == set()


def test_who_repeats_an_earlier_run_stands_for_nobody(tmp_path: Path) -> None:
    words = WORDS[:12]
    texts: list[Text] = [(" ".join(words[:n]), 1) for n in (12, 11, 10)]
    world = NearWorld(tmp_path, [texts], THRESHOLD)
    world.compare(across=False)
    stands = set(world.dropped().values())
    assert len(stands) == 1
    write_earlier(tmp_path / "earlier", [(point, 0) for point in stands])
    left: set[int] = set()
    for number in range(NEAR_RANGES):
        out = tmp_path / f"out-{number}"
        groups = tmp_path / f"groups-range-{number}.npy"
        choose_range(world.files, groups, THRESHOLD, out, [tmp_path / "earlier"])
        pairs = np.load(out)
        left |= set(pairs["first"].tolist()) | set(pairs["id"].tolist())
    assert left == set(world.texts) - stands

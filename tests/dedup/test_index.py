"""The folder of the index: what counts, what is removed, what is refused."""

from __future__ import annotations

import datetime
import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from redactory.dedup.index import FORMAT, Entry, IndexFolder
from redactory.dedup.near import NEAR_RANGES, copy_signed_texts, find_earlier_near_duplicates
from redactory.dedup.signatures import SignedFiles, compute_jaccard
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.files import remove_path, write_json
from tests.dedup.worlds import NearWorld, Text, substitutions

PARAMETERS: dict[str, Any] = {
    "key": "0a",
    "modes": {"public": "exact", "private": "folded"},
    "near": {"threshold": 0.7},
}
NOW = datetime.datetime(2030, 1, 31, tzinfo=datetime.UTC)


def index_in(folder: Path) -> IndexFolder:
    index = IndexFolder(folder / "index")
    with index.hold_lock():
        index.open_or_create(PARAMETERS)
    return index


def sealed(index: IndexFolder, token: str, days_old: float = 0, run: str = "night") -> Entry:
    """A pending entry with one file."""
    index.create_draft(token, index.root.parent / run)
    (index.get_draft_folder(token) / "public.bloom").write_bytes(token.encode())
    files = {"public.bloom": file_sha256(index.get_draft_folder(token) / "public.bloom")}
    created = (NOW - datetime.timedelta(days=days_old)).isoformat()
    body = {"token": token, "run": run, "created": created, "files": files, "journal": token}
    write_json(index.get_draft_folder(token) / "entry.json", body)
    return next(entry for entry in index.list_pending_entries() if entry.folder.name == token)


def names(index: IndexFolder) -> list[str]:
    return [entry.name for entry in index.list_entries()]


def test_entries_are_numbered_by_their_commits_and_no_number_serves_twice(tmp_path: Path) -> None:
    index = index_in(tmp_path)
    assert (index.root.stat().st_mode & 0o777, index.list_entries()) == (0o700, [])
    for token in ("b", "a"):
        index.commit_entry(sealed(index, token))
    assert names(index) == ["000001-night", "000002-night"]
    assert [entry.body["token"] for entry in index.list_entries()] == ["b", "a"]
    assert not index.list_pending_entries()
    assert index.prune_entries(0, None, NOW) == ["000001-night", "000002-night"]
    index.commit_entry(sealed(index, "c"))
    assert names(index) == ["000003-night"]


def test_a_number_counts_also_where_the_head_was_not_written_any_more(tmp_path: Path) -> None:
    index = index_in(tmp_path)
    before = index.header_path.read_bytes()
    index.commit_entry(sealed(index, "a"))
    index.header_path.write_bytes(before)
    index.commit_entry(sealed(index, "b"))
    assert names(index) == ["000001-night", "000002-night"]


@pytest.mark.parametrize(
    ("keep_runs", "keep_days", "left"),
    [(None, None, 4), (1, None, 1), (3, None, 3), (9, None, 4), (None, 7, 2), (None, 100, 4), (3, 7, 2)],
)
def test_retention_goes_by_numbers_and_dates(
    tmp_path: Path, keep_runs: int | None, keep_days: int | None, left: int
) -> None:
    index = index_in(tmp_path)
    for token, days in (("a", 30), ("b", 8), ("c", 7), ("d", 0)):
        index.commit_entry(sealed(index, token, days))
    everything = names(index)
    removed = index.prune_entries(keep_runs, keep_days, NOW)
    assert names(index) == everything[4 - left :]
    assert removed == everything[: 4 - left]
    assert len(list(index.runs.iterdir())) == left


def test_a_clock_that_is_years_ahead_empties_no_index(tmp_path: Path) -> None:
    index = index_in(tmp_path)
    for token, days in (("a", 3), ("b", 2), ("c", 1)):
        index.commit_entry(sealed(index, token, days))
    far = NOW + datetime.timedelta(days=3650)
    assert index.prune_entries(None, 7, far) == []
    index.commit_entry(sealed(index, "d", -3650))
    assert index.prune_entries(None, 7, far) == []


def test_a_removal_that_is_cut_short_is_a_removal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_in(tmp_path)
    index.commit_entry(sealed(index, "a"))

    def fail(_folder: Path, **_: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail)
        with pytest.raises(OSError, match="Input/output"):
            index.prune_entries(0, None, NOW)
        with pytest.raises(OSError, match="Input/output"):
            remove_path(sealed(index, "b").folder)
    assert (names(index), index.list_pending_entries(), index.map_drafts_to_runs()) == ([], [], {})
    with index.hold_lock():
        index.open_or_create(PARAMETERS)
    assert not [*index.runs.iterdir(), *index.pending.iterdir()]
    (index.runs / ".tmp-7-000001-night").mkdir()
    index.commit_entry(sealed(index, "c"))
    assert [path.name for path in index.runs.iterdir()] == ["000002-night"], "no former version is left"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"key": "0b"}, "key 0a, but this run has key 0b"),
        ({"modes": {"public": "none", "private": "folded"}}, "modes.public exact, .* modes.public none"),
        ({"near": None}, "near.threshold 0.7, but this run has near.threshold None"),
        ({"versions": {"unicode": "15"}}, "versions.unicode None, .* versions.unicode 15"),
    ],
)
def test_other_parameters_are_refused_with_both_values(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    index = index_in(tmp_path)
    before = index.header_path.read_bytes()
    with pytest.raises(RunStateError, match=f"created with {said}; an index cannot mix parameters.*another"):
        index.read_matching_header({**PARAMETERS, **change})
    with index.hold_lock(), pytest.raises(RunStateError, match="cannot mix"):
        index.open_or_create({**PARAMETERS, **change})
    assert index.header_path.read_bytes() == before


def test_another_format_and_a_folder_of_other_files_are_refused(tmp_path: Path) -> None:
    index = index_in(tmp_path)
    body = json.loads(index.header_path.read_text())
    index.header_path.write_text(json.dumps({**body, "format": "redactory-index/0"}))
    with pytest.raises(RunStateError, match=f"redactory-index/0, but this version writes {FORMAT}"):
        index.read_header()
    other = IndexFolder(tmp_path / "other")
    other.root.mkdir()
    (other.root / "letters.txt").write_text("mine")
    with other.hold_lock(), pytest.raises(RunStateError, match=r"letters\.txt, but no index"):
        other.open_or_create(PARAMETERS)
    with pytest.raises(RunStateError, match="is not an index"):
        other.read_header()


def test_an_entry_that_is_not_what_was_written_is_noticed(tmp_path: Path) -> None:
    index = index_in(tmp_path)
    entry = index.commit_entry(sealed(index, "a"))
    entry.verify_files()
    (entry.folder / "public.bloom").write_bytes(b"b")
    with pytest.raises(CheckFailed, match=r"public\.bloom differs from what was written"):
        entry.verify_files()
    (entry.folder / "public.bloom").unlink()
    with pytest.raises(CheckFailed, match="differs from what was written"):
        entry.verify_files()
    (entry.folder / "entry.json").write_text("{")
    with pytest.raises(CheckFailed, match=r"entry\.json cannot be read"):
        index.list_entries()


# Earlier runs: one point exchanged moves every later run by one text at most.


def kept_texts(runs: Sequence[frozenset[str]], window: int) -> list[frozenset[str]]:
    """What each run keeps, where it leaves out what the last ``window`` runs saw: the theorem's rule."""
    return [run - frozenset().union(*runs[max(0, t - window) : t]) for t, run in enumerate(runs)]


@pytest.mark.parametrize(
    ("texts", "length", "window"), [("ab", 3, 1), ("ab", 4, 2), ("ab", 5, 1), ("ab", 5, 2), ("ab", 5, 4), ("abc", 4, 2)]
)
def test_one_text_exchanged_moves_one_text_of_every_run(texts: str, length: int, window: int) -> None:
    subsets = [frozenset(some) for n in range(len(texts) + 1) for some in itertools.combinations(texts, n)]
    most = 0
    for later in itertools.product(subsets, repeat=length - 1):
        kept = {first: kept_texts([first, *later], window) for first in subsets}
        for one, other in itertools.combinations(subsets, 2):
            if len(one - other) <= 1 and len(other - one) <= 1:
                pairs = zip(kept[one], kept[other], strict=True)
                most = max(most, *(substitutions(sorted(a), sorted(b)) for a, b in pairs))
    assert most == 1


# Near-duplicates of earlier runs, against the true similarity of every pair.


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
    out = [SignedFiles(folder / str(side), number) for number in range(len(world.files))]
    for files, own in zip(world.files, out, strict=True):
        copy_signed_texts(files, np.array(kept, np.int64), side, own)
    return out


def found(new: NearWorld, old: list[SignedFiles], side: int) -> set[int]:
    hits: set[int] = set()
    for number in range(NEAR_RANGES):
        hits |= find_earlier_near_duplicates(new.files, old, side, number, THRESHOLD)[0]
    return hits


def test_found_are_those_near_a_kept_text_of_their_side_and_no_others(tmp_path: Path) -> None:
    old = NearWorld(tmp_path / "old", [variants(1, 20), variants(2, 17)], THRESHOLD)
    new = NearWorld(tmp_path / "new", [variants(3, 25), [], variants(4, 15)], THRESHOLD)
    kept = [point for point in old.texts if point % 3]
    for side in (0, 1):
        mine = [p for p in kept if old.texts[p][1] == side]
        files = entry(tmp_path / "entry", old, side, kept)
        assert sum(len(np.load(one.get_path("rows"))) for one in files) == len(mine)
        best = {
            point: max(compute_jaccard(new.sets[point], old.sets[other]) for other in mine)
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
    rows = np.load(public[0].get_path("rows"))
    rows["group"] = 7
    with public[0].get_path("rows").open("wb") as file:
        np.save(file, rows)
    assert found(new, public, 0) == set()

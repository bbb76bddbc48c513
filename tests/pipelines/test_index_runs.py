"""Runs that share an index, against sets: what each keeps, and that nothing else decides about it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import redactory
from redactory.dedup.index import IndexFolder
from redactory.dedup.signatures import WordTokenizer
from redactory.evaluation.report import write_report
from redactory.foundation.errors import CheckFailed, ConfigurationError, RedactoryError, RunStateError, SealedError
from redactory.pipelines.curation import finish
from redactory.pipelines.curation import index as indexing
from redactory.redaction import MASK, RunFolder, list_broken_files, read_batches, read_column
from tests.dedup.worlds import substitutions
from tests.pipelines.support import (
    DIGITS,
    LINE_CONFIG,
    NO_ENGINES,
    DigitDetector,
    invoke_command,
    read_data_bytes,
    write_rows,
)

WORLD = ["hello", "Hello!", "so it is", "call {n}", "CALL {n}", "tel {n} now", "meet Anna", "broken {n}"]
"""Public ones and private ones, with variants under one local key, and one that cannot be processed."""
Night = list[str]


pytestmark = pytest.mark.usefixtures("unsynced", "unreported", "few_hash_ranges")


def plain(rows: Path, index: dict[str, Any] | None = None) -> dict[str, Any]:
    dedup = {} if index is None else {"index": index}
    return {**LINE_CONFIG, "input": str(rows), "partition": {"documents": 3}, "dedup": dedup}


def curate(folder: Path, name: str, texts: Night, dedup: dict[str, Any] | None = None, **more: Any) -> Path:
    """One night's run on ``folder/index``."""
    rows = [{"id": f"{name}{i}", "user_id": f"u{i % 2}", "text": text} for i, text in enumerate(texts)]
    config = plain(write_rows(folder / f"{name}.jsonl", rows))
    config["dedup"] = {**(dedup or {}), "index": {"path": str(folder / "index"), **more.pop("index", {})}}
    config.update(more.pop("config", {}))
    redactory.curate(config, output=folder / name, detector=DigitDetector(), **more)
    return folder / name


def texts_of(run: Path) -> dict[str, list[str]]:
    return {split: sorted(read_column(run / split, "text")) for split in ("public", "private")}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for batch in read_batches(folder) for row in batch.to_pylist()]


def said(run: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(RunFolder(run).manifest.read_text())["dedup"]["index"]
    return facts


def counted(folder: Path) -> list[str]:
    return [entry.name for entry in IndexFolder(folder / "index").list_entries()]


def nights(seed: int, count: int, size: int) -> list[Night]:
    chance = np.random.default_rng(seed)
    return [[chance.choice(WORLD).format(n=chance.integers(99)) for _ in range(size)] for _ in range(count)]


def sides(texts: Night) -> dict[str, set[str]]:
    """What a night's points come to: masked, routed, without those that cannot be processed."""
    fine = [text for text in texts if "broken" not in text]
    masked = {text: DIGITS.sub(MASK, text) for text in fine}
    private = {masked[text] for text in fine if masked[text] != text or "Anna" in text}
    return {"public": set(masked.values()) - private, "private": private}


def keys(texts: set[str], mode: str) -> set[str]:
    return {WordTokenizer(MASK).fold_text(text) for text in texts} if mode == "folded" else texts


@pytest.mark.parametrize(
    ("mode", "keep", "seed"),
    [("exact", None, 1), ("exact", 2, 2), ("folded", None, 3), ("folded", 1, 4), ("bloom", None, 5)],
)
def test_a_run_keeps_what_no_run_of_the_index_saw(tmp_path: Path, mode: str, keep: int | None, seed: int) -> None:
    seen: list[tuple[str, dict[str, set[str]]]] = []
    for number, texts in enumerate(nights(seed, 4, 5)):
        run = curate(
            tmp_path, f"n{number}", texts, {"mode": mode}, index={} if keep is None else {"keep": {"runs": keep}}
        )
        asked = seen if keep is None else seen[-keep:]
        assert said(run)["runs"] == [name for name, _ in asked]
        kept = texts_of(run)
        for side, own in sides(texts).items():
            earlier = set().union(*(keys(theirs[side], mode) for _, theirs in asked))
            assert keys(set(kept[side]), mode) == keys(own, mode) - earlier
            assert len(kept[side]) == len(keys(set(kept[side]), mode)), "each once"
        _check_every_row(run, texts, mode, asked)
        seen.append((f"{number + 1:06d}-n{number}", sides(texts)))


def _check_every_row(run: Path, texts: Night, mode: str, asked: list[tuple[str, dict[str, set[str]]]]) -> None:
    folder = RunFolder(run)
    assert not list_broken_files(folder)
    rows = rows_of(folder.examples)
    vault = {row["example_id"]: row["text"] for row in rows_of(folder.vault)}
    assert len(rows) == len(texts)
    kept = {row["example_id"] for row in rows if row["decision"] == row["split"]}
    for row in rows:
        if row["decision"] == "quarantined":
            assert (row["earlier_run"], row["dup_of"]) == (None, None)
            continue
        text = DIGITS.sub(MASK, vault[row["example_id"]])
        first = [name for name, theirs in asked if keys({text}, mode) <= keys(theirs[row["split"]], mode)]
        assert row["earlier_run"] == (first[0] if first else None)
        if first:
            assert (row["decision"], row["dup_of"]) == ("duplicate", None)
        elif row["dup_of"] is not None:
            assert row["dup_of"] in kept
    number = {s: sum(r["split"] == s and r["earlier_run"] is not None for r in rows) for s in ("public", "private")}
    assert said(run)["duplicate_earlier"] == number


def test_within_a_user_only_that_users_texts_are_left_out(tmp_path: Path) -> None:
    dedup = {"scope": "user"}
    curate(tmp_path, "a", ["one", "two", "see 1"], dedup)
    run = curate(tmp_path, "b", ["two", "two", "see 2"], dedup)
    assert texts_of(run) == {"public": ["two"], "private": []}, "the first user's; the second had it"


@pytest.mark.parametrize(("mode", "size"), [("exact", 1), ("folded", 2)])
def test_one_earlier_example_moves_each_run_by_its_group_size_at_most(tmp_path: Path, mode: str, size: int) -> None:
    others = [["call 1", "meet Anna", "so"], ["CALL 2", "tel 3 now", "meet Anna"]]
    variants = ["call 1", "CALL 1", "tel 1 now"]
    worlds = []
    for number, text in enumerate(variants):
        folder = tmp_path / str(number)
        folder.mkdir()
        first = ["hello", text, "call 2 or so"]
        runs = [curate(folder, f"n{i}", n, {"mode": mode}) for i, n in enumerate([first, *others])]
        worlds.append([texts_of(run) for run in runs])
    moved = 0
    for one in worlds:
        for other in worlds:
            for place, (a, b) in enumerate(zip(one, other, strict=True)):
                assert a["public"] == b["public"], "private text never decides about public text"
                by = substitutions(a["private"], b["private"])
                assert by <= (size if place == 0 else 1)
                moved = max(moved, by if place else 0)
    assert moved == 1, "the later runs do move"


PARCEL = "the parcel that was sent to our house last week is not here yet"


def test_near_duplicates_of_an_earlier_run_are_left_out_on_their_side(tmp_path: Path) -> None:
    dedup = {"mode": "minhash"}
    first = curate(tmp_path, "a", [PARCEL, f"{PARCEL} said 5", f"{PARCEL}!", "something else"], dedup)
    assert {side: len(kept) for side, kept in texts_of(first).items()} == {"public": 2, "private": 1}
    night = [f"{PARCEL} and", "fresh words", f"{PARCEL} told 6", f"{PARCEL} and", "new 7"]
    second = curate(tmp_path, "b", night, dedup)
    assert texts_of(second) == {"public": ["fresh words"], "private": [f"new {MASK}"]}
    assert [row["earlier_run"] for row in rows_of(RunFolder(second).examples)] == [
        "000001-a",
        None,
        "000001-a",
        "000001-a",
        None,
    ]
    third = curate(tmp_path, "c", [f"{PARCEL} say", "fresh words!", "new 8"], dedup)
    assert texts_of(third) == {"public": [], "private": []}
    assert [row["earlier_run"] for row in rows_of(RunFolder(third).examples)] == ["000001-a", "000002-b", "000002-b"]


def test_a_text_near_one_of_the_other_side_of_an_earlier_run_stays(tmp_path: Path) -> None:
    curate(tmp_path, "a", [f"{PARCEL} said 5"], {"mode": "minhash"})
    run = curate(tmp_path, "b", [f"{PARCEL} said", f"{PARCEL} said 6"], {"mode": "minhash"})
    assert texts_of(run) == {"public": [f"{PARCEL} said"], "private": []}


def test_each_side_by_its_own_mode(tmp_path: Path) -> None:
    dedup = {"mode": "minhash", "private_mode": "exact"}
    curate(tmp_path, "a", [PARCEL, f"{PARCEL} said 5"], dedup)
    run = curate(tmp_path, "b", [f"{PARCEL} and", f"{PARCEL} told 6", f"{PARCEL} said 7"], dedup)
    assert texts_of(run) == {"public": [], "private": [f"{PARCEL} told {MASK}"]}
    none = {"mode": "exact", "private_mode": "none"}
    (tmp_path / "other").mkdir()
    curate(tmp_path / "other", "a", ["hello", "call 1"], none)
    assert texts_of(curate(tmp_path / "other", "b", ["hello", "call 2"], none))["private"] == [f"call {MASK}"]


class Stop:
    """Stops a run at its n-th sign of progress."""

    def __init__(self, moment: int) -> None:
        self.left = moment

    def __call__(self, *_: object) -> None:
        self.left -= 1
        if not self.left:
            raise RuntimeError("stopped")


def neither_or_both(folder: Path, name: str) -> None:
    """A run's entry counts, or will for whoever opens the index next, exactly if the run is finished."""
    index = IndexFolder(folder / "index")
    with index.hold_lock():
        indexing.promote_finished_entries(index)
    finished = (folder / name / "_SUCCESS").exists()
    assert sum(entry.body["run"] == name for entry in index.list_entries()) == int(finished)


@pytest.mark.parametrize("where", ["seal_index_entry", "write_success", "promote_entry"])
def test_stopped_around_success_both_or_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    curate(tmp_path, "a", ["hello"])
    place: Any = finish if where == "write_success" else indexing
    with monkeypatch.context() as patch:
        patch.setattr(place, where, Stop(1))
        with pytest.raises(SealedError):
            curate(tmp_path, "b", ["hello", "so it is"])
    assert counted(tmp_path) == ["000001-a"]
    assert (tmp_path / "b" / "_SUCCESS").exists() == (where == "promote_entry")
    neither_or_both(tmp_path, "b")
    run = curate(tmp_path, "c", ["so it is"])
    assert said(run)["runs"] == ["000001-a", "000002-b"][: 1 + (where == "promote_entry")]
    assert texts_of(run)["public"] == ([] if where == "promote_entry" else ["so it is"])
    # and resumed it goes by what it went by
    run = curate(tmp_path, "b", ["hello", "so it is"], resume=True)
    assert said(run)["runs"] == ["000001-a"]
    assert texts_of(run)["public"] == ["so it is"]
    neither_or_both(tmp_path, "b")
    assert len(counted(tmp_path)) == 3
    assert not list((tmp_path / "index" / "pending").iterdir())


def test_an_entry_that_counts_without_success_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage: whoever opens the index does not look whether the run is finished."""
    monkeypatch.setattr(finish, "write_success", Stop(1))
    with pytest.raises(SealedError):
        curate(tmp_path, "a", ["hello"])
    neither_or_both(tmp_path, "a")
    monkeypatch.setattr(indexing, "has_written_entry", lambda *_: True)
    with pytest.raises(AssertionError):
        neither_or_both(tmp_path, "a")


def test_resuming_a_finished_run_counts_it_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(indexing, "promote_entry", Stop(1))
        with pytest.raises(SealedError):
            curate(tmp_path, "a", ["hello"])
    shutil.move(tmp_path / "a", tmp_path / "moved")
    shown = redactory_index(tmp_path)
    assert [p["state"] for p in shown["pending"]] == ["gone"]
    assert said(curate(tmp_path, "b", ["hello"]))["runs"] == [], "a run that is not to be seen does not count"
    again = plain(tmp_path / "a.jsonl", {"path": str(tmp_path / "index")})
    for _ in range(2):
        redactory.curate(again, output=tmp_path / "moved", resume=True)
        assert counted(tmp_path) == ["000001-b", "000002-a"]
    assert not list((tmp_path / "index" / "pending").iterdir())


@pytest.mark.parametrize("moment", [9, 16])
def test_a_resumed_run_is_the_same_though_another_one_committed(tmp_path: Path, moment: int) -> None:
    texts = [*nights(5, 1, 8)[0], "hello", "call 5"]
    for name in ("alone", "met"):
        (tmp_path / name).mkdir()
        curate(tmp_path / name, "a", ["call 9"])
    whole = curate(tmp_path / "alone", "b", texts)
    with pytest.raises(SealedError):
        curate(tmp_path / "met", "b", texts, progress=Stop(moment))
    curate(tmp_path / "met", "c", texts)
    run = curate(tmp_path / "met", "b", texts, resume=True)
    assert read_data_bytes(run) == read_data_bytes(whole)
    assert said(run)["runs"] == ["000001-a"]
    assert counted(tmp_path / "met") == ["000001-a", "000002-c", "000003-b"]


def test_a_run_that_is_begun_anew_replaces_its_former_draft(tmp_path: Path) -> None:
    with pytest.raises(SealedError):
        curate(tmp_path, "a", ["hello"], progress=Stop(9))
    pending = tmp_path / "index" / "pending"
    assert len(list(pending.iterdir())) == 1
    shutil.rmtree(tmp_path / "a")
    curate(tmp_path, "a", ["hello"])
    assert not list(pending.iterdir())
    assert counted(tmp_path) == ["000001-a"]


def test_what_was_forgotten_is_missed_by_whoever_resumes(tmp_path: Path) -> None:
    curate(tmp_path, "a", ["hello"])
    with pytest.raises(SealedError):
        curate(tmp_path, "b", ["hello", "so"], progress=Stop(9))
    redactory_index(tmp_path, "--keep-runs", "0")
    with pytest.raises(RunStateError, match=r"entry 000001-a that this run uses was removed .*new run"):
        curate(tmp_path, "b", ["hello", "so"], resume=True)


def test_an_entry_that_vanishes_while_a_run_is_at_work_stops_it(tmp_path: Path) -> None:
    curate(tmp_path, "a", ["hello"])

    def vanish(name: str, *_: object) -> None:
        if name == "redact":
            shutil.rmtree(tmp_path / "index" / "runs" / "000001-a", ignore_errors=True)

    with pytest.raises(RunStateError, match="was removed meanwhile"):
        curate(tmp_path, "b", ["hello"], progress=vanish)


def test_an_entry_that_was_changed_is_noticed_at_the_begin(tmp_path: Path) -> None:
    curate(tmp_path, "a", ["hello"])
    path = tmp_path / "index" / "runs" / "000001-a" / "public.digests.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(CheckFailed, match=r"public\.digests\.npy differs from what was written"):
        curate(tmp_path, "b", ["hello"])


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"config": {"detect": {**NO_ENGINES, "conservative": {"rules": ["digit"]}}}}, "policies.conservative"),
    ({"config": {"segment": {"mode": "document"}}}, "segment.mode line, .* segment.mode document"),
    ({"dedup": {"scope": "user"}}, "scope corpus, .* scope user"),
    ({"dedup": {"mode": "folded"}}, "modes.public exact, .* modes.public folded"),
    ({"dedup": {"private_mode": "folded"}}, "modes.private exact, .* modes.private folded"),
]


def test_a_run_with_other_parameters_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    curate(tmp_path, "a", ["hello"])
    for change, what in CHANGES:
        with pytest.raises(RunStateError, match=f"created with {what}.*cannot mix"):
            curate(tmp_path, "b", ["hello"], **change)
    monkeypatch.setenv("REDACTORY_KEY", "another key, also long enough")
    with pytest.raises(RunStateError, match=r"created with key .*cannot mix"):
        curate(tmp_path, "b", ["hello"])
    assert not (tmp_path / "b").exists()
    near = tmp_path / "near"
    near.mkdir()
    monkeypatch.undo()
    curate(near, "a", ["hello"], {"mode": "minhash"})
    with pytest.raises(RunStateError, match=r"near\.threshold 0\.7, .* near\.threshold 0\.8"):
        curate(near, "b", ["hello"], {"mode": "minhash", "near": {"threshold": 0.8}})


def test_what_an_index_cannot_go_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="index has no effect with mode none"):
        curate(tmp_path, "a", ["hello"], {"mode": "none"})
    for place in ("a/index", ""):
        with pytest.raises(ConfigurationError, match="are inside each other"):
            curate(tmp_path, "a", ["hello"], index={"path": str(tmp_path / place)})
    folder = tmp_path / "corpus"
    folder.mkdir()
    # a name with an underscore before it is no input
    for name, wrong in (("_index", "nothing to read at"), ("index", "is inside the input")):
        index = {"path": str(folder / name)}
        with pytest.raises(ConfigurationError, match=wrong):
            redactory.curate(plain(folder, index), output=tmp_path / "a", detector=DigitDetector())
        write_rows(folder / "rows.jsonl", [{"text": "hello"}])
    monkeypatch.delenv("REDACTORY_KEY")
    with pytest.raises(ConfigurationError, match=r"needs a key .* REDACTORY_KEY .*redactory keys new"):
        curate(tmp_path, "a", ["hello"])
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "index").exists()


def test_resuming_with_another_index_or_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SealedError):
        curate(tmp_path, "a", ["hello"], progress=Stop(9))
    other, rows = tmp_path / "other", tmp_path / "a.jsonl"
    for now in ("none", "[0-9a-f]{16}"):
        with pytest.raises(RunStateError, match=f"started with the index [0-9a-f]{{16}}, .* holds {now}: "):
            curate(tmp_path, "a", ["hello"], index={"path": str(other)}, resume=True)
        if now == "none":
            assert not other.exists()
            index = {"path": str(other)}
            redactory.curate(plain(rows, index), output=tmp_path / "b", detector=DigitDetector())
    with pytest.raises(RunStateError, match=r"another configuration \(dedup\.index\)"):
        redactory.curate(plain(rows), output=tmp_path / "a", detector=DigitDetector(), resume=True)


def redactory_index(folder: Path, *more: str) -> dict[str, Any]:
    done = invoke_command("index", folder / "index", *more, "--json")
    assert done.exit_code == 0, done.output
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_the_commands_show_and_prune(tmp_path: Path) -> None:
    for name in ("a", "b"):
        curate(tmp_path, name, ["hello", "call 1", "hello"])
    with pytest.raises(SealedError):
        curate(tmp_path, "c", ["so"], progress=Stop(9))
    shown = redactory_index(tmp_path)
    assert [(r["entry"], r["texts"]) for r in shown["runs"]] == [
        ("000001-a", {"public": 1, "private": 1}),
        ("000002-b", {"public": 1, "private": 1}),
    ]
    assert [(Path(p["path"]).name, p["state"]) for p in shown["pending"]] == [("c", "unfinished")]
    page = invoke_command("index", tmp_path / "index").stdout
    assert "000002-b" in page
    assert "unfinished run" in " ".join(page.split())
    shutil.rmtree(tmp_path / "c")
    pruned = redactory_index(tmp_path, "--keep-runs", "1", "--keep-days", "1")
    assert pruned["kept"] == ["000002-b"]
    assert pruned["removed"][0] == "000001-a"
    assert len(pruned["removed"]) == 2, "and the draft of a run that is gone"
    gone = invoke_command("index", tmp_path / "nothing")
    assert isinstance(gone.exception, RedactoryError)


def test_a_run_with_an_index_verifies_and_its_report_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "write_report", write_report)
    curate(tmp_path, "a", ["hello", "so it is"])
    run = curate(tmp_path, "b", ["hello", "another one"])
    found = redactory.verify(run)
    assert found["ok"], found
    repeated = "1 public and 0 private examples repeat what the index saw in 1 earlier run"
    assert repeated in RunFolder(run).report.read_text()
    told = redactory.describe(plain(tmp_path / "a.jsonl", {"path": "x"}))
    assert "an earlier run of the index" in str(told["stages"])
    modes = {p.stat().st_mode & 0o777 for p in (tmp_path / "index").rglob("*") if p.is_file()}
    assert modes == {0o600}

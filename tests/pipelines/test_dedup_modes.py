"""Every mode through whole curations: what is kept, what is said of it, the same bytes whatever happens."""

from __future__ import annotations

import html
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.dedup.settings import DedupSettings
from redactory.dedup.settings import summarize_dedup as dedup_summary
from redactory.foundation.errors import CheckFailed, SealedError
from redactory.redaction import MASK, RunFolder, list_broken_files, read_column
from tests.pipelines.support import DigitDetector, read_data_bytes, read_rows, write_rows

CONFIG: dict[str, Any] = {"segment": {"mode": "line"}, "partition": {"documents": 5}}
PARCEL = "the parcel that was sent to our house last week is not here yet"
TEXTS = [
    "hello there\nHELLO, there!",
    f"{PARCEL}\nis it me you look for",
    f"{PARCEL}!\n{PARCEL.capitalize()}",
    f"{PARCEL} and we wait\nmy number is {{n}}",
    f"{PARCEL} said {{n}}\nhello there",
    "call {n} now\nbroken {n}",
]
"""Lines of a public family, a private one that is near it, repeats and texts that cannot be processed."""
MIXED = {"mode": "bloom", "private_mode": "minhash", "scope": "user"}
MODES: list[dict[str, Any]] = [{}, *({"mode": mode} for mode in ("folded", "bloom", "minhash", "none"))]
MODES += [{"mode": "minhash", "private_mode": "exact"}, MIXED, {"report_cross_split": False}]
pytestmark = pytest.mark.usefixtures("unsynced", "few_hash_ranges")


def _name(dedup: dict[str, Any]) -> str:
    return "-".join(map(str, itertools.chain(*dedup.items()))) or "default"


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"id": f"d{i}", "user_id": f"u{i % 2}", "text": TEXTS[i % len(TEXTS)].format(n=100 + i)} for i in range(13)]
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl", rows)


def test_rows_of_which_little_is_left_are_no_near_duplicates(tmp_path: Path) -> None:
    """As in a language that the engines do not know: they mask most of it."""
    lines = [f"{line.format(*'123456')}{sign}" for line in ("{}", "{}, {}", "a {} b {}, {}") for sign in ".?!"]
    template = "the parcel that we sent to you on Monday is {} now"
    rows = [{"text": text} for text in (*lines, template.format(7), template.format("late 8"), lines[0])]
    config = {"dedup": {"mode": "minhash"}, "segment": {"mode": "document"}}
    done = curate(write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "run", {}, config=config)
    kept = read_column(RunFolder(tmp_path / "run").private, "text")
    masked = [re.sub(r"\d", MASK, line) for line in lines]
    assert sorted(text for text in kept if "parcel" not in text) == sorted(masked), done
    assert len(kept) == len(masked) + 1, "a template with a secret in it still is one"


@pytest.fixture(scope="module")
def runs(rows_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("modes")
    for dedup in MODES:
        curate(rows_file, folder / _name(dedup), dedup)
    return {_name(dedup): folder / _name(dedup) for dedup in MODES}


def curate(rows_file: Path, out: Path, dedup: dict[str, Any], **changes: Any) -> dict[str, Any]:
    config = {**CONFIG, "input": str(rows_file), "dedup": dedup, **changes.pop("config", {})}
    return redactory.curate(config, output=out, detector=DigitDetector(), **changes)


def texts_of(run: Path) -> tuple[list[str], list[str]]:
    folder = RunFolder(run)
    return sorted(read_column(folder.public, "text")), sorted(read_column(folder.private, "text"))


def said(run: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(RunFolder(run).manifest.read_text())["dedup"]
    return facts


def test_what_each_mode_keeps(runs: dict[str, Path]) -> None:
    public, private = texts_of(runs["default"])
    assert len(public) == len(set(public)) == 7
    assert private == [f"call {MASK} now", f"my number is {MASK}", f"{PARCEL} said {MASK}"]
    assert texts_of(runs["mode-bloom"]) == (public, private), "few texts: no false positive"

    folded, _ = texts_of(runs["mode-folded"])
    assert len(folded) == 4
    lines = {"hello there", "is it me you look for", PARCEL, f"{PARCEL} and we wait"}
    assert {text.casefold().strip("!").replace(",", "") for text in folded} == lines
    near, own = texts_of(runs["mode-minhash"])
    assert len(near) == 3, "the parcel's family is one"
    assert own == private
    assert texts_of(runs["mode-minhash-private_mode-exact"]) == (near, private)
    assert len(texts_of(runs["mode-none"])[0]) == 18


def test_the_report_across_the_split_moves_nothing(runs: dict[str, Path]) -> None:
    run = runs["report_cross_split-False"]
    with_it = read_data_bytes(runs["default"])
    assert {name: data for name, data in with_it.items() if "across" not in name} == read_data_bytes(run)
    assert not RunFolder(run).across.exists() or said(run)["across"] is None


def test_a_point_near_a_private_one_is_listed_without_text(runs: dict[str, Path]) -> None:
    run = RunFolder(runs["default"])
    listed, text = read_rows(run.across), {row["example_id"]: row["text"] for row in read_rows(run.vault)}
    near = {PARCEL, f"{PARCEL}!", PARCEL.capitalize(), f"{PARCEL} and we wait"}
    assert {text[row["example_id"]] for row in listed} == near
    assert all(text[row["private_example"]].startswith(f"{PARCEL} said") for row in listed)
    assert all(0.7 <= row["similarity"] < 1 for row in listed)
    assert {row["released_id"] for row in listed} <= {*read_column(run.public, "example_id")}
    assert said(runs["default"])["across"] == len(listed) == 4
    assert said(runs["mode-minhash"])["across"] == 1, "only what is released"
    assert said(runs["mode-none"])["across"] == 4, "a text is listed once"
    assert set(listed[0]) == {"example_id", "released_id", "private_example", "similarity"}


def test_the_manifest_names_the_rule_of_the_private_side(runs: dict[str, Path]) -> None:
    for dedup in MODES:
        facts, rule = said(runs[_name(dedup)]), DedupSettings.model_validate(dedup).get_rules()["private"]
        assert (facts["rule"], facts["group_size"]) == (rule.name, rule.group_size)
        assert facts["splits"]["private"]["rule"] == rule.name


def test_what_a_filter_lost_and_what_near_means_are_said(runs: dict[str, Path]) -> None:
    side = said(runs["mode-bloom"])["bloom"]["public"]
    assert (side["texts_added"], side["measured_on"], side["measured_lost"]) == (7, 7, 0)
    assert 0 < side["loss_rate_upper"] < 1
    assert side["error_rate"] == 1e-4
    near = said(runs["mode-minhash"])["near"]
    assert (near["bands"], near["rows"], near["threshold"], near["shingle"]) == (16, 6, 0.7, 2)
    assert near["found_at"]["0.8"] > 0.99
    assert near["largest_group"] == 4


def test_console_and_report_say_what_was_dropped_and_what_it_proves(runs: dict[str, Path]) -> None:
    expected = {
        "default": ["at most one text (rule S1)", "4 public examples nearly duplicate a private one"],
        "mode-folded": ["at most 2 texts (rule S2)"],
        "mode-none": ["public split, mode none: nothing is dropped", "(a repeated text is listed once)"],
        "mode-bloom": ["public filter: of 7 new texts", "0 wrongly counted as repeats and lost", "no finite epsilon"],
        "mode-minhash": ["near-duplicates: 4 texts dropped, in groups of at most 4", "rule near-greedy"],
        "mode-minhash-private_mode-exact": ["public split, mode minhash", "at most one text (rule S1)"],
        "report_cross_split-False": ["private split, mode exact"],
    }
    for name, path in runs.items():
        sentences = dedup_summary(said(path))
        page = html.unescape(RunFolder(path).report.read_text(encoding="utf-8"))
        assert all(sentence[1:] in page for sentence in sentences)
        for words in expected.get(name, []):
            assert words in "\n".join(sentences), name
        assert ("across the split" in "\n".join(sentences)) == (name != "report_cross_split-False")


def test_nothing_is_lost_and_who_stands_for_whom_is_known(runs: dict[str, Path]) -> None:
    for name, path in runs.items():
        run = RunFolder(path)
        assert not list_broken_files(run)
        rows = {row["example_id"]: row for row in read_rows(run.examples)}
        for row in rows.values():
            # a filter does not say
            if row["decision"] != "duplicate" or said(path)["splits"][row["split"]]["mode"] == "bloom":
                assert row["dup_of"] is None
            else:
                assert rows[row["dup_of"]]["decision"] == row["split"], name


def test_backwards_or_resumed_gives_the_same_bytes(rows_file: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    """One pass on one side, near-duplicates on the other: every stage there is."""

    def backwards(task: Any, numbers: Any) -> Any:
        return ((number, task(number)) for number in reversed(numbers))

    calls, moment = 0, 0

    def stop(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == moment:
            raise RuntimeError("stopped")

    whole, dedup = read_data_bytes(runs[_name(MIXED)]), {**MIXED}
    curate(rows_file, tmp_path / "backwards", dedup, stage_map=backwards, progress=stop)
    assert read_data_bytes(tmp_path / "backwards") == whole
    # among the last stages, those of deduplication
    calls, moment = 0, calls - 15
    with pytest.raises(SealedError):
        curate(rows_file, tmp_path / "stopped", dedup, progress=stop)
    curate(rows_file, tmp_path / "stopped", dedup, resume=True)
    assert read_data_bytes(tmp_path / "stopped") == whole


def test_a_release_is_blocked_and_let_go_by_a_higher_limit(rows_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(CheckFailed, match=r"4 public examples .*max_cross_split_duplicates allows 3:") as error:
        curate(rows_file, out, {}, config={"release": {"max_cross_split_duplicates": 3}})
    assert "parcel" not in str(error.value)
    assert not (out / "_SUCCESS").exists()
    assert len(read_rows(RunFolder(out).across)) == 4, "listed all the same"
    curate(rows_file, out, {}, config={"release": {"max_cross_split_duplicates": 4}}, resume=True)
    assert (out / "_SUCCESS").exists()


def test_describe_names_the_rule_and_prints_the_parameters(rows_file: Path) -> None:
    def described(dedup: dict[str, Any]) -> str:
        stages = redactory.describe({"input": str(rows_file), "dedup": dedup})["stages"]
        return str(next(stage["does"] for stage in stages if stage["stage"] == "dedup"))

    assert "public exact; private exact (rule S1: group size 1)" in described({})
    assert "private folded (rule S2: group size 2)" in described({"mode": "folded"})
    text = described({"mode": "minhash", "private_mode": "bloom"})
    assert "public minhash; private bloom (rule bloom: no stability proof, so no finite epsilon)" in text
    assert "texts that have 0.7 or more of their 2-word shingles in common are near-duplicates" in text
    assert "86% of the pairs just there are found" in text
    assert "filters for as many texts as there are examples" in text
    assert "have 0.6667 or more of" in described({"mode": "minhash", "near": {"threshold": 0.66666}})

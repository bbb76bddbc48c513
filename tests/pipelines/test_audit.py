"""The human step on finished runs: what is drawn, what its labels give, and where the figures go."""

from __future__ import annotations

import datetime
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binom

import redactory
from redactory.detectors.settings import _read_row_digests, write_fit_record
from redactory.evaluation.report import list_promises, render_report
from redactory.evaluation.sample_bounds import MASKED, PUBLIC, STRATA
from redactory.foundation.bounds import format_upper
from redactory.foundation.errors import CheckFailed, ConfigurationError, InputError, RunStateError
from redactory.foundation.files import read_json, write_json
from redactory.foundation.keys import load_digest_key
from redactory.foundation.records import RecordLog
from redactory.pipelines.measure.label import label_random
from redactory.pipelines.measure.label import label_score as score
from redactory.pipelines.modeling.train import find_recall_measurement
from redactory.redaction import RunFolder, list_broken_files, read_column, route_example
from redactory.training import RecallMeasurement, make_guarantee_card, train_model
from tests.pipelines.support import DigitDetector, read_files, read_rows, write_rows
from tests.training.conftest import make_small_settings, write_run

DAY = datetime.date(2026, 3, 4)
Spans = list[dict[str, Any]]
Truth = dict[int, Spans]


def route_texts(texts: Sequence[str]) -> list[tuple[str, str]]:
    """F of the run below."""
    routed = [route_example(text, found) for text, found in zip(texts, DigitDetector().detect(texts), strict=True)]
    return [("quarantined" if decision.failure else decision.split, decision.text) for decision in routed]


NAMES = ("ann", "bob", "Cleo", "dora", "eve", "Finn", "gus", "hal", "Ida", "jo", "kim", "Leo")


def _documents() -> Iterator[dict[str, Any]]:
    """Names (a capital makes π_c wary) and numbers (π masks them); a number beside an x is cut in two."""
    for i in range(360):
        name, kind = NAMES[i // 4 % 12], i % 4 if i % 5 else 0
        text = ["all is well", f"it is {name}", f"call {name} 55{i % 7}", f"code 4x{i % 9}"][kind]
        if i % 20 == 0:
            text += " broken"
        found = [(text.find(name), name, "NAME"), (text.find("55"), f"55{i % 7}", "NUMBER")]
        found.append((text.find("4x"), f"4x{i % 9}", "CODE"))
        spans = [{"start": at, "end": at + len(v), "label": label} for at, v, label in found if at >= 0]
        yield {"id": f"d{i}", "text": text, "spans": spans}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    """A run of points with 0 to 2 secrets, and the true spans of each point: a point is a document here."""
    folder = tmp_path_factory.mktemp("audit")
    rows = list(_documents())
    write_rows(folder / "corpus.jsonl", rows)
    redactory.curate(settings_of(folder), output=folder / "run", detector=DigitDetector())
    spans = {row["id"]: row["spans"] for row in rows}
    vault = read_rows(RunFolder(folder / "run").vault)
    return folder / "run", {row["example_id"]: spans[row["doc_id"]] for row in vault}


def settings_of(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = {"input": str(folder / "corpus.jsonl"), "segment": {"mode": "document"}}
    return {**config, "partition": {"documents": 150}, "detect": {"tagger": None, "patterns": None}}


@pytest.fixture
def run(finished: tuple[Path, Truth], tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


@pytest.fixture
def truth(finished: tuple[Path, Truth]) -> Truth:
    return finished[1]


def rows_in(path: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def label(sample: dict[str, Any], truth: Truth, out: Path) -> Path:
    """What a careful person makes of the sample."""
    return write_rows(out, [{**row, "spans": truth[row["example_id"]]} for row in rows_in(sample["files"]["rows"])])


def label_and_score(run: Path, truth: Truth, name: str = "sample", n: int = 60, **options: Any) -> dict[str, Any]:
    """The score of a new sample of ``run`` whose labels are the true ones, written in place."""
    sample = label_random(run, n, seed=2, name=name)
    return score(
        run, label(sample, truth, Path(sample["files"]["rows"])), name=name, route_texts=route_texts, **options
    )


def test_a_sample_is_private_sealed_and_leaves_the_curation_as_it_was(run: Path) -> None:
    before = read_files(run)
    result = label_random(run, 60, seed=5, date=DAY)
    folder = RunFolder(run).get_sample_folder("sample")
    assert Path(result["folder"]) == folder.root
    assert folder.root.is_relative_to(run / "state")
    after = read_files(run)
    made = after.keys() - before.keys()
    assert {p.parent for p in made} == {folder.root}
    assert {path: after[path] for path in before} == before
    assert {p.stat().st_mode & 0o777 for p in made} == {0o600}
    assert folder.root.stat().st_mode & 0o777 == 0o700
    assert not list_broken_files(folder)
    manifest = read_json(folder.manifest)
    assert manifest["parent"] == (run / "_SUCCESS").read_text(encoding="utf-8").strip()
    assert (manifest["date"], manifest["seed"], set(manifest["policies"])) == (
        "2026-03-04",
        5,
        {"strict", "conservative"},
    )
    told = folder.draw.read_text(encoding="utf-8") + json.dumps(result)
    assert not [row["text"] for row in rows_in(folder.rows) if row["text"] in told]


def test_strata_are_those_of_the_run_and_the_draw_is_the_seeds(run: Path, truth: Truth) -> None:
    result = label_random(run, 60, seed=5)
    texts = texts_in(run)
    stratum_of = {
        example_id: MASKED if found.strict else "suspected" if found.conservative else PUBLIC
        for example_id, found in zip(texts, DigitDetector().detect(texts.values()), strict=True)
    }
    assert result["quarantined"] == read_column(RunFolder(run).examples, "decision").count("quarantined") > 0
    assert {name: s["examples"] for name, s in result["strata"].items()} == Counter(stratum_of.values())
    rows = rows_in(result["files"]["rows"])
    assert len({row["text"] for row in rows}) == len(rows) == result["texts"] <= 60
    for row in rows:
        assert texts[row["example_id"]] == row["text"]
        assert row["stratum"] == stratum_of[row["example_id"]]
    record = read_json(RunFolder(run).get_sample_folder("sample").draw)
    times = Counter[str]()
    for drawn in record["rows"]:
        times[drawn["stratum"]] += drawn["times"]
    for name, own in result["strata"].items():
        assert times[name] == (own["examples"] if own["whole"] else own["draws"])
    assert {own["whole"] for own in result["strata"].values()} == {True, False}
    again = label_random(run, 60, seed=5, name="again")
    other = label_random(run, 60, seed=6, name="other")
    assert rows_in(again["files"]["rows"]) == rows
    assert rows_in(other["files"]["rows"]) != rows
    assert label_random(run, 60, name="a")["seed"] != label_random(run, 60, name="b")["seed"]


def test_points_of_a_stratum_are_drawn_alike(run: Path) -> None:
    """Each text as often as its copies say, over many small samples."""
    copies, times = Counter(texts_in(run).values()), Counter[str]()
    draws = points = 0
    for seed in range(12):
        result = label_random(run, 12, seed=seed, name=f"s{seed}")
        own = result["strata"]["masked"]
        assert not own["whole"]
        draws, points = draws + own["draws"], own["examples"]
        text_of = {row["example_id"]: row["text"] for row in rows_in(result["files"]["rows"])}
        for row in read_json(RunFolder(run).get_sample_folder(f"s{seed}").draw)["rows"]:
            if row["stratum"] == MASKED:
                times[text_of[row["example_id"]]] += row["times"]
    assert times.total() == draws
    for text, count in times.items():
        low, high = binom.ppf([1e-5, 1 - 1e-5], draws, copies[text] / points)
        assert low <= count <= high


def test_a_name_is_drawn_once(run: Path) -> None:
    label_random(run, 30)
    label_random(run, 30, name="second")
    refused: list[tuple[type[Exception], str, Path, int, str]] = [
        (RunStateError, "--sample", run, 30, "sample"),
        (ConfigurationError, "name", run, 30, "../up"),
        (ConfigurationError, "stratum", run, 2, "few"),
        (RunStateError, "not a finished folder", run / "public", 30, "sample"),
    ]
    for error, message, folder, n, name in refused:
        with pytest.raises(error, match=message):
            label_random(folder, n, name=name)


def texts_in(run: Path) -> dict[int, str]:
    return {row["example_id"]: row["text"] for row in read_rows(RunFolder(run).vault)}


def missed(text: str, span: dict[str, Any]) -> tuple[bool, bool]:
    """By π, and by both, with F run twice."""
    whole, without = route_texts([text, text[: span["start"]] + "<MASK>" + text[span["end"] :]])
    return whole != without, whole[0] != without[0]


def test_labels_give_the_misses_of_the_pipeline(run: Path, truth: Truth, tmp_path: Path) -> None:
    sample = label_random(run, 30, seed=2)
    labelled = label(sample, truth, tmp_path / "labelled.jsonl")
    result = score(run, labelled, route_texts=route_texts, date=DAY)
    rows = rows_in(labelled)
    by_label: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for s in row["spans"]:
            by_strict, by_both = missed(row["text"], s)
            for name in (s["label"], "all"):
                by_label[name].update({"n": 1, "gamma": by_strict, "delta_2": by_both})
    misses = result["misses"]
    for name, own in {**misses["labels"], "all": misses}.items():
        counts = {"n": own["n"], **{kind: own[kind]["misses"] for kind in ("gamma", "delta_2")}}
        assert counts == {"n": 0, "gamma": 0, "delta_2": 0} | by_label[name]
    assert by_label.keys() == {*misses["labels"], "all"}
    assert misses["delta_2"]["misses"] > 0
    assert misses["labels"]["CODE"]["gamma"]["misses"] == misses["labels"]["CODE"]["n"]
    public, masked, suspected = (result["strata"][name] for name in STRATA)
    assert public["missed_by_strict"] == public["missed_by_both"] == public["secrets"] > 0
    assert suspected["missed_by_strict"] == suspected["secrets"] > suspected["missed_by_both"] == 0
    assert 0 < masked["missed_by_strict"] < masked["secrets"] <= masked["draws"]
    # one secret of each draw of a point that holds any
    drawn = [
        row for row in read_json(RunFolder(run).get_sample_folder("sample").draw)["rows"] if truth[row["example_id"]]
    ]
    assert not masked["whole"]
    assert masked["secrets"] == sum(row["times"] for row in drawn if row["stratum"] == MASKED)
    assert result["secrets"] == result["left"]["secrets"] == misses["n"]
    assert result["left"]["left_public"] == misses["delta_2"]["misses"]
    assert [goal["secrets"] for goal in result["needed"]] == [2_995, 299_572]
    assert result["changed"] > 0
    text = json.dumps(result)
    assert not [row["text"] for row in rows if row["text"] in text]


def rates_of(run: Path, truth: Truth, name: str | None = None) -> tuple[float, float]:
    """γ and δ₂ of the run as it is, of all secrets or of those with a label, counted out."""
    texts, asked, gamma, delta_2 = texts_in(run), 0.0, 0.0, 0.0
    for example_id, spans in truth.items():
        for s in spans:
            if name in (None, s["label"]):
                by_strict, by_both = missed(texts[example_id], s)
                asked += 1 / len(spans)
                gamma += by_strict / len(spans)
                delta_2 += by_both / len(spans)
    return gamma / asked, delta_2 / asked


def test_a_run_that_is_labelled_whole_has_its_very_rates(run: Path, truth: Truth) -> None:
    result = label_and_score(run, truth, n=400)
    assert all(own["whole"] for own in result["strata"].values())
    misses = result["misses"]
    for name, own in {**misses["labels"], None: misses}.items():
        gamma, delta_2 = rates_of(run, truth, name)
        assert own["gamma"]["rate"] == pytest.approx(gamma)
        assert own["delta_2"]["rate"] == pytest.approx(delta_2)
        assert delta_2 <= own["delta_2"]["upper"] <= 1.01 * delta_2
        # the quarantined points may hold secrets too
        assert own["gamma"]["upper"] > gamma or gamma == 1


def test_labels_may_be_given_in_place_but_the_record_may_not_change(run: Path, truth: Truth) -> None:
    sample = label_random(run, 60, seed=2)
    rows = Path(sample["files"]["rows"])
    with pytest.raises(InputError, match="--unchanged"):
        score(run, rows, route_texts=route_texts)
    assert score(run, rows, route_texts=route_texts, unchanged=True)["changed"] == 0
    assert score(run, label(sample, truth, rows), route_texts=route_texts)["changed"] > 0
    draw = RunFolder(run).get_sample_folder("sample").draw
    draw.write_text(draw.read_text(encoding="utf-8").replace('"seed": 2', '"seed": 3'), encoding="utf-8")
    with pytest.raises(CheckFailed, match=r"draw\.json"):
        score(run, rows, route_texts=route_texts)
    with pytest.raises(RunStateError, match="has no sample"):
        score(run, rows, name="none", route_texts=route_texts)


def leaky(texts: Sequence[str]) -> list[tuple[str, str]]:
    """A pipeline that makes masked texts public."""
    return [("public" if "<MASK>" in t else s, m) for t, (s, m) in zip(texts, route_texts(texts), strict=True)]


def wider(texts: Sequence[str]) -> list[tuple[str, str]]:
    return [(side, text.replace("l", "<MASK>")) for side, text in route_texts(texts)]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda texts: [("public", text) for text in texts], "nothing is measured"),
        (wider, "nothing is measured"),
        (lambda texts: [("quarantined", "") for _ in texts], "nothing is measured"),
        (leaky, "would be public with a secret masked"),
    ],
)
def test_another_pipeline_measures_nothing(other: Any, message: str, run: Path, truth: Truth, tmp_path: Path) -> None:
    sample = label_random(run, 60, seed=2)
    with pytest.raises(CheckFailed, match=message):
        score(run, label(sample, truth, tmp_path / "l.jsonl"), route_texts=other)
    assert not RunFolder(run).recall.root.exists()


def test_fitted_rows_are_neither_drawn_nor_measured(finished: Any, run: Path, truth: Truth, tmp_path: Path) -> None:
    texts = Counter(texts_in(run).values())
    on = {text for text in texts if "55" in text or text == "it is ann"}
    rows_file, fitted_run = tmp_path / "fitted-rows.json", tmp_path / "fitted"
    record = {
        "rows": len(on), "secrets": len(on), "unit": "row", "misses": 0, "miss_rate": 0.1, "confidence": 0.95,
        "segment": "document", "policies": {}, "date": "2026-03-01",
    }  # fmt: skip
    write_fit_record(rows_file, record, on, load_digest_key())
    settings = settings_of(finished[0].parent)
    settings["detect"]["conservative"] = {"fitted": str(rows_file)}
    redactory.curate(settings, output=fitted_run, detector=DigitDetector())
    sample = label_random(fitted_run, 60, seed=2)
    assert not on & {row["text"] for row in rows_in(sample["files"]["rows"])}
    private = sum(n for text, n in texts.items() if "55" in text)
    assert sample["fitted_on"] == {"public": texts["it is ann"], "private": private}
    kept = sum(n for text, n in texts.items() if text not in on)
    assert sum(own["examples"] for own in sample["strata"].values()) == kept
    labelled = label(sample, truth, tmp_path / "labelled.jsonl")
    result = score(fitted_run, labelled, route_texts=route_texts)
    known = label_and_score(run, truth)
    # what is not measured counts as missed
    assert result["misses"]["gamma"]["upper"] > known["misses"]["gamma"]["upper"]
    _read_row_digests.cache_clear()
    rows_file.unlink()
    for use in (
        lambda: label_random(fitted_run, 60, name="lost"),
        lambda: score(fitted_run, labelled, route_texts=route_texts),
    ):
        with pytest.raises(ConfigurationError, match="it is unknown"):
            use()


def test_the_result_is_where_training_and_report_look_for_it(run: Path, truth: Truth) -> None:
    result, folder = label_and_score(run, truth, date=DAY, confidence=0.9), RunFolder(run)
    for kept in (folder.get_sample_folder("sample").score, folder.recall):
        assert not list_broken_files(kept)
        assert read_json(kept.root / "result.json") == result
    page = render_report(folder)
    assert (run / "report.html").read_text(encoding="utf-8") == page
    assert f"{result['misses']['n']:,} labelled sensitive spans" in page
    # the bound is of the weighted share, not of the counts of a sample that draws public texts more often
    for misses in (*result["misses"]["labels"].values(), result["misses"]):
        for rate in ("gamma", "delta_2"):
            upper = format_upper(misses[rate]["upper"], 3, unit="%")
            assert f">{misses[rate]['misses']:,}, weighted share up to {upper}<" in page
    recall = find_recall_measurement(folder, "crt")
    assert recall is not None
    assert recall.sample is not None
    assert (recall.sample.texts, recall.sample.date, recall.confidence) == (result["texts"], DAY, 0.9)
    for rate in ("gamma", "delta_2"):
        assert getattr(recall.sample, f"{rate}_upper") == result["misses"][rate]["upper"]


def test_a_begun_training_keeps_the_measurement_that_it_began_with(run: Path, truth: Truth) -> None:
    label_and_score(run, truth, date=DAY, confidence=0.9)
    folder = RunFolder(run)
    ledger, measured = folder.get_model_folder("begun").ledger, find_recall_measurement(folder, "begun")
    assert measured is not None
    ledger.parent.mkdir(parents=True)
    try:
        with RecordLog(ledger) as log:
            log.append("head", {"settings": {"detector_recall_file": measured.model_dump(mode="json")}})
        label_and_score(run, truth, name="later", date=DAY, confidence=0.95)
        assert find_recall_measurement(folder, "begun") == measured
        later = find_recall_measurement(folder, "other")
        assert later is not None
        assert (later.confidence, measured.confidence) == (0.95, 0.9)
    finally:
        shutil.rmtree(ledger.parent)


def test_without_a_secret_nothing_was_measured(run: Path, tmp_path: Path) -> None:
    sample = label_random(run, 60, seed=2)
    rows = [{**row, "spans": []} for row in rows_in(sample["files"]["rows"])]
    result = score(run, write_rows(tmp_path / "l.jsonl", rows), route_texts=route_texts)
    assert result["misses"]["gamma"] == {"misses": 0, "rate": None, "upper": 1.0}
    assert find_recall_measurement(RunFolder(run), "crt") is None


MEASURED: dict[str, Any] = {"labels": 180, "missed_by_strict": 9, "missed_by_both": 2, "confidence": 0.9}
SAMPLE = {"name": "spring", "date": "2026-03-04", "texts": 400, "gamma_upper": 0.2, "delta_2_upper": 1e-6}


def test_bounds_of_a_sample_that_nobody_scored_here_are_refused(run: Path) -> None:
    recall = {**MEASURED, "sample": SAMPLE}
    with pytest.raises(ConfigurationError, match=r"train\.detector_recall_file\.sample: the bounds must come from"):
        redactory.train({"input": "rows.jsonl"}, output=run, detector_recall_file=recall)
    assert not RunFolder(run).list_model_names()
    with pytest.raises(ConfigurationError, match=r"train\.detector_recall_file\.confidence: must be at least 0\.5"):
        redactory.train({"input": "rows.jsonl"}, output=run, detector_recall_file={**MEASURED, "confidence": 0.01})


def test_the_guarantee_takes_the_samples_bounds_and_names_it(tmp_path: Path) -> None:
    def card(**changes: Any) -> tuple[dict[str, Any], str]:
        card = make_guarantee_card(folder, "crt", RecallMeasurement.model_validate({**MEASURED, **changes}))
        return card, " ".join(card["assumptions"])

    folder = write_run(tmp_path / "RUN")
    plain = " ".join(train_model(folder, make_small_settings(seed=None))["guarantee"]["assumptions"])
    assert "Recall was not measured" in plain
    assert "no epsilon holds for all secrets" in plain
    sampled, said = card(sample=SAMPLE)
    assert (sampled["coverage_failure"], sampled["miss_rates"]["gamma_upper"]) == (1e-6, 0.2)
    assert sampled["epsilon_bayesian"] < sampled["epsilon_confidentiality"] < sampled["epsilon_substitution"]
    for fact in ("'spring'", "400 texts", "180 secrets", "2026-03-04"):
        assert fact in said
    assert sampled["miss_rates"]["measured"]["sample"] == SAMPLE
    whole, _ = card(missed_by_both=0, sample={**SAMPLE, "delta_2_upper": 0.0})
    assert whole["epsilon_confidentiality"] == whole["epsilon_bayesian"] > 0
    assert "every public text" in list_promises(whole)[-2]
    counted, said = card()
    assert counted["coverage_failure"] > 0.01
    assert "on 180 labelled secrets, on a day that was not recorded. Whoever gave the labels states" in said
    assert "on 180 labelled secrets, on 2026-03-05. Whoever" in card(date="2026-03-05")[1]


@pytest.mark.parametrize(
    "wrong", [{"delta_2_upper": 0.0}, {"gamma_upper": 1e-7}, {"gamma_upper": 1.1}, {"texts": 0}, {"date": None}]
)
def test_bounds_below_what_was_seen_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="sample"):
        RecallMeasurement.model_validate({**MEASURED, "sample": {**SAMPLE, **wrong}})


@pytest.mark.slow
def test_with_the_real_engines(curated: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(curated, tmp_path / "run"))
    rows = label_random(run, 80, seed=1)["files"]["rows"]
    result = score(run, rows, unchanged=True)
    assert result["misses"]["n"] > 5
    assert 0 <= result["misses"]["delta_2"]["upper"] <= result["misses"]["gamma"]["upper"] <= 1
    manifest = run / "manifest.json"
    body = read_json(manifest)
    body["policies"]["strict"]["hash"] = "0" * 64
    write_json(manifest, body)
    with pytest.raises(CheckFailed, match="another run"):
        score(run, rows, unchanged=True)
    label_random(run, 80, seed=1, name="later")
    with pytest.raises(ConfigurationError, match="strict policy"):
        score(run, rows, name="later", unchanged=True)

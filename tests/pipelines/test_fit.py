"""Fit: labelled rows in, a calibrated tagger with its card out, whole or not at all."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.detectors.settings import FitSettings, TaggerSettings
from redactory.detectors.tagger import LabelledText, TaggerEngine
from redactory.detectors.tagger.fitting import BINS
from redactory.flows.label_commands import describe_tagger
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.keys import load_digest_key
from redactory.pipelines.measure import fit as module
from redactory.pipelines.measure.evaluate_detection import evaluate_detect
from redactory.pipelines.measure.fit import MIN_ROWS, _is_worse, _score_engine, _split_rows, fit_tagger
from tests.detectors.support import SMALL_FIT, labelled_texts
from tests.pipelines.support import invoke_command, write_rows

SHORT = {**SMALL_FIT.model_dump(), "epochs": 1}


def written(path: Path, texts: list[LabelledText]) -> Path:
    """``texts`` as JSON lines in the span schema."""
    keys = ("start", "end", "label")
    rows = [
        {"id": str(n), "text": row.text, "spans": [dict(zip(keys, span, strict=True)) for span in row.spans]}
        for n, row in enumerate(texts)
    ]
    return write_rows(path, rows)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[Path]]:
    """A tagger of two files, what ``fit`` said of it, and the files."""
    folder = tmp_path_factory.mktemp("fit")
    texts = labelled_texts(300, seed=1)
    files = [written(folder / "a.jsonl", texts[:200]), written(folder / "b.jsonl", texts[150:])]
    said: list[tuple[Any, ...]] = []
    result = fit_tagger(files, folder / "new" / "tagger", SMALL_FIT, lambda *step: said.append(step))
    assert said == [("fit", n, SMALL_FIT.epochs, "epochs") for n in range(1, SMALL_FIT.epochs + 1)]
    return folder / "new" / "tagger", result, files


def test_the_folder_holds_the_tagger_its_card_and_its_figures(fitted: tuple[Path, dict[str, Any], list[Path]]) -> None:
    folder, result, files = fitted
    assert sorted(path.name for path in folder.parent.iterdir()) == ["tagger"], "nothing half-made is left"
    assert {**json.loads((folder / "fit.json").read_text()), "tagger": str(folder), "held_back": None} == json.loads(
        json.dumps(result)
    )
    assert (result["rows"], result["held_out_rows"]) == (270, 30)
    key = load_digest_key()
    digests = [key.compute_file_digest([path.read_bytes()]) for path in files]
    assert result["files"] == [
        {"name": path.name, "digest": digest} for path, digest in zip(files, digests, strict=True)
    ]
    assert result["settings"] == SMALL_FIT.model_dump(mode="json")
    assert set(result["labels"]) == {"PERSON", "LOCATION", "IDENTIFIER"}
    held_out = result["held_out"]
    assert held_out["rows"] == 15
    assert held_out["cover_recall"] > 0.9
    assert held_out["char_precision"] > 0.9
    reliability = result["reliability"]
    assert sum(count for _, _, count in reliability["bins"]) == reliability["tokens"]
    card = (folder / "README.md").read_text()
    assert "Token tagger tagger" in card
    assert f"| PERSON | {result['labels']['PERSON']} |" in card
    assert str(held_out["cover_recall"]) in card
    assert str(reliability["temperature"]) in card
    assert all(file["digest"] in card for file in result["files"])
    assert (folder / "reliability.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("wrong", [True, False])
def test_calibration_is_judged_on_rows_that_decided_nothing(tmp_path: Path, wrong: bool) -> None:
    """A timid head gains confidence from the calibration rows; if the last rows have wrong labels, that is worse."""
    chosen = SMALL_FIT.model_copy(update={"epochs": 1, "learning_rate": 5e-3, "held_out": 0.3})
    training, fitted_on, tested_on = _split_rows(labelled_texts(150, seed=6), chosen)
    if wrong:
        everything = [((0, len(row.text), "PERSON"),) for row in tested_on]
        tested_on = [LabelledText(r.text, () if r.spans else s) for r, s in zip(tested_on, everything, strict=True)]
    rows = written(tmp_path / "rows.jsonl", [*training, *fitted_on, *tested_on])
    out = tmp_path / "tagger"
    result = fit_tagger([rows], out, chosen)
    found, card = result["reliability"], (out / "README.md").read_text()
    engine, said = TaggerEngine(TaggerSettings(models=(str(out),)), "en"), []
    for row, reading in zip(tested_on, engine.read([row.text for row in tested_on]), strict=True):
        for word in reading.non_entity_scores:
            inside = any(start < word.end and word.start < end for start, end, _ in row.spans)
            said.append((word.probability, not inside))
    bins = [[(p, t) for p, t in said if min(int(p * BINS), BINS - 1) == number] for number in range(BINS)]
    error = sum(abs(sum(p - t for p, t in own)) for own in bins) / len(said)
    assert (found["tokens"], found["error"]) == (len(said), pytest.approx(error, abs=1e-4))
    assert (found["error"] > found["error_before"]) is wrong
    shown = "\n".join(map(str, describe_tagger(result)))
    for text, warning in ((shown, "Warning: calibration made the confidence worse"), (card, "made it worse")):
        assert (warning in text) is wrong
        assert ("label more rows" in text) is wrong


def test_no_text_is_in_the_folder(fitted: tuple[Path, dict[str, Any], list[Path]]) -> None:
    folder, _, _ = fitted
    held = b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file()).lower()
    assert b"person" in held
    for word in (b"kowalski", b"garcia", b"prague", b"geneva", b"weather"):
        assert word not in held


def test_the_order_of_files_and_rows_makes_no_difference(tmp_path: Path) -> None:
    texts = labelled_texts(60, seed=3)
    turned = random.Random(1).sample(texts, len(texts))
    first = [written(tmp_path / "a.jsonl", texts[:30]), written(tmp_path / "b.jsonl", texts[30:])]
    second = [written(tmp_path / "c.jsonl", turned[:10]), written(tmp_path / "d.jsonl", turned[10:])]
    made = []
    for name, files in (("one", first), ("two", second)):
        result = fit_tagger(files, tmp_path / name, SHORT)
        made.append(((tmp_path / name / "redactory_tagger" / "head.npz").read_bytes(), result["held_out"]))
    assert made[0] == made[1]


ROWS = st.lists(st.integers(0, 10_000), min_size=MIN_ROWS, max_size=60, unique=True)


def shift_spans(row: LabelledText) -> LabelledText:
    """The same labels on harmless words: on those that follow, or on the first ones."""
    spans = tuple(
        (0, 7, label) if end + 9 > len(row.text) else (end + 2, end + 9, label) for _, end, label in row.spans
    )
    return LabelledText(row.text, spans)


@pytest.mark.parametrize("wrong", [True, False])
def test_a_fit_that_is_worse_than_its_start_warns(tmp_path: Path, wrong: bool) -> None:
    """Right labels on the held-out rows; with wrong ones on the training rows, the start is better."""
    chosen = FitSettings(start="default", seed=1, held_out=0.3)
    training, *held_out = _split_rows(labelled_texts(150, seed=6), chosen)
    if wrong:
        training = list(map(shift_spans, training))
    rows = written(tmp_path / "rows.jsonl", [*training, *itertools.chain(*held_out)])
    result = fit_tagger([rows], tmp_path / "tagger", chosen)
    start_engine = TaggerEngine(TaggerSettings(), "en")
    assert result["start_held_out"] == _score_engine(start_engine, held_out[1])
    assert result["worse_than_start"] is wrong
    assert json.loads((tmp_path / "tagger" / "fit.json").read_text())["worse_than_start"] is wrong
    page = "\n".join(map(str, describe_tagger(result)))
    card = (tmp_path / "tagger" / "README.md").read_text()
    assert "The tagger it started from, on the same texts" in page
    assert str(result["start_held_out"]["char_precision"]) in card
    for text, warning in (
        (page, "Warning: this tagger is worse than the one it started from"),
        (card, "Fitting made it worse"),
    ):
        assert (warning in text) is wrong


def test_a_fit_is_compared_on_rows_that_are_held_back(tmp_path: Path) -> None:
    texts = labelled_texts(90, seed=8)
    rows, held_back = written(tmp_path / "rows.jsonl", texts[:60]), written(tmp_path / "back.jsonl", texts[60:])
    result = fit_tagger([rows], tmp_path / "tagger", SHORT, held_back=held_back)
    models = {"present": ["default"], "fitted": ["default", str(tmp_path / "tagger")]}
    for name, names in models.items():
        measured = evaluate_detect(held_back, {"detect": {"tagger": {"models": names}}})
        # speed differs
        assert {**result["held_back"][name], "texts_per_second": None} == {**measured, "texts_per_second": None}
    assert "back.jsonl" not in (tmp_path / "tagger" / "fit.json").read_text()
    page = "\n".join(map(str, describe_tagger(result)))
    assert f"30 rows of {held_back}" in page
    assert "--held-back FILE" not in page
    assert "present" in page
    assert "fitted" in page


def test_a_fit_is_compared_in_the_policies_of_a_configuration(tmp_path: Path) -> None:
    texts = labelled_texts(90, seed=8)
    rows, held_back = written(tmp_path / "rows.jsonl", texts[:60]), written(tmp_path / "back.jsonl", texts[60:])
    config = tmp_path / "config.yaml"
    # without a tagger and patterns, the strict policy finds nothing
    detect = {"tagger": None, "patterns": None, "conservative": {"rules": []}}
    config.write_text(json.dumps({"input": "any", "detect": detect}), encoding="utf-8")
    out = tmp_path / "tagger"
    settings = ["--epochs", "1", "--held-back", str(held_back), "--config", str(config), "--json"]
    result = json.loads(invoke_command("fit", "tagger", rows, "--out", out, *settings).stdout)
    present, fitted = result["held_back"].values()
    assert present["strict"]["marks"] == 0
    measured = evaluate_detect(held_back, {"detect": {**detect, "tagger": {"models": [str(out)]}}})
    assert fitted["strict"]["marks"] > 0
    assert {**fitted, "texts_per_second": None} == {**measured, "texts_per_second": None}


def test_a_configuration_to_compare_with_needs_rows_that_are_held_back(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="add --held-back"):
        fit_tagger([tmp_path / "absent.jsonl"], tmp_path / "tagger", config={"input": "any"})


def test_fitted_rows_cannot_be_held_back(tmp_path: Path) -> None:
    texts = labelled_texts(60, seed=8)
    rows, held_back = written(tmp_path / "rows.jsonl", texts[:50]), written(tmp_path / "back.jsonl", texts[48:])
    with pytest.raises(InputError, match="2 texts also in the rows to fit"):
        fit_tagger([rows], tmp_path / "tagger", SHORT, held_back=held_back)
    assert not (tmp_path / "tagger").exists()


@pytest.mark.parametrize(
    ("recall", "precision", "worse"),
    [
        (0.9, 0.5, False),
        (0.89, 0.9, True),
        (0.9, 0.49, True),
        (0.95, 0.48, False),
        (1.0, 0.1, True),
        (None, None, True),
    ],
)
def test_worse_is_a_lower_recall_or_a_much_lower_precision(
    recall: float | None, precision: float | None, worse: bool
) -> None:
    scores = {"cover_recall": recall, "char_precision": precision}
    assert _is_worse(scores, {"cover_recall": 0.9, "char_precision": 0.5}) is worse
    assert not _is_worse(scores, scores)
    assert not _is_worse(scores, None)


@given(ROWS, st.randoms(use_true_random=False), st.integers(0, 3), st.sampled_from([0.05, 0.1, 0.5]))
def test_held_out_rows_are_not_trained_on(numbers: list[int], shuffled: random.Random, seed: int, share: float) -> None:
    rows = [LabelledText(f"text {number}", ((0, 4, "A"),)) for number in numbers]
    settings = FitSettings(seed=seed, held_out=share)
    training, calibrated_on, tested_on = _split_rows(rows, settings)
    assert sorted([*training, *calibrated_on, *tested_on]) == sorted(rows)
    for one, other in itertools.combinations((training, calibrated_on, tested_on), 2):
        assert not set(one) & set(other)
    assert min(map(len, (training, calibrated_on, tested_on))) >= 1
    assert abs(len(training) - (1 - share) * len(rows)) <= 2
    assert _split_rows(shuffled.sample(rows, len(rows)), settings) == (training, calibrated_on, tested_on)


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["calibrate_tagger", "write_text", "_score_engine"])
def test_a_crash_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    rows = written(tmp_path / "rows.jsonl", labelled_texts(30, seed=3))

    def crash(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(module, broken, crash)
        with pytest.raises(OSError, match="no space"):
            fit_tagger([rows], tmp_path / "tagger", SHORT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]
    # and what a killed process left is no obstacle
    (tmp_path / f"{module.TEMPORARY_PREFIX}tagger").mkdir()
    fit_tagger([rows], tmp_path / "tagger", SHORT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl", "tagger"]


def test_a_folder_that_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "tagger").mkdir()
    (tmp_path / "tagger" / "mine").write_text("kept")
    with pytest.raises(ConfigurationError, match="already exists"):
        fit_tagger([tmp_path / "absent.jsonl"], tmp_path / "tagger", SHORT)
    assert [path.name for path in (tmp_path / "tagger").iterdir()] == ["mine"]


def plain(count: int) -> list[LabelledText]:
    return [LabelledText(f"nothing in sentence {number}", ()) for number in range(count)]


def test_rows_that_nothing_can_be_learnt_from_are_refused(tmp_path: Path) -> None:
    some = labelled_texts(MIN_ROWS - 1, seed=3)
    for texts, says in (
        (some, f"at least {MIN_ROWS} distinct labelled texts, got {MIN_ROWS - 1}"),
        ([*some, some[0], LabelledText(" ", ())], f"got {MIN_ROWS - 1}"),
        (plain(30), "no row left for training has a labelled span"),
        ([], "got 0"),
    ):
        with pytest.raises(InputError, match=says):
            fit_tagger([written(tmp_path / "rows.jsonl", texts)], tmp_path / "tagger", SHORT)
    assert not (tmp_path / "tagger").exists()


def test_settings_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"epochs: must be at least 1.*wide: "):
        fit_tagger([tmp_path / "absent.jsonl"], tmp_path / "tagger", {"epochs": 0, "wide": 3})


def test_scores_are_those_of_counting_by_hand(fitted: tuple[Path, dict[str, Any], list[Path]]) -> None:
    folder, _, _ = fitted
    text = "My name is Carla Nowak, thank you for your help."
    half, whole, missed = (11, 16, "PERSON"), (11, 22, "PERSON"), (24, 29, "POLITE")
    engine = TaggerEngine(TaggerSettings(models=(str(folder),)), "en")
    perfect = {"rows": 1, "spans": 1, "cover_recall": 1.0, "char_precision": 1.0}
    scores = _score_engine(engine, [LabelledText(text, (whole,))])
    assert scores == {**perfect, "by_label": {"PERSON": scores["by_label"]["PERSON"]}}
    misses = {key: scores["by_label"]["PERSON"][key] for key in ("misses", "n", "upper")}
    # none of one missed: at most 95 % are, at 95 %
    assert misses == {"misses": 0, "n": 1, "upper": pytest.approx(0.95)}
    scores = _score_engine(engine, [LabelledText(text, (half, missed)), LabelledText(text, ())])
    assert (scores["spans"], scores["cover_recall"]) == (2, 0.5)
    assert {label: (row["misses"], row["n"]) for label, row in scores["by_label"].items()} == {
        "PERSON": (0, 1),
        "POLITE": (1, 1),
    }
    # of twice the ten letters of the name, the five of its first half are labelled
    assert scores["char_precision"] == 0.25
    nothing = _score_engine(engine, [LabelledText("Thank you for your help, it does not work.", ())])
    assert (nothing["spans"], nothing["cover_recall"]) == (0, None)

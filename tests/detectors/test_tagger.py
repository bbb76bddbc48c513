"""Our own tagger: it learns, it repeats, it reads each text alone, and its folder holds no text."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import log_softmax
from spacy.tokens import Doc

from redactory.detectors import Detector, DetectSettings, EngineOutput
from redactory.detectors.engine import ENGINE_ERROR
from redactory.detectors.settings import TaggerSettings
from redactory.detectors.spacy_model import import_lean_spacy
from redactory.detectors.tagger import LabelledText, TaggerEngine, calibrate_tagger, train_tagger
from redactory.detectors.tagger import engine as module
from redactory.detectors.tagger.engine import WEAK_THRESHOLD, _TaggerModel
from redactory.detectors.tagger.fitting import _compute_reliability, _optimize_temperature
from redactory.foundation.errors import ConfigurationError
from tests.detectors.support import SMALL_FIT, labelled_texts

UNSEEN = [row for row in labelled_texts(400, seed=2) if row not in labelled_texts(300, seed=1)][:80]


@pytest.fixture(scope="module")
def tagger(tagger_folder: Path) -> TaggerEngine:
    return TaggerEngine(TaggerSettings(models=(str(tagger_folder),)), "en")


def recall(tagger: TaggerEngine, rows: list[LabelledText]) -> float:
    """The share of the labelled spans that are found as they are, label and all."""
    found = [{(s.start, s.end, s.label) for s in r.spans} for r in tagger.read([row.text for row in rows])]
    right = sum(span in own for row, own in zip(rows, found, strict=True) for span in row.spans)
    return right / sum(len(row.spans) for row in rows)


def test_it_learns_what_it_is_shown(tagger: TaggerEngine) -> None:
    assert recall(tagger, UNSEEN) > 0.9
    plain = [row.text for row in UNSEEN if not row.spans]
    assert len(plain) > 10
    assert sum(bool(reading.spans) for reading in tagger.read(plain)) <= len(plain) // 10
    # the same rows with their labels a word further to the left are not what it learnt
    wrong = [LabelledText(r.text, tuple((s - 3, e - 3, label) for s, e, label in r.spans)) for r in UNSEEN]
    assert recall(tagger, wrong) == 0


def test_the_same_seed_rows_and_settings_give_the_same_tagger() -> None:
    rows = labelled_texts(40, seed=3)
    short = SMALL_FIT.model_copy(update={"epochs": 1})
    state = random.getstate(), np.random.get_state()
    made = []
    for settings in (short, short, short.model_copy(update={"seed": 1})):
        random.seed(len(made))
        made.append(train_tagger(rows, settings).to_bytes(exclude=["meta"]))
    random.setstate(state[0])
    np.random.set_state(state[1])
    assert made[0] == made[1] != made[2]


def test_training_can_begin_with_the_weights_of_another_tagger(tagger_folder: Path, tmp_path: Path) -> None:
    """A single slow step away from a tagger is nearly that tagger; from nothing it is none."""
    step = SMALL_FIT.model_copy(update={"epochs": 1, "learning_rate": 1e-6})
    found = []
    for start in (tagger_folder, None):
        train_tagger(labelled_texts(40, seed=3), step, start=start).to_disk(tmp_path / str(start is None))
        found.append(TaggerEngine(TaggerSettings(models=(str(tmp_path / str(start is None)),)), "en"))
    assert recall(found[0], UNSEEN) > 0.9
    assert recall(found[1], UNSEEN) < 0.2
    other = SMALL_FIT.model_copy(update={"width": 16})
    with pytest.raises(ConfigurationError, match=r"start: small has a different width.*start to null"):
        train_tagger(labelled_texts(40, seed=3), other, start=tagger_folder)


LABELS = ("O", "A", "B", "C")
SCORES = st.lists(
    st.tuples(st.sampled_from([0.0, 0.2, 0.7499, 0.75, 0.7501, 0.9, 1.0]), st.permutations([1, 2, 3])), max_size=12
)


def tagger_of(labels: tuple[str, ...]) -> _TaggerModel:
    """A tagger without a model, to decide on scores that are given."""
    made = object.__new__(_TaggerModel)
    made._labels, made._non_entity_column = labels, labels.index("O")
    return made


def spans_by_force(
    places: list[tuple[int, int, bool]], outside: list[float], labels: list[int]
) -> list[tuple[int, int, str, float]]:
    """For every stretch of tokens: whether it is one label's whole share of one whole run."""
    solid = [i for i, (_, _, space) in enumerate(places) if not space]
    weak = [1.0 - outside[i] >= WEAK_THRESHOLD for i in solid]
    spans = []
    for first, last in itertools.combinations_with_replacement(range(len(solid)), 2):
        left, right = first, last
        if not all(weak[first : last + 1]):
            continue
        while left and weak[left - 1]:
            left -= 1
        while right + 1 < len(solid) and weak[right + 1]:
            right += 1
        own = {labels[solid[i]] for i in range(first, last + 1)}
        neighbours = [labels[solid[i]] for i in (first - 1, last + 1) if left <= i <= right]
        if len(own) == 1 and not own & set(neighbours):
            score = max(1.0 - outside[solid[i]] for i in range(left, right + 1))
            spans.append((places[solid[first]][0], places[solid[last]][1], LABELS[own.pop()], round(score, 6)))
    return spans


@given(SCORES, st.lists(st.booleans(), min_size=12, max_size=12))
def test_spans_are_whole_runs_cut_where_the_label_changes(
    scores: list[tuple[float, list[int]]], spaces: list[bool]
) -> None:
    places = [(3 * i, 3 * i + 2, space) for i, (_, space) in enumerate(zip(scores, spaces, strict=False))]
    outside = [plain for plain, _ in scores]
    labels = [order[0] for _, order in scores]
    found = list(tagger_of(LABELS)._iter_spans(places, outside, labels))
    assert [s[:4] for s in found] == spans_by_force(places, outside, labels)
    assert {s.detector for s in found} <= {"tagger"}


def test_a_doubtful_token_has_the_likeliest_label_that_is_not_plain() -> None:
    import spacy

    doc = spacy.blank("en")("so it  was")
    scores = np.array(
        [[0.9, 0.05, 0.03, 0.02], [0.6, 0.1, 0.2, 0.1], [0.1, 0.9, 0, 0], [0.7, 0.1, 0.1, 0.1]], np.float32
    )
    reading = tagger_of(LABELS)._build_output(doc, scores)
    (first, second) = reading.spans
    assert (first.start, first.end, first.label) == (3, 5, "B")
    assert (second.start, second.end, second.label) == (7, 10, "A")
    assert first.score == second.score == pytest.approx(0.4)
    assert [(t.start, t.end) for t in reading.non_entity_scores] == [(0, 2), (3, 5), (7, 10)]
    assert [t.probability for t in reading.non_entity_scores] == pytest.approx([0.9, 0.6, 0.7])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_that_are_not_finite_are_a_failure(
    tagger_folder: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    off: dict[str, Any] = {"spacy": None, "patterns": None}
    detector = Detector(DetectSettings.model_validate({**off, "tagger": {"models": [str(tagger_folder)]}}))
    (engine,) = detector._window_engines
    assert isinstance(engine, TaggerEngine)
    true_reading = engine._taggers[0]._build_output

    def broken(doc: Any, scores: Any) -> EngineOutput:
        if "bad" in doc.text:
            scores = scores.copy()
            scores[-1, 0] = value
        return true_reading(doc, scores)

    monkeypatch.setattr(engine._taggers[0], "_build_output", broken)
    found = list(detector.detect(["all good", "a bad one", "My name is Anna Smith."]))
    assert [d.failure for d in found] == [None, ENGINE_ERROR, None]
    with pytest.raises(ValueError, match="not finite"):
        engine.read(["a bad one"])


def test_a_folder_that_fit_did_not_write_is_refused(tmp_path: Path) -> None:
    import spacy

    bare, foreign = spacy.blank("en"), spacy.blank("en")
    pipe: Any = foreign.add_pipe("tagger")
    pipe.add_label("NOUN")
    foreign.initialize()
    for name, nlp in (("bare", bare), ("foreign", foreign)):
        nlp.to_disk(tmp_path / name)
        with pytest.raises(ConfigurationError, match=f"{name} was not written by redactory fit tagger"):
            TaggerEngine(TaggerSettings(models=(str(tmp_path / name),)), "en")


RARE = ("Zanzibarqux", "vlkprst77", "Hjxq")


def words_written(folder: Path, texts: list[str]) -> set[str]:
    """The rare words that some file of a tagger trained and calibrated on ``texts`` holds."""
    rows = [LabelledText(text, ((text.index(RARE[0]), len(text), "PERSON"),)) for text in texts]
    training = [*labelled_texts(20, seed=4), *rows]
    nlp = train_tagger(training, SMALL_FIT.model_copy(update={"epochs": 1, "lower": 0.5}))
    calibrate_tagger(nlp, *[[*rows, *labelled_texts(20, seed=5)]] * 2)
    nlp.to_disk(folder)
    written = b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file()).lower()
    assert b'"strings.json"' not in written
    assert (folder / "vocab" / "strings.json").is_file()
    return {word for word in RARE if word.lower().encode() in written}


def test_no_word_of_the_rows_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import spacy

    texts = [f"{RARE[1]} it was {RARE[2]} {RARE[0]}"]
    assert words_written(tmp_path / "kept", texts) == set()
    # sabotage: words that the string store keeps are found, in training as in calibration
    monkeypatch.setattr(spacy.Language, "memory_zone", lambda self: contextlib.nullcontext())
    assert words_written(tmp_path / "leaked", texts) == set(RARE)


def test_the_shipped_tagger_holds_no_word_of_its_rows() -> None:
    import spacy

    folder = module.find_tagger_folder("default")
    bare = spacy.blank("en")
    pipe: Any = bare.add_pipe("tagger")
    (shipped,) = TaggerEngine(TaggerSettings(), "en")._taggers
    for label in shipped._labels:
        pipe.add_label(label)
    bare.initialize()
    held = set(json.loads((folder / "vocab" / "strings.json").read_text(encoding="utf-8")))
    strange = {word for word in held if word not in bare.vocab.strings}
    # words that stand for the labels while a tagger is set up, and what a tokenizer cuts of them
    assert {word for word in strange if not re.fullmatch(r"word\d+|r?d\d+|x+d+", word)} == set()


# Calibration: what a tagger's confidence says is how often it is right.


ROWS = labelled_texts(60, seed=6)


def drawn(tokens: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Logits of four labels, and truths that are drawn from them: calibrated by construction."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 2, (tokens, 4))
    below = np.exp(log_softmax(logits, axis=1)).cumsum(axis=1) < generator.random((tokens, 1))
    return logits, np.minimum(below.sum(axis=1), 3)


def error_at(logits: NDArray[np.float64], truth: NDArray[np.int64], temperature: float) -> float:
    """The expected calibration error of the first label's confidence."""
    return _compute_reliability(np.exp(log_softmax(logits / temperature, axis=1)[:, 0]), truth == 0)[0]


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0, 8.0])
def test_a_known_over_confidence_is_found_and_mended(factor: float) -> None:
    logits, truth = drawn(20_000, seed=1)
    found = _optimize_temperature(logits * factor, truth)
    assert found == pytest.approx(factor, rel=0.05)
    assert error_at(logits * factor, truth, found) < 0.01
    # a temperature that is wrong is seen to be wrong
    for wrong in (found / 2, found * 2):
        assert error_at(logits * factor, truth, wrong) > 0.03


@pytest.mark.parametrize("tokens", [10, 1_000])
def test_rows_without_an_error_do_not_make_it_certain(tokens: int) -> None:
    """The likeliest temperature would be 0, and no token would ever be in doubt again."""
    truth = np.arange(tokens) % 3
    logits = np.where(np.arange(3) == truth[:, None], 6.0, 0.0)
    confidence = float(np.exp(log_softmax(logits / _optimize_temperature(logits, truth), axis=1).max(axis=1)).mean())
    assert 1 - confidence == pytest.approx(1 / (tokens + 2), rel=0.01)


def loaded(folder: Path) -> Any:
    import spacy

    return spacy.load(folder)


def softmax_of(nlp: Any) -> Any:
    return nlp.get_pipe("tagger").model.get_ref("softmax")


def test_a_tagger_that_is_made_over_confident_is_mended(tagger_folder: Path) -> None:
    nlp = loaded(tagger_folder)
    once = calibrate_tagger(nlp, ROWS, ROWS)
    softmax = softmax_of(nlp)
    assert softmax.attrs["softmax_temperature"] == pytest.approx(once.temperature, abs=1e-4)
    for name in ("W", "b"):
        softmax.set_param(name, softmax.get_param(name) * 4)
    again = calibrate_tagger(nlp, ROWS, ROWS)
    assert again.temperature == pytest.approx(4 * once.temperature, rel=1e-3)
    assert again.error == pytest.approx(once.error, abs=1e-5)
    assert softmax.attrs["softmax_normalize"] is True


def test_a_label_that_was_never_trained_on_is_not_plain(tagger_folder: Path) -> None:
    """Tokens of an unknown label that the tagger takes for plain are errors of its confidence."""
    known = calibrate_tagger(loaded(tagger_folder), ROWS, ROWS)
    held = [row for row in ROWS if not row.spans]
    strange = [LabelledText(row.text, ((0, len(row.text), "UNHEARD"),)) for row in held]
    mixed = [*(row for row in ROWS if row.spans), *strange]
    with_strange = calibrate_tagger(loaded(tagger_folder), mixed, mixed)
    assert known.tokens == with_strange.tokens
    assert known.error < 0.05 < with_strange.error


def test_the_temperature_is_kept_on_disk_and_used(tagger_folder: Path, tmp_path: Path) -> None:
    nlp = loaded(tagger_folder)
    calibrate_tagger(nlp, ROWS, ROWS)
    softmax_of(nlp).attrs["softmax_temperature"] = 3.0
    nlp.to_disk(tmp_path / "hot")
    assert softmax_of(loaded(tmp_path / "hot")).attrs["softmax_temperature"] == 3.0
    texts = [row.text for row in ROWS]
    cold, hot = (
        [
            t.probability
            for r in TaggerEngine(TaggerSettings(models=(str(f),)), "en").read(texts)
            for t in r.non_entity_scores
        ]
        for f in (tagger_folder, tmp_path / "hot")
    )
    # by hand: the plain label's share at three times the temperature
    pipe: Any = nlp.get_pipe("tagger")
    softmax_of(nlp).attrs["softmax_normalize"] = False
    logits = np.concatenate(pipe.model.predict([nlp.make_doc(text) for text in texts])).astype(np.float64)
    expected = np.exp(log_softmax(logits / 3.0, axis=1)[:, pipe.labels.index("O")])
    assert hot == pytest.approx(expected.tolist(), abs=1e-5)
    assert np.mean(np.abs(np.array(hot) - np.array(cold))) > 0.01


@pytest.mark.parametrize(
    ("left", "right", "bridge"), [(0.1, 0.6, 0.6), (0.6, 0.1, 0.6), (0.1, 0.9, None), (0.9, 0.1, None)]
)
def test_punctuation_within_an_address_is_as_plain_as_the_plainer_side(
    left: float, right: float, bridge: float | None
) -> None:
    """One weakly sensitive side does not make a comma as sensitive as the other one."""
    made = tagger_of(("O", "STREET_ADDRESS"))
    doc = Doc(import_lean_spacy().blank("en").vocab, ["5", ",", "Oslo"])
    expected = [left, 0.95 if bridge is None else bridge, right]
    assert made._join_across_punctuation(doc, [left, 0.95, right], [1, 0, 1]) == expected

"""The tagger: a fit learns labels from rows, repeats with its seed, is calibrated, and writes no text."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import log_softmax
from spacy.language import Language
from spacy.tokens import Doc

from redactory.detectors import Detector, DetectSettings, EngineOutput
from redactory.detectors.engine import ENGINE_ERROR, WEAK_THRESHOLD
from redactory.detectors.settings import FitSettings, TaggerSettings
from redactory.detectors.spacy_model import import_lean_spacy
from redactory.detectors.tagger import LabelledText, TaggerEngine, calibrate_tagger, find_tagger_folder, train_tagger
from redactory.detectors.tagger.engine import DEFAULT_FOLDER, TokenRange, _TaggerModel
from redactory.detectors.tagger.fitting import _compute_reliability, _optimize_temperature
from redactory.detectors.tagger.head import FACTORY
from redactory.encoder import load_encoder
from redactory.foundation.canonical import folder_sha256
from redactory.foundation.errors import ConfigurationError
from tests.detectors.support import CLAUSES, SMALL_FIT, labelled_texts

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


def test_the_same_seed_rows_and_settings_give_the_same_tagger(tmp_path: Path) -> None:
    rows = labelled_texts(40, seed=3)
    short = SMALL_FIT.model_copy(update={"epochs": 1})
    state = random.getstate(), np.random.get_state()
    digests = []
    for number, settings in enumerate((short, short, short.model_copy(update={"seed": 2}))):
        random.seed(number)
        train_tagger(rows, settings).to_disk(tmp_path / str(number))
        digests.append(folder_sha256(tmp_path / str(number)))
    random.setstate(state[0])
    np.random.set_state(state[1])
    assert digests[0] == digests[1] != digests[2]


def test_a_fit_can_start_from_another_tagger(tagger_folder: Path, tmp_path: Path) -> None:
    """One small step from a tagger changes little; the same step from zeros finds nothing."""
    step = SMALL_FIT.model_copy(update={"epochs": 1, "learning_rate": 1e-6})
    recalls = []
    for start in (tagger_folder, None):
        folder = tmp_path / str(start is None)
        train_tagger(labelled_texts(40, seed=3), step, start=start).to_disk(folder)
        recalls.append(recall(TaggerEngine(TaggerSettings(models=(str(folder),)), "en"), UNSEEN))
    assert recalls[0] > 0.9
    assert recalls[1] < 0.2


def test_a_fit_learns_a_label_that_its_start_does_not_have(tmp_path: Path) -> None:
    words = ["bluebird", "granite", "lantern", "thistle", "marble", "cobalt", "juniper", "saffron", "harbour", "ember"]
    texts = [f"{clause} for project {word} today" for word in words for clause in CLAUSES]
    rows = [LabelledText(t, ((t.index("project "), t.index(" today"), "PROJECT"),)) for t in texts]
    plain = [LabelledText(f"{clause} for them today", ()) for clause in CLAUSES]
    start = find_tagger_folder("default")
    train_tagger([*rows[:48], *plain * 4], FitSettings(epochs=10), start=start).to_disk(tmp_path / "fitted")
    engines = [TaggerEngine(TaggerSettings(models=(str(f),)), "en") for f in (start, tmp_path / "fitted")]
    before, after = (recall(engine, rows[48:]) for engine in engines)
    assert before == 0
    assert after > 0.5
    assert not any(output.spans for output in engines[1].read([row.text for row in plain]))


LABELS = ("O", "A", "B", "C")
SCORES = st.lists(
    st.tuples(st.sampled_from([0.0, 0.2, 0.7499, 0.75, 0.7501, 0.9, 1.0]), st.permutations([1, 2, 3])), max_size=12
)


def tagger_of(labels: tuple[str, ...]) -> _TaggerModel:
    """A tagger without a model, to decide on scores that are given."""
    made = object.__new__(_TaggerModel)
    made._labels, made._plain_columns = labels, [labels.index("O")]
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


def test_a_span_ends_before_the_sign_that_ends_the_sentence() -> None:
    tagger = TaggerEngine(TaggerSettings(), "en")
    (date,) = tagger.read(["We met on 14 March 2019."])[0].spans
    assert (date.start, date.end, date.label) == (10, 23, "DATE_TIME")


@pytest.mark.parametrize(
    ("text", "is_secret"),
    [
        ("It opened in 1976.", False), ("From 2013-2014 on", False), ("In the 20th century", False),
        ("At the beginning of the 1990s", False),
        ("Seit den 1970ern", False), ("It opened on 4 May 1976.", True), ("It opened in May 1976.", True),
        ("Published 2015-03-04", True),
    ],
)  # fmt: skip
def test_a_year_alone_is_no_secret(text: str, is_secret: bool) -> None:
    output = TaggerEngine(TaggerSettings(), "en").read([text])[0]
    assert bool(output.spans) == is_secret
    assert (min(token.probability for token in output.non_entity_scores) < 0.85) == is_secret


def test_a_price_is_no_address() -> None:
    [output] = TaggerEngine(TaggerSettings(), "en").read(["49.90 from 10.0.0.1"])
    assert [(span.start, span.end, span.label) for span in output.spans] == [(11, 19, "IP_ADDRESS")]
    price, *_ = output.non_entity_scores
    assert price.probability > 0.85


@given(SCORES, st.lists(st.booleans(), min_size=12, max_size=12))
def test_spans_are_whole_runs_cut_where_the_label_changes(
    scores: list[tuple[float, list[int]]], spaces: list[bool]
) -> None:
    places = [(3 * i, 3 * i + 2, space) for i, (_, space) in enumerate(zip(scores, spaces, strict=False))]
    outside = [plain for plain, _ in scores]
    labels = [order[0] for _, order in scores]
    ranges = [TokenRange(*place, False) for place in places]
    found = list(tagger_of(LABELS)._iter_spans(ranges, outside, labels))
    assert [s[:4] for s in found] == spans_by_force(places, outside, labels)
    assert {s.detector for s in found} <= {"tagger"}


def test_a_doubtful_token_has_the_likeliest_label_that_is_not_plain() -> None:
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
    bare, foreign = spacy.blank("en"), spacy.blank("en")
    pipe: Any = foreign.add_pipe("tagger")
    pipe.add_label("NOUN")
    foreign.initialize()
    for name, nlp in (("bare", bare), ("foreign", foreign)):
        nlp.to_disk(tmp_path / name)
        with pytest.raises(ConfigurationError, match=f"{name} was not written by redactory fit tagger"):
            TaggerEngine(TaggerSettings(models=(str(tmp_path / name),)), "en")


def truncate(folder: Path) -> None:
    file = folder / "head.npz"
    file.write_bytes(file.read_bytes()[:-200])


def flip_bit(folder: Path) -> None:
    content = bytearray((folder / "head.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "head.npz").write_bytes(content)


def edit_settings(folder: Path, **changes: Any) -> None:
    settings = json.loads((folder / "head.json").read_text(encoding="utf-8"))
    (folder / "head.json").write_text(json.dumps({**settings, **changes}), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "the head is damaged"),
        (flip_bit, "the head is damaged"),
        (lambda folder: (folder / "head.npz").unlink(), "the head is damaged"),
        (lambda folder: (folder / "head.json").write_text("[]"), "the head is damaged"),
        (lambda folder: (folder / "head.json").unlink(), "no tagger of redactory fit tagger is in this folder"),
        (lambda folder: edit_settings(folder, labels=["O", "PERSON"]), "has other labels than head.json"),
        (lambda folder: edit_settings(folder, encoder="0" * 64), "was fitted for another encoder; fit it again"),
    ],
)
def test_a_damaged_tagger_is_refused(
    tagger_folder: Path, tmp_path: Path, damage: Callable[[Path], Any], message: str
) -> None:
    folder = shutil.copytree(tagger_folder, tmp_path / "mine")
    damage(folder / FACTORY)
    with pytest.raises(ConfigurationError, match=f"mine: .*{message}"):
        TaggerEngine(TaggerSettings(models=(str(folder),)), "en")
    with pytest.raises(ConfigurationError, match=f"mine: .*{message}"):
        train_tagger(UNSEEN[:20], SMALL_FIT, start=folder)


RARE = ("Zanzibarqux", "vlkprst77", "Hjxq")


def words_written(folder: Path) -> set[str]:
    """The rare words of the rows that some file of a tagger fitted and calibrated on them holds."""
    text = f"{RARE[1]} it was {RARE[2]} {RARE[0]}"
    rows = [*labelled_texts(20, seed=4), LabelledText(text, ((text.index(RARE[0]), len(text), "PERSON"),))]
    nlp = train_tagger(rows, SMALL_FIT.model_copy(update={"epochs": 1}))
    calibrate_tagger(nlp, rows, rows)
    nlp.to_disk(folder)
    written = b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file()).lower()
    assert (folder / "vocab" / "strings.json").is_file()
    return {word for word in RARE if word.lower().encode() in written}


def test_no_word_of_the_rows_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert words_written(tmp_path / "kept") == set()
    # the check itself: words that spaCy's string store keeps are found
    monkeypatch.setattr(Language, "memory_zone", lambda self: contextlib.nullcontext())
    assert words_written(tmp_path / "leaked") == set(RARE)


def test_the_shipped_tagger_holds_no_word_of_its_rows() -> None:
    (shipped,) = TaggerEngine(TaggerSettings(), "en")._taggers
    stored = set(json.loads((DEFAULT_FOLDER / "vocab" / "strings.json").read_text(encoding="utf-8")))
    bare = spacy.blank("xx").vocab.strings
    assert {word for word in stored if word not in bare} <= {*shipped._labels, FACTORY}


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


def scale_head(nlp: Any, factor: float) -> Any:
    """``nlp`` with all logits multiplied by ``factor``."""
    component = nlp.get_pipe(FACTORY)
    head = component.head
    component.head = head._replace(weights=head.weights * np.float32(factor), bias=head.bias * np.float32(factor))
    return nlp


def test_a_tagger_that_is_over_confident_is_corrected(tagger_folder: Path) -> None:
    once = calibrate_tagger(spacy.load(tagger_folder), ROWS, ROWS)
    again = calibrate_tagger(scale_head(spacy.load(tagger_folder), 4), ROWS, ROWS)
    # nearly: the most sensitive piece of a token may be another one at another temperature
    assert again.temperature == pytest.approx(4 * once.temperature, rel=0.05)
    assert again.error == pytest.approx(once.error, abs=2e-3)


def test_a_label_that_was_never_trained_on_is_not_plain(tagger_folder: Path) -> None:
    """Tokens of an unknown label that the tagger takes for plain are errors of its confidence."""
    known = calibrate_tagger(spacy.load(tagger_folder), ROWS, ROWS)
    held = [row for row in ROWS if not row.spans]
    strange = [LabelledText(row.text, ((0, len(row.text), "UNHEARD"),)) for row in held]
    mixed = [*(row for row in ROWS if row.spans), *strange]
    with_strange = calibrate_tagger(spacy.load(tagger_folder), mixed, mixed)
    assert known.tokens == with_strange.tokens
    assert known.error < 0.05 < with_strange.error


def test_the_temperature_is_kept_on_disk_and_used(tagger_folder: Path, tmp_path: Path) -> None:
    nlp = scale_head(spacy.load(tagger_folder), 4)
    raw = nlp.get_pipe(FACTORY).head
    temperature = calibrate_tagger(nlp, ROWS, ROWS).temperature
    assert temperature > 1.5
    nlp.to_disk(tmp_path / "calibrated")
    engine = TaggerEngine(TaggerSettings(models=(str(tmp_path / "calibrated"),)), "en")
    for row, output in zip(ROWS, engine.read([row.text for row in ROWS]), strict=True):
        # by hand: the lowest P(non-entity) of the pieces in each token
        encoded = load_encoder().encode(row.text)
        logits = (encoded.vectors @ raw.weights.T + raw.bias).astype(np.float64) / temperature
        pieces = np.exp(log_softmax(logits, axis=1))[:, 0]
        for token in output.non_entity_scores:
            is_inside = (encoded.ranges[:, 0] < token.end) & (encoded.ranges[:, 1] > token.start)
            assert token.probability == pytest.approx(pieces[is_inside].min(), abs=1e-3)


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


class ForgetfulCache(dict[str, EngineOutput]):
    """As if another thread cleared the cache right after each look at it."""

    def __contains__(self, text: object) -> bool:
        found = super().__contains__(text)
        self.clear()
        return found


def test_another_thread_may_clear_the_cache_at_any_moment() -> None:
    tagger, texts = TaggerEngine(TaggerSettings(), "en"), ["Mary met John.", "Anna lives in Oslo.", "Mary met John."]
    expected = tagger.read(texts)
    assert expected[0] == expected[2]
    tagger._taggers[0]._cache = ForgetfulCache(tagger._taggers[0]._cache)
    assert tagger.read(texts) == expected

"""Calibration: what a tagger's confidence says is how often it is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from redactory.detectors.settings import TaggerSettings
from redactory.detectors.tagger import LabelledText, TaggerEngine, calibrate
from redactory.detectors.tagger.fitting import BINS, _log_softmax, _most_likely, _reliability
from tests.detectors.detector_texts import labelled_texts

ROWS = labelled_texts(60, seed=6)


def drawn(tokens: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Logits of four labels, and truths that are drawn from them: calibrated by construction."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 2, (tokens, 4))
    below = np.exp(_log_softmax(logits, 1.0)).cumsum(axis=1) < generator.random((tokens, 1))
    return logits, np.minimum(below.sum(axis=1), 3)


def error_at(logits: NDArray[np.float64], truth: NDArray[np.int64], temperature: float) -> float:
    """The expected calibration error of the first label's confidence."""
    return _reliability(np.exp(_log_softmax(logits, temperature)[:, 0]), truth == 0)[0]


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0, 8.0])
def test_a_known_over_confidence_is_found_and_mended(factor: float) -> None:
    logits, truth = drawn(20_000, seed=1)
    found = _most_likely(logits * factor, truth)
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
    confidence = float(np.exp(_log_softmax(logits, _most_likely(logits, truth)).max(axis=1)).mean())
    assert 1 - confidence == pytest.approx(1 / (tokens + 2), rel=0.01)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60))
def test_bins_hold_every_token_once(tokens: list[tuple[float, bool]]) -> None:
    confidence = np.array([value for value, _ in tokens])
    plain = np.array([is_plain for _, is_plain in tokens])
    error, bins = _reliability(confidence, plain)
    assert sum(count for _, _, count in bins) == len(tokens)
    assert sum(mean * count for mean, _, count in bins) == pytest.approx(confidence.sum(), abs=0.01)
    assert sum(share * count for _, share, count in bins) == pytest.approx(plain.sum(), abs=0.01)
    expected = sum(abs(mean - share) * count for mean, share, count in bins) / len(tokens)
    assert error == pytest.approx(expected, abs=2e-4)
    assert [int(mean * BINS) for mean, _, _ in bins] == sorted(
        {min(int(v * BINS), BINS - 1) for v in confidence}
    ) or (max(confidence) == 1 or min(abs(v * BINS - round(v * BINS)) for v in confidence) < 1e-2)


def loaded(folder: Path) -> Any:
    import spacy

    return spacy.load(folder)


def softmax_of(nlp: Any) -> Any:
    return nlp.get_pipe("tagger").model.get_ref("softmax")


def test_a_tagger_that_is_made_over_confident_is_mended(tagger_folder: Path) -> None:
    nlp = loaded(tagger_folder)
    once = calibrate(nlp, ROWS)
    softmax = softmax_of(nlp)
    assert softmax.attrs["softmax_temperature"] == pytest.approx(once.temperature, abs=1e-4)
    for name in ("W", "b"):
        softmax.set_param(name, softmax.get_param(name) * 4)
    again = calibrate(nlp, ROWS)
    assert again.temperature == pytest.approx(4 * once.temperature, rel=1e-3)
    assert again.error == pytest.approx(once.error, abs=1e-5)
    assert softmax.attrs["softmax_normalize"] is True


def test_a_label_that_was_never_trained_on_is_not_plain(tagger_folder: Path) -> None:
    """Tokens of an unknown label that the tagger takes for plain are errors of its confidence."""
    known = calibrate(loaded(tagger_folder), ROWS)
    held = [row for row in ROWS if not row.spans]
    strange = [LabelledText(row.text, ((0, len(row.text), "UNHEARD"),)) for row in held]
    with_strange = calibrate(loaded(tagger_folder), [*(row for row in ROWS if row.spans), *strange])
    assert known.tokens == with_strange.tokens
    assert known.error < 0.05 < with_strange.error


def test_the_temperature_is_kept_on_disk_and_used(tagger_folder: Path, tmp_path: Path) -> None:
    nlp = loaded(tagger_folder)
    calibrate(nlp, ROWS)
    softmax_of(nlp).attrs["softmax_temperature"] = 3.0
    nlp.to_disk(tmp_path / "hot")
    assert softmax_of(loaded(tmp_path / "hot")).attrs["softmax_temperature"] == 3.0
    texts = [row.text for row in ROWS]
    cold, hot = (
        [
            t.probability
            for r in TaggerEngine(TaggerSettings(models=(str(f),)), "en").read(texts)
            for t in r.plain
        ]
        for f in (tagger_folder, tmp_path / "hot")
    )
    # by hand: the plain label's share at three times the temperature
    pipe: Any = nlp.get_pipe("tagger")
    softmax_of(nlp).attrs["softmax_normalize"] = False
    logits = np.concatenate(pipe.model.predict([nlp.make_doc(text) for text in texts])).astype(np.float64)
    expected = np.exp(_log_softmax(logits, 3.0)[:, pipe.labels.index("O")])
    assert hot == pytest.approx(expected.tolist(), abs=1e-5)
    assert np.mean(np.abs(np.array(hot) - np.array(cold))) > 0.01

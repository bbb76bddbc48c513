"""``detect.language: auto``: by each text itself, and private where nothing reads its language."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from redactory.detectors import Detection, Detector, DetectSettings, build_policy_records
from redactory.detectors.coverage import CHUNK_CHARS, detect_language, list_covered_languages
from redactory.detectors.engine import EngineOutput
from redactory.detectors.policy import ConservativePolicy
from redactory.detectors.settings import ConservativeSettings

ENGLISH = "please tell us what you are going to do about it, and why nobody there could say where it was."
GERMAN = "wir haben seit dem anfang der woche auf das paket gewartet, und niemand konnte sagen, wo es war."
POLISH = "od początku tygodnia czekaliśmy na tę paczkę i nikt nie potrafił powiedzieć, gdzie ona teraz jest."
TEXTS = (ENGLISH, GERMAN, POLISH, "thank you", "danke schön", "", "so war es also", "4711", "Rose ist da")

EUROPEAN = {
    "de": ("Gestern hat mich Frau Steinbrecher aus Göttingen angerufen.", "Das Paket ist leider beschädigt."),
    "es": ("Ayer me llamó la señora Echevarría desde Zaragoza.", "El paquete no ha llegado todavía."),
    "fr": ("Hier, madame Lefebvre de Grenoble m'a appelé.", "Le colis n'est pas encore arrivé."),
    "it": ("Ieri mi ha chiamato la signora Bortolotti da Vicenza.", "Il pacco non è ancora arrivato."),
    "nl": ("Gisteren belde mevrouw Hoekstra uit Groningen.", "Het pakket is nog niet aangekomen."),
    "pt": ("Ontem a senhora Figueiredo ligou de Coimbra.", "A encomenda ainda não chegou."),
}
"""A sentence with a person and a place, and one with neither."""


@functools.cache
def auto() -> Detector:
    return Detector(DetectSettings(language="auto"))


def _of(text: str) -> Detection:
    [found] = auto().detect([text])
    assert found.failure is None
    return found


def test_a_text_is_in_the_language_that_all_of_it_is_surely_in() -> None:
    assert (detect_language(ENGLISH), detect_language(GERMAN)) == ("en", "de")
    assert [detect_language(short) for short in ("thank you", "Rose", "", "4711 0815")] == [None] * 4
    assert detect_language("please tell us what you are going to do about it. " * 900) == "en"
    assert detect_language((ENGLISH + " ") * 40 + (GERMAN + " ") * 8) is None, "a part is surely in another one"


def test_neither_rows_beside_it_nor_their_order_change_what_becomes_of_a_text() -> None:
    alone = [_of(text) for text in TEXTS]
    assert list(auto().detect(TEXTS)) == alone
    assert list(auto().detect(reversed([*TEXTS, GERMAN * 20])))[1:] == alone[::-1]


def test_a_text_is_private_unless_something_finds_names_in_its_language(tmp_path: Path) -> None:
    labels = {"0": "O", "1": "B-PER", "2": "B-LOC", "3": "B-ORG"}
    (tmp_path / "config.json").write_text(json.dumps({"id2label": labels}))
    anywhere = {"language": "auto", "tagger": None, "transformers": {"folder": str(tmp_path)}}
    assert "xx" in list_covered_languages(DetectSettings(language="auto")), "the built-in tagger reads any language"
    assert list_covered_languages(DetectSettings.model_validate({"language": "auto", "tagger": None})) == {"en"}
    assert "xx" in list_covered_languages(DetectSettings.model_validate(anywhere)), "its folder names no language"
    for reads, found in (({"en"}, {"OTHER_LANGUAGE"}), ({"de"}, set()), ({"xx"}, set())):
        policy = ConservativePolicy(ConservativeSettings(rules=()), "en", frozenset(reads))
        assert {span.label for span in policy.select_spans(GERMAN, EngineOutput())} == found


def test_numbers_of_every_country_are_looked_for() -> None:
    for text in ("30 473 965 T", "2 84 05 2A 006 084 71", "90 110575 B 833"):
        assert any(span.label == "IDENTIFIER" for span in _of(text).strict), text


def test_the_hash_depends_on_the_languages_that_are_covered() -> None:
    own = build_policy_records(DetectSettings(language="auto"))["conservative"]
    assert "xx" in own["dependencies"]["languages"]["read"]
    assert own["dependencies"]["languages"]["versions"]["py3langid"]
    assert "languages" not in build_policy_records(DetectSettings())["conservative"]["dependencies"]


@pytest.mark.parametrize("language", EUROPEAN)
def test_the_language_alone_is_enough_to_find_names_and_leave_a_plain_sentence_open(language: str) -> None:
    named, plain = Detector(DetectSettings(language=language)).detect(EUROPEAN[language])
    text = EUROPEAN[language][0]
    masked = {text[span.start : span.end] for span in named.strict}
    hidden = [word for word in text.split() if word[0].isupper() and any(word.strip(".,") in m for m in masked)]
    assert len(hidden) >= 2, masked
    assert not plain.strict
    assert not plain.conservative


@pytest.mark.parametrize(("parts", "language"), [(1, "en"), (2, "en"), (3, None), (6, None)])
def test_a_text_has_the_language_that_half_of_its_parts_are_surely_in(parts: int, language: str | None) -> None:
    """One English sentence does not make the rest of a long text English."""
    unsure = "12 34 56 78 9 " * 60
    english = ("please send the parcel back to us because it is late again and nobody knows why " * 9)[:CHUNK_CHARS]
    assert detect_language(unsure) is None
    assert detect_language((english + unsure)[: parts * CHUNK_CHARS]) == language

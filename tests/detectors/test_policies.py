"""The two policies: what they mark of a reading."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from redactory.detectors import (
    ConservativePolicy,
    ConservativeSettings,
    Detector,
    DetectSettings,
    EngineOutput,
    Span,
    StrictPolicy,
    StrictSettings,
    build_policies,
    build_policy_records,
    compute_policy_hashes,
    describe_policy_changes,
    detector_masks_nothing,
)
from redactory.detectors import rules as words
from redactory.detectors.engine import NonEntityScore
from redactory.detectors.policy import VERSIONED_PACKAGES
from redactory.detectors.rules import RULES, hash_common_words
from redactory.detectors.settings import TaggerSettings
from redactory.foundation.canonical import get_package_version
from redactory.foundation.errors import ConfigurationError
from redactory.redaction import PRIVATE, PUBLIC, route_example
from tests.detectors.support import OFF

SPANS = st.builds(
    Span,
    st.integers(0, 4),
    st.integers(5, 9),
    st.sampled_from(["PERSON", "CARDINAL", "DATE", "BADGE"]),
    st.sampled_from([0.0, 0.29, 0.3, 0.31, 1.0]),
    st.sampled_from(["spacy", "presidio", "list"]),
)
TOKENS = st.builds(
    NonEntityScore,
    st.integers(0, 4),
    st.integers(5, 9),
    st.sampled_from([0.0, 0.5, 0.8999, 0.9, 1.0]),
    st.sampled_from(["spacy", "tagger"]),
)
ALLOWED = st.lists(st.tuples(st.integers(0, 4), st.integers(5, 9)), max_size=2).map(tuple)
READINGS = st.builds(EngineOutput, st.lists(SPANS).map(tuple), st.lists(TOKENS).map(tuple))
WITH_ALLOWED = st.builds(EngineOutput, st.lists(SPANS).map(tuple), st.lists(TOKENS).map(tuple), ALLOWED)
LABELS = st.dictionaries(st.sampled_from(["PERSON", "CARDINAL", "DATE"]), st.sampled_from([0.0, 0.3, 0.5]))
TEXT = "some text"


@given(READINGS, LABELS, LABELS)
def test_strict_marks_listed_labels_from_their_bound_on(
    reading: EngineOutput, labels: dict[str, float], more: dict[str, float]
) -> None:
    policy = StrictPolicy(StrictSettings(labels=labels, extra_labels=more), model_labels=("BADGE",))
    bounds = {"BADGE": 0.0, **labels, **more}
    # the fifth place is a space
    sure = {
        n for n in range(9) if (n == 4 or _scores_at(reading, n)) and min(_scores_at(reading, n), default=1) >= 0.75
    }
    assert list(policy.select_spans(TEXT, reading)) == [
        s
        for s in reading.spans
        if (s.detector == "list" or (s.label in bounds and not s.score < bounds[s.label]))
        and not (s.detector == "presidio" and s.label != "BADGE" and s.score < 0.5 and {*range(s.start, s.end)} <= sure)
    ]


def _scores_at(reading: EngineOutput, place: int) -> list[float]:
    return [t.probability for t in reading.non_entity_scores if t.detector == "tagger" and t.start <= place < t.end]


@pytest.mark.parametrize(
    ("label", "score", "plain", "masked"),
    [
        ("IDENTIFIER", 0.4, 0.95, False),
        ("IDENTIFIER", 0.4, 0.7, True),
        ("IDENTIFIER", 0.5, 0.95, True),
        ("ACCOUNT", 0.4, 0.95, True),
        ("BADGE", 0.4, 0.95, True),
        ("SHIFT", 0.4, 0.95, True),
    ],
)
def test_an_ambiguous_form_is_masked_unless_the_tagger_is_sure(
    label: str, score: float, plain: float, masked: bool
) -> None:
    policy = StrictPolicy(StrictSettings(), model_labels=("SHIFT",), recognizer_labels=("BADGE",))
    tokens = (NonEntityScore(0, 4, 0.99, "tagger"), NonEntityScore(5, 9, plain, "tagger"))
    span = Span(0, 9, label, score, "presidio")
    assert list(policy.select_spans("A123 4567", EngineOutput((span,), tokens))) == [span] * masked
    half_read = EngineOutput((span,), tokens[:1])
    assert list(policy.select_spans("A123 4567", half_read)) == [span], "the tagger saw only half of it"


def test_the_labels_of_own_recognizers_are_masked_at_any_score() -> None:
    own = [{"name": "Own", "label": "BADGE", "patterns": {"blue": 0.01}}]
    strict, _ = build_policies(DetectSettings.model_validate({"patterns": {"custom": own}}))
    hit, other = (Span(0, 4, label, 0.01, "presidio") for label in ("BADGE", "OTHER"))
    assert list(strict.select_spans("blue", EngineOutput((hit, other)))) == [hit]
    without, _ = build_policies(DetectSettings(patterns=None))
    assert list(without.select_spans("blue", EngineOutput((hit,)))) == []


@given(READINGS, LABELS, st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_conservative_marks_every_span_and_every_doubt(
    reading: EngineOutput, labels: dict[str, float], bound: float
) -> None:
    cautious = ConservativePolicy(ConservativeSettings(min_non_entity_probability=bound, rules=()))
    marked = list(cautious.select_spans(TEXT, reading))
    unsure = marked[len(reading.spans) :]
    assert marked[: len(reading.spans)] == list(reading.spans)
    assert [(s.start, s.end, s.label, s.detector) for s in unsure] == [
        (start, end, "UNSURE", f"{detector}-plain")
        for start, end, plain, detector in reading.non_entity_scores
        if plain < bound
    ]
    assert set(StrictPolicy(StrictSettings(labels=labels)).select_spans(TEXT, reading)) <= set(marked)


def test_rules_mark_as_their_own_labels() -> None:
    text = "so Anna paid 5 to a@b"
    settings = ConservativeSettings(rules=("digit", "symbol", "capital", "name"))
    marked = ConservativePolicy(settings).select_spans(text, EngineOutput())
    assert {(s.label, text[s.start : s.end]) for s in marked} == {
        ("CAPITAL", "Anna"),
        ("NAME", "Anna"),
        ("DIGIT", "5"),
        ("SYMBOL", "a@b"),
    }


EVERY_RULE = ("digit", "symbol", "capital", "name", "word")


@given(WITH_ALLOWED, st.sampled_from(["a B c 5 d@e", "Anna Bxq", "bxq yes", "x"]))
def test_an_allowed_place_drops_what_lies_within_it_and_nothing_else(reading: EngineOutput, text: str) -> None:
    unrestrained = EngineOutput(reading.spans, reading.non_entity_scores)
    for policy in build_policies(DetectSettings(conservative=ConservativeSettings(rules=EVERY_RULE))):
        expected = [
            span
            for span in policy.select_spans(text, unrestrained)
            if span.detector == "list"
            or all(span.start < start or span.end > end for start, end in reading.allowed_ranges)
        ]
        assert list(policy.select_spans(text, reading)) == expected


def test_allow_lists_reach_rules_and_tokens_and_deny_lists_beat_them() -> None:
    lists = {"allow": [{"words": ["Acme 24", "Oslo"]}], "deny": [{"words": ["Oslo"], "label": "CLIENT"}]}
    rules = {"rules": ["digit", "symbol", "capital"]}
    settings = {**OFF, "conservative": rules}
    with_lists, without = (
        Detector(DetectSettings.model_validate({**settings, **more})) for more in ({"lists": lists}, {})
    )
    texts = ["we like Acme 24 here", "we like Acme 24 in Rome", "all of Oslo", "Acme alone"]
    found = list(with_lists.detect(texts))
    assert [{s.label for s in d.conservative} for d in found] == [set(), {"CAPITAL"}, {"CLIENT", "CAPITAL"}, set()]
    assert [[s.label for s in d.strict] for d in found] == [[], [], ["CLIENT"], []]
    assert all(d.conservative for d in list(without.detect(texts))[:3])
    doubt = EngineOutput(
        non_entity_scores=(NonEntityScore(8, 12, 0.1, "x"), NonEntityScore(0, 2, 0.1, "x")), allowed_ranges=((8, 15),)
    )
    marked = with_lists.apply_policies(texts[0], doubt).conservative
    assert [(s.start, s.end) for s in marked if s.label == "UNSURE"] == [(0, 2)]


@given(
    st.sampled_from([0.1, 0.3, 0.5, 0.6, 0.75]), st.sampled_from([0.0, 0.19, 0.21, 0.39, 0.41, 0.59, 0.61, 0.9, 1.0])
)
def test_sensitivity_scales_every_minimum_score(sensitivity: float, score: float) -> None:
    detect = DetectSettings(sensitivity=sensitivity)
    strict, conservative = build_policies(detect)
    for detector, label, least in (("tagger", "PERSON", 0.4), ("presidio", "EMAIL_ADDRESS", 0.3)):
        reading = EngineOutput((Span(0, 4, label, score, detector),))
        assert bool(list(strict.select_spans(TEXT, reading))) == (score >= round(least * 2 * (1 - sensitivity), 6))
        assert list(conservative.select_spans(TEXT, reading)), "what is not masked is still private"


@pytest.mark.parametrize("sensitivity", [0.1, 0.25, 0.5, 0.75])
def test_a_certain_span_is_masked_at_any_sensitivity(sensitivity: float) -> None:
    strict, _ = build_policies(DetectSettings(sensitivity=sensitivity, strict=StrictSettings(labels={"PERSON": 0.8})))
    certain, unlisted = (Span(0, 4, label, 1.0, "tagger") for label in ("PERSON", "MONEY"))
    assert list(strict.select_spans(TEXT, EngineOutput((certain, unlisted)))) == [certain]


def test_rules_apply_where_no_tagger_reads() -> None:
    for detect, rules in (
        ({}, ()),
        ({"tagger": None}, tuple(RULES)),
        ({"tagger": None, "language": "de"}, ("digit", "symbol")),
        ({"conservative": {"rules": ["digit"]}}, ("digit",)),
    ):
        assert build_policies(DetectSettings.model_validate(detect))[1].settings.rules == rules
    for models, is_builtin in ((("default", "ours"), True), (("ours",), False)):
        assert DetectSettings(tagger=TaggerSettings(models=models)).has_builtin_tagger is is_builtin
    with pytest.raises(ConfigurationError, match="'fr'"):
        build_policies(DetectSettings.model_validate({"language": "fr", "conservative": {"rules": ["word"]}}))


@pytest.mark.parametrize("text", ["", " ", "a", "Hello there."])
def test_flagging_everything_makes_every_text_private(text: str) -> None:
    for flagged in (False, True):
        conservative = {"rules": [], "flags_everything": flagged}
        detector = Detector(DetectSettings.model_validate({**OFF, "conservative": conservative}))
        (detection,) = detector.detect([text])
        decision = route_example(text, detection)
        assert (decision.split, decision.text, decision.masks) == (PRIVATE if flagged else PUBLIC, text, 0)
        assert decision.reasons == (("rule:EVERYTHING",) if flagged else ())


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 3},
        {"max_chars": 0},
        {"conservative": {"min_non_entity_probability": 1.1}},
        {"sensitivity": 0.9},
        {"conservative": {"rules": ["vowel"]}},
        {"strict": {"labels": {"PERSON": float("nan")}}},
        {"strict": {"threshold": 0.3}},
        {"patterns": {"custom": [{"name": "Own"}]}},
        {"model": "blank:en"},
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DetectSettings.model_validate(wrong)


@pytest.mark.parametrize(
    "name",
    [
        "Quirin Ozols", "Selam Haile", "Ieuan Ddu", "Björk Jónsdóttir", "Caoimhe Ní Bhriain", "Wangari Muthoni-Otieno",
        "Nguyễn Thị Minh Khai", "Xiomara Quispe Mamani", "Siobhán Ó Murchadha", "Tunde Adebayo-Okafor",
    ],
)  # fmt: skip
@pytest.mark.parametrize("frame", ["{} lives here.", "18/09/2018, 16:25 - {}: I'm sorry", "I spoke to {} yesterday."])
def test_a_name_is_masked_to_its_end(detector: Detector, frame: str, name: str) -> None:
    (found,) = detector.detect([frame.format(name)])
    start = frame.index("{")
    assert all(any(s.start <= place < s.end for s in found.strict) for place in range(start, start + len(name)))


BADGES = {"deny": [{"label": "BADGE", "words": ["K-1234"]}]}
WRITTEN = {"custom": [{"name": "Own", "label": "BADGE", "patterns": {"blue": 0.4}}]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("detect", "told"),
    [
        ({"strict": {"labels": {"PERSN": 0.5, "EMAIL_ADDRESS": 0.3}}}, "strict.labels: .*did you mean 'PERSON'"),
        ({"strict": {"extra_labels": {"EMAIL": 0.3}}}, "strict.extra_labels: .*did you mean 'EMAIL_ADDRESS'"),
        ({"strict": {"labels": {"person": 0.5}}}, "did you mean 'PERSON'"),
        ({"strict": {"labels": {"PHONE": 0.5}}}, "did you mean 'PHONE_NUMBER'"),
        ({"strict": {"labels": {"": 0.5}}}, "valid labels: ACCOUNT, AGE"),
        ({"strict": {"labels": {"QZX": 0.5}}}, "valid labels: ACCOUNT, AGE"),
        ({"strict": {"labels": {"PER": 0.5, "DATE_TIME": 0.5}}}, "found as PERSON .*: use PERSON"),
        ({"strict": {"labels": {"GPE": 0.5}}}, "found as LOCATION"),
        ({"strict": {"extra_labels": {"BADGES": 0.1}}, "lists": BADGES}, "did you mean 'BADGE'"),
        ({"strict": {"extra_labels": {"BADGE": 0.1}}}, "finds the label 'BADGE'"),
        (
            {"strict": {"labels": {"PERSN": 0.5, "PHONE": 0.3, "QZX": 0.5}}},
            r"label 'PERSN' \(did .* 'PERSON'\?\), 'PHONE' \(.* 'PHONE_NUMBER'\?\) or 'QZX'; valid labels:",
        ),
        ({"strict": {"extra_labels": {f"QZX{n}": 0.5 for n in "ABCDEFG"}}}, "'QZXE' or 2 more; valid labels:"),
        ({"strict": {"engines": {"taggr": 0.5}}}, "strict.engines: .*did you mean 'tagger'"),
        ({"strict": {"engines": {"patterns": 0.5}}}, "did you mean 'presidio'"),
        ({"strict": {"engines": {"list": 0.5}}}, "valid names: presidio, spacy"),
        ({"public_labels": ["ORGANISATION"]}, "public_labels: .*did you mean 'ORGANIZATION'"),
        ({"public_labels": ["LISTED"], "lists": {"deny": [{"words": ["x"]}]}}, "finds LISTED"),
    ],
)
def test_a_label_that_no_hit_can_have_is_refused(detect: dict[str, Any], told: str) -> None:
    """Before, it was ignored, and what was to be masked stayed as it was."""
    settings = DetectSettings.model_validate(detect)
    for ask in (compute_policy_hashes, Detector):
        with pytest.raises(ConfigurationError, match=told):
            ask(settings)


@pytest.mark.parametrize("key", ["labels", "extra_labels"])
@pytest.mark.parametrize("bound", [2, -0.1])
def test_a_bound_that_is_no_score_is_refused(key: str, bound: float) -> None:
    """With a bound above 1 no hit would have been masked, and a warning alone said so."""
    told = f"from 0 to 1, but PERSON has {bound}; give such a score, or remove a label"
    with pytest.raises(ValidationError, match=told):
        DetectSettings.model_validate({"strict": {key: {"PERSON": bound, "AGE": 0.4}}})


@pytest.mark.parametrize(
    "detect",
    [
        {"strict": {"extra_labels": {"BADGE": 0.1}}, "lists": BADGES},
        {"strict": {"labels": {"BADGE": 0.1}}, "patterns": WRITTEN},
        {"strict": {"labels": {"LISTED": 0.1, "MONEY": 0.2}}},
        {"strict": {"labels": {"PER": 0.5, "PERSON": 0.5}}},
        {"strict": {"extra_labels": {"DATE": 0.9, "WORK_OF_ART": 0.1}, "engines": {"spacy": 0.1}}},
        {"public_labels": ["ORG", "DATE"]},
    ],
)
def test_labels_that_something_finds_are_known(detect: dict[str, Any]) -> None:
    assert compute_policy_hashes(DetectSettings.model_validate(detect))


@pytest.mark.parametrize(
    ("detect", "nothing"),
    [
        ({}, False),
        ({"strict": {"labels": {}}}, True),
        ({"strict": {"labels": {"MONEY": 0.5}}}, True),
        ({"strict": {"labels": {"EMAIL_ADDRESS": 0.5}}}, False),
        ({"tagger": None, "strict": {"labels": {"PERSON": 0.5}}}, True),
        ({"tagger": None}, False),
        ({"tagger": None, "patterns": None}, True),
        ({"tagger": None, "patterns": None, "lists": BADGES}, True),
        ({"tagger": None, "patterns": None, "lists": {"deny": [{"words": ["Mary Smith"]}]}}, False),
    ],
)
def test_a_policy_that_masks_nothing_is_told_by_a_text(detect: dict[str, Any], nothing: bool) -> None:
    settings = DetectSettings.model_validate(detect)
    assert detector_masks_nothing(settings, lambda: Detector(settings)) is nothing


# The hash of a policy changes with everything that can change what it marks, and with nothing else.


BLANK: dict[str, Any] = {"tagger": None, "spacy": {"model": "blank:en"}, "patterns": None}
RULES_ON = {"rules": ["digit", "symbol", "capital", "name"]}
CUSTOM = {"name": "Own", "label": "BADGE", "patterns": {"blue": 0.4}}


def hashes(**changes: Any) -> tuple[str, str]:
    conservative = {**RULES_ON, **changes.get("conservative", {})}
    settings = DetectSettings.model_validate({**BLANK, **changes, "conservative": conservative})
    found = compute_policy_hashes(settings)
    return found["strict"], found["conservative"]


BOTH, STRICT, CONSERVATIVE, NEITHER = (True, True), (True, False), (False, True), (False, False)


@pytest.mark.parametrize(
    ("changes", "moved"),
    [
        ({"strict": {"labels": {"PERSON": 0.3}}}, STRICT),
        ({"strict": {"extra_labels": {"MONEY": 0.3}}}, STRICT),
        ({"conservative": {"min_non_entity_probability": 0.91}}, CONSERVATIVE),
        ({"sensitivity": 0.6}, STRICT),
        ({"conservative": {"rules": ["digit", "symbol", "capital"]}}, CONSERVATIVE),
        ({"conservative": {"flags_everything": True}}, CONSERVATIVE),
        ({"patterns": {}}, BOTH),
        ({"spacy": {"model": "blank:de"}}, BOTH),
        ({"spacy": None}, BOTH),
        ({"lists": {"deny": [{"words": ["Acme"]}]}}, BOTH),
        ({"language": "de"}, BOTH),
        ({"max_chars": 19_999}, BOTH),
        ({}, NEITHER),
    ],
)
def test_the_hash_changes_with_what_matters(changes: dict[str, Any], moved: tuple[bool, bool]) -> None:
    before, after = hashes(), hashes(**changes)
    assert (before[0] != after[0], before[1] != after[1]) == moved


def test_small_changes_count() -> None:
    base = {"strict": {"labels": {"PERSON": 0.3, "DATE": 0.3}}}
    turned = {"strict": {"labels": {"DATE": 0.3, "PERSON": 0.3}}}
    higher = {"strict": {"labels": {"PERSON": 0.3, "DATE": 0.30001}}}
    assert hashes(**base) == hashes(**turned) != hashes(**higher)
    customs = [
        CUSTOM,
        {**CUSTOM, "patterns": {"blue": 0.41}},
        {**CUSTOM, "patterns": {"blu": 0.4}},
        {**CUSTOM, "label": "OTHER"},
        {**CUSTOM, "context": ["badge"]},
    ]
    patterns: list[dict[str, Any]] = [{}, {"recognizers": ["EmailRecognizer"]}, *({"custom": [c]} for c in customs)]
    assert len({hashes(patterns=section) for section in patterns}) == len(patterns)


def test_what_changed_is_named_and_no_word_of_a_list() -> None:
    settings = DetectSettings.model_validate(BLANK)
    records = json.loads(json.dumps(build_policy_records(settings)))
    assert describe_policy_changes(settings, records) is None
    records["strict"]["dependencies"]["versions"]["redactory"] = "0.0.1"
    records["strict"]["hash"] = "another"
    told = describe_policy_changes(settings, records)
    assert told is not None
    assert "the strict policy no longer matches the run: redactory was 0.0.1 and is " in told
    listed = DetectSettings.model_validate({**BLANK, "lists": {"deny": [{"words": ["Zed"]}]}})
    told = describe_policy_changes(listed, build_policy_records(settings))
    assert told is not None
    assert "Zed" not in told


@pytest.mark.parametrize("package", VERSIONED_PACKAGES)
def test_the_hash_changes_with_a_version(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    before = hashes(spacy=None)
    version = importlib.metadata.version
    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "version", lambda name: version(name) + ".new" * (name == package))
        get_package_version.cache_clear()
        after = hashes(spacy=None)
    get_package_version.cache_clear()
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_the_hash_follows_the_terms_of_lists_and_not_their_place(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("first.txt", "second.txt", "other.txt")]
    for file, terms in zip(files, ("Acme\nOslo\n", "Acme\nOslo\n", "Acme\nParis\n"), strict=True):
        file.write_text(terms, encoding="utf-8")
    first, second, other = (hashes(lists={"deny": [{"file": str(f)}]}) for f in files)
    assert first == second
    assert first[0] != other[0]
    assert first[1] != other[1]


def test_the_hash_changes_with_the_word_list_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with_words, without = {"conservative": {"rules": ["word"]}}, {"conservative": {"rules": ["digit"]}}
    before, unused = hashes(**with_words), hashes(**without)
    with monkeypatch.context() as patch:
        patch.setattr(words, "load_common_words", lambda language: frozenset({"only", "these"}))
        hash_common_words.cache_clear()
        after = hashes(**with_words)
    hash_common_words.cache_clear()
    assert (before[0] == after[0], before[1] == after[1]) == (True, False)
    assert hashes(**without) == unused


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("<MASK> and <PERSON>", [(0, 6), (11, 19)]),
        ("<CREDIT_CARD_12>", [(0, 16)]),
        ("<PERSON_k3vabcde2345abcd>", [(0, 25)]),
        ("<JOHN_SMITH> <PERSON_12345> <person> <PERSON", []),
    ],
)
def test_what_redact_writes_is_never_masked_again(text: str, places: list[tuple[int, int]]) -> None:
    detector = Detector(DetectSettings.model_validate(OFF))
    output = detector.prepare_output(text, EngineOutput())
    assert list(output.allowed_ranges) == places
    everything = EngineOutput((Span(0, len(text), "PERSON", 1.0, "tagger"),))
    assert detector.apply_policies(text, everything).conservative or places == [(0, len(text))]

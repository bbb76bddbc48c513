"""Routing: whatever holds a mask is private, a failure is quarantined, a fate is a pure function."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.detectors import Detection, Span
from redactory.redaction import MASK, PRIVATE, PUBLIC, Fate, route, sides
from redactory.redaction.sides import fates

TEXTS = st.lists(
    st.sampled_from(["hello", " ", MASK, "Ann", "Lee", "<MA", "SK>", "<", ">", "😀", "5", "."]),
    min_size=1,
    max_size=6,
).map("".join)
LABELS = st.sampled_from(["PERSON", "DATE", "US_SSN"])
DETECTORS = st.sampled_from(["spacy", "presidio", "rule"])


RUN_OF_MASKS = re.compile(rf"{MASK}(?:\s*{MASK})+")


@st.composite
def points(draw: st.DrawFn) -> tuple[str, Detection]:
    """A text and what policies might mark in it; sometimes nothing, sometimes a failure."""
    text = draw(TEXTS)

    def span() -> Span:
        start = draw(st.integers(0, len(text) - 1))
        end = draw(st.integers(start + 1, len(text)))
        return Span(start, end, draw(LABELS), 0.5, draw(DETECTORS))

    strict, conservative = ([span() for _ in range(draw(st.integers(0, 2)))] for _ in range(2))
    failure = draw(st.sampled_from([None, None, None, "too_long", "engine_error"]))
    return text, Detection(tuple(strict), tuple(conservative), failure)


def holds_its_promises(text: str, detection: Detection, fate: Fate) -> bool:
    if detection.failure:
        return fate == Fate(PRIVATE, "", (), 0, detection.failure)
    marked = bool(detection.strict or detection.conservative or MASK in text)
    return (
        fate.failure is None
        and fate.side == (PRIVATE if marked else PUBLIC)
        and (fate.side == PRIVATE or (fate.text == text and MASK not in fate.text))
        and bool(fate.reasons) == marked
        and (bool(detection.strict) or fate.text == RUN_OF_MASKS.sub(MASK, text))
        and (bool(detection.strict) == (fate.masks > 0))
        and (MASK in fate.text or not fate.masks)
        and not RUN_OF_MASKS.search(fate.text)
    )


@given(points())
def test_a_fate_holds_its_promises(point: tuple[str, Detection]) -> None:
    text, detection = point
    fate = route(text, detection)
    assert holds_its_promises(text, detection, fate)
    if MASK in fate.text:
        assert fate.side == PRIVATE


@given(st.lists(points(), max_size=8), st.randoms())
def test_a_fate_is_a_function_of_its_own_point(
    given_points: list[tuple[str, Detection]], random: st.Random
) -> None:
    alone = [route(text, detection) for text, detection in given_points]
    order = list(range(len(given_points)))
    random.shuffle(order)
    together = fates([given_points[i][0] for i in order], [given_points[i][1] for i in order])
    assert together == [alone[i] for i in order]


def test_a_secret_masked_beforehand_gives_the_same_text() -> None:
    # a miss is F(s) != F(s with the secret masked): a mask beside a mask must not tell the two apart
    text, names = "Ask Ann Lee now.", (Span(4, 7, "PERSON", 1.0, "a"), Span(8, 11, "PERSON", 1.0, "a"))
    whole = route(text, Detection(names))
    masked = route(f"Ask {MASK} Lee now.", Detection((Span(11, 14, "PERSON", 1.0, "a"),)))
    assert whole.text == masked.text == f"Ask {MASK} now."


def span(start: int, end: int, label: str, detector: str) -> Span:
    return Span(start, end, label, 0.9, detector)


ANN, DIGIT = span(0, 3, "PERSON", "spacy"), span(9, 10, "DIGIT", "rule")


@pytest.mark.parametrize(
    ("text", "detection", "fate"),
    [
        ("Hello you.", Detection(), Fate(PUBLIC, "Hello you.", ())),
        (
            "Ann has 5.",
            Detection((ANN,), (ANN, DIGIT)),
            Fate(PRIVATE, f"{MASK} has 5.", ("rule:DIGIT", "spacy:PERSON"), 1),
        ),
        ("Ann has 5.", Detection((), (DIGIT,)), Fate(PRIVATE, "Ann has 5.", ("rule:DIGIT",))),
        ("Ann has 5.", Detection((ANN, ANN), (ANN,)), Fate(PRIVATE, f"{MASK} has 5.", ("spacy:PERSON",), 1)),
        (f"So {MASK}?", Detection(), Fate(PRIVATE, f"So {MASK}?", ("mask:IN_TEXT",))),
        (
            f"Ann {MASK}",
            Detection((ANN,)),
            Fate(PRIVATE, MASK, ("mask:IN_TEXT", "spacy:PERSON"), 1),
        ),
        ("Ann has 5.", Detection((ANN,), (ANN,), "too_long"), Fate(PRIVATE, "", (), 0, "too_long")),
        ("<MA SK>", Detection(), Fate(PUBLIC, "<MA SK>", ())),
        ("", Detection(), Fate(PUBLIC, "", ())),
    ],
)
def test_by_example(text: str, detection: Detection, fate: Fate) -> None:
    assert route(text, detection) == fate


def test_a_routing_that_overlooks_a_raw_mask_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "_STANDING", re.compile("<NOT-THE-MASK>"))
    text = f"So {MASK}?"
    assert not holds_its_promises(text, Detection(), route(text, Detection()))


def test_a_routing_that_lets_a_failure_through_is_found() -> None:
    failed = Detection(failure="too_long")
    assert not holds_its_promises("Ann", failed, Fate(PUBLIC, "Ann", ()))
    assert not holds_its_promises("Ann", Detection((ANN,)), Fate(PRIVATE, "Ann", ("spacy:PERSON",), 1))
    assert not holds_its_promises("Ann", Detection((), (ANN,)), Fate(PUBLIC, "Ann", ()))

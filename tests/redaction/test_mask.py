"""Masking and routing: nothing inside an interval survives, what holds a mask is private, all else stays."""

from __future__ import annotations

import itertools
import re
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redactory.detectors import Detection, Span
from redactory.detectors.rules import RULES
from redactory.redaction import MASK, PRIVATE, PUBLIC, RoutingDecision, mask_intervals, merge_intervals, route_example
from redactory.redaction.mask import DOCUMENT_REASON, describe_reason, merge_document_decisions

FIRST_MARKED = 0xE000
"""Marked characters are distinct private-use code points, which no drawn text holds."""
PLAIN = st.text(st.characters(exclude_categories=["Cs", "Co"]), max_size=6)
GAPS = st.sampled_from(["", " ", "\n", " \t ", "\u00a0", "\u2003", "\u3000", "\x1c", ".", "a", "\u200b", "😀", "א"])
PIECES = st.lists(st.tuples(PLAIN | GAPS, st.integers(0, 4)), max_size=8)


def build(pieces: list[tuple[str, int]], tail: str) -> tuple[str, list[tuple[int, int]]]:
    """A text of plain pieces, each followed by so many marked characters, and the marked runs."""
    text, runs = "", []
    for plain, count in pieces:
        text += plain
        if count:
            runs.append((len(text), len(text) + count))
            text += "".join(chr(FIRST_MARKED + len(text) + n) for n in range(count))
    return text + tail, runs


def cut(run: tuple[int, int], data: st.DataObject) -> list[tuple[int, int]]:
    """Intervals that overlap or touch, come twice or not, and cover ``run`` together."""
    start, end = run
    middle = data.draw(st.integers(start, end))
    overlap = data.draw(st.integers(start, middle))
    pieces = ((start, middle), (overlap, end), data.draw(st.sampled_from([run, (overlap, end)])))
    return [piece for piece in pieces if piece[0] < piece[1]]


def oracle(text: str, runs: list[tuple[int, int]]) -> str:
    """Character by character: covered ones become a sign, signs around white space run together."""
    sign = "\U0010ffff"
    covered = "".join(sign if any(s <= i < e for s, e in runs) else c for i, c in enumerate(text))
    return re.sub(f"{sign}+(?:\\s+{sign}+)*", MASK, covered)


@given(PIECES, PLAIN, st.data())
def test_nothing_inside_survives_and_nothing_outside_changes(
    pieces: list[tuple[str, int]], tail: str, data: st.DataObject
) -> None:
    text, runs = build(pieces, tail)
    intervals = data.draw(st.permutations([i for run in runs for i in cut(run, data)]))
    masked, merged = mask_intervals(text, intervals), merge_intervals(text, intervals)
    assert not any(0xE000 <= ord(c) <= 0xF8FF for c in masked)
    assert masked == oracle(text, runs) == mask_intervals(text, merged)
    kept = "".join(plain for plain, _ in pieces) + tail
    assert re.sub(r"\s", "", masked.replace(MASK, "")) == re.sub(r"\s", "", kept.replace(MASK, ""))
    for (_, end), (start, _) in itertools.pairwise(merged):
        assert end < start
        assert text[end:start].strip()


@pytest.mark.parametrize(
    ("text", "intervals", "masked"),
    [
        ("Ann Lee called.", [(0, 3), (4, 7)], f"{MASK} called."),
        ("AnnLee called.", [(3, 6), (0, 3)], f"{MASK} called."),
        ("Ann, Lee", [(0, 3), (5, 8)], f"{MASK}, {MASK}"),
        ("Ann \n\t\u00a0 Lee", [(0, 3), (8, 11)], MASK),
        ("x", [], "x"),
        ("", [], ""),
        ("😀אב😀", [(1, 3)], f"😀{MASK}😀"),
        ("e\u0301a", [(0, 2)], f"{MASK}a"),
        ("<MASK> x", [(7, 8)], f"<MASK> {MASK}"),
        ("a b c d", [(0, 7), (2, 3)], MASK),
    ],
)
def test_by_example(text: str, intervals: list[tuple[int, int]], masked: str) -> None:
    assert mask_intervals(text, intervals) == masked


@given(st.text(max_size=5), st.integers(-3, 8), st.integers(-3, 8))
@example("secret", 0, 7)
@example("secret", -1, 3)
@example("secret", 3, 3)
@example("secret", 4, 2)
@example("", 0, 1)
def test_an_interval_outside_is_an_error_that_quotes_nothing(text: str, start: int, end: int) -> None:
    if 0 <= start < end <= len(text):
        assert mask_intervals(text, [(start, end)]) == text[:start] + MASK + text[end:]
        return
    said = f"[{start}, {end}) is outside a text of {len(text)}"
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        mask_intervals(text, [(start, end)])
    assert "secret" not in str(caught.value)


def test_a_million_intervals_come_to_an_end() -> None:
    text = "ab c" * 500_000
    intervals = [(start, start + 1) for start in range(0, len(text), 2)]
    # "a", " " and the next "a" of each four: a space between is one of ours or merges, "b" and "c" stay
    assert mask_intervals(text, reversed(intervals)) == f"{MASK}b{MASK}c" * 500_000
    nested = ((start, len(text)) for start in range(1_000_000))
    assert merge_intervals(text, nested) == [(0, len(text))]


# Routing: whatever holds a mask is private, a failure is quarantined, a decision is a pure function.


TEXTS = st.lists(
    st.sampled_from(["hello", " ", MASK, "Ann", "Lee", "<MA", "SK>", "<", ">", "😀", "5", "."]), min_size=1, max_size=6
).map("".join)
RUN_OF_MASKS = re.compile(rf"{MASK}(?:\s*{MASK})+")


@st.composite
def points(draw: st.DrawFn) -> tuple[str, Detection]:
    """A text and what policies might mark in it; sometimes nothing, sometimes a failure."""
    text = draw(TEXTS)

    def span() -> Span:
        start = draw(st.integers(0, len(text) - 1))
        end = draw(st.integers(start + 1, len(text)))
        label, by = draw(st.sampled_from([("PERSON", "spacy"), ("DATE", "presidio"), ("US_SSN", "rule")]))
        return Span(start, end, label, 0.5, by)

    strict, conservative = ([span() for _ in range(draw(st.integers(0, 2)))] for _ in range(2))
    failure = draw(st.sampled_from([None, None, None, "too_long", "engine_error"]))
    return text, Detection(tuple(strict), tuple(conservative), failure)


def holds_its_promises(text: str, detection: Detection, decision: RoutingDecision) -> bool:
    if detection.failure:
        return decision == RoutingDecision(PRIVATE, "", (), 0, detection.failure)
    marked = bool(detection.strict or detection.conservative or MASK in text)
    return (
        decision.failure is None
        and decision.split == (PRIVATE if marked else PUBLIC)
        and (decision.split == PRIVATE or (decision.text == text and MASK not in decision.text))
        and bool(decision.reasons) == marked
        and (bool(detection.strict) or decision.text == RUN_OF_MASKS.sub(MASK, text))
        and (bool(detection.strict) == (decision.masks > 0))
        and (MASK in decision.text or not decision.masks)
        and not RUN_OF_MASKS.search(decision.text)
    )


@given(st.lists(points(), max_size=8), st.randoms())
def test_a_fate_holds_its_promises_and_is_a_function_of_its_own_point(
    given_points: list[tuple[str, Detection]], random: st.Random
) -> None:
    alone = [route_example(text, detection) for text, detection in given_points]
    for (text, detection), decision in zip(given_points, alone, strict=True):
        assert holds_its_promises(text, detection, decision)
    order = list(range(len(given_points)))
    random.shuffle(order)
    together = [route_example(*given_points[i]) for i in order]
    assert together == [alone[i] for i in order]


def test_a_secret_masked_beforehand_gives_the_same_text() -> None:
    # a miss is F(s) != F(s with the secret masked): a mask beside a mask must not tell the two apart
    text, names = "Ask Ann Lee now.", (Span(4, 7, "PERSON", 1.0, "a"), Span(8, 11, "PERSON", 1.0, "a"))
    whole = route_example(text, Detection(names))
    masked = route_example(f"Ask {MASK} Lee now.", Detection((Span(11, 14, "PERSON", 1.0, "a"),)))
    assert whole.text == masked.text == f"Ask {MASK} now."


ANN, DIGIT = Span(0, 3, "PERSON", 0.9, "spacy"), Span(9, 10, "DIGIT", 0.9, "rule")
BOTH = ("rule:DIGIT", "spacy:PERSON")


@pytest.mark.parametrize(
    ("text", "detection", "decision"),
    [
        ("Hello you.", Detection(), RoutingDecision(PUBLIC, "Hello you.", ())),
        ("Ann has 5.", Detection((ANN,), (ANN, DIGIT)), RoutingDecision(PRIVATE, f"{MASK} has 5.", BOTH, 1)),
        ("Ann has 5.", Detection((), (DIGIT,)), RoutingDecision(PRIVATE, "Ann has 5.", ("rule:DIGIT",))),
        (f"So {MASK}?", Detection(), RoutingDecision(PRIVATE, f"So {MASK}?", ("mask:IN_TEXT",))),
        (f"Ann {MASK}", Detection((ANN,)), RoutingDecision(PRIVATE, MASK, ("mask:IN_TEXT", "spacy:PERSON"), 1)),
        ("Ann has 5.", Detection((ANN,), (ANN,), "too_long"), RoutingDecision(PRIVATE, "", (), 0, "too_long")),
        ("<MA SK>", Detection(), RoutingDecision(PUBLIC, "<MA SK>", ())),
        ("", Detection(), RoutingDecision(PUBLIC, "", ())),
    ],
)
def test_fates_by_example(text: str, detection: Detection, decision: RoutingDecision) -> None:
    assert route_example(text, detection) == decision


def test_a_wrong_routing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage: what the tests above go by sees each of these."""
    assert not holds_its_promises("Ann", Detection(failure="too_long"), RoutingDecision(PUBLIC, "Ann", ()))
    assert not holds_its_promises("Ann", Detection((ANN,)), RoutingDecision(PRIVATE, "Ann", ("spacy:PERSON",), 1))
    assert not holds_its_promises("Ann", Detection((), (ANN,)), RoutingDecision(PUBLIC, "Ann", ()))
    monkeypatch.setattr(sys.modules[route_example.__module__], "_LITERAL_MASK", re.compile("<NOT-THE-MASK>"))
    assert not holds_its_promises(f"So {MASK}?", Detection(), route_example(f"So {MASK}?", Detection()))


def test_every_rule_that_makes_a_point_private_is_said_in_words() -> None:
    codes = [*(f"rule:{rule.upper()}" for rule in RULES), "rule:EVERYTHING", "tagger-plain:UNSURE"]
    assert all(describe_reason(code) for code in (*codes, "mask:IN_TEXT", "document:PRIVATE", "known:PERSON"))
    assert describe_reason("presidio:IBAN_CODE") == ""


@given(st.lists(st.sampled_from([PUBLIC, PRIVATE, "lost"]), max_size=6))
def test_one_private_point_makes_its_document_private_wherever_it_stands(sides: list[str]) -> None:
    decisions = [
        RoutingDecision(PRIVATE, "", (), failure="too_long")
        if side == "lost"
        else RoutingDecision(side, f"text {n}", ())
        for n, side in enumerate(sides)
    ]
    joined = merge_document_decisions(decisions)
    assert {decision.split for decision in joined} <= ({PUBLIC} if set(sides) <= {PUBLIC} else {PRIVATE})
    assert [(decision.text, decision.failure) for decision in joined] == [
        (decision.text, decision.failure) for decision in decisions
    ]
    turned = [new.reasons == (DOCUMENT_REASON,) for new in joined]
    assert turned == [side == PUBLIC and not set(sides) <= {PUBLIC} for side in sides]

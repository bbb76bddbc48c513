"""Detection's figures against brute force, their intervals, and detectors that are known to miss."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.detectors import Detection, Span
from redactory.evaluation.detection import (
    ALL_LABELS,
    LabelledExample,
    compare_detectors,
    compute_detection_metrics,
    count_masks_by_label,
    count_matches,
    measure_detection,
)
from redactory.evaluation.recall import classify_casing
from redactory.evaluation.statistics import bootstrap_ratio, estimate_proportion
from redactory.redaction import route_example

_TEXTS = st.text(alphabet="ab \n", min_size=1, max_size=14)


@st.composite
def _cases(draw: st.DrawFn) -> tuple[str, list[tuple[int, int, str]], list[tuple[int, int]]]:
    text = draw(_TEXTS)
    bounds = st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))
    intervals = st.lists(bounds.filter(lambda b: b[0] < b[1]), max_size=4)
    labelled = [(start, end, draw(st.sampled_from("XY"))) for start, end in draw(intervals)]
    return text, labelled, draw(intervals)


def _solid(text: str, start: int, end: int) -> frozenset[int]:
    return frozenset(i for i in range(start, end) if not text[i].isspace())


def _together(text: str, marks: list[tuple[int, int]]) -> list[frozenset[int]]:
    """Marks whose stretch from first to last solid character overlaps, joined until nothing changes."""
    stretches = [set(range(min(s), max(s) + 1)) for m in marks if (s := _solid(text, *m))]
    while True:
        for one in stretches:
            other = next((o for o in stretches if o is not one and o & one), None)
            if other is not None:
                stretches = [s for s in stretches if s is not one and s is not other] + [one | other]
                break
        else:
            return [frozenset(i for i in s if not text[i].isspace()) for s in stretches]


@settings(max_examples=400, deadline=None)
@given(_cases())
def test_counts_are_those_of_sets_of_characters(
    case: tuple[str, list[tuple[int, int, str]], list[tuple[int, int]]],
) -> None:
    text, labelled, marks = case
    counts = count_matches(text, labelled, marks)
    wanted = [(s, label) for start, end, label in labelled if (s := _solid(text, start, end))]
    found = _together(text, marks)
    masked: frozenset[int] = frozenset().union(*found)
    true: frozenset[int] = frozenset().union(*(s for s, _ in wanted))
    edges = {(min(s), max(s)) for s in found} & {(min(s), max(s)) for s, _ in wanted}
    assert (counts[ALL_LABELS, "labelled"], counts[ALL_LABELS, "marked"]) == (len(wanted), len(found))
    assert counts[ALL_LABELS, "chars_labelled"] == len(true)
    assert counts[ALL_LABELS, "chars_marked"] == len(masked)
    assert counts[ALL_LABELS, "chars_both"] == len(true & masked)
    for side, own, others in (("labelled", [s for s, _ in wanted], masked), ("marked", found, true)):
        assert counts[ALL_LABELS, f"exact_{side}"] == sum((min(s), max(s)) in edges for s in own)
        assert counts[ALL_LABELS, f"cover_{side}"] == sum(s <= others for s in own)
        assert counts[ALL_LABELS, f"overlap_{side}"] == sum(bool(s & others) for s in own)
    for label in "XY":
        mine = [s for s, given_label in wanted if given_label == label]
        assert counts[label, "labelled"] == len(mine)
        assert counts[label, "cover_labelled"] == sum(s <= masked for s in mine)
        assert counts[label, "chars_labelled"] == sum(len(s) for s in mine)
        assert counts[label, "chars_both"] == sum(len(s & masked) for s in mine)


@settings(max_examples=200, deadline=None)
@given(_cases(), st.lists(st.sampled_from("XZ"), min_size=4, max_size=4))
def test_masks_are_counted_by_their_label_and_by_what_they_overlap(
    case: tuple[str, list[tuple[int, int, str]], list[tuple[int, int]]], labels: list[str]
) -> None:
    text, labelled, marks = case
    spans = [Span(*bounds, label, 1.0, "toy") for bounds, label in zip(marks, labels, strict=False)]
    counts = count_masks_by_label(text, labelled, spans)
    secret = frozenset[int]().union(*(_solid(text, start, end) for start, end, _ in labelled))
    for label in "XZ":
        together = _together(text, [(span.start, span.end) for span in spans if span.label == label])
        assert counts[label, "marked"] == len(together)
        assert counts[label, "overlap_marked"] == sum(bool(solid & secret) for solid in together)
    assert {label for label, _ in counts} <= {span.label for span in spans}


def test_each_label_has_its_secrets_and_its_masks() -> None:
    # of 13 names 11 are covered, under another label; of six cities two, and one half; of five dates two are no secret
    text, name, city, none = "Ann met Bob", (0, 3, "NAME"), (8, 11, "CITY"), Span(4, 7, "DATE", 1.0, "toy")
    rows = [([name], [Span(0, 3, "PERSON", 1.0, "toy")])] * 11 + [([name], [none])] + [([city], [])] * 3
    rows += [([city], [Span(8, 10, "DATE", 1.0, "toy")])]
    rows += [([name], [none]), ([city], [Span(8, 11, "DATE", 1.0, "toy")]), ([city], [Span(7, 11, "DATE", 1.0, "toy")])]
    counted = [
        count_matches(text, labelled, [(span.start, span.end) for span in spans])
        + count_masks_by_label(text, labelled, spans)
        for labelled, spans in rows
    ]
    result = compute_detection_metrics(counted)
    shown = {
        label: (row["n"], row["cover_recall"]["value"], row["marks"], row["precision"]["value"])
        for label, row in result["by_label"].items()
    }
    assert shown == {
        "NAME": (13, pytest.approx(11 / 13), 0, None),
        "CITY": (6, pytest.approx(2 / 6), 0, None),
        "PERSON": (0, None, 11, 1.0),
        "DATE": (0, None, 5, 0.6),
    }
    assert result["precision"]["value"] == pytest.approx(14 / 16)
    # all of 11: two-sided at 95 %, so that 0.025 of the probability is below
    assert result["by_label"]["PERSON"]["precision"]["low"] == pytest.approx(0.025 ** (1 / 11))


def test_figures_of_a_worked_example() -> None:
    # "Ann Lee" whole by two marks, half of "Bob Ray", and a mark over plain "ok so"
    text = "Ann Lee met Bob Ray ok so"
    labelled = [(0, 7, "PERSON"), (12, 19, "PERSON")]
    result = compute_detection_metrics([count_matches(text, labelled, [(0, 3), (3, 7), (12, 15), (20, 25)])] * 3)
    assert result["cover_recall"]["value"] == pytest.approx(1 / 2)
    assert result["char_recall"] == pytest.approx({"value": 9 / 12, "low": 9 / 12, "high": 9 / 12})
    assert result["char_precision"]["value"] == pytest.approx(9 / 13)
    assert result["f1"]["value"] == pytest.approx(2 * 9 / (12 + 13))
    assert result["f2"]["value"] == pytest.approx(5 * 9 / (4 * 12 + 13))
    assert result["exact"]["recall"]["value"] == result["exact"]["f1"]["value"] == 0
    assert result["overlap"]["recall"]["value"] == 1
    assert result["overlap"]["precision"]["value"] == result["cover"]["precision"]["value"] == 3 / 4
    assert (result["spans"], result["marks"]) == (6, 12)
    assert result["by_label"]["PERSON"]["n"] == 6


def test_a_figure_over_nothing_is_null_and_f_of_no_marks_is_0() -> None:
    nothing = compute_detection_metrics([])
    assert nothing["char_precision"] == nothing["f1"] == {"value": None, "low": None, "high": None}
    assert nothing["cover_recall"] == {"value": None, "low": 0.0, "high": 1.0}
    blind = compute_detection_metrics([count_matches("a", [(0, 1, "X")], [])])
    assert (blind["char_precision"]["value"], blind["char_recall"]["value"], blind["f2"]["value"]) == (None, 0, 0)


def test_the_bootstrap_interval_covers_a_known_share_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    covered, naive, trials = 0, 0, 200
    for _ in range(trials):
        # rows agree within themselves: what a row holds is no independent evidence
        sizes = rng.integers(1, 9, 80)
        rows = [(int(size) if hit else 0, int(size)) for hit, size in zip(rng.random(80) < 0.3, sizes, strict=True)]
        interval = bootstrap_ratio(rows)
        covered += interval["low"] <= 0.3 <= interval["high"]
        as_if_independent = estimate_proportion(sum(h for h, _ in rows), sum(n for _, n in rows))
        naive += as_if_independent["low"] <= 0.3 <= as_if_independent["high"]
    assert 0.88 < covered / trials < 0.99
    assert naive / trials < 0.75


@pytest.mark.parametrize(
    ("secret", "expected"),
    [
        ("ann lee", "lower"),
        ("ANN LEE", "upper"),
        ("Ann Lee", "title"),
        ("Ann O'Brien-McDonald", "title"),
        ("John F. Kay", "title"),
        ("Vincent van Gogh", "mixed"),
        ("iPhone", "mixed"),
        ("John SMITH", "mixed"),
        ("12 Elm St", "digits"),
        ("東京", "uncased"),
        ("@#", "uncased"),
    ],
)
def test_casing(secret: str, expected: str) -> None:
    assert classify_casing(secret) == expected


class Blindfolded:
    """π masks words in capitals; π_c points at numbers and "dr".  Neither sees a word that is ``blind``."""

    def __init__(self, blind: str = r"(?!)") -> None:
        self._blind = re.compile(blind)
        self.seen: list[str] = []

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        for text in texts:
            self.seen.append(text)
            if "\0" in text:
                yield Detection(failure="engine_error")
                continue
            yield Detection(
                tuple(Span(*m.span(), "WORD", 1.0, "toy") for m in self._words(r"\b[A-Z]+\b(?!>)", text)),
                tuple(Span(*m.span(), "HINT", 1.0, "toy") for m in self._words(r"\d+|\bdr\b", text)),
            )

    def _words(self, pattern: str, text: str) -> Iterator[re.Match[str]]:
        return (m for m in re.finditer(pattern, text) if not self._blind.search(m.group()))


def _point(row: int, text: str, *secrets: str, template: int = 0) -> LabelledExample:
    spans = [
        {"start": text.index(s), "end": text.index(s) + len(s), "label": "NAME", "template_id": template}
        for s in secrets
    ]
    return LabelledExample(row, text, spans)


POINTS = [
    _point(0, "it is ANN here", "ANN"),  # found by π
    _point(0, "so is bob", "bob", template=1),  # missed by both
    _point(1, "ask dr lee", "lee", template=1),  # missed by π, the point is private all the same
    _point(1, "all is well"),  # clean and public
    _point(2, "take 5"),  # clean and private
    _point(2, "all is well"),
    _point(3, "\0 joe", "joe", template=2),  # quarantined
]


def test_what_is_measured_of_a_detector_whose_every_answer_is_known() -> None:
    detector = Blindfolded()
    result = measure_detection(detector, POINTS)
    assert result["strict"]["cover_recall"]["value"] == result["conservative"]["cover_recall"]["value"] == 1 / 4
    assert result["strict"]["char_precision"]["value"] == 1
    assert result["conservative"]["char_precision"]["value"] == pytest.approx(3 / 6)
    assert (result["miss_rate"]["misses"], result["miss_rate"]["n"]) == (1, 4)
    # P(at most 1 of 4 | p) = 0.05, one-sided
    upper = result["miss_rate"]["upper"]
    assert (1 - upper) ** 4 + 4 * upper * (1 - upper) ** 3 == pytest.approx(0.05)
    # the quarantined text has the same (empty) text with its secret and without it
    assert (result["gamma"]["misses"], result["gamma"]["n"]) == (2, 4)
    assert (result["examples"], result["distinct_examples"], result["quarantined"]) == (7, 6, 1)
    public = result["public_share"]
    assert (public["public"], public["examples"]) == (3, 7)
    assert (public["of_clean"]["public"], public["of_clean"]["examples"]) == (2, 3)
    assert result["texts_per_second"] > 0
    named = result["interval"]["clopper_pearson"]["figures"] + result["interval"]["bootstrap"]["figures"]
    assert {"cover_recall", "gamma", "miss_rate", "public_share", "f2"} <= set(named)
    # the kind of secret that is always missed shows
    gammas = {name: (own["gamma"]["misses"], own["n"]) for name, own in result["strata"]["casing"].items()}
    assert gammas == {"upper": (0, 1), "lower": (2, 3)}
    templates = {name: own["gamma"]["misses"] for name, own in result["strata"]["template"].items()}
    assert templates == {"0": 0, "1": 2, "2": 0}
    worst = result["highest_gamma"]
    assert (worst["stratification"], worst["stratum"], worst["upper"]) == ("template", "1", 1.0)
    # each distinct text is read once, and those with a secret masked; others warm the engines up
    counts, texts = Counter(detector.seen), {point.text for point in POINTS}
    assert set(counts.values()) == {1}
    assert all(text in texts or text.removesuffix(" .") in texts or "<MASK>" in text for text in counts)
    dumped = json.dumps(result, allow_nan=False)
    assert not any(word in dumped for word in ("ANN", "bob", "lee", "joe", "well"))


@pytest.mark.parametrize("blind", [r"(?!)", "A", r"\d|dr"])
def test_both_miss_exactly_the_secrets_of_the_points_that_go_public(blind: str) -> None:
    # for a point that holds <MASK> is private: whoever sweeps policies need not read masked texts
    result = measure_detection(Blindfolded(blind), POINTS)
    detections = Blindfolded(blind).detect(point.text for point in POINTS)
    sides = [route_example(point.text, d).split for point, d in zip(POINTS, detections, strict=True)]
    exposed = sum(len(point.spans) for point, side in zip(POINTS, sides, strict=True) if side == "public")
    assert result["miss_rate"]["misses"] == exposed


@pytest.mark.parametrize(
    ("place", "is_open"),
    [
        ("PARIS", False),
        ("PARI", False),
        ("ARI", False),
        ("to PA", False),
        ("IS to", False),
        ("go to PARIS today", False),
        ("to ", True),
        (" today", True),
        ("go", True),
    ],
)
def test_a_public_span_is_left_open_where_no_character_of_it_is_masked(place: str, is_open: bool) -> None:
    text = "go to PARIS today"
    start = text.index(place)
    span = {"start": start, "end": start + len(place), "label": "CITY"}
    result = measure_detection(Blindfolded(), [LabelledExample(0, text, (), (span,))])
    assert result["public"] == {"CITY": {"n": 1, "open": int(is_open)}}


def test_beside_others_each_policy_is_judged_as_if_it_were_alone() -> None:
    rows = compare_detectors(Blindfolded(), {"rival": Blindfolded("A")}, POINTS)
    found = {
        (row["engine"], row["policy"]): (
            row["cover_recall"]["value"],
            row["char_precision"]["value"],
            row["miss_rate"]["misses"],
            row["public_share"]["public"],
            row["quarantined"],
        )
        for row in rows
    }
    # π marks ANN alone, with π_c also dr and 5; what is quarantined is not public; the rival sees nothing
    assert found == {
        ("redactory", "strict"): (0.25, 1.0, 2, 3, 1),
        ("redactory", "conservative"): (0.25, 0.5, 1, 2, 1),
        ("rival", None): (0.0, None, 3, 3, 1),
    }


def test_a_mask_wider_than_the_secret_is_a_gamma_miss_that_covers() -> None:
    class Wide(Blindfolded):
        def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
            for text in texts:
                match = re.search(r"is \w+", text)
                marks = (Span(*match.span(), "WIDE", 1.0, "toy"),) if match else ()
                yield Detection(marks, marks)

    result = measure_detection(Wide(), [_point(0, "it is ann", "ann")])
    assert result["strict"]["cover_recall"]["value"] == 1
    assert (result["gamma"]["misses"], result["miss_rate"]["misses"]) == (1, 0)

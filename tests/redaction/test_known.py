"""Known values: what was found once, wherever it stands in the same document."""

from __future__ import annotations

from redactory.detectors import Detection, Span
from redactory.redaction.known_values import add_known_occurrences, add_known_values
from redactory.redaction.replacements import ReplacedSpan


def test_known_values_are_whole_words_that_tell() -> None:
    texts = ["Quirin Ozols, the will of Ozols, OzolsX", "ozols"]
    found = [[ReplacedSpan(0, 12, "PERSON")], []]
    marked = [
        {text[one.start : one.end] for one in own}
        for text, own in zip(texts, add_known_occurrences(texts, found, {}), strict=True)
    ]
    assert marked == [{"Quirin Ozols", "Quirin", "Ozols"}, {"ozols"}]
    named = ["Bill Brown", "the bill brown, Bill Brown"]
    assert [one.start for one in add_known_occurrences(named, [[ReplacedSpan(0, 10, "PERSON")], []], {})[1]] == [16]
    assert [tuple(one[:2]) for one in add_known_occurrences(["Straße, MÜLLER"], [[]], {"Müller": "PERSON"})[0]][:1] == [
        (8, 14)
    ]
    starts = [one.start for one in add_known_occurrences(texts, found, {})[0]]
    assert texts[0].index("OzolsX") not in starts


def test_a_known_value_is_met_in_every_spelling() -> None:
    declared = {"José O’Brïen": "PERSON", "भारत": "LOCATION", "Bill Brown": "PERSON", "\u115f\u115f\u115f": "X"}
    [spans] = add_known_occurrences([text := "Jose\u0301  O'BRIEN, भारती, भारत, bill brown"], [[]], declared)
    assert {text[one.start : one.end] for one in spans} == {"Jose\u0301", "O'BRIEN", "Jose\u0301  O'BRIEN", "भारत"}


def test_names_in_a_row_are_known_one_by_one() -> None:
    texts = ["KOVACS, OZOLS", "OZOLS; the, will of 5,1234 KOVACS"]
    found = [[ReplacedSpan(0, 13, "LOCATION")], [ReplacedSpan(20, 26, "NUMBER")]]
    assert {texts[1][one.start : one.end] for one in add_known_occurrences(texts, found, {})[1]} == {
        *("OZOLS", "KOVACS", "5,1234")
    }


def test_what_is_marked_already_is_not_said_twice() -> None:
    texts = ["Quirin Ozols, and Ozols"]
    found = Detection((Span(0, 12, "PERSON", 0.9, "names"),), (Span(14, 17, "X", 0.5, "rule"),))
    assert add_known_values(texts, [found]) == [
        Detection((*found.strict, Span(18, 23, "PERSON", 1.0, "known")), found.conservative)
    ]


def test_a_doubtful_name_is_not_looked_for_elsewhere() -> None:
    texts = ["ask Quirin Ozols", "Ozols and 5551234567"]
    for score, places in ((0.79, []), (0.8, [(0, 5)])):
        found = [[ReplacedSpan(4, 16, "PERSON", score)], []]
        assert [tuple(span[:2]) for span in add_known_occurrences(texts, found, {})[1]] == places
    number = [[], [ReplacedSpan(10, 20, "PHONE_NUMBER", 0.4)]]
    again = ["call 5551234567", texts[1]]
    assert [tuple(span[:2]) for span in add_known_occurrences(again, number, {})[0]] == [(5, 15)]

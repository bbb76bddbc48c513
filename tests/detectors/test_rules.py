"""The rules of the conservative policy, by example and by property."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.detectors.rules import RULES, rules_identity
from redactory.foundation.errors import ConfigurationError


def words(rule: str, text: str) -> list[str]:
    return [text[start:end] for start, end in RULES[rule](text, "en")]  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("I have 2 cats and a B12 pill.", ["2", "B12"]),
        ("call 555-0100, please", ["555-0100"]),
        ("no number here", []),
        ("٣ and 四 and ½ and ２", ["٣", "２"]),
        ("a1", ["a1"]),
        ("7", ["7"]),
        ("", []),
    ],
)
def test_digit(text: str, found: list[str]) -> None:
    assert words("digit", text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("write to me@example.org now", ["me@example.org"]),
        ("see http://x.y and www.z", ["http://x.y", "www.z"]),
        ("WWW.Z.ORG", ["WWW.Z.ORG"]),
        ("I am @joe #1 on c:\\temp", ["@joe", "#1", "c:\\temp"]),
        ("my_name but not _this_ ", ["my_name"]),
        ("and/or, well-known: yes! 50% (ok)", []),
        ("", []),
    ],
)
def test_symbol(text: str, found: list[str]) -> None:
    assert words("symbol", text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Hello you.", []),
        ("I met Anna.", ["Anna"]),
        ("Yes. Then we left! Really? Fine", []),
        ("so I'm sure I’ll go, and I've paid, OK?", []),
        ("so I’M sure", ["I’M"]),
        ("“Hello,” she said. 'Fine,' said he. (Well)", []),
        ("she said “Hello”", ["Hello"]),
        ("the iPhone of McDonald", ["iPhone", "McDonald"]),
        ("McDonald came.", ["McDonald"]),
        ("HELLO there", ["HELLO"]),
        ("a well-Known one", ["well-Known"]),
        ("we saw O'Brien-Smith", ["O'Brien-Smith"]),
        ("élan, Élan", ["Élan"]),
        ("Élan.", []),
        ("мой друг Иван", ["Иван"]),
        ("the ǅordan river", ["ǅordan"]),
        ("- Item\n- Other\n* Third", []),
        ("one - Two", ["Two"]),
        ("我 and שלום", []),
        ("x_Smith 4Smith", ["x_Smith", "Smith"]),
        ("wait… Now", []),
        ("A", []),
        ("type A please", ["A"]),
        ("", []),
    ],
)
def test_capital(text: str, found: list[str]) -> None:
    assert words("capital", text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Anna called John.", ["Anna", "John"]),
        ("Anna's phone and John’s car", ["Anna's", "John’s"]),
        ("Anna'll come", ["Anna'll"]),
        ("“Anna!”", ["Anna"]),
        ("Annabelle2 and Annas", []),
        ("anna", []),
        ("Will you? Don't. So what?", []),
        ("Hello there.", []),
        ("", []),
    ],
)
def test_name(text: str, found: list[str]) -> None:
    assert words("name", text) == found


def test_a_language_without_a_word_list_is_refused_where_the_rule_is_used() -> None:
    assert rules_identity(("digit", "capital"), "xx") is None
    with pytest.raises(ConfigurationError, match="'xx'"):
        rules_identity(("word",), "xx")


@given(st.text(max_size=30) | st.text("aA1@. '’-_\n\"Ann", max_size=30))
def test_rules_point_at_places_of_the_text(text: str) -> None:
    for rule in RULES:
        places = list(RULES[rule](text, "en"))
        assert all(0 <= start < end <= len(text) for start, end in places)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))


@given(
    st.text("abc é.!?\n", max_size=10), st.characters(categories=["Lu", "Lt"]), st.text("abcé ", max_size=10)
)
def test_no_capital_escapes_inside_a_sentence(before: str, letter: str, after: str) -> None:
    text = f"{before}x {letter}{after}"
    place = len(before) + 2
    expected = letter != "I" or (after[:1].isalpha())
    assert any(start <= place < end for start, end in RULES["capital"](text, "en")) == expected

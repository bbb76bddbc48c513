"""The rules of the conservative policy, by example and by property."""

from __future__ import annotations

import gzip
import importlib.util
import itertools
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.detectors.rules import RULES, hash_common_words, iter_unlisted_words, load_common_words
from redactory.foundation.errors import ConfigurationError


def words(rule: str, text: str) -> list[str]:
    return [text[start:end] for start, end in RULES[rule](text, "en")]  # type: ignore[index]


CASES: dict[str, list[tuple[str, list[str]]]] = {
    "digit": [
        ("I have 2 cats and a B12 pill.", ["2", "B12"]),
        ("call 555-0100, please", ["555-0100"]),
        ("no number here", []),
        ("٣ and 四 and ½ and ２", ["٣", "２"]),
        ("a1", ["a1"]),
        ("7", ["7"]),
        ("", []),
    ],
    "symbol": [
        ("write to me@example.org now", ["me@example.org"]),
        ("see http://x.y and www.z", ["http://x.y", "www.z"]),
        ("WWW.Z.ORG", ["WWW.Z.ORG"]),
        ("I am @joe #1 on c:\\temp", ["@joe", "#1", "c:\\temp"]),
        ("my_name but not _this_ ", ["my_name"]),
        ("and/or, well-known: yes! 50% (ok)", []),
        ("", []),
    ],
    "capital": [
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
    "name": [
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
}


@pytest.mark.parametrize(("rule", "text", "found"), [(rule, *case) for rule, cases in CASES.items() for case in cases])
def test_a_rule_by_example(rule: str, text: str, found: list[str]) -> None:
    assert words(rule, text) == found


def test_without_a_list_every_word_is_uncommon() -> None:
    assert words("word", "zxq and the") == ["zxq"]
    assert list(RULES["word"]("ein Haus", "fr")) == [(0, 3), (4, 8)]
    assert hash_common_words("fr") is None


@given(st.text(max_size=30) | st.text("aA1@. '’-_\n\"Ann", max_size=30))
def test_rules_point_at_places_of_the_text(text: str) -> None:
    for rule in RULES:
        places = list(RULES[rule](text, "en"))
        assert all(0 <= start < end <= len(text) for start, end in places)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))


@given(st.text("abc é.!?\n", max_size=10), st.characters(categories=["Lu", "Lt"]), st.text("abcé ", max_size=10))
def test_no_capital_escapes_inside_a_sentence(before: str, letter: str, after: str) -> None:
    text = f"{before}x {letter}{after}"
    place = len(before) + 2
    expected = letter != "I" or (after[:1].isalpha())
    assert any(start <= place < end for start, end in RULES["capital"](text, "en")) == expected


# The public word list: what is on it, what the rule makes of a text, and how the list is built.


ROOT = Path(__file__).parents[2]
DATA = ROOT / "redactory" / "detectors" / "words"
SMALL = frozenset({"a", "i", "the", "cat", "do", "well", "known", "café", "x-ray", "can't", "customers"})


def found(text: str, words: frozenset[str] = SMALL) -> list[str]:
    return [text[start:end] for start, end in iter_unlisted_words(text, words)]


@pytest.fixture(scope="module")
def english() -> frozenset[str]:
    return load_common_words("en")


@pytest.fixture(scope="module")
def build() -> ModuleType:
    """``examples/word_list/build.py``."""
    spec = importlib.util.spec_from_file_location("build", ROOT / "examples" / "word_list" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "outsiders"),
    [
        ("The CAT, the cat! (cat) “Cat”", []),
        ("the dog", ["dog"]),
        ("the cat's, cat’s, cat'll, I'd've, don't, DON’T, I'm", []),
        ("the dog's dog’s", ["dog's", "dog’s"]),
        ("'the cat' and ‘dog’", ["and", "dog"]),
        ("customers' cat", []),
        ("can't, do n't, I 'm, ca n't, the 'em", []),
        ("ca, wo", ["ca", "wo"]),
        ("well-known well-dog X-ray's well‑known", ["dog"]),
        ("O'Brien, d'do", ["O'Brien", "d'do"]),
        ("2024 3rd B12 1,000", ["3rd", "B12"]),
        ("the_dog the_cat dog@cat.the", ["dog", "dog"]),
        ("a b i z", ["b", "z"]),
        ("café cafe\u0301 CAFÉ Cafe", ["Cafe"]),
        ("c\u00adat do\u200bwell d\u200bo", ["do\u200bwell"]),
        ("кот 猫 ß İ", ["кот", "猫", "ß", "İ"]),
        ("K", ["K"]),
        ("", []),
        ("' - '- _ ٣ 😀", []),
    ],
)
def test_by_example(text: str, outsiders: list[str]) -> None:
    assert found(text) == outsiders


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "The", "CAT", "cat's", "don’t", "well-known", "x-ray", "7", "…"]), max_size=5),
    st.sampled_from(["dog", "Dog", "dog's", "dög", "dogn't", "cat1", "日本"]),
    st.data(),
)
def test_one_strange_word_among_known_ones_is_found(known: list[str], strange: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(known)))
    gap = data.draw(st.sampled_from([" ", ", ", "\n", " / ", "—"]))
    assert found(gap.join(known)) == []
    assert found(gap.join([*known[:place], strange, *known[place:]])) == [strange]


def test_a_text_of_endings_is_read() -> None:
    long = "x" + "'s" * 50_000
    assert found(long) == [long]
    assert found("cat" + "-cat" * 50_000) == []


def test_ordinary_english_is_inside(english: frozenset[str]) -> None:
    text = """Hello! Thanks for your patience, I'll check the tracking e-mail right away. Could you please
    verify your full name and the phone number that we have on file? Your colour preferences weren't saved;
    the organisation's website may've been offline. OK, no problem: it's done, you will receive the bill by
    Friday? lol, thx, didnt know that; my app won’t log in. I hope the price hasn't changed since then."""
    assert found(text, english) == ["Friday"]


def test_names_and_what_stands_in_addresses_are_outside(english: frozenset[str]) -> None:
    names = """anna john mark rose grant smith jack frank grace chase max jordan garcia mueller london paris
    boston texas ca ny apt blvd ave ste monday march january english french american catholic google amazon
    visa ups"""
    assert found(names, english) == names.split()
    assert found("will smith, may jones, bill brown", english) == ["smith", "jones"]


def test_the_data_is_what_it_says(english: frozenset[str]) -> None:
    lines = gzip.decompress((DATA / "en.txt.gz").read_bytes()).decode("utf-8").splitlines()
    assert lines == sorted(set(lines))
    assert all(word == word.casefold() and not word.endswith("'s") for word in lines)
    assert {word for word in lines if len(word) == 1} == {"a", "i"}
    assert (DATA / "en.txt.gz").stat().st_size < 400_000
    assert "Kevin Atkinson" in (DATA / "LICENSE-SCOWL.txt").read_text(encoding="utf-8")
    assert len(english) == len(lines) > 60_000
    assert load_common_words("en") is english


@pytest.mark.parametrize("language", ["de", "", "../words/en", "EN"])
def test_a_language_without_a_list_is_refused(language: str) -> None:
    with pytest.raises(ConfigurationError, match=r"detect\.conservative\.rules: .* only for en;"):
        load_common_words(language)


def test_the_list_is_built_by_its_rules(build: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    american, british = tmp_path / "american", tmp_path / "british"
    american.write_text("Anna\ncolor\ncolors\ncolor's\nBill\nbill\nMark\nmark\niv\nmix\nblvd\nca\nb\ncafé\n")
    british.write_text("colour\nrose\nzebra\nZebra\nmix\nd'hote\n")
    out = tmp_path / "en.txt.gz"
    build.main(str(american), str(british), str(out))
    made = set(gzip.decompress(out.read_bytes()).decode("utf-8").split())
    ours = build.beside("added") | build.beside("short")
    assert made - ours == {"color", "colors", "colour", "bill", "mix", "café", "cafe"}
    assert ours <= made
    assert f"{len(made)} words" in capsys.readouterr().out
    first = out.read_bytes()
    build.main(str(british), str(american), str(out))
    assert out.read_bytes() == first

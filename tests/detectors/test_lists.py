"""Lists: against a brute-force matcher over a hand-written folding table, by planting, and by example."""

from __future__ import annotations

import json
import pickle
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.detectors.lists import ListEngine, Term, fold_text, load_terms
from redactory.detectors.settings import ListSettings, TermList, WordList
from redactory.foundation.errors import ConfigurationError

# what letters of the random texts must fold to, written by hand and not by the code under test
FOLDS = {
    **{letter: letter for letter in "ns1._😀日한か\u093e\u0930"},
    "": "\u0301\u0307\u200b\u00ad\ufeff\ufe0f\x00",
    " ": " \n\t\r\x85\u00a0\u2028\u3000",
    "'": "'`’´ʼ",
    '"': '"“',
    "-": "-‑–−",
    "a": "aAＡ",
    "b": "bB",
    "e": "eéÉ",
    "i": "iIİı",
    "o": "ø",
    "σ": "ςΣ",
    "ss": "ßẞ",
    "fi": "ﬁ",
    "'n": "ŉ",
    "...": "…",
    "1⁄2": "½",
    "\u1112\u1161\u11ab": "한",
    "\u304b\u3099": "が",
}
TABLE = {letter: folded for folded, letters in FOLDS.items() for letter in letters}
LETTERS = "".join(TABLE)
SPACELESS = set("\u304b日\u3099")
MARKS = set("\u093e\u3099")


def engine(deny: list[str], allow: list[str] | None = None) -> ListEngine:
    allowed = (TermList(words=tuple(allow)),) if allow else ()
    return ListEngine(ListSettings(deny=(WordList(words=tuple(deny)),), allow=allowed), "en")


def engine_of_file(path: str) -> ListEngine:
    return ListEngine(ListSettings(deny=(WordList(file=path),)), "en")


def hits(found: ListEngine, text: str) -> list[str]:
    [reading] = found.read([text])
    assert reading.failure is None
    assert reading.non_entity_scores == ()
    assert {(s.score, s.detector) for s in reading.spans} <= {(1.0, "list")}
    return [text[s.start : s.end] for s in reading.spans]


def naive_fold(text: str) -> list[tuple[str, int]]:
    letters: list[tuple[str, int]] = []
    for place, source in enumerate(text):
        for letter in TABLE[source]:
            if letter != " " or not letters or letters[-1][0] != " ":
                letters.append((letter, place))
    return letters


def naive_hits(terms: list[str], text: str) -> set[tuple[int, int]]:
    letters = naive_fold(text)
    found = set()
    for term in terms:
        wanted = "".join(letter for letter, _ in naive_fold(term)).strip(" ")
        for start in range(len(letters)):
            end = start + len(wanted)
            if "".join(letter for letter, _ in letters[start:end]) != wanted:
                continue
            if one_word(letters, start) or one_word(letters, end):
                continue
            after = [place for _, place in letters[end:] if place > letters[end - 1][1]]
            found.add((letters[start][1], after[0] if after else len(text)))
    return found


def one_word(letters: list[tuple[str, int]], place: int) -> bool:
    if not 0 < place < len(letters):
        return False
    left, right = letters[place - 1][0], letters[place][0]
    return right in MARKS or all(s not in SPACELESS and (s.isalnum() or s in MARKS) for s in (left, right))


TERMS = st.lists(
    st.text(LETTERS, min_size=1, max_size=4).filter(
        lambda t: "".join(letter for letter, _ in naive_fold(t)).strip(" ")
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=200, deadline=None)
@given(TERMS, TERMS, st.text(LETTERS, max_size=24), st.data())
def test_lists_find_what_a_brute_force_matcher_finds(
    deny: list[str], allow: list[str], text: str, data: st.DataObject
) -> None:
    pieces = data.draw(st.lists(st.sampled_from([*deny, *allow, text, " ", "a"]), max_size=6))
    text = "".join(pieces) + text
    [reading] = engine(deny, allow).read([text])
    denied = naive_hits(deny, text)
    assert [(s.start, s.end) for s in reading.spans] == sorted(denied)
    free = {(a, b) for a, b in naive_hits(allow, text) if not any(a < d and c < b for c, d in denied)}
    assert list(reading.allowed_ranges) == sorted(free)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=20))
def test_a_text_folds_as_its_letters_do_and_every_letter_keeps_its_place(text: str) -> None:
    folded = fold_text(text)
    letters = [list(fold_text(source).text) for source in text]
    assert folded.text == re.sub(" +", " ", "".join(letter for part in letters for letter in part))
    assert len(folded.origins) == len(folded.text) + 1
    assert folded.origins[len(folded.text)] == len(text)
    for letter, place in zip(folded.text, folded.origins, strict=False):
        assert letter in letters[place]


@settings(max_examples=300, deadline=None)
@given(st.characters(exclude_categories=["Cs"]))
def test_ways_to_write_a_letter_fold_alike(letter: str) -> None:
    ways = {letter.upper(), letter.lower(), letter.casefold(), unicodedata.normalize("NFD", letter)}
    ways |= {unicodedata.normalize("NFC", letter), f"{letter}\u0301", f"\u200b{letter}"}
    assert {fold_text(way).text for way in ways} == {fold_text(letter).text}
    assert fold_text(fold_text(letter).text).text == fold_text(letter).text


@pytest.mark.parametrize(("plain", "signs"), [("'", "'`´\u1ffd‘’‛′ʹʻʼʽˈ＇"), ('"', '"“”„‟″＂'), ("-", "-‐‑‒–—―−⁃﹣－")])
def test_every_sign_that_is_written_for_a_plain_one_folds_to_it(plain: str, signs: str) -> None:
    assert {sign: fold_text(sign).text for sign in signs} == dict.fromkeys(signs, plain)
    for sign in signs:
        assert hits(engine([f"O{plain}x"]), f"an O{sign}x here") == [f"O{sign}x"]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=12), st.text(max_size=12), st.data())
def test_a_planted_variant_is_found_whole(before: str, after: str, data: st.DataObject) -> None:
    term = "José O'Straße-Łe 7"
    ways = {" ": [" ", "\n", "\u00a0 ", "\t\u200b\r\n"], "'": ["'", "’", "ʼ"], "-": ["-", "–", "\u2011"]}
    ways |= {"ß": ["ß", "ss", "SS", "ẞ"], "é": ["é", "É", "e", "e\u0301", "E\u0301"], "Ł": ["Ł", "l", "L"]}
    others = {letter: [letter, letter.upper(), letter.lower(), f"{letter}\u200d"] for letter in term}
    written = "".join(data.draw(st.sampled_from((others | ways)[letter])) for letter in term)
    text = f"{before}.{written}.{after}"
    start = len(before) + 1
    assert (start, start + len(written)) in {(s.start, s.end) for s in engine([term]).read([text])[0].spans}


@pytest.mark.parametrize(
    ("terms", "text", "found"),
    [
        (["Mark"], "Marketing met Mark's, mark’s and MARK", ["Mark", "mark", "MARK"]),
        (["Mark"], "remark, Marks, Mark1, Mark_1, (Mark)", ["Mark", "Mark"]),
        (["Mark"], "Mark\u00adeting Ma\u200brk", ["Ma\u200brk"]),
        (["jose"], "JOSE\u0301 came", ["JOSE\u0301"]),
        (["Łukasz", "Soren"], "lukasz, Søren", ["lukasz", "Søren"]),
        (["New  York"], "new\u00a0york, New\n\n York, Newyork", ["new\u00a0york", "New\n\n York"]),
        (["ann", "ann lee", "lee"], "Ann Lee", ["Ann", "Ann Lee", "Lee"]),
        (["a b a"], "a b a b a", ["a b a", "a b a"]),
        (["C++", "#12"], "C++11 or a#12, #123", ["C++", "#12"]),
        (["Yahoo!"], "MyYahoo! Yahoo!s", ["Yahoo!"]),
        (["555"], "5550 555-1 a555", ["555"]),
        (["李雷", "Mark"], "我叫李雷和Mark吗", ["李雷", "Mark"]),
        (["राम"], "राम रामा", ["राम"]),
        (["가"], "각 가나 가", ["가"]),
        (["か"], "がかか", ["か", "か"]),
        (["STRASSE"], "straße", ["straße"]),
        (["ＡＣＭＥ"], "acme", ["acme"]),
        (["x"], "", []),
    ],
)
def test_by_example(terms: list[str], text: str, found: list[str]) -> None:
    assert hits(engine(terms), text) == found


def test_a_deny_hit_beats_an_allow() -> None:
    found = engine(["Ann Lee"], ["Lee", "Ann Lee School", "Bank"])
    text = "Ann Lee School, Lee at the Bank"
    [reading] = found.read([text])
    assert [text[s.start : s.end] for s in reading.spans] == ["Ann Lee"]
    assert [text[start:end] for start, end in reading.allowed_ranges] == ["Lee", "Bank"]
    assert reading.allowed_ranges[0][0] == text.index("Lee at")


def test_a_term_keeps_every_label_it_is_given() -> None:
    lists = tuple(WordList(label=label, words=("Acme",)) for label in ("ORGANIZATION", "CLIENT", "CLIENT"))
    [reading] = ListEngine(ListSettings(deny=lists), "de").read(["ACME"])
    assert [(s.start, s.end, s.label) for s in reading.spans] == [(0, 4, "CLIENT"), (0, 4, "ORGANIZATION")]


def _file(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return str(path)


def test_a_regular_expression_matches_the_text_as_it_stands_in_any_case() -> None:
    listed = engine(["re:prj-\\d{4}\\b", "RE: Bluebird"], allow=["re:acme .*? ltd"])
    assert hits(listed, "see PRJ-1234, prj-12345, Prj-99 and re: bluebird") == ["PRJ-1234", "re: bluebird"]
    [read] = listed.read(["Acme Trading Ltd, acme ltd, ACME prj-1234 LTD"])
    assert read.allowed_ranges == ((0, 16),)  # a denied term inside the second match overrides it


def test_a_regular_expression_is_part_of_the_identity_and_names_its_engine() -> None:
    def identity(*words: str) -> dict[str, Any]:
        return ListEngine.collect_fingerprint(ListSettings(deny=(WordList(words=words),)), "en")

    assert "regex" in identity("re:ab+")
    assert "regex" not in identity("ab+")
    assert len({identity(word)["terms_sha256"] for word in ("re:ab+", "re:AB+", "ab+", "RE:ab+")}) == 4


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("re:(Bluebird", "invalid regular expression at character "),
        ("re:B*", "matches an empty text"),
        (f"re:{'(' * 5_000}Bluebird{')' * 5_000}", "too many nested parentheses"),
    ],
)
def test_a_wrong_expression_is_refused_and_not_quoted(word: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as raised:
        engine([word])
    assert "detect.lists.deny.0.words.0: " in str(raised.value)
    assert "luebird" not in str(raised.value)


def test_an_expression_nested_too_deeply_is_refused_with_file_and_line(tmp_path: Path) -> None:
    path = _file(tmp_path, "a.txt", f"Mark\nre:{'(' * 5_000}x{')' * 5_000}\n")
    with pytest.raises(ConfigurationError, match=r"a\.txt, line 2: .* too many nested parentheses"):
        list(load_terms([WordList(file=path)], "k"))


def test_a_text_on_which_an_expression_does_not_end_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redactory.detectors.lists._TIMEOUT_SECONDS", 0.05)
    [read] = engine(["re:(a|a)+(a|aa)+$x"]).read(["a" * 60 + "!"])
    assert read.failure == "pattern_timeout"
    assert read.spans == read.allowed_ranges == ()


def test_terms_are_read_from_text_and_jsonl_files(tmp_path: Path) -> None:
    text = _file(tmp_path, "a.txt", "\ufeff# first\nMark\r\n# a comment\n\n  Ann  Lee  \n  #note\nC#\n".encode())
    rows = [{"text": "# José", "label": "PERSON"}, {"text": "Mark"}]
    jsonl = _file(tmp_path, "b.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    lists = [WordList(words=("Zoë",), file=text), WordList(label="CLIENT", file=jsonl)]
    assert list(load_terms(lists, "k")) == [
        Term("zoe", "LISTED"),
        Term("mark", "LISTED"),
        Term("ann lee", "LISTED"),
        Term("c#", "LISTED"),
        Term("# jose", "PERSON"),
        Term("mark", "CLIENT"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("t.txt", "Bluebird\n\u200b\n", 2),
        ("t.txt", b"Bluebird\nBlueb\xffird\n", 2),
        ("t.txt", "Bluebird\n".encode("utf-16"), 1),
        ("t.jsonl", '{"text": "Fine"}\n\n{"text": "Bluebird"\n', 3),
        ("t.jsonl", '{"text": "Bluebird", "lable": "CLIENT"}', 1),
        ("t.jsonl", '{"text": ["Bluebird"]}', 1),
        ("t.jsonl", '["Bluebird"]', 1),
        ("t.jsonl", '{"text": " "}', 1),
        ("t.jsonl", '{"text": "CLIENT", "label": "Bluebird"}', 1),
        ("t.jsonl", '{"text": "Bluebird", "label": null}', 1),
        ("t.jsonl", '{"text": "Bluebird\\ud800"}', 1),
    ],
)
def test_an_error_names_file_and_line_and_never_the_term(
    tmp_path: Path, name: str, content: str | bytes, line: int
) -> None:
    path = _file(tmp_path, name, content)
    with pytest.raises(ConfigurationError) as raised:
        engine_of_file(path)
    assert f"{path}, line {line}: " in str(raised.value)
    assert "ueb" not in str(raised.value).lower()
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


@pytest.mark.parametrize(
    ("name", "content"), [("t.txt", "# only\n\n# comments\n"), ("t.jsonl", ""), ("t.csv", "text\nBluebird\n")]
)
def test_a_file_without_terms_or_of_another_kind_is_refused(tmp_path: Path, name: str, content: str) -> None:
    with pytest.raises(ConfigurationError, match=r"detect\.lists\.deny\.0\.file"):
        engine_of_file(_file(tmp_path, name, content))
    with pytest.raises(ConfigurationError, match=r"detect\.lists\.deny\.0\.file: .*none\.txt cannot be read"):
        engine_of_file(str(tmp_path / "none.txt"))


@pytest.mark.parametrize(
    ("given_list", "where"),
    [
        (WordList(words=("Mark", "\u200b")), "detect.lists.deny.1.words.1: an empty term"),
        (WordList(), "detect.lists.deny.1: "),
        (WordList(label="Ann Lee", words=("x",)), "detect.lists.deny.1.label: "),
    ],
)
def test_an_error_in_the_settings_names_the_key(given_list: WordList, where: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        ListEngine(ListSettings(deny=(WordList(words=("a",)), given_list)), "en")
    assert str(raised.value).startswith(where)
    assert "Ann" not in str(raised.value)


def test_the_identity_is_that_of_the_terms(tmp_path: Path) -> None:
    def identity(**lists: Any) -> str:
        found = ListSettings(**lists)
        made = ListEngine.collect_fingerprint(found, "en")
        assert made["unicode"] == unicodedata.unidata_version
        assert ListEngine.collect_fingerprint(pickle.loads(pickle.dumps(found)), "en") == made
        json.dumps(made)
        assert "ark" not in str(made)
        return str(made["terms_sha256"])

    words, public = WordList(words=("Mark", "Zoë")), TermList(words=("Mark", "Zoë"))
    base = identity(deny=(words,))
    path = _file(tmp_path, "t.txt", "zoe\nMARK\nmark\n")
    assert identity(deny=(WordList(file=path),)) == base
    _file(tmp_path, "t.txt", "zoe\nMARK\nmarc\n")
    others = {
        identity(deny=(WordList(file=path),)),
        identity(allow=(public,)),
        identity(deny=(words,), allow=(public,)),
        identity(deny=(WordList(label="CLIENT", words=words.words),)),
        identity(),
    }
    assert len(others | {base}) == 6

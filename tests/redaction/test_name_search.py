"""Where a text may name a person: what is found, how clear it is, and what is somebody else."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.foundation.errors import ConfigurationError
from redactory.redaction.name_search import MATCH_KINDS, NameSearch

FULL, MAIL, INITIAL, SURNAME = MATCH_KINDS


def found(name: str, text: str) -> list[tuple[str, str]]:
    return [(text[match.start : match.end], match.kind) for match in NameSearch(name).find_matches(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I am Mary Smith.", [("Mary Smith", FULL)]),
        ("SMITH, Mary called", [("SMITH, Mary", FULL)]),
        ("Ms. Mary A. Smith's mother", [("Mary A. Smith", FULL)]),
        ("@mary_smith, marysmith", [("mary_smith", FULL), ("marysmith", FULL)]),
        ("M. Smith and M Smith", [("M. Smith", INITIAL), ("M Smith", INITIAL)]),
        ("Smith, M. wrote", [("Smith, M.", INITIAL)]),
        ("Dr. Smith", [("Smith", SURNAME)]),
        ("mail mary.smith@example.org!", [("mary.smith@example.org", MAIL)]),
        ("smith-mary7@example.org", [("smith-mary7@example.org", MAIL)]),
        ("msmith@example.org", [("msmith@example.org", SURNAME)]),
        ("me@marysmith.org", [("marysmith", FULL)]),
        # somebody else, though perhaps of that family
        ("John Smith", [("Smith", SURNAME)]),
        ("Mary and John Smith", [("Smith", SURNAME)]),
        ("Maryann Smith", [("Smith", SURNAME)]),
        ("maria.smithers@example.org", [("maria.smithers@example.org", SURNAME)]),
        ("I'm Smith", [("Smith", SURNAME)]),
        ("Smithson, blacksmiths and Mary", []),
    ],
)
def test_spellings_of_one_name(text: str, expected: list[tuple[str, str]]) -> None:
    assert found("Mary Smith", text) == expected
    assert found("Smith, Mary", text) == expected
    assert found("Dr. MARY SMITH", text) == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("Mary Ann Smith", "Mary Smith, Mary Ann Smith", [("Mary Smith", FULL), ("Mary Ann Smith", FULL)]),
        ("José Müller", "JOSE MUELLER", [("JOSE MUELLER", FULL)]),
        ("Jose Muller", "José Müller", [("José Müller", FULL)]),
        ("Pat O'Brien", "Pat O’Brien, P. OBrien", [("Pat O’Brien", FULL), ("P. OBrien", INITIAL)]),
        ("Иван Петров", "это Иван Петров", [("Иван Петров", FULL)]),
        ("山田太郎", "昨日山田太郎さんが", [("山田太郎", SURNAME)]),
        ("משה כהן", "ומשה כהן אמר", [("משה כהן", FULL)]),
        ("Smith", "Smith, Mary Smith", [("Smith", SURNAME), ("Smith", SURNAME)]),
    ],
)
def test_names_of_other_languages(name: str, text: str, expected: list[tuple[str, str]]) -> None:
    assert found(name, text) == expected


@pytest.mark.parametrize("name", ["", "12", "., -", "  ", "\u3164"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="--person: expected a name"):
        NameSearch(name)


INVISIBLE = st.sampled_from(["\u00ad", "\u200b", "\u2060"])


@given(
    before=st.text(max_size=8),
    after=st.text(max_size=8),
    form=st.sampled_from(["NFC", "NFD"]),
    hidden=INVISIBLE,
    place=st.integers(1, 8),
)
def test_a_name_in_any_text_is_found_at_its_place(before: str, after: str, form: str, hidden: str, place: int) -> None:
    """Whatever is around it, in either form of Unicode and with an invisible character in it."""
    name = unicodedata.normalize(form, "Zoë Ågren")
    written = name[:place] + hidden + name[place:]
    text = f"{before}\n| {written} |\n{after}"
    start = len(before) + 3
    kinds = [
        m.kind for m in NameSearch("Zoë Ågren").find_matches(text) if (m.start, m.end) == (start, start + len(written))
    ]
    assert kinds == [FULL]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("Mary Smith PhD", "Mary Smith wrote", [("Mary Smith", FULL)]),
        ("Smith, Mary, M.D.", "Mary Smith wrote", [("Mary Smith", FULL)]),
        ("John Smith Jr.", "John Smith, Jr. wrote", [("John Smith, Jr", FULL)]),
        ("John Smith Jr.", "his father John Smith", [("John Smith", INITIAL)]),
        ("Amartya Sen", "Amartya Sen wrote", [("Amartya Sen", FULL)]),
        ("\u115f Amartya Sen \u3164", "Amartya Sen wrote", [("Amartya Sen", FULL)]),
        ("Dr. Phil McGraw", "Phil McGraw wrote", [("Phil McGraw", FULL)]),
    ],
)
def test_degrees_and_generations_of_the_requested_name(name: str, text: str, expected: list[tuple[str, str]]) -> None:
    assert found(name, text) == expected


@pytest.mark.parametrize("text", ["smith " + "a" * 500_000, "smith a@" + "a-" * 250_000])
def test_a_long_run_takes_linear_time(text: str) -> None:
    assert found("Mary Smith", text) == [("smith", SURNAME)]

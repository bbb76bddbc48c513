"""What stands in place of a hit: forms, consistency, and what it must not be."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from datetime import date, datetime

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from redactory.foundation.keys import DigestKey
from redactory.redaction.dates import moved
from redactory.redaction.replacements import REPLACEMENTS, Edit, Found, Put, edited, edits, locale_of

KEY, OTHER = DigestKey(b"a" * 32), DigestKey(b"b" * 32)


def put_of(name: str, document: str = "d", key: DigestKey = KEY, texts: Sequence[str] = ()) -> Put:
    put = REPLACEMENTS[name](key).of_document(document, texts)
    assert put is not None
    return put


spans = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 6), st.sampled_from(["PERSON", "DATE"])), max_size=6
)


@given(st.text(min_size=30, max_size=30), spans, st.sampled_from(["mask", "label", "number"]))
def test_nothing_that_was_found_is_left(text: str, given_: list[tuple[int, int, str]], name: str) -> None:
    found = [Found(start, start + length, label) for start, length, label in given_]
    changes = edits(text, found, REPLACEMENTS[name](KEY).of_document("d"))
    covered = {place for one in found for place in range(one.start, one.end)}
    assert covered <= {place for change in changes for place in range(change.start, change.end)}
    kept = [letter for place, letter in enumerate(text) if not any(c.start <= place < c.end for c in changes)]
    rest = edited(text, [change._replace(new="") for change in changes])
    assert rest == "".join(kept)
    if name != "mask":
        assert len(kept) == len(text) - len(covered)


def test_overlapping_hits_have_the_label_of_the_longest_then_of_the_surest() -> None:
    found = [
        Found(0, 4, "UK_NHS", 0.4),
        Found(0, 4, "PHONE_NUMBER", 0.7),
        Found(5, 9, "ORG"),
        Found(5, 12, "PER"),
    ]
    assert [change.kind for change in edits("0123 456 789", found, put_of("label"))] == [
        "PHONE_NUMBER",
        "PERSON",
    ]


def test_numbers_follow_a_value_and_the_parts_of_one_name() -> None:
    put = put_of("number")
    asked = [
        ("PERSON", "Ann Miller"),
        ("PERSON", "ann  miller"),
        ("PERSON", "Miller"),
        ("DATE", "May"),
        ("PERSON", "Bob"),
    ]
    assert [put(*one) for one in asked] == [
        "<PERSON_1>",
        "<PERSON_1>",
        "<PERSON_1>",
        "<DATE_1>",
        "<PERSON_2>",
    ]


@pytest.mark.parametrize("name", ["pseudonym", "surrogate"])
def test_a_key_decides_and_a_document_does_not(name: str) -> None:
    one, again, other = put_of(name), put_of(name, "another"), put_of(name, key=OTHER)
    assert one("PERSON", "Ann Miller") == again("PERSON", "Ann Miller") != other("PERSON", "Ann Miller")


@given(
    st.sampled_from(
        ["PERSON", "LOCATION", "ORGANIZATION", "EMAIL_ADDRESS", "URL", "PHONE_NUMBER", "DATE", "AGE", "X"]
    ),
    st.text(min_size=1, max_size=15).filter(str.strip),
)
def test_a_surrogate_is_never_the_value(kind: str, value: str) -> None:
    new = put_of("surrogate")(kind, value)
    assert " ".join(new.casefold().split()) != " ".join(value.casefold().split())


def luhn(number: str) -> bool:
    digits = [int(digit) for digit in number if digit.isdigit()][::-1]
    return sum(d if n % 2 == 0 else sum(divmod(2 * d, 10)) for n, d in enumerate(digits)) % 10 == 0


def iban(number: str) -> bool:
    plain = number.replace(" ", "")
    return int("".join(str(int(letter, 36)) for letter in plain[4:] + plain[:4])) % 97 == 1


def nhs(number: str) -> bool:
    digits = [int(digit) for digit in number if digit.isdigit()]
    return (11 - sum(d * (10 - n) for n, d in enumerate(digits[:9])) % 11) % 11 == digits[9]


@given(st.integers(0, 10**9))
def test_check_digits_are_valid_and_the_form_stays(seed: int) -> None:
    draw = random.Random(seed)
    put = put_of("surrogate")
    card = " ".join(f"{draw.randrange(10_000):04d}" for _ in range(4))
    assert luhn(new := put("CREDIT_CARD", card))
    assert re.fullmatch(r"\d{4}( \d{4}){3}", new)
    account = "DE" + f"{draw.randrange(10**20):020d}"
    assert iban(new := put("IBAN_CODE", account))
    assert re.fullmatch(r"DE\d{20}", new)
    assert nhs(put("UK_NHS", f"{draw.randrange(10**10):010d}"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2020-02-28", "2020-03-09"),
        ("28.02.2020", "09.03.2020"),
        ("02/28/20", "03/09/20"),
        ("February 28, 2020", "March 9, 2020"),
        ("28 Feb 2020", "9 Mar 2020"),
        ("the 28th of February", "the 9th of March"),
        ("FRIDAY", "MONDAY"),
        ("in December 2019 or 2020", "in December 2019 or 2020"),
        ("next week", None),
    ],
)
def test_dates_move_in_their_own_form(old: str, new: str | None) -> None:
    assert moved(old, 10) == new


FORMS = [
    ("%Y-%m-%d", "IDENTIFIER"),
    ("%Y/%m/%d", "DATE"),
    ("%d.%m.%Y", "IDENTIFIER"),
    ("%d-%m-%Y", "DATE"),
    ("%d/%m/%Y", "DATE"),
    ("%m/%d/%Y", "DATE"),
    ("%B %d, %Y", "DATE"),
    ("%b %d %Y", "DATE"),
    ("%d %B %Y", "DATE"),
    ("%d. %b %Y", "DATE"),
]
days = st.dates(date(1950, 1, 1), date(2049, 12, 31))


@given(days, days, st.sampled_from(FORMS), st.text("dk", min_size=1, max_size=5))
def test_the_days_between_two_dates_of_a_document_stay(
    one: date, two: date, form: tuple[str, str], document: str
) -> None:
    written, kind = form
    # of May nothing tells whether its name is short
    assume("%b" not in written or 5 not in (one.month, two.month))
    texts = [day.strftime(written) for day in (one, two, date(2001, 11, 30))]
    put = put_of("surrogate", document, texts=texts)
    invented = [put(kind, text) for text in texts]
    news = [datetime.strptime(text, written).date() for text in invented]
    # of the 30th by its month's name nothing tells whether days have a zero
    bare = (lambda text: re.sub(r"\b0", "", text)) if re.search("%[bB]", written) else str
    assert [bare(new.strftime(written)) for new in news] == [bare(text) for text in invented]
    assert news[1] - news[0] == two - one
    assert news[0] != one
    assert put("DATE", "2001-11-30") == news[2].isoformat()


@pytest.mark.parametrize(
    ("kind", "value", "form"),
    [
        ("DATE", "2001-11-07T10:30:00Z", r"\d{4}-[01]\d-[0-3]\dT[01]\d:[0-5]\d:[0-5]\dZ"),
        ("DATE", "2001-45-25", r"\d{4}-(0\d|1[0-2])-(0\d|1[0-2])"),
        ("DATE", "7. März 2001", r"\d\. \w+ \d{4}"),
        ("DATE", "31st", r"\d\d(st|nd|th)"),
        ("DATE", "Q3 2022", r"Q[1-4] \d{4}"),
        ("DATE", "November", r"[A-S][a-y]+"),
        ("DATE", "20011107", r"200[0-2][01]\d[0-3]\d"),
        ("DATE", "2001", r"\d{4}"),
        ("DATE", "Yesterday", r"[a-z ]+"),
        ("TITLE", "Mrs.", r"(Ms|Dr|Prof)\."),
        ("TITLE", "Chief Accountant", r"[^<>]+"),
        ("MISC", "Kafkaesque", r"[A-Z][a-z]{9}"),
    ],
)
def test_no_placeholder_stands_among_invented_values(kind: str, value: str, form: str) -> None:
    new = put_of("surrogate")(kind, value)
    assert re.fullmatch(form, new)
    assert new != value


@given(st.sampled_from(["", " ", "-"]), st.integers(13, 19), st.randoms(use_true_random=False))
def test_what_has_check_digits_has_some_whatever_its_label(
    between: str, length: int, draw: random.Random
) -> None:
    put = put_of("surrogate")
    digits = "".join(draw.choice("0123456789") for _ in range(length - 1))
    digits = next(digits + last for last in "0123456789" if luhn(digits + last))
    card = between.join(digits[at : at + 4] for at in range(0, length, 4))
    body = f"{draw.randrange(10**18):018d}"
    check = 98 - int(f"{body}131400") % 97
    account = between.join(re.findall(".{1,4}", f"DE{check:02d}{body}"))
    for old, is_valid in ((card, luhn), (account, lambda new: iban(new.replace("-", "")))):
        new = put("IDENTIFIER", old)
        assert is_valid(new)
        assert re.sub(r"\d", "0", new) == re.sub(r"\d", "0", old)
        assert new != old


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ("MILLER", r"[A-Z]+"),
        ("Dr. J. Müller", r"Dr\. [A-Z]\. [A-Z][\w'-]+"),
        ("Иван Петров", r"[А-Яа-яёЁ]+ [А-Яа-яёЁ]+"),
    ],
)
def test_a_name_keeps_its_form(value: str, form: str) -> None:
    assert re.fullmatch(form, put_of("surrogate")("PERSON", value))


def test_a_surname_alone_is_that_of_the_full_name_and_gender_stays() -> None:
    put = put_of("surrogate")
    assert put("PERSON", "Mary Kowalski").split()[1] == put("PERSON", "Kowalski")
    from faker.providers.person.en_US import Provider

    females = set(Provider.first_names_female)
    assert all(
        put("PERSON", f"{name} Kowalski").split()[0] in females for name in ("Jennifer", "Susan", "Betty")
    )


@pytest.mark.parametrize(("value", "locale"), [("Ann", "en_US"), ("山田", "zh_CN"), ("Ελένη", "el_GR")])
def test_the_script_tells_the_locale(value: str, locale: str) -> None:
    assert locale_of(value, "en") == locale


def test_every_replacement_but_the_mask_says_what_it_gives_away() -> None:
    assert [name for name, kind in REPLACEMENTS.items() if not kind.gives_away] == ["mask"]
    assert edited("ab", [Edit(0, 1, "x")]) == "xb"

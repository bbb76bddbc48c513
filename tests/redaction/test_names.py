"""One person has one number; two persons never share one."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.detectors.settings import get_kind
from redactory.foundation.keys import DigestKey
from redactory.redaction.mask import apply_edits
from redactory.redaction.replacements import REPLACEMENTS, ReplacedSpan, collect_values, plan_edits

KEY = DigestKey(b"a" * 32)


def replace(names: list[str], language: str = "en", name: str = "number", texts: list[str] | None = None) -> list[str]:
    values = [("PERSON", one) for one in names]
    replacer = REPLACEMENTS[name](KEY, language).create_replacer("d", texts or [], values)
    assert replacer is not None
    return [replacer(*value) for value in values]


def group(names: list[str], language: str = "en", name: str = "number") -> list[list[str]]:
    """Return the names by their replacement, in order of appearance."""
    groups = defaultdict(list)
    for written, new in zip(names, replace(names, language, name), strict=True):
        groups[new].append(written)
    return list(groups.values())


SAME = [
    ("en", ["Dr. Mary Smith", "Smith", "M. Smith", "Smith, Mary", "Mary", "MARY SMITH", "Mary Smith's", "Smith's"]),
    ("en", ["Mary Smith", "Mrs. Smith", "Ms Smith", "SMITH Mary", "Smith M.", "Smith, M.", "Mary S.", "M. S.", "M.S."]),
    ("en", ["Mary Ann Smith", "Mary A. Smith", "M. A. Smith", "M.A. Smith", "Mary Smith", "Mary Ann", "Smith, Mary"]),
    ("en", ["Mary Smith, MD", "Mary Smith", "Prof. Dr. Smith", "Mary Smith, Ph.D.", "Mary Smith M.D."]),
    ("en", ["John Smith Jr.", "Smith, John, Jr.", "John Smith, Jr", "Smith Jr.", "Smith", "John", "J. Smith Jr."]),
    ("en", ["Sean O'Brien", "O’Brien", "S. O'Brien", "O'BRIEN, Sean", "Sean O’Brien’s"]),
    ("en", ["Mary Smith-Jones", "Smith-Jones", "Mary Smith Jones", "M. Smith-Jones", "Ms. Smith-Jones"]),
    ("en", ["Quirin Ozols", "Ozols, Quirin", "Ozols Quirin", "Q. Ozols", "Ozols"]),
    ("en", ["Renée Núñez", "Renee Nunez", "RENÉE NÚÑEZ", "Rene\u0301e Nu\u0301n\u0303ez"]),
    ("de", ["Anna Müller-Lüdenscheidt", "Frau Dr. Müller-Lüdenscheidt", "A. Müller-Lüdenscheidt"]),
    ("de", ["Otto von Bismarck", "von Bismarck", "Herr von Bismarck", "Bismarck", "O. von Bismarck", "Herrn Bismarck"]),
    ("de", ["Prof. Dr. med. Max Müller", "Max Müller", "Dr. Müller", "Herr Prof. Müller", "Dr. rer. nat. M. Müller"]),
    ("nl", ["Jan de Vries", "de heer De Vries", "De Vries", "de heer J. de Vries"]),
    ("nl", ["Jan van der Berg", "van der Berg", "Van der Berg", "J. van der Berg", "van der Berg, Jan",
            "Berg, Jan van der", "dhr. Van Der Berg", "VAN DER BERG, JAN", "Jan"]),
    ("fr", ["Jean-Pierre Dupont", "Jean Pierre Dupont", "J.-P. Dupont", "J. Dupont", "Monsieur Dupont", "M. Dupont"]),
    ("fr", ["Claire de La Tour", "Mme de La Tour", "DE LA TOUR Claire", "Mlle de la Tour"]),
    ("es", ["María José García López", "García López", "García", "Sra. García López", "Doña María", "M. J. García",
            "María García", "GARCÍA LÓPEZ, María José", "Garcia Lopez"]),
    ("it", ["Giulia Rossi", "Dott.ssa Rossi", "sig.ra Rossi", "Rossi Giulia", "Avv. Giulia Rossi", "ROSSI, G."]),
    ("ru", ["Иван Петров", "Петров", "И. Петров", "Петров И.", "Петров Иван", "ПЕТРОВ, Иван"]),
    ("el", ["Ελένη Παπαδάκη", "ΕΛΕΝΗ ΠΑΠΑΔΑΚΗ", "Ε. Παπαδάκη"]),
    ("hi", ["मैरी स्मिथ", "स्मिथ"]),
]  # fmt: skip


@pytest.mark.parametrize("name", ["number", "pseudonym"])
@pytest.mark.parametrize(("language", "names"), SAME)
def test_one_person_has_one_number(language: str, names: list[str], name: str) -> None:
    for first in range(len(names)):
        turned = [*names[first:], *names[:first]]
        assert group(turned, language, name) == [turned]


APART = [
    ("en", ["Mary Smith", "John Smith", "Smith"]),
    ("en", ["Mary Smith", "Mary Jones", "Mary"]),
    ("en", ["Mary Smith", "Mark Smith", "M. Smith", "Smith"]),
    ("en", ["Mary Smith", "M. Jones", "Smithson", "Maryam", "Marya Smith"]),
    ("en", ["Mary A. Smith", "Mary B. Smith", "Mary Smith"]),
    ("en", ["Mary Ann Smith", "Ann Smith"]),
    ("en", ["Mary Smith-Jones", "Smith", "Jones"]),
    ("en", ["Mary Smith-Jones", "Mary Smith", "Mary"]),
    ("en", ["John Smith Jr.", "John Smith Sr.", "John Smith III", "John Smith", "Smith"]),
    ("en", ["Mr. Smith", "Mrs. Smith", "Smith"]),
    ("en", ["John Smith", "Mrs. Smith", "Smith"]),
    ("en", ["Quirin Smith", "Mr. Smith", "Mrs. Smith"]),
    ("en", ["Mary Smith", "John Smith", "Dr. Smith", "Smith"]),
    ("en", ["James Thomas", "Thomas James"]),
    ("en", ["Mary Smith and John Smith", "Mary Smith", "John Smith", "Smith"]),
    ("en", ["Mary Smith, Jane Jones", "Mary Smith", "Jane Jones"]),
    ("en", ["Mary Smith", "Smiths", "M", "MS"]),
    ("nl", ["Jan van der Berg", "Jan van den Berg", "Jan Berg"]),
    ("nl", ["Jan van der Berg", "Berg", "van den Berg"]),
    ("de", ["Anna Müller-Lüdenscheidt", "Müller", "Lüdenscheidt"]),
    ("de", ["Anna Müller-Lüdenscheidt", "Anna Müller", "Anna"]),
    ("de", ["Peter Bauer", "Peter Baur", "Peters", "Herr Bauer-Baur"]),
    ("fr", ["Jean-Pierre Dupont", "Jean Dupont", "Dupont"]),
    ("fr", ["Marie Smith", "Paul Smith", "M. Smith"]),
    ("fr", ["Marie Dupont", "M. Dupont"]),
    ("es", ["María García López", "María García Pérez", "García", "María García"]),
    ("ru", ["Иван Петров", "Илья Петров", "И. Петров", "Петрова"]),
    ("ja", ["山田太郎", "山田花子", "山田"]),
    ("hi", ["मैरी स्मिथ", "मीना स्मिथ"]),
]


@pytest.mark.parametrize("name", ["number", "pseudonym"])
@pytest.mark.parametrize(("language", "names"), APART)
def test_two_persons_have_two_numbers(language: str, names: list[str], name: str) -> None:
    for first in range(len(names)):
        turned = [*names[first:], *names[:first]]
        assert group(turned, language, name) == [[one] for one in turned]


FIRST = ["Anna", "Bernard", "Carla", "Derek", "Emily", "Felix", "Grace", "Henry"]
LAST = ["Ivanov", "Jablonski", "Kowalski", "Larsson", "Moretti", "Novak", "van der Berg", "de la Cruz", "O'Brien"]
SPELLINGS = {
    "Anna Novak": lambda first, last: f"{first} {last}",
    "NOVAK, Anna": lambda first, last: f"{last.upper()}, {first}",
    "A. Novak": lambda first, last: f"{first[0]}. {last}",
    "Novak, A.": lambda first, last: f"{last}, {first[0]}.",
    "Dr. Novak": lambda first, last: f"Dr. {last}",
    "Novak's": lambda first, last: f"{last}'s",
    "Anna": lambda first, last: first,
}
people = st.lists(st.tuples(st.sampled_from(FIRST), st.sampled_from(LAST)), min_size=1, max_size=5, unique=True)


@given(people, st.randoms(use_true_random=False))
def test_a_short_name_is_a_person_only_if_nobody_else_can_be_meant(
    persons: list[tuple[str, str]], draw: object
) -> None:
    """The expectation is read off the generated persons: who could have written this name?"""
    spelled = {
        form(*person): {other for other in persons if form(*other) == form(*person)}
        for person in persons
        for form in SPELLINGS.values()
    }
    names = sorted({*spelled, *(SPELLINGS["Anna Novak"](*person) for person in persons)})
    draw.shuffle(names)
    numbers = dict(zip(names, replace(names), strict=True))
    full = {person: numbers[SPELLINGS["Anna Novak"](*person)] for person in persons}
    assert len({*full.values()}) == len(persons)
    for written, meant in spelled.items():
        if len(meant) == 1:
            assert numbers[written] == full[next(iter(meant))], written
        else:
            assert numbers[written] not in full.values(), written


@given(people)
def test_the_surrogates_of_a_persons_names_fit_together_and_those_of_two_persons_differ(
    persons: list[tuple[str, str]],
) -> None:
    names = [f"{first} {last}" for first, last in persons]
    initials = [f"{first[0]}. {last}" for first, last in persons]
    new = replace([*names, *initials], name="surrogate")
    assert len({*new[: len(names)]}) == len(names)
    for (first, last), full, short in zip(persons, new[: len(names)], new[len(names) :], strict=True):
        assert first not in full
        assert last.split()[-1] not in full
        given_name, _, surname = full.partition(" ")
        is_certain = sum((one[0], name) == (first[0], last) for one, name in persons) == 1
        assert short.endswith(f". {surname}")
        assert not is_certain or short == f"{given_name[0]}. {surname}"
        assert surname.split()[:-1] == last.split()[:-1], "particles stay"


@pytest.mark.parametrize(
    ("language", "old", "form"),
    [
        ("en", "Dr. Mary Smith's", r"Dr\. [A-Z]\w+ [A-Z]\w+'s"),
        ("en", "SMITH, Mary", r"[A-Z]{2,}, [A-Z][a-z]+"),
        ("en", "Mary Smith Jr., MD", r"[A-Z]\w+ [A-Z]\w+ Jr\., MD"),
        ("en", "Mr. and Mrs. Smith", r"Mr\. and Mrs\. [A-Z]\w+"),
        ("nl", "mevr. J. van der Berg", r"mevr\. [A-Z]\. van der [A-Z][\w' ]+"),
        ("fr", "J.-P. Dupont", r"[A-Z]\.-[A-Z]\. [A-Z][\w -]+"),
        ("it", "Dott.ssa Rossi", r"Dott\.ssa [A-Z][\w' ]+"),
    ],
)
def test_titles_particles_and_punctuation_of_a_name_stay(language: str, old: str, form: str) -> None:
    new = replace([old], language, "surrogate")[0]
    assert re.fullmatch(form, new), new
    assert not {"Mary", "Smith", "SMITH", "Berg", "Dupont", "Rossi"} & {*re.findall(r"\w+", new)}


@pytest.mark.parametrize(
    "old", ["Van Morrison", "Don Miller", "Al Gore", "Di Brown", "Ma Rainey", "Heer Patel", "Do Van Minh", "Ing Chang"]
)
def test_a_name_that_looks_like_a_particle_or_title_does_not_stay(old: str) -> None:
    assert not {*old.split()} & {*replace([old], name="surrogate")[0].split()}


@pytest.mark.parametrize(
    ("language", "title"),
    [("en", "Mr."), ("en", "Mrs"), ("en", "Professor"), ("en", "Prof. Dr."), ("de", "Dr. med."), ("nl", "Heer")],
)
def test_a_title_before_a_name_stays_and_a_profession_does_not(language: str, title: str) -> None:
    text = f"{title} Smith, Chief Accountant"
    spans = [ReplacedSpan(0, len(title), "TITLE"), ReplacedSpan(len(title) + 1, len(title) + 6, "PERSON")]
    spans.append(ReplacedSpan(text.index("Chief"), len(text), "TITLE"))
    replacer = REPLACEMENTS["surrogate"](KEY, language).create_replacer("d", [text], collect_values([text], [spans]))
    new = apply_edits(text, plan_edits(text, spans, replacer))
    assert new.startswith(f"{title} ")
    assert not re.search("Smith|Chief|Accountant", new)


@pytest.mark.parametrize(
    ("old", "script"),
    [("मैरी स्मिथ", "DEVANAGARI"), ("Ελένη", "GREEK"), ("محمد علي", "ARABIC"), ("山田太郎", "CJK"),
     ("Иван Петров", "CYRILLIC"), ("דוד לוי", "HEBREW")],
)  # fmt: skip
def test_a_name_of_another_script_becomes_one_of_that_script(old: str, script: str) -> None:
    new = replace([old], name="surrogate")[0]
    assert new != old
    assert {unicodedata.name(letter).split()[0] for letter in new if letter.isalpha()} == {script}
    assert unicodedata.is_normalized("NFC", new)


def test_a_title_that_is_replaced_by_itself_tells_who_is_meant() -> None:
    text = "John Smith met Mrs. Smith. Mr. Smith left, Mrs. Smith stayed, Dr. Smith too."
    labels = {"Mrs.": "TITLE", "Mr.": "TITLE", "Dr.": "TITLE", "John Smith": "PER", r"(?<!John )Smith": "PER"}
    spans = sorted(
        ReplacedSpan(match.start(), match.end(), label)
        for value, label in labels.items()
        for match in re.finditer(value, text)
    )
    values = collect_values([text], [spans])
    assert {get_kind(kind) for kind, _ in values} == {"PERSON", "TITLE"}
    new = apply_edits(text, plan_edits(text, spans, REPLACEMENTS["number"](KEY).create_replacer("d", [text], values)))
    numbers = re.findall(r"<PERSON_\d>", new)
    assert len(numbers) == 5
    john, wife, he, she, doctor = numbers
    assert john == he
    assert wife == she
    assert len({john, wife, doctor}) == 3
    assert "Mrs" not in apply_edits(
        text, plan_edits(text, spans, REPLACEMENTS["label"](KEY).create_replacer("d", [text], values))
    )


def test_many_persons_of_one_surname_are_apart_and_take_no_time() -> None:
    names = [f"{chr(65 + one // 26)}{chr(97 + one % 26)}na Smith" for one in range(600)]
    assert len({*replace([*names, "Smith", "A. Smith"])}) == 602


def test_a_generation_tells_father_and_son_apart() -> None:
    names = ["John Smith Jr.", "J. Smith Sr.", "Smith Jr.", "Smith Sr.", "John Smith Sr."]
    assert group(names) == [["John Smith Jr.", "Smith Jr."], ["J. Smith Sr.", "Smith Sr.", "John Smith Sr."]]

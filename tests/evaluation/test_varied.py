"""Varied rows: spans exact whatever the noise, a seed is all they depend on, and no template is broken."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from faker import Faker
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.evaluation.varied import varied_rows, write_varied
from redactory.evaluation.varied.grammar import Choice, Piece, Slot, parse
from redactory.evaluation.varied.noise import cased, join, noisy
from redactory.evaluation.varied.rows import templates
from redactory.evaluation.varied.scene import Scene
from redactory.foundation.errors import ConfigurationError

LABELS = frozenset(
    {
        "PERSON", "TITLE", "ORGANIZATION", "LOCATION", "STREET_ADDRESS", "POSTAL_CODE", "NRP", "DATE_TIME",
        "AGE", "PHONE_NUMBER", "EMAIL_ADDRESS", "URL", "IP_ADDRESS", "CREDIT_CARD", "IBAN_CODE", "ACCOUNT",
        "US_SSN", "IDENTIFIER", "MISC",
    }
)  # fmt: skip


@pytest.fixture(scope="module")
def corpus() -> list[dict[str, Any]]:
    return list(varied_rows(3000, 11))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(-(2**63), 2**63), rows=st.integers(0, 40))
def test_spans_are_exact_sorted_disjoint_and_of_known_labels(seed: int, rows: int) -> None:
    told = list(varied_rows(rows, seed))
    assert [row["id"] for row in told] == [f"varied-{seed}-{number}" for number in range(rows)]
    for row in told:
        assert row["text"] == row["text"].strip()
        assert row["text"]
        end = 0
        for span in row["spans"]:
            assert span.keys() == {"start", "end", "label"}
            assert end <= span["start"] < span["end"] <= len(row["text"])
            hidden = row["text"][span["start"] : span["end"]]
            assert hidden == hidden.strip()
            assert span["label"] in LABELS
            end = span["end"]


def test_a_seed_gives_the_same_rows_whatever_other_randomness_did() -> None:
    first = list(varied_rows(200, 3))
    Faker.seed(99)
    random.seed(7)
    assert list(varied_rows(200, 3)) == first
    assert list(varied_rows(200, 4)) != first


def test_a_longer_corpus_begins_with_the_shorter_one() -> None:
    assert list(itertools.islice(varied_rows(10**9, 5), 100)) == list(varied_rows(100, 5))


_FORMED = {
    "IP_ADDRESS": r"[0-9a-f.:]+(/\d+)?",
    "POSTAL_CODE": r"[a-z0-9 -]+",
    "CREDIT_CARD": r"[\d *x-]+",
    "IBAN_CODE": r"[a-z]{2}\d\d[a-z0-9 ]+",
    "US_SSN": r"[\dx*. -]+",
    "EMAIL_ADDRESS": r".*(@|\bat\b).*",
}


def _formed(text: str, spans: list[dict[str, Any]]) -> bool:
    """Whether every span whose form is known from its label alone has that form."""
    return all(
        re.fullmatch(_FORMED[span["label"]], text[span["start"] : span["end"]], re.IGNORECASE | re.DOTALL)
        for span in spans
        if span["label"] in _FORMED
    )


def test_what_stands_at_a_span_has_the_form_of_its_label(corpus: list[dict[str, Any]]) -> None:
    assert all(_formed(row["text"], row["spans"]) for row in corpus)
    moved = [
        [{**span, "start": span["start"] + 1, "end": span["end"] + 1} for span in row["spans"]]
        for row in corpus
    ]
    assert not all(_formed(row["text"], spans) for row, spans in zip(corpus, moved, strict=True))


_PIECES = st.lists(
    st.builds(
        Piece,
        st.text("aßŉİǰﬁÉz 'i,.", min_size=1, max_size=12).map(lambda text: text.strip() or "ß"),
        st.sampled_from([None, "PERSON", "LOCATION"]),
    ),
    min_size=1,
    max_size=6,
).filter(lambda pieces: any(piece.label for piece in pieces))


def _whole(text: str) -> str:
    """What noise may not change: the letters without their case, and without the quotes' shape."""
    return text.upper().lower().replace("’", "'").casefold()


@settings(max_examples=300, deadline=None)
@given(pieces=_PIECES, seed=st.integers(0, 10**6))
def test_noise_keeps_every_sensitive_thing_whole_and_in_its_order(pieces: list[Piece], seed: int) -> None:
    text, spans = join(noisy(list(pieces), random.Random(seed)))
    found = [(_whole(text[span["start"] : span["end"]]), span["label"]) for span in spans]
    assert found == [(_whole(piece.text), piece.label) for piece in pieces if piece.label]


def test_offsets_counted_before_the_casing_would_be_caught() -> None:
    pieces = [Piece("Großstraße, "), Piece("Weiß", "PERSON"), Piece(" und "), Piece("Groß", "PERSON")]
    _, before = join(pieces)
    casings = {join(cased(list(pieces), random.Random(seed)))[0] for seed in range(60)}
    assert "GROSSSTRASSE, WEISS UND GROSS" in casings
    text = "GROSSSTRASSE, WEISS UND GROSS"
    assert [text[span["start"] : span["end"]] for span in before] != ["WEISS", "GROSS"]
    _, after = join([Piece(piece.text.upper(), piece.label) for piece in pieces])
    assert [text[span["start"] : span["end"]] for span in after] == ["WEISS", "GROSS"]


def test_every_filler_gives_something_without_white_space_at_its_ends() -> None:
    grammar = templates().grammar
    for (label, sort), filler in grammar.secret.items():
        assert label in LABELS
        for seed in range(300):
            drawn = filler(Scene(random.Random(f"{label}-{sort}-{seed}")))
            assert drawn == drawn.strip()
            assert drawn
            assert "{" not in drawn
    for name, filler in grammar.plain.items():
        for seed in range(50):
            assert filler(Scene(random.Random(f"{name}-{seed}"))).strip(), name


def test_there_are_many_templates_no_two_alike_and_all_can_be_read() -> None:
    told = templates()
    lines = [each for kinds in (told.secretive, told.plain) for some in kinds.values() for each in some]
    assert len(lines) == len(set(lines)) >= 500
    draw = random.Random(1)
    for nodes in lines:
        assert any(piece.text.strip() for piece in told.grammar.expand(nodes, Scene(draw)))
    for some in told.plain.values():
        for nodes in some:
            assert not any(piece.label for piece in told.grammar.expand(nodes, Scene(draw)))


def test_a_third_of_the_rows_is_clean_and_every_label_occurs(corpus: list[dict[str, Any]]) -> None:
    counts = Counter(span["label"] for row in corpus for span in row["spans"])
    assert counts.keys() == LABELS
    assert min(counts.values()) >= 10
    assert 0.28 < sum(not row["spans"] for row in corpus) / len(corpus) < 0.40
    assert 0.10 < sum(row["text"].islower() for row in corpus) / len(corpus) < 0.30
    assert 0.03 < sum(row["text"].isupper() for row in corpus) / len(corpus) < 0.12
    assert len({row["text"] for row in corpus}) > 0.95 * len(corpus)


def test_names_are_many(corpus: list[dict[str, Any]]) -> None:
    names = [
        row["text"][span["start"] : span["end"]].casefold()
        for row in corpus
        for span in row["spans"]
        if span["label"] == "PERSON"
    ]
    assert len(set(names)) > 0.85 * len(names)


def test_the_file_holds_the_rows_and_the_summary_counts_them(tmp_path: Path) -> None:
    steps: list[int] = []
    out = tmp_path / "varied.jsonl"
    told = write_varied(out, 120, 9, lambda phase, done, total, unit: steps.append(done))
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert rows == list(varied_rows(120, 9))
    assert told["secrets"] == dict(
        sorted(Counter(span["label"] for row in rows for span in row["spans"]).items())
    )
    assert told["without_secret"] == sum(not row["spans"] for row in rows)
    assert told["bytes"] == out.stat().st_size
    assert steps == [120]


def test_the_language_of_templates() -> None:
    assert parse(r"a\[b\] [x|{PERSON:full}|]\n{noun}") == (
        "a", "[", "b", "]", " ", Choice((("x",), (Slot("PERSON", "full"),), ())), "\n", Slot("noun", None),
    )  # fmt: skip
    for broken in ("[a|b", "a]", "a|b"):
        with pytest.raises(ValueError, match="template"):
            parse(broken)


def test_a_negative_number_of_rows_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 0"):
        next(varied_rows(-1, 0))

"""The simulated rows that the shipped tagger learnt from: spans are exact, and a seed gives the same rows."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from faker import Faker
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1] / "examples" / "default_tagger"))

from varied import varied_rows
from varied.rows import templates
from varied.scene import Scene

LABELS = frozenset(
    {
        "PERSON", "TITLE", "ORGANIZATION", "LOCATION", "STREET_ADDRESS", "POSTAL_CODE", "NRP", "DATE_TIME",
        "AGE", "PHONE_NUMBER", "EMAIL_ADDRESS", "URL", "IP_ADDRESS", "CREDIT_CARD", "IBAN_CODE", "ACCOUNT",
        "US_SSN", "IDENTIFIER", "MISC",
    }
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(-(2**63), 2**63), rows=st.integers(0, 40))
def test_spans_are_exact_sorted_disjoint_and_of_known_labels(seed: int, rows: int) -> None:
    for row in varied_rows(rows, seed):
        assert row["text"] == row["text"].strip() != ""
        end = 0
        for span in row["spans"]:
            assert end <= span["start"] < span["end"] <= len(row["text"])
            hidden = row["text"][span["start"] : span["end"]]
            assert hidden == hidden.strip()
            assert span["label"] in LABELS
            end = span["end"]


def test_a_seed_gives_the_same_rows_and_a_longer_corpus_begins_with_the_shorter() -> None:
    first = list(varied_rows(200, 3))
    Faker.seed(99)
    random.seed(7)
    assert list(varied_rows(300, 3))[:200] == first
    assert list(varied_rows(200, 4)) != first


def test_every_template_can_be_read_and_a_plain_one_holds_no_secret() -> None:
    told = templates()
    draw = random.Random(1)
    for kinds in (told.secretive, told.plain):
        for nodes in (each for some in kinds.values() for each in some):
            pieces = told.grammar.expand(nodes, Scene(draw))
            assert any(piece.text.strip() for piece in pieces)
            assert kinds is told.secretive or not any(piece.label for piece in pieces)

"""Extraction finds what a model knows by heart, and nothing in one that knows nothing."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.evaluation.extraction import (
    ExtractionSettings,
    ExtractionTrial,
    VaultSecret,
    make_control_values,
    run_extraction_attack,
    summarize_trials,
)
from redactory.evaluation.linkage import ValueSearch
from redactory.evaluation.plots import plot_extraction
from tests.evaluation.small_model import Parrot

SECRETS = [
    VaultSecret("417 Oak", "ADDRESS", 9, "I live at "),
    VaultSecret("Ann Smith", "PERSON", 3, "call "),
    VaultSecret("Bob Jones", "PERSON", 0, "dear "),
]
CONTROLS = ["902 Elm", "Ann Jones", None]
BY_HEART = ["I live at 417 Oak.", "call Ann Smith"]


def _extract(model: Any, **changes: Any) -> dict[str, Any]:
    return run_extraction_attack(model, SECRETS, CONTROLS, ExtractionSettings(60, 24, **changes), ["call me"])


def test_what_a_model_knows_by_heart_is_extracted() -> None:
    result = _extract(Parrot.of(BY_HEART, 0.98))
    assert (result["secrets"], result["secrets_found"]) == (3, 2)
    assert (result["controls"], result["controls_found"]) == (2, 0)
    assert result["by_label"]["PERSON"] == {
        "secrets": 2, "secrets_found": 1, "controls": 1, "controls_found": 0,
    }  # fmt: skip
    seen = {group["from"]: group["secrets_found"] for group in result["by_times_seen"]}
    assert (seen[0], seen[2], seen[5]) == (0, 1, 1)
    assert result["occurrences"] > 10
    assert result["by_prompt"]["public"]["samples"] == result["by_prompt"]["none"]["samples"] == 30
    assert result["completion"]["secrets_found"] == 2
    assert result["completion"]["controls_found"] == 0


def test_a_model_that_knows_nothing_or_writes_the_controls_too_is_no_finding() -> None:
    nothing = _extract(Parrot.of([], 0.0))
    assert nothing["secrets_found"] == nothing["completion"]["secrets_found"] == 0
    assert nothing["p_value"] == 1.0
    assert nothing["found"]["high"] > 0.5
    both = _extract(Parrot.of([*BY_HEART, "I live at 902 Elm.", "call Ann Jones"], 0.98))
    assert both["controls_found"] == 2
    assert both["p_value"] > 0.5


def test_no_value_is_told() -> None:
    result = _extract(Parrot.of(BY_HEART, 0.98))
    told = json.dumps(result) + plot_extraction(result) + repr(SECRETS) + repr(ValueSearch(["Ann Smith"]))
    for secret in SECRETS:
        assert not re.search(f"{secret.value}|{secret.prefix}", told)
    ElementTree.fromstring(plot_extraction(result))
    ElementTree.fromstring(plot_extraction(_extract(Parrot.of([], 0.0), completions=0)))


def test_the_p_value_is_fishers() -> None:
    from scipy.stats import fisher_exact

    for found, control, n in ((5, 0, 20), (3, 3, 9), (0, 4, 12), (20, 1, 20)):
        trials = [ExtractionTrial("A", 1, i < found, i < control) for i in range(n)]
        expected = fisher_exact([[found, n - found], [control, n - control]], "greater").pvalue
        assert summarize_trials(trials)["p_value"] == pytest.approx(expected)
    nothing = summarize_trials([])
    assert nothing["p_value"] is None
    assert nothing["reasons"]
    alone = summarize_trials([ExtractionTrial("A", 1, True, None)])
    assert alone["p_value"] is None
    assert "control" in alone["reasons"][0]


_LETTERS = st.text("abA1 -ß", max_size=12)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text("abA1-", min_size=1, max_size=4), min_size=1, max_size=6), st.lists(_LETTERS, max_size=4))
def test_search_finds_what_a_plain_loop_finds(values: list[str], texts: list[str]) -> None:
    expected: Counter[int] = Counter()
    first: dict[str, int] = {}
    for index, value in enumerate(values):
        first.setdefault(value.casefold(), index)
    for text in (text.casefold() for text in texts):
        for folded, index in first.items():
            for start in range(len(text) - len(folded) + 1):
                end = start + len(folded)
                whole = not (start and text[start - 1].isalnum() and folded[0].isalnum())
                whole = whole and not (end < len(text) and text[end].isalnum() and folded[-1].isalnum())
                expected[index] += whole and text[start:end] == folded
    assert ValueSearch(values).count_occurrences(texts) == +expected


def test_controls_have_the_form_of_their_value_and_stand_nowhere() -> None:
    names = ["Ann Smith", "Bob Jones", "Cy Young", "Di Moss"]
    values = [("PERSON", name) for name in names] + [("PHONE", "555-0142"), ("PERSON", "Ann"), ("X", "!!")]
    corpus = {"ann jones", "bob smith"}
    asked: list[str] = []

    def present(some: list[str]) -> set[str]:
        asked.extend(some)
        return {value for value in some if value.casefold() in corpus}

    controls = make_control_values(values, present, seed=1)
    made = [control for control in controls if control is not None]
    assert len({control.casefold() for control in made}) == len(made) == 6
    assert not {control.casefold() for control in made} & (corpus | {value.casefold() for _, value in values})
    firsts, lasts = ({name.split()[i] for name in names} for i in (0, 1))
    for control in controls[:4]:
        assert control is not None
        assert control.split()[0] in firsts
        assert control.split()[1] in lasts
    assert re.fullmatch(r"[1-9]\d\d-0\d\d\d", str(controls[4]))
    assert str(controls[5]).isalpha()
    assert controls[6] is None
    assert make_control_values(values, present, seed=1) == controls
    assert set(made) <= set(asked)

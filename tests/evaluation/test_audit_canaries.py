"""Canaries with coins: what is planted, what is not, and that nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from redactory.evaluation.one_run_audit import CanaryForm, draw_coins, get_coins_path, plant_canaries, read_coins
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.redaction.mask import MASK

ROWS = [{"id": f"d{i}", "user_id": f"u{i}", "text": f"line {i}", "spans": []} for i in range(50)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("form", get_args(CanaryForm))
def test_the_corpus_holds_what_the_coins_say_and_nothing_else(corpus: Path, tmp_path: Path, form: CanaryForm) -> None:
    out = tmp_path / "planted.jsonl"
    told = plant_canaries(corpus, out, canaries=40, form=form, seed=1)
    coins, rows = read_coins(get_coins_path(out)), _rows(out)
    assert [row for row in rows if row["id"].startswith("d")] == ROWS
    planted = [row for row in rows if row["id"].startswith("audit-")]
    assert len({row["user_id"] for row in planted}) == len(planted) == told["planted"]
    here = sorted(row["text"] for row in planted)
    first = [coins.render_sentence(a) for (a, _), coin in zip(coins.numbers, coins.coins, strict=True) if coin]
    second = [coins.render_sentence(b) for (_, b), coin in zip(coins.numbers, coins.coins, strict=True) if not coin]
    instead = {"pair": second, "masked": [coins.render_sentence(MASK)] * len(second), "absent": []}[form]
    assert here == sorted([*first, *instead])
    for row in planted:
        values = [row["text"][span["start"] : span["end"]] for span in row["spans"]]
        assert values == ([] if MASK in row["text"] else [row["text"][-8:]])
    numbers = {n for pair in coins.numbers for n in pair}
    assert len(numbers) == 80
    assert told["canaries"] == 40
    assert told["rows"] == len(rows)
    assert coins.seeded
    assert get_coins_path(out).stat().st_mode & 0o77 == 0


def test_coins_are_fair_and_fresh() -> None:
    heads = sum(draw_coins(4_000).coins)
    assert abs(heads - 2_000) < 200
    assert draw_coins(50).coins != draw_coins(50).coins
    assert draw_coins(50, seed=3) == draw_coins(50, seed=3)


def test_the_place_of_a_canary_does_not_tell_its_coin(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "planted.jsonl"
    plant_canaries(corpus, out, canaries=200, form="masked", seed=2)
    masked = [place for place, row in enumerate(r for r in _rows(out) if r["id"][0] == "a") if MASK in row["text"]]
    assert 70 < sum(masked) / len(masked) < 130


def test_columns_of_other_names_are_planted_in(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"name": "x", "words": "y"}')  # no line end
    plant_canaries(corpus, tmp_path / "o.jsonl", canaries=3, columns={"text": "words", "id": "name"}, seed=1)
    rows = _rows(tmp_path / "o.jsonl")
    assert len(rows) == 4
    assert all(set(row) <= {"name", "words", "user_id"} for row in rows)


def test_what_cannot_be_planted_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="exists"):
        plant_canaries(corpus, corpus, canaries=3)
    for wrong in ({"canaries": 0}, {"form": "both"}, {"template": "x"}, {"template": "{digits} x"}):
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            draw_coins(**{"canaries": 2, **wrong})  # type: ignore[arg-type]
    bad = tmp_path / "bad.jsonl"
    for content in ("", "secret 123\n", "[1]\n"):
        bad.write_text(content)
        with pytest.raises(InputError) as error:
            plant_canaries(bad, tmp_path / "never.jsonl", canaries=3)
        assert "secret" not in str(error.value)
    for content in ("{}", '{"format": "redactory-coins/1"}', "x", "[]"):
        bad.write_text(content)
        with pytest.raises(InputError, match="coins"):
            read_coins(bad)

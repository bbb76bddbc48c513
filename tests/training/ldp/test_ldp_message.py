"""The message: it comes back as it went, is as long whatever it says, and nothing else passes."""

from __future__ import annotations

import base64
import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ldp_wire import LARGEST_NUMBER, format_message, message_schema, parse_message

from redactory.foundation.errors import InputError
from tests.training.ldp.ldp_sides import a_message

VALUES = st.binary(min_size=24, max_size=24).map(lambda b: np.nan_to_num(np.frombuffer(b, np.float32).reshape(2, 3)))
NUMBERS = st.integers(0, LARGEST_NUMBER)
DIGITS = st.text("0123456789abcdef", min_size=32, max_size=32)
SECRET = "zanzibarian"
NAN = base64.b64encode(np.array([np.nan] * 4, "<f4").tobytes()).decode()
WRONG_VALUES: dict[str, list[Any]] = {
    "format": ["redactory-ldp/2"],
    "purpose": [SECRET, ["train"]],
    "slot": ["0a" * 15, SECRET, "0a" * 16 + "\n", 7],
    "step": [-1, True, LARGEST_NUMBER + 1],
    "label": [SECRET, None],
    "encoder": ["A" * 64],
    "shape": [[], [1, 2, 2], [0], {SECRET: 4}],
    "values": [f"{SECRET}, in clear", [0.5, -1.0, 2.0, 0.0]],
    SECRET: [SECRET],
}
WRONG = [(key, value) for key, values in WRONG_VALUES.items() for value in values]
BEYOND_SCHEMA: list[tuple[str, Any]] = [("shape", [LARGEST_NUMBER, 2]), ("shape", [5]), ("values", NAN)]
LINES = ["", "{", "[]", "{}", "7", '"text"', "null", "[" * 100_000, "\ud800", '{"slot": NaN}', "9" * 9999]


@settings(max_examples=60, deadline=None)
@given(DIGITS, NUMBERS, NUMBERS, VALUES, st.booleans())
def test_every_message_comes_back_at_one_length(slot: str, step: int, label: int, values: Any, asks: bool) -> None:
    kind: dict[str, Any] = {"label": None} if asks else {"label": label}
    message = a_message(slot=slot, step=step, values=values, **kind)
    line = format_message(message)
    assert len(line) == len(format_message(a_message(values=np.zeros((2, 3), np.float32))))
    assert "\n" not in line
    back = parse_message(line)
    assert back.values.tobytes() == values.tobytes()
    assert (back.slot, back.step, back.label) == (slot, step, message.label)
    assert json.loads(line)["purpose"] == ("query" if asks else "train")
    assert format_message(parse_message(line.encode())) == line


@pytest.mark.parametrize(("key", "value"), [*WRONG, *BEYOND_SCHEMA])
def test_what_is_wrong_is_refused_by_key_and_never_quoted(key: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"^message.*: ({key}|values|not of this format|an unkn)") as refusal:
        parse_message(json.dumps({**json.loads(format_message(a_message())), key: value}))
    assert SECRET not in str(refusal.value)
    assert refusal.value.__cause__ is None


@pytest.mark.parametrize("line", [*LINES, b"\xff\xfe"])
def test_what_is_no_message_is_refused(line: str | bytes) -> None:
    assert not _taken(line)


@pytest.mark.parametrize("first", [f'"{SECRET}"', f'{{"a": ["{SECRET}"]}}', "9" * 9999])
def test_a_key_that_comes_twice_is_refused(first: str) -> None:
    with pytest.raises(InputError, match=r"^message: (a key comes twice|not of this format)$"):
        parse_message(f'{{"slot": {first}, ' + format_message(a_message())[1:])


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=200))
def test_octets_at_random_are_refused(octets: bytes) -> None:
    assert not _taken(octets)


def test_the_published_schema_says_the_same() -> None:
    schema = message_schema()
    body = json.loads(format_message(a_message()))
    query = {**body, "purpose": "query", "label": None}
    cases = [body, query, {**query, "label": 1}, {}, [], "text"]
    cases += [{**body, key: value} for key, value in WRONG]
    cases += [{k: v for k, v in body.items() if k != key} for key in body]
    jsonschema.Draft202012Validator.check_schema(schema)
    judge = jsonschema.Draft202012Validator(schema)
    assert [judge.is_valid(case) for case in cases] == [_taken(json.dumps(case)) for case in cases]


def _taken(line: str | bytes) -> bool:
    try:
        parse_message(line)
    except InputError:
        return False
    return True

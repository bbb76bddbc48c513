"""The message: it comes back as it went, is as long whatever it says, and nothing else passes."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.foundation.errors import InputError
from redactory.training.ldp.message import LARGEST_NUMBER, Message, message_schema
from tests.training.ldp.ldp_sides import a_message

VALUES = st.binary(min_size=24, max_size=24).map(
    lambda b: np.nan_to_num(np.frombuffer(b, np.float32).reshape(2, 3))
)
NUMBERS = st.integers(0, LARGEST_NUMBER)
DIGITS = st.text("0123456789abcdef", min_size=32, max_size=32)
SECRET = "zanzibarian"
NAN = base64.b64encode(np.array([np.nan] * 4, "<f4").tobytes()).decode()

WRONG: dict[str, tuple[str, Any]] = {
    "another version": ("format", "redactory-ldp/2"),
    "no purpose of ours": ("purpose", SECRET),
    "purpose is a list": ("purpose", ["train"]),
    "a short slot": ("slot", "0a" * 15),
    "a slot of words": ("slot", SECRET),
    "a slot with a line's end": ("slot", "0a" * 16 + "\n"),
    "a slot that is a number": ("slot", 7),
    "a step below zero": ("step", -1),
    "a step that is true": ("step", True),
    "a step beyond the width": ("step", LARGEST_NUMBER + 1),
    "a label of words": ("label", SECRET),
    "a training message without label": ("label", None),
    "an encoder of capitals": ("encoder", "A" * 64),
    "no shape": ("shape", []),
    "a shape of three": ("shape", [1, 2, 2]),
    "a shape of nothing": ("shape", [0]),
    "a shape in words": ("shape", {SECRET: 4}),
    "values in words": ("values", f"{SECRET}, in clear"),
    "values as numbers": ("values", [0.5, -1.0, 2.0, 0.0]),
}
BEYOND_SCHEMA: dict[str, tuple[str, Any]] = {
    "a shape that is too large": ("shape", [LARGEST_NUMBER, 2]),
    "a shape of other values": ("shape", [5]),
    "values that are not finite": ("values", NAN),
}


@settings(max_examples=60, deadline=None)
@given(DIGITS, NUMBERS, NUMBERS, VALUES, st.booleans())
def test_a_message_comes_back_and_every_one_is_as_long(
    slot: str, step: int, label: int, values: Any, asks: bool
) -> None:
    told: dict[str, Any] = {"purpose": "query", "label": None} if asks else {"label": label}
    message = a_message(slot=slot, step=step, values=values, **told)
    line = message.to_json()
    assert len(line) == len(a_message(values=np.zeros((2, 3), np.float32)).to_json())
    assert "\n" not in line
    back = Message.from_json(line)
    assert back.values.tobytes() == values.tobytes()
    assert (back.slot, back.step, back.label, back.purpose) == (slot, step, message.label, message.purpose)
    assert Message.from_json(line.encode()).to_json() == line


@pytest.mark.parametrize("name", [*WRONG, *BEYOND_SCHEMA])
def test_what_is_wrong_is_refused_by_key_and_never_quoted(name: str) -> None:
    key, value = {**WRONG, **BEYOND_SCHEMA}[name]
    body = {**json.loads(a_message().to_json()), key: value}
    with pytest.raises(InputError) as refusal:
        Message.from_json(json.dumps(body))
    told = str(refusal.value)
    assert re.search(rf"message of slot ({'0a' * 16}|\?): ({key}|values) must", told), told
    assert SECRET not in told
    assert refusal.value.__cause__ is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "{}",
        "7",
        '"text"',
        "null",
        "[" * 100_000,
        "\ud800",
        b"\xff\xfe",
        '{"slot": NaN}',
        "9" * 9999,
    ],
)
def test_what_is_no_message_is_refused(line: str | bytes) -> None:
    with pytest.raises(InputError):
        Message.from_json(line)


def test_keys_are_all_there_once_and_no_others() -> None:
    body = json.loads(a_message().to_json())
    for key in body:
        with pytest.raises(InputError, match="slot" if key == "slot" else f"{key} is missing"):
            Message.from_json(json.dumps({k: v for k, v in body.items() if k != key}))
    with pytest.raises(InputError, match="unknown key") as refusal:
        Message.from_json(json.dumps({**body, SECRET: SECRET}))
    assert SECRET not in str(refusal.value)
    twice = a_message().to_json().replace('"purpose"', f'"slot":"{"1b" * 16}","purpose"')
    with pytest.raises(InputError, match="twice"):
        Message.from_json(twice)


def test_the_published_schema_says_the_same() -> None:
    schema = message_schema()
    body = json.loads(a_message().to_json())
    query = {**body, "purpose": "query", "label": None}
    cases = [body, query, {**query, "label": 1}, {**body, "more": 1}, {}, [], "text"]
    cases += [{**body, key: value} for key, value in WRONG.values()]
    cases += [{k: v for k, v in body.items() if k != key} for key in body]
    jsonschema.Draft202012Validator.check_schema(schema)
    judge = jsonschema.Draft202012Validator(schema)
    assert [judge.is_valid(case) for case in cases] == [_taken(case) for case in cases]


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=200))
def test_octets_at_random_are_refused_or_read_but_never_crash(octets: bytes) -> None:
    assert not _taken_line(octets)


def _taken(case: Any) -> bool:
    return _taken_line(json.dumps(case))


def _taken_line(line: str | bytes) -> bool:
    try:
        Message.from_json(line)
    except InputError:
        return False
    return True

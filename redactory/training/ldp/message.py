"""What leaves a user: one noisy representation and what stands beside it in clear, as one line of JSON.

``message.schema.json`` beside this module is the same format for other programs.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.errors import InputError
from redactory.foundation.files import read_json

FORMAT = "redactory-ldp/1"
SCHEMA = Path(__file__).with_name("message.schema.json")
LARGEST_NUMBER = 999_999_999
"""Steps and labels are written in as many places as this has."""
MOST_VALUES = 1 << 22
CONTENT_TYPE = "application/x-ndjson"
"""Of :func:`bodies`."""
BODY_OCTETS = 1 << 20
"""A body is ended at the message that fills it this far."""
_PLACES = len(str(LARGEST_NUMBER))
_KEYS = ("format", "purpose", "slot", "step", "label", "encoder", "shape", "values")
_SLOT, _DIGEST = re.compile(r"[0-9a-f]{32}"), re.compile(r"[0-9a-f]{64}")

Purpose = Literal["train", "query"]


@dataclass(frozen=True, eq=False)
class Message:
    """One send of one slot.

    ``values`` float32 [d], [L, e] or [2, d], noisy, every one finite; ``slot`` 32 random hexadecimal digits
    that stand for one sentence in all steps; ``step`` and ``label`` 0 to 999,999,999, ``label`` the class's
    number for ``train`` and None for ``query``; ``encoder`` the sha256 of the encoder.

    Formal guarantees: all but ``values`` is free of the sentence: slot and order are drawn, the step counts,
    the label is in clear by the definition of the unit.  The length of :meth:`to_json` is the same for
    all messages of one shape (``docs/guarantees.md``, "Local differential privacy").
    """

    purpose: Purpose
    slot: str
    step: int
    label: int | None
    values: NDArray[np.float32]
    encoder: str

    def to_json(self) -> str:
        """One line; numbers fill up to a fixed width with spaces, which JSON allows."""
        packed = base64.b64encode(np.ascontiguousarray(self.values, "<f4").tobytes()).decode()
        label = "null" if self.label is None else self.label
        return (
            f'{{"format":"{FORMAT}","purpose":"{self.purpose}","slot":"{self.slot}",'
            f'"step":{self.step:>{_PLACES}},"label":{label:>{_PLACES}},"encoder":"{self.encoder}",'
            f'"shape":{json.dumps(self.values.shape)},"values":"{packed}"}}'
        )

    @classmethod
    def from_json(cls, line: str | bytes) -> Message:
        """The message of one line.

        ``InputError`` names the slot, where there is one, and the key; it quotes no value.
        """
        found = _object(line)
        slot = found.get("slot")
        if not (isinstance(slot, str) and _SLOT.fullmatch(slot)):
            raise refused("?", "slot", "must be 32 hexadecimal digits")
        if set(found) != set(_KEYS):
            missing = next((key for key in _KEYS if key not in found), None)
            problem = "an unknown key" if missing is None else f"{missing} is missing"
            raise InputError(f"message of slot {slot}: {problem}: the keys are {', '.join(_KEYS)}")
        for key, holds, due in _CHECKS:
            if not holds(found[key]):
                raise refused(slot, key, f"must be {due}")
        if (found["label"] is None) != (found["purpose"] == "query"):
            raise refused(slot, "label", "must be a class's number for train, null for query")
        values = _values(slot, found["shape"], found["values"])
        return cls(found["purpose"], slot, found["step"], found["label"], values, found["encoder"])


def bodies(groups: Iterable[Iterable[Message]]) -> Iterator[bytes]:
    """Messages as JSON lines, in pieces that a service takes at once; a group is never torn apart."""
    body = bytearray()
    for group in groups:
        body += "".join(f"{message.to_json()}\n" for message in group).encode("ascii")
        if len(body) >= BODY_OCTETS:
            yield bytes(body)
            body.clear()
    if body:
        yield bytes(body)


def messages_in(body: bytes) -> list[Message]:
    """The messages of JSON lines; ``InputError`` where one of them is none."""
    return [Message.from_json(line) for line in body.split(b"\n") if line.strip()]


def message_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one message."""
    schema: dict[str, Any] = read_json(SCHEMA)
    return schema


def _object(line: str | bytes) -> dict[str, Any]:
    """The line's object, each key once; ``InputError`` where it is anything else."""
    try:
        pairs = json.loads(line, object_pairs_hook=list, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise InputError("message: the line is not a JSON object of this format") from None
    # an array would be a list, too, of anything
    if not (isinstance(pairs, list) and all(isinstance(p, tuple) for p in pairs)):
        raise InputError("message: the line is not a JSON object of this format")
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InputError("message: a key occurs twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError("NaN and infinity are not JSON")


def _values(slot: str, shape: list[int], packed: str) -> NDArray[np.float32]:
    count = math.prod(shape)
    if count > MOST_VALUES:
        raise refused(slot, "shape", f"must have at most {MOST_VALUES} values")
    try:
        octets = base64.b64decode(packed.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise refused(slot, "values", "must be base64") from None
    if len(octets) != 4 * count:
        raise refused(slot, "values", f"must be {count} float32 values, as shape says")
    values = np.frombuffer(octets, "<f4").astype(np.float32).reshape(shape)
    if not bool(np.isfinite(values).all()):
        raise refused(slot, "values", "must be finite")
    return values


def refused(slot: str, key: str, problem: str) -> InputError:
    """The error that names a message's slot and its key."""
    return InputError(f"message of slot {slot}: {key} {problem}")


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST_NUMBER


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and 1 <= len(value) <= 2 and all(_whole(n) and n > 0 for n in value)


_CHECKS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("format", lambda v: v == FORMAT, FORMAT),
    ("purpose", lambda v: isinstance(v, str) and v in ("train", "query"), "train or query"),
    ("step", _whole, f"a whole number from 0 to {LARGEST_NUMBER}"),
    ("label", lambda v: v is None or _whole(v), f"null or a whole number from 0 to {LARGEST_NUMBER}"),
    ("encoder", lambda v: isinstance(v, str) and bool(_DIGEST.fullmatch(v)), "64 hexadecimal digits"),
    ("shape", _is_shape, "one or two positive whole numbers"),
    ("values", lambda v: isinstance(v, str), "base64"),
)

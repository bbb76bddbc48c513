"""The wire format of a service of local privacy: a message as one line of JSON, and nothing else passes."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from redactory.foundation.canonical import DuplicateKeyError, reject_duplicate_keys
from redactory.foundation.errors import InputError
from redactory.training.ldp.server import Message

FORMAT: Literal["redactory-ldp/1"] = "redactory-ldp/1"
LARGEST_NUMBER = 999_999_999
"""Steps and labels are written in as many places as this has."""
MOST_VALUES = 1 << 22
BODY_OCTETS = 1 << 20
"""A body is ended at the message that fills it this far."""
_PLACES = len(str(LARGEST_NUMBER))

_Number = Annotated[int, Field(ge=0, le=LARGEST_NUMBER)]


class _Wire(BaseModel):
    """redactory-ldp/1: one message of a user, a noisy representation of a sentence, of a pair, or of nothing.

    Nothing here but values depends on the sentence.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    format: Literal["redactory-ldp/1"] = Field(description="The version of this format.")
    slot: str = Field(
        pattern="^[0-9a-f]{32}$", max_length=32, description="Random; the same in every step of one sentence."
    )
    step: _Number = Field(description="Which send of the slot this is.")
    encoder: str = Field(
        pattern="^[0-9a-f]{64}$", max_length=64, description="The sha256 of the encoder that was used."
    )
    shape: list[Annotated[int, Field(ge=1, le=LARGEST_NUMBER)]] = Field(
        min_length=1, max_length=2, description="[d] a latent vector, [L, e] tokens, [2, d] a pair."
    )
    values: str = Field(
        pattern="^[A-Za-z0-9+/]*={0,2}$",
        description="Base64 of the values in the order of rows, little-endian float32, each finite.",
    )


class _Train(_Wire):
    purpose: Literal["train"]
    label: _Number = Field(
        description="The number of the slot's class, in clear; where classes are hidden, in a message of "
        "nothing that of a drawn one."
    )


class _Query(_Wire):
    purpose: Literal["query"]
    label: None


_ANY: TypeAdapter[_Train | _Query] = TypeAdapter(Annotated[_Train | _Query, Field(discriminator="purpose")])


def format_message(message: Message) -> str:
    """Format ``message`` as one line; numbers fill up to a fixed width with spaces, which JSON allows.

    The length of the line is the same for all messages of one shape.
    """
    packed = base64.b64encode(np.ascontiguousarray(message.values, "<f4").tobytes()).decode()
    label, purpose = ("null", "query") if message.label is None else (message.label, "train")
    return (
        f'{{"format":"{FORMAT}","purpose":"{purpose}","slot":"{message.slot}",'
        f'"step":{message.step:>{_PLACES}},"label":{label:>{_PLACES}},"encoder":"{message.encoder}",'
        f'"shape":{json.dumps(message.values.shape)},"values":"{packed}"}}'
    )


def parse_message(line: str | bytes) -> Message:
    """Parse one line; ``InputError`` names the key that is wrong, and quotes no value."""
    try:
        found = _ANY.validate_json(line)
        # of two values the model takes the last: what else the line holds would pass unseen
        json.loads(line, object_pairs_hook=reject_duplicate_keys)
    except UnicodeError:
        raise InputError("message: the line is not UTF-8") from None
    except DuplicateKeyError:
        raise InputError("message: a key comes twice") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        # an unknown key is the sender's word
        unknown = first["type"] == "extra_forbidden"
        keys = [key for key in first["loc"][1:] if isinstance(key, str)]
        where = f"{keys[0]}: " if keys and not unknown else ""
        problem = "an unknown key" if unknown else first["msg"] if where else "not of this format"
        raise InputError(f"message: {where}{problem}") from None
    except ValueError:
        raise InputError("message: not of this format") from None
    values = _values(found.slot, found.shape, found.values)
    return Message(found.slot, found.step, found.label, values, found.encoder)


def _values(slot: str, shape: list[int], packed: str) -> NDArray[np.float32]:
    count = math.prod(shape)
    if count > MOST_VALUES:
        raise refused(slot, "shape", f"must have at most {MOST_VALUES} values")
    try:
        octets = base64.b64decode(packed, validate=True)
    except binascii.Error:
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


def format_bodies(groups: Iterable[Iterable[Message]]) -> Iterator[bytes]:
    """Format messages as JSON lines, in bodies that a service takes at once; a group is never split."""
    body = bytearray()
    for group in groups:
        body += "".join(f"{format_message(message)}\n" for message in group).encode("ascii")
        if len(body) >= BODY_OCTETS:
            yield bytes(body)
            body.clear()
    if body:
        yield bytes(body)


def parse_body(body: bytes) -> list[Message]:
    """Parse the messages of JSON lines; ``InputError`` where a line is not a message."""
    return [parse_message(line) for line in body.split(b"\n") if line.strip()]


def message_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of one message."""
    return _ANY.json_schema()

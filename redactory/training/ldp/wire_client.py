"""The user's end of the wire: it carries messages and brings answers, and is given nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from redactory.foundation.errors import ConfigurationError, InputError, RunStateError
from redactory.training.ldp.message import Message

BATCH_OCTETS = 4 << 20
"""A request's body is ended at the message that fills it this far."""
_LARGEST_ANSWER = 64 << 20
_TRIES = 3


class Client:
    """The service at ``url`` (http or https); ``timeout`` in seconds, of one request.

    A request that got no answer is sent again as it was, up to three times in all: the same octets, so
    that nothing more of a sentence is released; the service counts a message once.
    """

    def __init__(self, url: str, timeout: float = 600.0) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ConfigurationError("--url: an address such as http://127.0.0.1:8765 is needed")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, port
        self._below, self._timeout = parts.path.rstrip("/"), timeout

    def schema(self) -> dict[str, Any]:
        """What the service says of itself: ``settings``, ``encoder``, ``shape``, ``trained``, ``message``."""
        return self._ask("GET", "/v1/schema", b"")

    def send(self, messages: Iterable[Message]) -> int:
        """Send training messages as they come; how many were sent."""
        return sum(
            _field(self._ask("POST", "/v1/messages", body), "received", int)
            for body in _bodies([message.to_json()] for message in messages)
        )

    def train(self) -> dict[str, Any]:
        """Have the service train on all that it got; its summary."""
        return self._ask("POST", "/v1/train", b"")

    def ask(self, messages: Iterable[Message]) -> list[dict[str, Any]]:
        """One answer per slot, in the order in which slots first occur; a slot's messages go together."""
        slots: dict[str, list[str]] = {}
        for message in messages:
            slots.setdefault(message.slot, []).append(message.to_json())
        found: list[dict[str, Any]] = []
        for body in _bodies(slots.values()):
            answers = _field(self._ask("POST", "/v1/queries", body), "answers", list)
            found += [_field({"answer": one}, "answer", dict) for one in answers]
        for answer in found:
            for key, kind in (("slot", str), ("class", str), ("probabilities", dict)):
                _field(answer, key, kind)
        return found

    def _ask(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        status, data = self._exchange(method, self._below + path, body)
        try:
            value = json.loads(data)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise RunStateError("what answers at --url is no service of this version")
        if status != 200:
            raise InputError(f"the service refused (HTTP {status}): {_told(value)}")
        return value

    def _exchange(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        kind = HTTPSConnection if self._secure else HTTPConnection
        for _ in range(_TRIES):
            connection = kind(self._host, self._port, timeout=self._timeout)
            try:
                connection.request(method, path, body, {"Content-Type": "application/x-ndjson"})
                answer = connection.getresponse()
                return answer.status, answer.read(_LARGEST_ANSWER)
            except (OSError, HTTPException):
                continue
            finally:
                connection.close()
        raise RunStateError("nothing answers at --url: start it with redactory ldp serve") from None


def _bodies(groups: Iterable[list[str]]) -> Iterator[bytes]:
    """JSON lines in requests, a group never torn apart."""
    lines: list[str] = []
    size = 0
    for group in groups:
        lines += group
        size += sum(map(len, group))
        if size >= BATCH_OCTETS:
            yield _lines(lines)
            lines, size = [], 0
    if lines:
        yield _lines(lines)


def _lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def _field(value: dict[str, Any], key: str, kind: type[Any]) -> Any:
    if not isinstance(value.get(key), kind):
        raise RunStateError("what answers at --url is no service of this version")
    return value[key]


def _told(value: dict[str, Any]) -> str:
    """The service's reason, as far as a terminal can be trusted with it."""
    error = value.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    text = message if isinstance(message, str) else ""
    return "".join(c for c in text[:300] if c.isascii() and c.isprintable())

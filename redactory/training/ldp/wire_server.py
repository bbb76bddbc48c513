"""The server's side over HTTP, on the loopback address, with nothing but the standard library.

    POST /v1/messages   training messages, one a line (JSON lines)     {"received": n}
    POST /v1/train      trains on all that came                        what ServerSide.train gives
    POST /v1/queries    questions, one a line                          {"answers": [...]}
    GET  /v1/schema     what a message looks like, and the settings

An error is JSON, {"error": {"kind", "message"}}, and quotes nothing that was sent.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from redactory.foundation.errors import ConfigurationError, InputError, RedactoryError, RunStateError
from redactory.training.ldp.message import FORMAT, Message, message_schema
from redactory.training.ldp.server import ServerSide

LARGEST_BODY = 16 << 20
"""Octets of a request at most."""
CONTENT_TYPE = "application/x-ndjson"
_PATIENCE = 30.0


class Refused(RedactoryError):
    """A request that is no request of this interface."""

    def __init__(self, status: HTTPStatus, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class WireServer(ThreadingHTTPServer):
    """``service`` behind an address; one request at a time touches it."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], service: ServerSide, saved_to: Path | None) -> None:
        self.service, self._saved_to, self._lock = service, saved_to, threading.Lock()
        super().__init__(address, _Handler)

    def schema(self, body: bytes) -> dict[str, Any]:
        """GET /v1/schema."""
        service = self.service
        return {
            "format": FORMAT,
            "settings": service.settings.model_dump(mode="json"),
            "encoder": service.encoder,
            "shape": list(service.shape),
            "trained": service.trained,
            "message": message_schema(),
        }

    def messages(self, body: bytes) -> dict[str, Any]:
        """POST /v1/messages: all of them are taken, or none."""
        found = _messages(body)
        with self._lock:
            self.service.receive_all(found)
        return {"received": len(found)}

    def train(self, body: bytes) -> dict[str, Any]:
        """POST /v1/train; what was trained is saved."""
        with self._lock:
            told = self.service.train()
            if self._saved_to is not None:
                self.service.save(self._saved_to)
        return told

    def queries(self, body: bytes) -> dict[str, Any]:
        """POST /v1/queries."""
        found = _messages(body)
        with self._lock:
            return {"answers": self.service.answers(found)}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is nobody's news."""


def make_server(
    service: ServerSide, port: int, host: str = "127.0.0.1", saved_to: Path | None = None
) -> WireServer:
    """A server that listens on ``port`` (0: any free one); ``serve_forever`` serves.

    ``ConfigurationError`` where the port is taken.
    """
    try:
        return WireServer((host, port), service, saved_to)
    except OSError:
        raise ConfigurationError(f"--port: {port} cannot be listened on; name another one") from None


class _Handler(BaseHTTPRequestHandler):
    server: WireServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "redactory", ""
    timeout = _PATIENCE

    def do_GET(self) -> None:
        self._answer({"/v1/schema": self.server.schema})

    def do_POST(self) -> None:
        ours = self.server
        routes = {"/v1/messages": ours.messages, "/v1/train": ours.train, "/v1/queries": ours.queries}
        self._answer(routes)

    def _answer(self, routes: Mapping[str, Callable[[bytes], dict[str, Any]]]) -> None:
        try:
            body = self._body()
            if self.path not in routes:
                raise Refused(HTTPStatus.NOT_FOUND, "there is nothing at this address; see GET /v1/schema")
            self._send(HTTPStatus.OK, routes[self.path](body))
        except RedactoryError as error:
            self._send(_status(error), {"error": {"kind": type(error).__name__, "message": str(error)}})
        except Exception:
            # what it says might quote a message
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": {"kind": "Failure", "message": ""}})

    def _body(self) -> bytes:
        """The request's body, as far as it is bounded; else ``Refused``, and the connection ends."""
        length = self.headers.get("Content-Length", "0" if self.command == "GET" else "")
        self.close_connection = True
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "Content-Length is needed")
        if len(length) > 12 or int(length) > LARGEST_BODY:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {LARGEST_BODY} octets a request")
        # a page in a browser must ask before it may send this type, and is told no
        if self.command == "POST" and self.headers.get_content_type() != CONTENT_TYPE:
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type must be {CONTENT_TYPE}")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise Refused(HTTPStatus.BAD_REQUEST, "the body is shorter than Content-Length")
        self.close_connection = self.headers.get("Connection", "").lower() == "close"
        return body

    def _send(self, status: HTTPStatus, value: dict[str, Any]) -> None:
        data = json.dumps(value, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """The library's own refusals quote the request's first line: ours do not."""
        self.close_connection = True
        self._send(HTTPStatus(code), {"error": {"kind": "Refused", "message": HTTPStatus(code).phrase}})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the library's name)
        """No request is written down anywhere."""


def _messages(body: bytes) -> list[Message]:
    return [Message.from_json(line) for line in body.split(b"\n") if line.strip()]


def _status(error: RedactoryError) -> HTTPStatus:
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, RunStateError):
        return HTTPStatus.CONFLICT
    return HTTPStatus.BAD_REQUEST if isinstance(error, InputError) else HTTPStatus.INTERNAL_SERVER_ERROR

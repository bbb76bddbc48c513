"""A service of local privacy over HTTP: Starlette and uvicorn carry, ldp_store.py decides.

    python service.py SERVICE [--port 8780] [--name HOST]

    GET  /v1/schema     what users must know of it
    POST /v1/messages   training messages, JSON lines     {"received": n}, once they are on the disk
    POST /v1/train      trains on all that came           the summary of the training
    POST /v1/queries    questions, JSON lines             {"answers": [...]}

It listens on 127.0.0.1; put encryption, and who may ask, in front of it.  An error is JSON,
{"error": {"kind", "message"}}, and quotes nothing that was sent; nothing of a request is logged.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Any

import uvicorn
from ldp_store import Service
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

import redactory

CONTENT_TYPE = "application/x-ndjson"
MOST_OCTETS = 8 << 20
"""Of one request's body."""
MOST_HELD = 32 << 20
"""Octets of all bodies that are in memory at a time."""
MOST_CONNECTIONS = 64
PATIENCE = 30.0
"""Seconds for a request's head, again for its body, and again for the client to take the answer."""
_BACKLOG = 16

Work = Callable[[bytes], Any]


class Refused(Exception):
    """A request that is not carried out; its message is for whoever sent it."""

    def __init__(self, status: HTTPStatus, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class Gate:
    """What may come to ``service``: bodies of bounded size, one after the other."""

    def __init__(self, service: Service, names: Sequence[str]) -> None:
        self._held = 0
        self._worker = ThreadPoolExecutor(max_workers=1)
        routes = [
            self._route("GET", "/v1/schema", lambda body: service.facts()),
            self._route("POST", "/v1/messages", lambda body: {"received": service.receive_lines(body)}),
            self._route("POST", "/v1/train", lambda body: service.train()),
            self._route("POST", "/v1/queries", lambda body: {"answers": service.answer_lines(body)}),
        ]
        # a page in a browser that had its own name point here is refused by the name
        known = Middleware(TrustedHostMiddleware, allowed_hosts=[*names], www_redirect=False)
        self.app = Starlette(routes=routes, middleware=[known])

    def close(self) -> None:
        """Wait for what is under way."""
        self._worker.shutdown()

    def _route(self, method: str, path: str, work: Work) -> Route:
        async def answer(request: Request) -> Response:
            try:
                return JSONResponse(await self._carried_out(request, work))
            except Exception as error:
                status, kind, problem = _told(error)
                return JSONResponse({"error": {"kind": kind, "message": problem}}, status)

        return Route(path, answer, methods=[method])

    async def _carried_out(self, request: Request, work: Work) -> Any:
        kept: list[bytes] = []
        try:
            async with asyncio.timeout(PATIENCE):
                await self._read(request, kept)
            return await asyncio.get_running_loop().run_in_executor(self._worker, work, b"".join(kept))
        finally:
            self._held -= sum(map(len, kept))

    async def _read(self, request: Request, kept: list[bytes]) -> None:
        """The body into ``kept``, as far as there is room."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if request.method == "POST" and kind != CONTENT_TYPE:
            # a page in a browser must ask before it may send this type, and is told no
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type must be {CONTENT_TYPE}")
        size = int(request.headers.get("content-length", 0))
        came = 0
        async for piece in request.stream():
            came += len(piece)
            if max(size, came) > MOST_OCTETS:
                raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {MOST_OCTETS} octets a request")
            if self._held + len(piece) > MOST_HELD:
                raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too much is being sent at once: try again")
            self._held += len(piece)
            kept.append(piece)


def _told(error: Exception) -> tuple[HTTPStatus, str, str]:
    """Status, kind and message of an error; what is not expected might quote a message, and tells nothing."""
    match error:
        case Refused():
            return error.status, "Refused", str(error)
        case TimeoutError():
            return HTTPStatus.REQUEST_TIMEOUT, "Refused", "the body came too slowly"
        case ClientDisconnect():
            return HTTPStatus.BAD_REQUEST, "Refused", "the body is shorter than it was said to be"
        case redactory.InputError():
            return HTTPStatus.BAD_REQUEST, "InputError", str(error)
        case redactory.RunStateError():
            return HTTPStatus.CONFLICT, "RunStateError", str(error)
        case _:
            return HTTPStatus.INTERNAL_SERVER_ERROR, "Failure", ""


class Patient(H11Protocol):
    """uvicorn's connection, with an end: it has no bound of its own on connections, heads and answers.

    Each carries one request (``Connection: close``).
    """

    _end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > _most_connections():
            transport.abort()
            return
        self._end = self.loop.call_later(PATIENCE, self._without_a_request)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._cancel()
        self._end = self.loop.call_later(PATIENCE, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def _without_a_request(self) -> None:
        if self.cycle is None:
            self.transport.abort()

    def _cancel(self) -> None:
        if self._end is not None:
            self._end.cancel()


def _most_connections() -> int:
    """Fewer where descriptors are few: some are needed for files, and for those who are turned away."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else (soft - 2 * _BACKLOG) // 2
    return max(1, min(MOST_CONNECTIONS, few))


def serve(folder: str, port: int, names: Sequence[str]) -> None:
    """Print address and process, and serve until interrupted; a kill loses nothing either."""
    with Service.opened(Path(folder)) as service:
        gate = Gate(service, names)
        config = uvicorn.Config(
            gate.app,
            http=Patient,
            ws="none",
            lifespan="off",
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            headers=[("Connection", "close")],
            backlog=_BACKLOG,
            timeout_graceful_shutdown=5,
        )
        with socket.create_server(("127.0.0.1", port), backlog=_BACKLOG) as listening:
            print(f"http://127.0.0.1:{listening.getsockname()[1]} {os.getpid()}", flush=True)
            try:
                uvicorn.Server(config).run(sockets=[listening])
            finally:
                gate.close()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Serve a folder of local privacy on 127.0.0.1.")
    parser.add_argument("service", help="a folder of ldp_store.create_service")
    parser.add_argument("--port", type=int, default=8780, help="0 takes any that is free; the address is printed")
    parser.add_argument(
        "--name", action="append", default=[], help="a name, besides 127.0.0.1 and localhost, that it is asked by"
    )
    given = parser.parse_args()
    try:
        serve(given.service, given.port, ["127.0.0.1", "localhost", *given.name])
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except (redactory.RedactoryError, OSError) as error:
        sys.exit(f"{given.service}: {error}")


if __name__ == "__main__":
    main()

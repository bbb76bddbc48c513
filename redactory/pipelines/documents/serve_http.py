"""Serve a policy over HTTP: ``/redact`` and ``/scan``, and Presidio's ``/analyze`` and ``/anonymize``.

Nothing of a request is logged, and errors name only its keys. Encryption and access control belong in front.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing.connection
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from redactory.detectors import TextDetector
from redactory.detectors.policy import describe_label_coverage
from redactory.foundation.errors import ConfigurationError, RedactoryError, RunStateError
from redactory.foundation.processes import start_worker_processes
from redactory.foundation.settings import Settings
from redactory.pipelines.curation.config import Config, ReplacementName
from redactory.pipelines.curation.loading import ConfigLike, load_text_config, parse_settings
from redactory.pipelines.curation.policy import Example, Policy
from redactory.pipelines.documents.presidio_api import AnalyzeRequest, AnonymizeRequest, Text, get_entity_name

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Route
except ImportError:
    raise ConfigurationError("serve-http needs starlette and uvicorn: pip install 'redactory[http]'") from None

_MAX_ERROR_CHARS = 1_000
MAX_BODY_BYTES, MAX_TEXT_CHARS = 1 << 20, 20_000
"""Maximum size of a request, and of one of its texts: about a second, in which all others of the worker wait."""
MAX_REQUESTS, MAX_SECONDS = 64, 30
"""Maximum number of requests of a worker at once, and seconds of one, the arrival of its body included."""
_METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
RequestT = TypeVar("RequestT", bound=Settings)
Answer = Callable[[Request], Awaitable[Any]]


class ScanRequest(Settings):
    """A request to ``/scan``."""

    texts: list[Text]


class RedactRequest(ScanRequest):
    """A request to ``/redact``."""

    replace: ReplacementName = "mask"


class HttpService:
    """The answers of one process. Its engines process one text at a time, of each request in turn."""

    def __init__(self, settings: Config, detector: TextDetector | None = None) -> None:
        self.policy = Policy(settings, detector)
        self.policy.load_engines()
        self._language = settings.detect.language
        rows = describe_label_coverage(settings.detect)
        self._entities = sorted({get_entity_name(row["label"]) for row in rows if row["masks"]})
        self._engine_thread, self._running = ThreadPoolExecutor(1), set[Request]()
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("redactory_http_requests", "Requests.", ["path", "status"], registry=registry)
        self._seconds = Histogram("redactory_http_seconds", "Seconds of a request.", ["path"], registry=registry)
        self._texts = Counter("redactory_http_texts", "Texts by result.", ["result"], registry=registry)

    def make_app(self) -> Starlette:
        """Return the application."""
        answers = {"/redact": self._redact, "/scan": self._scan, "/analyze": self._analyze}
        answers |= {"/anonymize": self._anonymize}
        constants = {"/health": {"status": "ok", "policy": self.policy.hash}, "/supportedentities": self._entities}
        routes = [Route(path, partial(self._respond, path, one), methods=["POST"]) for path, one in answers.items()]
        routes += [Route(path, partial(_format_json, content)) for path, content in constants.items()]
        return Starlette(routes=[*routes, Route("/metrics", self._export_metrics)])

    async def _redact(self, request: Request) -> Any:
        body = await _parse_body(request, RedactRequest)
        texts, failed = await self._process(request, body.texts, self.policy.make_span_replacer(body.replace))
        return {"texts": texts, "failed": failed}

    async def _scan(self, request: Request) -> Any:
        body = await _parse_body(request, ScanRequest)
        spans, failed = await self._process(
            request, body.texts, lambda _, examples: [asdict(span) for one in examples for span in one.spans]
        )
        return {"spans": spans, "failed": failed}

    async def _analyze(self, request: Request) -> Any:
        body = await _parse_body(request, AnalyzeRequest)
        if self._language not in ("auto", body.language):
            raise HTTPException(400, f"language: this service reads '{self._language}' (detect.language)")
        if not set(self._entities).issuperset(body.entities or ()):
            raise HTTPException(400, "entities: some are not detected here; GET /supportedentities lists all that are")
        texts = [body.text] if isinstance(body.text, str) else body.text
        results, failed = await self._process(request, texts, lambda _, examples: body.format_spans(examples))
        if failed:
            reasons = ", ".join(f"{reason} (text {number})" for number, reason in failed.items())
            raise HTTPException(422, f"not processed, so the content is unknown: {reasons}")
        return results[0] if isinstance(body.text, str) else results

    async def _anonymize(self, request: Request) -> Any:
        return (await _parse_body(request, AnonymizeRequest)).anonymize()

    async def _process(
        self, request: Request, texts: list[str], work: Callable[[str, list[Example]], Any]
    ) -> tuple[list[Any], dict[str, str]]:
        """Return ``work`` of each text, None if it cannot be processed, and the reasons by number."""

        def process_text(text: str) -> tuple[Any, str | None]:
            if len(text) > MAX_TEXT_CHARS:
                return None, "too_long"
            [examples] = self.policy.read_many([text])
            failure = next((example.failure for example in examples if example.failure), None)
            return (None, failure) if failure else (work(text, examples), None)

        results, failed = list[Any](), dict[str, str]()
        for number, text in enumerate(texts):
            if await request.is_disconnected():
                raise ClientDisconnect
            loop = asyncio.get_running_loop()
            result, failure = await loop.run_in_executor(self._engine_thread, process_text, text)
            results.append(result)
            failed |= {str(number): failure} if failure else {}
            self._texts.labels(failure or "processed").inc()
        return results, failed

    async def _respond(self, path: str, answer: Answer, request: Request) -> Response:
        """Answer within the limits; an error becomes an answer without text, because a traceback could quote it."""
        status = 200
        with self._seconds.labels(path).time():
            try:
                if len(self._running) >= MAX_REQUESTS:
                    raise HTTPException(503, "too many requests; try again later")
                self._running.add(request)
                async with asyncio.timeout(MAX_SECONDS):
                    content = await answer(request)
            except Exception as error:
                content, status = _describe_error(error)
            finally:
                self._running.discard(request)
        self._requests.labels(path, status).inc()
        return _format_json(content, status=status)

    async def _export_metrics(self, _: Request) -> Response:
        registry = self._registry
        if _METRICS_VARIABLE in os.environ:
            # the sums over all worker processes
            MultiProcessCollector(registry := CollectorRegistry())  # type: ignore[no-untyped-call]
        return Response(generate_latest(registry), media_type="text/plain")


def _describe_error(error: Exception) -> tuple[dict[str, str], int]:
    message, status = f"unexpected {type(error).__name__}; please report it", 500
    if isinstance(error, HTTPException):
        message, status = error.detail, error.status_code
    elif isinstance(error, RedactoryError):
        message, status = str(error)[:_MAX_ERROR_CHARS], 400
    elif isinstance(error, ClientDisconnect):
        message, status = "the client has disconnected", 499
    elif isinstance(error, TimeoutError):
        message, status = f"the answer takes more than {MAX_SECONDS} seconds; send less at once", 503
    return {"error": message}, status


def _format_json(content: Any, _: Request | None = None, status: int = 200) -> Response:
    # escaped: half a surrogate pair has no UTF-8
    return Response(json.dumps(content), status, media_type="application/json")


async def read_body(request: Request) -> bytes:
    """Read the body of a request; ``HTTPException`` 413 if it has more than ``MAX_BODY_BYTES``."""
    body = bytearray()
    async for block in request.stream():
        body += block
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"a request has at most {MAX_BODY_BYTES:,} bytes")
    return bytes(body)


async def _parse_body(request: Request, kind: type[RequestT]) -> RequestT:
    body = await read_body(request)
    try:
        content = dict(json.loads(body))
    except (ValueError, TypeError, RecursionError):
        raise HTTPException(400, "expected a JSON object") from None
    return parse_settings(kind, content)


def serve_http(
    config: ConfigLike | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8790,
    workers: int = 1,
    on_ready: Callable[[dict[str, Any]], None] = lambda _: None,
) -> None:
    """Serve the policy of ``config`` (default: the default one) until an interrupt, in ``workers`` processes.

    ``on_ready`` gets the address, the number of workers, the policy's hash, and whether it masks nothing, once all
    engines are loaded; port 0 takes a free one. Raises ``ConfigurationError`` if the address cannot be used,
    ``RunStateError`` if a worker ends.
    """
    settings = load_text_config(config)
    with listen(host, port) as listener, tempfile.TemporaryDirectory(prefix="redactory-") as metrics_folder:
        os.environ[_METRICS_VARIABLE] = metrics_folder
        with start_worker_processes(_serve_requests, [(settings, listener)] * workers) as processes:
            del os.environ[_METRICS_VARIABLE]
            for worker in processes:
                try:
                    loaded = worker.pipe.recv()
                except EOFError:
                    loaded = RunStateError("a worker ended before it was ready; its error is above")
                if isinstance(loaded, RedactoryError):
                    raise loaded
            address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
            on_ready({"address": address, "workers": workers, "policy": Policy(settings).hash, **loaded})
            try:
                multiprocessing.connection.wait([worker.process.sentinel for worker in processes])
            except KeyboardInterrupt:
                # let the workers answer the requests that they have
                for worker in processes:
                    worker.process.terminate()
                for worker in processes:
                    worker.process.join(MAX_SECONDS)
                return
        raise RunStateError("a worker ended unexpectedly, so the service has stopped: start it again")


def listen(host: str, port: int, options: str = "--host, --port") -> socket.socket:
    """Listen on an address; port 0 takes a free one. ``ConfigurationError`` names ``options`` if this fails."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        reason = str(getattr(error, "strerror", error)).partition(" (")[0]
        raise ConfigurationError(f"{options}: cannot listen on {host}, port {port}: {reason}") from None


def _serve_requests(pipe: Connection, settings: Config, listener: socket.socket) -> None:
    try:
        service = HttpService(settings)
        pipe.send({"masks_nothing": service.policy.masks_nothing()})
    except RedactoryError as error:
        pipe.send(error)
        return
    run_server(service.make_app(), listener, MAX_SECONDS)


def run_server(app: Any, listener: socket.socket, stop_seconds: int) -> None:
    """Serve ``app`` until it is interrupted, then for ``stop_seconds`` at most; nothing of a request is logged."""
    options: dict[str, Any] = {"log_config": None, "log_level": "critical", "access_log": False, "lifespan": "off"}
    options |= {"server_header": False, "proxy_headers": False, "timeout_graceful_shutdown": stop_seconds, "ws": "none"}
    uvicorn.Server(uvicorn.Config(app, **options)).run(sockets=[listener])

"""A policy over HTTP.

    python service.py [--port 8790] [--config detect.yaml]

    POST /v1/redact   {"texts": ["…"]}    {"texts": ["… <MASK> …", null], "failed": {"1": "too_long"}}
    POST /v1/scan     {"texts": ["…"]}    {"spans": [[{"start", "end", "label", "score", "policy"}]]}
    GET  /v1/policy                       {"hash": "…"}

It listens on 127.0.0.1; put encryption, and who may ask, in front of it.  Nothing of a request is logged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import redactory

MOST_OCTETS, MOST_CHARS = 1 << 20, 20_000
"""Of a request, and of one text in it: about a second, for which everybody else waits."""
MOST_REQUESTS, MOST_SECONDS = 64, 30
"""That are answered at once, and that one may take, the arrival of its body included."""
ENGINE = ThreadPoolExecutor(1)
"""The engines read for one thread at a time; requests take turns, a text each."""


class Answer(JSONResponse):
    """Half a surrogate pair, which JSON may hold and UTF-8 may not, stays as it was escaped."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content).encode()


def service(policy: redactory.Policy) -> Starlette:
    """The application of one policy."""
    running: set[Request] = set()

    def redacted(text: str) -> tuple[str | None, str | None]:
        pieces, position = list[str](), 0
        for point in policy.route(text):
            if point.failure is not None:
                return None, point.failure
            pieces += (text[position : point.start], point.redacted)
            position = point.end
        return "".join(pieces) + text[position:], None

    def all_redacted(answers: list[tuple[str | None, str | None]]) -> dict[str, Any]:
        failed = {str(number): failure for number, (_, failure) in enumerate(answers) if failure}
        return {"texts": [text for text, _ in answers], "failed": failed}

    def scanned(text: str) -> list[dict[str, Any]]:
        return [asdict(hit) for hit in policy.scan(text)]

    def all_scanned(answers: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return {"spans": answers}

    async def answer_of(request: Request, work: Callable[[str], Any]) -> list[Any] | Answer:
        body = b""
        async for block in request.stream():
            body += block
            if len(body) > MOST_OCTETS:
                return _refused(413, f"a request has at most {MOST_OCTETS} bytes")
        try:
            texts = json.loads(body)["texts"]
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            return _refused(400, 'a JSON object {"texts": [...]} of strings is needed')
        if any(len(text) > MOST_CHARS for text in texts):
            return _refused(413, f"a text has at most {MOST_CHARS} characters")
        answers = []
        for text in texts:
            if await request.is_disconnected():
                return _refused(499, "the client has gone")
            answers.append(await asyncio.get_running_loop().run_in_executor(ENGINE, work, text))
        return answers

    def answers(work: Callable[[str], Any], together: Callable[[list[Any]], dict[str, Any]]) -> Any:
        async def answer(request: Request) -> Answer:
            if len(running) >= MOST_REQUESTS:
                return _refused(503, "too many requests; try again later")
            running.add(request)
            try:
                async with asyncio.timeout(MOST_SECONDS):
                    found = await answer_of(request, work)
                return found if isinstance(found, Answer) else Answer(together(found))
            except redactory.InputError as error:
                return _refused(422, str(error))
            except TimeoutError:
                return _refused(503, f"it takes longer than {MOST_SECONDS} seconds; send less at once")
            finally:
                running.remove(request)

        return answer

    async def described(_: Request) -> Answer:
        return Answer({"hash": policy.hash})

    return Starlette(
        routes=[
            Route("/v1/redact", answers(redacted, all_redacted), methods=["POST"]),
            Route("/v1/scan", answers(scanned, all_scanned), methods=["POST"]),
            Route("/v1/policy", described),
        ]
    )


def _refused(status: int, why: str) -> Answer:
    return Answer({"error": why}, status)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8790)
    parser.add_argument("--config")
    given = parser.parse_args()
    loaded = redactory.Policy.load(given.config)
    loaded.load_engines()
    print(f"Ready on http://{given.host}:{given.port}", flush=True)
    uvicorn.run(service(loaded), host=given.host, port=given.port, access_log=False, log_level="warning")

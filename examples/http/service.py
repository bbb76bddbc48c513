"""A policy over HTTP.

    python service.py [--port 8790] [--config detect.yaml]

    POST /v1/redact   {"texts": ["…"]}    {"texts": ["… <MASK> …", null], "failed": {"1": "too_long"}}
    POST /v1/scan     {"texts": ["…"]}    {"hits": [[{"start", "end", "label", "score", "policy"}]]}
    GET  /v1/policy                       {"hash": "…"}

It listens on 127.0.0.1; put encryption, and who may ask, in front of it.  Nothing of a request is logged.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import redactory

MOST_OCTETS = 8 << 20
ENGINE = ThreadPoolExecutor(1)
"""Engines are not made for several threads at once."""


def service(policy: redactory.Policy) -> Starlette:
    """The application of one policy."""

    def redacted(texts: list[str]) -> dict[str, Any]:
        answer: list[str | None] = []
        failed: dict[str, str] = {}
        for number, (text, points) in enumerate(zip(texts, policy.split_many(texts), strict=True)):
            reasons = [point.failure for point in points if point.failure is not None]
            pieces, position = list[str](), 0
            for point in points:
                pieces += (text[position : point.start], point.redacted)
                position = point.end
            answer.append(None if reasons else "".join(pieces) + text[position:])
            failed |= {str(number): reasons[0]} if reasons else {}
        return {"texts": answer, "failed": failed}

    def scanned(texts: list[str]) -> dict[str, Any]:
        return {"hits": [[asdict(hit) for hit in hits] for hits in policy.scan_many(texts)]}

    def answers(work: Any) -> Any:
        async def answer(request: Request) -> JSONResponse:
            body = b""
            async for block in request.stream():
                body += block
                if len(body) > MOST_OCTETS:
                    return JSONResponse({"error": "the request is too large"}, 413)
            try:
                texts = json.loads(body)["texts"]
                if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                    raise ValueError
                return JSONResponse(await run_in_threadpool(lambda: ENGINE.submit(work, texts).result()))
            except redactory.InputError as error:
                return JSONResponse({"error": str(error)}, 422)
            except (ValueError, KeyError, TypeError):
                return JSONResponse({"error": 'a JSON object {"texts": [...]} of strings is needed'}, 400)

        return answer

    async def described(_: Request) -> JSONResponse:
        return JSONResponse({"hash": policy.hash})

    return Starlette(
        routes=[
            Route("/v1/redact", answers(redacted), methods=["POST"]),
            Route("/v1/scan", answers(scanned), methods=["POST"]),
            Route("/v1/policy", described),
        ]
    )


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

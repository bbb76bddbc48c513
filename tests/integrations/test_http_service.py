"""The example of a policy over HTTP: what it refuses, and who waits for whom."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from redactory.pipelines.curation.policy import Policy
from tests.pipelines.support import DigitDetector

FILE = Path(__file__).parents[2] / "examples" / "http" / "service.py"
POLICY = Policy({"segment": {"mode": "line"}}, detector=DigitDetector())


@pytest.fixture(scope="module")
def module() -> Any:
    spec = importlib.util.spec_from_file_location("http_service", FILE)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def client(module: Any) -> Iterator[TestClient]:
    # an error of the service is its answer 500, as a server has it
    with TestClient(module.service(POLICY), raise_server_exceptions=False) as client:
        yield client


def test_texts_are_masked_and_what_fails_is_not_passed_on(client: TestClient) -> None:
    texts = ["call 55", "broken 7", "", "one\ntwo 2", "\ud800 5"]
    answer = client.post("/v1/redact", content=json.dumps({"texts": texts})).json()
    assert answer == {
        "texts": ["call <MASK>", None, "", "one\ntwo <MASK>", "\ud800 <MASK>"],
        "failed": {"1": "engine_error"},
    }
    hits = client.post("/v1/scan", json={"texts": ["call 55", "hello"]}).json()["spans"]
    assert [[(hit["start"], hit["end"]) for hit in found] for found in hits] == [[(5, 7)], []]
    assert client.post("/v1/scan", json={"texts": ["broken"]}).status_code == 422
    assert client.get("/v1/policy").json() == {"hash": POLICY.hash}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"texts": "a"}',
        b'{"texts": [1]}',
        b'{"texts": [null]}',
        b'{"texts": {"0": "a"}}',
        b'{"texts": ["\xff"]}',
        b'{"texts": ["a"]',
        b'{"texts": ' + b"9" * 10_000 + b"}",
        b'{"texts": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b"[" * 200_000,
        b'{"texts": ["a"], "more": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
    ],
)
def test_what_is_no_request_is_refused(client: TestClient, body: bytes) -> None:
    answer = client.post("/v1/redact", content=body)
    assert (answer.status_code, list(answer.json())) == (400, ["error"])


def test_a_request_is_limited(client: TestClient, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["x" * module.MOST_CHARS] * 2
    assert client.post("/v1/redact", json={"texts": texts}).json()["texts"] == texts
    for many in (["x" * (module.MOST_CHARS + 1)], ["x" * 1_000] * 1_050):
        answer = client.post("/v1/redact", json={"texts": many})
        assert (answer.status_code, list(answer.json())) == (413, ["error"])
    monkeypatch.setattr(module, "MOST_SECONDS", 0)
    assert client.post("/v1/redact", json={"texts": ["a"]}).status_code == 503
    monkeypatch.setattr(module, "MOST_REQUESTS", 0)
    assert "too many requests" in client.post("/v1/scan", json={"texts": ["a"]}).json()["error"]


class Line:
    """One request over an application, whose client goes when ``gone`` is set."""

    def __init__(self, texts: list[str]) -> None:
        self.body = json.dumps({"texts": texts}).encode()
        self.sent: list[Any] = []
        self.gone = asyncio.Event()

    async def ask(self, app: Any) -> int:
        scope = {"type": "http", "method": "POST", "path": "/v1/redact", "headers": [], "query_string": b""}
        await app(scope, self._receive, self._send)
        return int(self.sent[0]["status"])

    async def _receive(self) -> dict[str, Any]:
        if self.body:
            body, self.body = self.body, b""
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


def test_requests_take_turns_and_one_whose_client_has_gone_ends(module: Any) -> None:
    read: list[str] = []

    class Watched(Policy):
        def route(self, text: str) -> Any:
            read.append(text)
            if text == "leave":
                loop.call_soon_threadsafe(left.gone.set)
            return super().route(text)

    async def serve() -> list[int]:
        app = module.service(Watched({}, detector=DigitDetector()))
        return [*await asyncio.gather(left.ask(app), large.ask(app), small.ask(app))]

    left, large, small = Line(["leave", *["left"] * 500]), Line(["large"] * 100), Line(["small 1"])
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(serve()) == [499, 200, 200]
    loop.close()
    assert read.count("large") == 100
    assert read.count("left") < 10
    assert read.index("small 1") < 10

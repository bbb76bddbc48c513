"""A policy over HTTP: what it answers and refuses, who waits for whom, and what Presidio's clients get."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
from hypothesis import example, given, settings
from hypothesis import strategies as st
from presidio_anonymizer import AnonymizerEngine
from presidio_anonymizer.services.app_entities_convertor import AppEntitiesConvertor
from starlette.testclient import TestClient

from redactory.detectors import Detection, Span
from redactory.pipelines.curation.loading import load_text_config
from redactory.pipelines.curation.policy import Policy
from redactory.pipelines.documents import serve_http as module
from redactory.pipelines.documents.presidio_api import AnonymizeRequest
from redactory.pipelines.documents.serve_http import HttpService
from tests.pipelines.support import DigitDetector

SETTINGS = load_text_config({"segment": {"mode": "line"}})
SECRET = "Quirin Ozols"


class NameDetector:
    """Names as two engines may find them, and a date; a text with "broken" raises with the text in its message."""

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        for text in texts:
            if "broken" in text:
                raise ValueError(text)
            names = [Span(*m.span(), "PERSON", 0.9, "a") for m in re.finditer(SECRET, text)]
            names += [Span(*m.span(), "PER", 0.8, "b") for m in re.finditer("Ozols", text)]
            dates = [Span(*m.span(), "DATE", 0.6, "a") for m in re.finditer("5 May", text)]
            suspected = [Span(*m.span(), "CAPITAL", 0.5, "c") for m in re.finditer("Order", text)]
            yield Detection((*names, *dates), tuple(suspected))


def _client(detector: Any) -> TestClient:
    return TestClient(HttpService(SETTINGS, detector).make_app())


@pytest.fixture
def client() -> Iterator[TestClient]:
    with _client(DigitDetector()) as client:
        yield client


def test_texts_are_masked_and_what_fails_is_not_passed_on(client: TestClient) -> None:
    long = "x" * (module.MAX_TEXT_CHARS + 1)
    texts = ["call 55", "broken 7", "", "one\ntwo 2", "\ud800 5", long, long[1:]]
    answer = client.post("/redact", content=json.dumps({"texts": texts}))
    assert answer.json() == {
        "texts": ["call <MASK>", None, "", "one\ntwo <MASK>", "\ud800 <MASK>", None, long[1:]],
        "failed": {"1": "engine_error", "5": "too_long"},
    }
    assert answer.headers["content-type"] == "application/json"
    scanned = client.post("/scan", json={"texts": ["call 55", "hello", "broken"]}).json()
    expected = [asdict(span) for span in Policy(SETTINGS, DigitDetector()).scan("call 55")]
    assert scanned == {"spans": [expected, [], None], "failed": {"2": "engine_error"}}
    assert client.get("/health").json() == {"status": "ok", "policy": Policy(SETTINGS).hash}


def test_speakers_are_masked_too() -> None:
    settings = load_text_config({"segment": {"mode": "turn"}})
    with TestClient(HttpService(settings, DigitDetector()).make_app()) as client:
        answer = client.post("/redact", json={"texts": ["5551234: call 55"]})
    assert answer.json()["texts"] == ["<MASK>: call <MASK>"]


def test_a_request_chooses_the_replacement(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDACTORY_KEY", raising=False)
    body = {"texts": ["7 and 8", "8 and 8"], "replace": "number"}
    assert client.post("/redact", json=body).json()["texts"] == [
        "<NUMBER_1> and <NUMBER_2>",
        "<NUMBER_1> and <NUMBER_1>",
    ]
    refused = client.post("/redact", json={**body, "replace": "pseudonym"})
    assert (refused.status_code, "set REDACTORY_KEY" in refused.json()["error"]) == (400, True)
    monkeypatch.setenv("REDACTORY_KEY", "k" * 16)
    assert re.fullmatch(
        "<NUMBER_[a-z2-7]{16}> and .*", client.post("/redact", json={**body, "replace": "pseudonym"}).json()["texts"][0]
    )


@pytest.mark.parametrize("path", ["/redact", "/scan", "/analyze", "/anonymize"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'"a"',
        b'{"texts": "a", "text": 1}',
        b'{"texts": [1], "text": {}}',
        b'{"texts": [null], "text": [null]}',
        b'{"texts": ["\xff"], "text": "\xff"}',
        b'{"texts": ["a"], "secret": 1, "text": "a", "language": "en", "analyzer_results": []}',
        b'{"texts": ["a"]',
        b'{"texts": ' + b"9" * 10_000 + b"}",
        b'{"texts": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b"[" * 200_000,
    ],
)
def test_what_is_no_request_is_refused(client: TestClient, path: str, body: bytes) -> None:
    answer = client.post(path, content=body)
    assert (answer.status_code, list(answer.json())) == (400, ["error"])


def test_a_request_is_limited(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = client.post("/redact", json={"texts": ["x" * 1_000] * 1_050})
    assert (answer.status_code, answer.json()) == (413, {"error": "a request has at most 1,048,576 bytes"})
    monkeypatch.setattr(module, "MAX_SECONDS", 0)
    assert client.post("/redact", json={"texts": ["a"]}).status_code == 503
    monkeypatch.setattr(module, "MAX_REQUESTS", 0)
    assert "too many requests" in client.post("/scan", json={"texts": ["a"]}).json()["error"]


def test_an_answer_is_limited(client: TestClient) -> None:
    results = [{"start": n, "end": n + 1, "entity_type": f"T{n}"} for n in range(100)]
    body = {"text": "x" * 100, "anonymizers": {"DEFAULT": {"type": "replace", "new_value": "y" * 100_000}}}
    answer = client.post("/anonymize", json={**body, "analyzer_results": results})
    assert (answer.status_code, "more than 4,194,304 characters" in answer.text) == (400, True)


def test_an_error_neither_says_nor_logs_the_text(caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    with _client(NameDetector()) as client, caplog.at_level("DEBUG"):
        answers = [client.post("/redact", json={"texts": [f"broken {SECRET}"]})]
        answers += [client.post("/redact", json={"texts": [SECRET], SECRET: SECRET, "replace": SECRET})]
        operators = {SECRET: {"type": SECRET}}
        answers += [
            client.post("/anonymize", json={"text": SECRET, "anonymizers": operators, "analyzer_results": [SECRET]})
        ]
        answers += [client.post("/analyze", json={"text": SECRET, "language": SECRET, "entities": [SECRET]})]
        answers += [client.post("/analyze", json={"text": SECRET, "language": "en", "entities": [SECRET]})]
        assert client.get(f"/{SECRET}").status_code == 404
        metrics = client.get("/metrics").text
    assert [answer.status_code for answer in answers] == [500, 400, 400, 400, 400]
    assert answers[0].json() == {"error": "unexpected ValueError; please report it"}
    written = [*capfd.readouterr(), metrics, *(answer.text for answer in answers)]
    # of a key, the words remain: it is the client that reads them
    assert "Ozols" not in "".join(written).replace(f"{SECRET}:", "").replace(f"{SECRET}.type:", "")
    assert not [
        record for record in caplog.records if "Ozols" in record.getMessage() and not record.name.startswith("httpx")
    ]
    assert 'redactory_http_requests_total{path="/redact",status="500"} 1.0' in metrics


def test_metrics_count_requests_and_texts(client: TestClient) -> None:
    client.post("/redact", json={"texts": ["a", "broken", "5"]})
    client.post("/scan", json={})
    lines = client.get("/metrics").text.splitlines()
    assert 'redactory_http_requests_total{path="/redact",status="200"} 1.0' in lines
    assert 'redactory_http_requests_total{path="/scan",status="400"} 1.0' in lines
    assert 'redactory_http_texts_total{result="processed"} 2.0' in lines
    assert 'redactory_http_texts_total{result="engine_error"} 1.0' in lines
    assert 'redactory_http_seconds_count{path="/redact"} 1.0' in lines


class Line:
    """One request over an application, whose client goes when ``gone`` is set."""

    def __init__(self, texts: list[str]) -> None:
        self.body = json.dumps({"texts": texts}).encode()
        self.sent: list[Any] = []
        self.gone = asyncio.Event()

    async def ask(self, app: Any) -> int:
        scope = {"type": "http", "method": "POST", "path": "/redact", "headers": [], "query_string": b""}
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


def test_requests_take_turns_and_one_whose_client_has_gone_ends() -> None:
    class Watched(DigitDetector):
        def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
            for text in texts:
                if text == "leave":
                    loop.call_soon_threadsafe(left.gone.set)
                yield from super().detect([text])

    async def serve() -> list[int]:
        app = HttpService(SETTINGS, detector).make_app()
        return [*await asyncio.gather(left.ask(app), large.ask(app), small.ask(app))]

    detector = Watched()
    left, large, small = Line(["leave", *["left"] * 500]), Line(["large"] * 100), Line(["small 1"])
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(serve()) == [499, 200, 200]
    loop.close()
    read = detector.detected_texts
    assert read.count("large") == 100
    assert read.count("left") < 10
    assert read.index("small 1") < 10


# What Presidio's clients get.

TEXT = f"Order of {SECRET}, 5 May"


def test_analyze_answers_as_presidio_does() -> None:
    person = {"entity_type": "PERSON", "start": 9, "end": 21, "score": 0.9, "analysis_explanation": None}
    date = {"entity_type": "DATE_TIME", "start": 23, "end": 28, "score": 0.6, "analysis_explanation": None}
    harmless = {"correlation_id": "1", "trace": True, "return_decision_process": False, "ad_hoc_recognizers": []}
    surname = {"entity_type": "PERSON", "start": 16, "end": 21, "score": 0.8, "analysis_explanation": None}
    cases: list[tuple[dict[str, Any], Any]] = [
        ({}, [person, date]),
        (harmless, [person, date]),
        ({"text": [TEXT, "hello", "Ozols"]}, [[person, date], [], [{**surname, "start": 0, "end": 5}]]),
        ({"entities": ["DATE_TIME"]}, [date]),
        ({"entities": None, "score_threshold": 0.7}, [person]),
        ({"score_threshold": 0.95}, []),
    ]
    with _client(NameDetector()) as client:
        for more, expected in cases:
            assert client.post("/analyze", json={"text": TEXT, "language": "en", **more}).json() == expected
        assert {"PERSON", "DATE_TIME", "CREDIT_CARD"} <= {*client.get("/supportedentities?language=en").json()}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"language": "zz"}, "language: this service reads 'en'"),
        ({"entities": ["PERSON", "UNICORN"]}, "GET /supportedentities"),
        ({"return_decision_process": True}, "return_decision_process: this key is not supported"),
        ({"ad_hoc_recognizers": [{"name": "zip"}]}, "ad_hoc_recognizers: this key is not supported"),
        ({"score_threshold": "high"}, "score_threshold: expected a number"),
    ],
)
def test_what_analyze_cannot_do_it_refuses(client: TestClient, more: dict[str, Any], message: str) -> None:
    answer = client.post("/analyze", json={"text": "5", "language": "en", **more})
    assert (answer.status_code, message in answer.json()["error"]) == (400, True)


def test_analyze_does_not_answer_for_a_text_that_cannot_be_processed(client: TestClient) -> None:
    answer = client.post("/analyze", json={"text": ["5", "broken"], "language": "en"})
    assert answer.status_code == 422
    assert answer.json() == {"error": "not processed, so the content is unknown: engine_error (text 1)"}


JANE = "hello world, my name is Jane Doe. My number is: 034453334"
JANE_RESULTS = [
    {"start": 24, "end": 32, "score": 0.8, "entity_type": "NAME"},
    {"start": 24, "end": 28, "score": 0.8, "entity_type": "FIRST_NAME"},
    {"start": 29, "end": 32, "score": 0.6, "entity_type": "LAST_NAME"},
    {"start": 48, "end": 57, "score": 0.95, "entity_type": "PHONE_NUMBER"},
]
MASKED_END = {"type": "mask", "masking_char": "*", "chars_to_mask": 4, "from_end": True}


def _ours(body: dict[str, Any]) -> dict[str, Any]:
    return AnonymizeRequest.model_validate(body).anonymize()


def _presidio(body: dict[str, Any]) -> dict[str, Any]:
    """Presidio's own service, without its web server."""
    body = json.loads(json.dumps(body))
    operators = AppEntitiesConvertor.operators_config_from_json(body.get("anonymizers"))
    results = AppEntitiesConvertor.analyzer_results_from_json(body["analyzer_results"])
    answer = json.loads(AnonymizerEngine().anonymize(body["text"], results, operators).to_json())
    for item in answer["items"]:
        item.pop("score", None)
    return answer


def test_anonymize_answers_as_presidios_documentation_says() -> None:
    operators = {"DEFAULT": {"type": "replace", "new_value": "ANONYMIZED"}, "PHONE_NUMBER": MASKED_END}
    body = {"text": JANE, "anonymizers": operators, "analyzer_results": JANE_RESULTS}
    phone = {"operator": "mask", "entity_type": "PHONE_NUMBER", "start": 50, "end": 59, "text": "03445****"}
    name = {"operator": "replace", "entity_type": "NAME", "start": 24, "end": 34, "text": "ANONYMIZED"}
    text = "hello world, my name is ANONYMIZED. My number is: 03445****"
    assert _ours(body) == _presidio(body) == {"text": text, "items": [phone, name]}


@pytest.mark.parametrize("scores", [(0.1, 0.9), (0.9, 0.1)])
def test_of_equal_ranges_the_higher_score_names_the_entity(scores: tuple[float, float]) -> None:
    results = [
        {"start": 0, "end": 4, "entity_type": name, "score": score} for name, score in zip("AB", scores, strict=True)
    ]
    body = {"text": "Jane 5", "analyzer_results": results}
    assert _ours(body) == _presidio(body)


def test_a_hash_has_a_fresh_salt_or_the_requested_one() -> None:
    body: dict[str, Any] = {"text": "Jane\ud800", "analyzer_results": [{"start": 0, "end": 5, "entity_type": "A"}]}
    hashes = {_ours({**body, "anonymizers": {"A": {"type": "hash"}}})["text"] for _ in range(3)}
    assert len(hashes) == 3
    assert all(re.fullmatch("[0-9a-f]{64}", one) for one in hashes)
    salted = {"type": "hash", "hash_type": "sha512", "salt": "s" * 16}
    assert len({_ours({**body, "anonymizers": {"A": salted}})["text"] for _ in range(2)}) == 1


SALTED = [{"type": "hash", "hash_type": kind, "salt": "0123456789abcdef"} for kind in ("sha256", "sha512")]
MASKING = st.fixed_dictionaries(
    {
        "type": st.just("mask"),
        "masking_char": st.sampled_from("*#"),
        "chars_to_mask": st.integers(-2, 12),
        "from_end": st.booleans(),
    }
)
OPERATIONS = st.sampled_from([{"type": "redact"}, *SALTED]) | MASKING
OPERATIONS |= st.builds(lambda new: {"type": "replace", "new_value": new}, st.sampled_from(["X", "", "<NEW>"]))


@st.composite
def _bodies(draw: st.DrawFn) -> dict[str, Any]:
    text = draw(st.text("ab é\n", min_size=1, max_size=24))
    scores = draw(st.permutations([0.1 * n for n in range(1, 7)]))
    results = []
    for score in scores[: draw(st.integers(0, 6))]:
        start = draw(st.integers(0, len(text) - 1))
        end = draw(st.integers(start + 1, min(len(text), start + 9)))
        results.append({"start": start, "end": end, "score": score, "entity_type": draw(st.sampled_from("AB"))})
    operators = draw(st.dictionaries(st.sampled_from(["A", "DEFAULT"]), OPERATIONS))
    return {"text": text, "anonymizers": operators, "analyzer_results": results}


def _has_conflict(body: dict[str, Any]) -> bool:
    """Whether entities of two types overlap; documented: we replace them by one, Presidio often by two."""
    places = [(one["entity_type"], one["start"], one["end"]) for one in body["analyzer_results"]]
    return any(a != b and start < to and begin < end for a, start, end in places for b, begin, to in places)


@settings(max_examples=300, deadline=None)
@example(
    {
        "text": "one  \ntwo",
        "anonymizers": {},
        "analyzer_results": [
            {"start": 0, "end": 3, "score": 0.2, "entity_type": "A"},
            {"start": 6, "end": 9, "score": 0.1, "entity_type": "A"},
        ],
    }
)
@given(_bodies())
def test_anonymize_equals_presidios(body: dict[str, Any]) -> None:
    answer = _ours(body)
    if not _has_conflict(body):
        assert answer == _presidio(body)
    # whatever overlaps, no character of an entity is left where all are removed
    removed = _ours({**body, "anonymizers": {"DEFAULT": {"type": "redact"}}})["text"]
    covered = {n for one in body["analyzer_results"] for n in range(one["start"], one["end"])}
    rest = "".join(letter for n, letter in enumerate(body["text"]) if n not in covered)
    assert "".join(removed.split()) == "".join(rest.split())
    for item in answer["items"]:
        assert answer["text"][item["start"] : item["end"]] == item["text"]


# The command.


@contextmanager
def _serving(*options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """``redactory serve-http`` in processes of its own, and its address."""
    command = [sys.executable, "-m", "redactory", "serve-http", "--port", "0", "--json", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REDACTORY_")}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # a test suite in the background of a shell ignores Ctrl-C, and so would its children
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["address"], process
        finally:
            process.kill()


def test_a_presidio_client_changes_its_url_and_a_stop_is_a_good_end() -> None:
    text = "John Smith, john.smith@example.com, born 5 May 1990"
    with _serving() as (address, process):
        answer = requests.post(f"{address}/analyze", json={"text": text, "language": "en"}, timeout=60)
        results = answer.json()
        assert {result["entity_type"] for result in results} == {"PERSON", "EMAIL_ADDRESS", "DATE_TIME"}
        operators = {"DEFAULT": {"type": "replace"}, "EMAIL_ADDRESS": {**MASKED_END, "chars_to_mask": 11}}
        body = {"text": text, "anonymizers": operators, "analyzer_results": results}
        anonymized = requests.post(f"{address}/anonymize", json=body, timeout=60).json()
        assert anonymized["text"] == "<PERSON>, john.smith@***********, born <DATE_TIME>"
        process.send_signal(signal.SIGTERM)
        printed, errors = process.communicate(timeout=60)
        assert process.returncode == 0
    assert "Smith" not in printed + errors
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{address}/health", timeout=5)


@pytest.mark.slow
def test_many_clients_get_what_one_would() -> None:
    names = ["Quirin Ozols", "Anna Kern", "Zebedee Quark", "Priya Raman", "Søren Holm", "Mary Smith"]
    texts = [
        f"{names[n % 6]} called from 555-{n % 97:03}-{1000 + n} about order {n}. It is late." for n in range(1_200)
    ]
    policy = Policy()
    expected = [policy.redact(text) for text in texts]
    assert all(name not in text for name in names for text in expected)
    with _serving("--workers", "2") as (address, process), ThreadPoolExecutor(16) as pool:

        def ask(number: int) -> tuple[Any, Any]:
            with httpx.Client(base_url=address, timeout=120) as client:
                texts_of_one = texts[number::16]
                return (
                    [client.post("/redact", json={"texts": [text]}).json() for text in texts_of_one],
                    client.get("/health").json(),
                )

        answers = list(pool.map(ask, range(16)))
        for number, (masked, health) in enumerate(answers):
            assert masked == [{"texts": [text], "failed": {}} for text in expected[number::16]]
            assert health == {"status": "ok", "policy": policy.hash}
        # every worker knows the counts of all
        metrics = {httpx.get(f"{address}/metrics").text for _ in range(4)}
        assert all('redactory_http_requests_total{path="/redact",status="200"} 1200.0' in page for page in metrics)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert errors == ""


def test_an_engine_that_cannot_load_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.cfg").write_text("[nlp]\nlang = 5\n")
    config = tmp_path / "c.yaml"
    config.write_text(f"detect: {{spacy: {{model: {tmp_path}}}}}\n")
    command = [sys.executable, "-m", "redactory", "serve-http", "--port", "0", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("redactory: detect.spacy.model"), done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--host", "203.0.113.1"), "--host, --port: cannot listen on 203.0.113.1"),
        (("--config", "absent.yaml"), "absent.yaml cannot be read"),
    ],
)
def test_a_service_that_cannot_start_says_why(options: tuple[str, ...], message: str) -> None:
    command = [sys.executable, "-m", "redactory", "serve-http", "--port", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, message in done.stderr) == (2, True)
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_service_ends_with_a_worker_that_dies() -> None:
    with _serving("--workers", "2") as (_, process):
        children = subprocess.run(["pgrep", "-f", "-P", str(process.pid), "spawn_main"], capture_output=True, text=True)
        os.kill(int(children.stdout.split()[0]), signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, "a worker ended unexpectedly" in errors) == (2, True)

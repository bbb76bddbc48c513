"""A small run that may leave, and a real S3 server on this machine for it to leave to."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.detectors import Detection, Span
from tests.pipelines.support import write_rows

NAME = "Zelda Quibble"
"""Stands in a deny list of the configuration, and so in the manifest of the run."""
BUCKET = "shards"
ENGINES: dict[str, Any] = {
    "tagger": None,
    "patterns": None,
    "spacy": {"model": "blank:en"},
    "lists": {"deny": [{"label": "PERSON", "words": [NAME]}]},
}
SAID = ("the parcel came late", "I want my money back", "tell me when it comes", "thank you for that")


class Numbers:
    """π masks numbers."""

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        for text in texts:
            yield Detection(tuple(Span(*m.span(), "NUMBER", 0.9, "digits") for m in re.finditer(r"\d+", text)))


def rows() -> list[dict[str, Any]]:
    """23 documents, a public and a private point each, and one that is private alone."""
    found = [
        {
            "id": f"document-{n}",
            "user_id": f"user-{n % 5}",
            "text": f"{SAID[n % 4]} {'very ' * n}soon\ncall me at 55{n:03d}",
        }
        for n in range(23)
    ]
    return [*found, {"id": "last", "user_id": "user-9", "text": "call 7"}]


def configuration(source: str | Path, **more: Any) -> dict[str, Any]:
    """What makes the run; under a second."""
    return {
        "input": str(source),
        "segment": {"mode": "line"},
        "detect": ENGINES,
        "dedup": {"report_cross_split": False},
        "partition": {"documents": 15},
        **more,
    }


def small_run(folder: Path, **more: Any) -> Path:
    """A finished run of :func:`rows` in ``folder/run``, whose input lies beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    source = write_rows(folder / "letters.jsonl", rows())
    redactory.curate(configuration(source, **more), output=folder / "run", detector=Numbers())
    return folder / "run"


@contextmanager
def s3_server() -> Iterator[str]:
    """The address of a server with one bucket; the environment of this process names it meanwhile."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("AWS_ACCESS_KEY_ID", "tests"),
            ("AWS_SECRET_ACCESS_KEY", "tests"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
            ("AWS_ENDPOINT_URL", address),
        ):
            patch.setenv(name, value)
        boto3.client("s3", endpoint_url=address).create_bucket(Bucket=BUCKET)
        try:
            yield address
        finally:
            server.stop()

"""Leaks that are put in on purpose: each way to tell a Prefect server a text is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.leak_bench import Bench, Step
from tests.flows.leak_corpus import Secret
from tests.flows.leaky import LEAKS, PREFIX
from tests.flows.local_postgres import Postgres
from tests.flows.local_server import Server
from tests.flows.small_job import small_job

pytestmark = pytest.mark.slow


def test_leaks_that_are_put_in_on_purpose_are_found(server: Server, database: Postgres, tmp_path: Path) -> None:
    value = "Wilhelmina {} Featherstone"
    secrets = [Secret(kind, value.format(kind), "", (value.format(kind),)) for kind in LEAKS]
    kept = tmp_path / "kept"
    kept.mkdir()
    made = Bench(tmp_path / "bench", secrets, others=(server.home, kept))
    (made.folder("input") / "corpus.jsonl").touch()
    config = str(small_job(made.folder("input"), "leaky", partition={"documents": 9}))
    assert made.leaks() == []
    silent = ",".join(kind for kind in LEAKS if kind != "exception")
    steps = [
        Step("told", ("curate", config, "--out", "told", "--prefect"), f"{PREFIX}{silent}={value}"),
        Step("raised", ("curate", config, "--out", "raised", "--prefect"), f"{PREFIX}exception={value}", (1,)),
    ]
    made.carry_out("leaky", steps, PREFECT_API_URL=server.url)
    (kept / "database").write_bytes(database.dump())
    found = made.leaks()
    assert [kind for kind in LEAKS if not any(f": {kind} in " in leak for leak in found)] == []

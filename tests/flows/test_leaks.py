"""Not one planted secret in any byte that is written anywhere, whatever fails and whoever orchestrates.

The same at full size, with more kinds of runs, is in ``tests/soak``.
"""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.redaction import RunFolder, list_parts
from tests.flows.leak_bench import LISTED, Bench, Step
from tests.flows.leak_corpus import Secret, planted, write_corpus
from tests.flows.leak_others import DEDUP
from tests.flows.leak_sabotage import break_function
from tests.flows.leak_search import Search, aligned, forms
from tests.flows.leak_steps import (
    CURATION,
    KEEPS_ALL,
    LATER,
    failing_curations,
    failing_first,
    nights_with_a_hook,
    whole_job,
)

SECRETS, SEED = 60, 5
SLOW = ("fit", "fit-policy", "plan")
"""Seconds each: they are among the long tests."""
BROKEN = "redactory.pipelines.curation.stages.examples:redact_examples"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A planted corpus."""
    made = Bench(tmp_path_factory.mktemp("leaks") / "bench")
    secrets, missed = planted(SECRETS, SEED)
    assert missed < SECRETS
    made.secrets = write_corpus(made.folder("input"), secrets, SEED)
    assert len({secret.kind for secret in made.secrets}) > 20
    return made


def test_every_place_that_is_made_to_fail_is_there() -> None:
    for place in (*CURATION, *DEDUP, *(place for places in LATER.values() for place in places)):
        break_function(f"{place}=key")()


def test_every_command_and_every_failure_keeps_the_secrets(bench: Bench) -> None:
    config = bench.configure("job")
    steps = [step for step in whole_job(config, "run") if step.name not in SLOW]
    light = bench.configure("broken", detect=LISTED)
    bench.carry_out("plain", [*failing_first(steps), *failing_curations(light)])
    assert bench.leaks() == []
    assert bench.open_to_others() == []
    assert bench.written_elsewhere() == []


def test_a_hook_and_a_log_get_neither_text_nor_keys(bench: Bench) -> None:
    config = str(bench.configure("night", detect=LISTED, nightly={"approve": "never", "hook": KEEPS_ALL}))
    bench.carry_out("night", nights_with_a_hook(config), REDACTORY_LOG="json")
    told = (bench.folder("work") / "hook.input").read_text()
    assert ('"event": "failed"' in told, '"event": "released"' in told) == (True, True)
    assert "REDACTORY_EVENT=released" in (bench.folder("work") / "hook.environment").read_text()
    assert '"event": "night"' in (bench.folder("logs") / "night" / "night.err").read_text()
    assert bench.leaks() == []


@pytest.mark.slow
def test_a_crash_leaves_no_memory_behind(bench: Bench) -> None:
    config = str(bench.configure("crash", detect=LISTED))
    step = Step("crash", ("curate", config, "--out", "crashed"), f"{BROKEN}=abort")
    assert bench.crash("crash", step) < 0
    lost = Step("lost", ("curate", config, "--out", "lost", "--workers", "2"), f"{BROKEN}=abort", (1,))
    bench.carry_out("lost", [lost])
    assert bench.leaks() == []


@pytest.mark.slow
def test_nothing_reaches_an_orchestrator(bench: Bench) -> None:
    """With debug logging, also into its database, and no server but the one that it brings.

    Clusters, alone and as tasks of a flow, are in the long tests.
    """
    config = str(bench.configure("prefect", detect=LISTED))
    bench.carry_out(
        "prefect",
        [
            Step("bad", ("curate", config, "--out", "bad", "--prefect"), f"{BROKEN}=chained", (1,)),
            Step("flow", ("curate", config, "--out", "flow", "--prefect")),
            Step("plain", ("curate", config, "--out", "plain")),
        ],
        # it writes a line for each row that the server reads: in the long tests
        LEAK_QUIET="aiosqlite",
    )
    home = bench.folder("work") / "bad" / "state" / "prefect"
    with sqlite3.connect(f"file:{home / 'prefect.db'}?mode=ro", uri=True) as database:
        states = {name for (name,) in database.execute("SELECT state_type FROM flow_run")}
        logs = database.execute("SELECT count(*) FROM log").fetchone()[0]
    assert states == {"FAILED", "COMPLETED"}
    assert logs > 0
    assert bench.leaks() == []
    assert bench.written_elsewhere() == []
    assert _data(bench.folder("work") / "flow") == _data(bench.folder("work") / "plain")


def _data(run: Path) -> list[bytes]:
    return [part.read_bytes() for folder in RunFolder(run).data_folders for part in list_parts(folder)]


# ------------------------------------------------------------------ that a leak would be found


@given(st.text(min_size=8, max_size=24), st.binary(max_size=7), st.binary(max_size=7))
def test_base64_is_found_at_every_alignment(value: str, before: bytes, after: bytes) -> None:
    try:
        data = value.encode()
    except UnicodeEncodeError:
        return
    assert aligned(data, len(before) % 3) in base64.b64encode(before + data + after)


def test_every_form_is_found_wherever_it_stands(tmp_path: Path) -> None:
    value = "Zoë Quillfeather <zoë@example.com>"
    search = Search([value, "another one"])
    for name, data in forms(value).items():
        (tmp_path / "file").write_bytes(b"before " + data + b" after")
        assert {hit[0] for hit in search.in_file(tmp_path / "file")} == {value}, name
    (tmp_path / "file").write_bytes(base64.encodebytes(b"x" * 50 + pickle.dumps({"a": [value]})))
    assert search.in_file(tmp_path / "file")
    wrapped = base64.encodebytes(b"x" * 50 + value.encode()).decode()
    (tmp_path / "file").write_text(json.dumps({"result": wrapped}))
    assert search.in_file(tmp_path / "file")
    (tmp_path / "file").write_bytes(gzip.compress(value.encode()))
    assert search.in_file(tmp_path / "file")
    pq.write_table(pa.table({"a": [value]}), tmp_path / "file", compression="zstd")
    assert search.in_file(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"nothing here")
    assert not search.in_file(tmp_path / "file")
    (tmp_path / value.split(" <")[0]).touch()
    assert Search([value.split(" <")[0]]).below(tmp_path)


def test_a_value_in_pieces_in_a_database_is_found(tmp_path: Path) -> None:
    value = "Zephyrine Quillfeather " * 10
    with sqlite3.connect(tmp_path / "db") as database:
        database.execute("CREATE TABLE t (a TEXT)")
        for shift in range(3000, 4200, 100):
            database.execute("INSERT INTO t VALUES (?)", ("x" * shift + value,))
    search = Search([value])
    assert search.in_file(tmp_path / "db")


@pytest.mark.parametrize(
    ("place", "allowed"),
    [
        ("home/.cache/x", False),
        ("tmp/x", False),
        ("logs/plain.err", False),
        ("input/x", True),
        ("work/core", False),
        ("work/run/public/part-00000.parquet", False),
        ("work/run/private/part-00000.parquet", False),
        ("work/run/vault/part-00000.parquet", True),
        ("work/run/quarantine/part-00000.parquet", True),
        ("work/run/audit/spans/part-00000.parquet", False),
        ("work/run/manifest.json", False),
        ("work/run/report.html", False),
        ("work/run/models/crt/tokenizer.json", False),
        ("work/run/state/journal.jsonl", False),
        ("work/run/state/recall/result.json", False),
        ("work/run/state/prefect/storage/x", False),
        ("work/run/state/traceback-1.txt", True),
        ("work/run/state/work/examples/part-00000.parquet", True),
        ("work/run/state/samples/sample/sample.jsonl", True),
    ],
)
def test_a_leak_is_told_from_a_private_place(place: str, allowed: bool, tmp_path: Path) -> None:
    made = Bench(tmp_path / "bench", [Secret("person", "Zephyrine Quillfeather", "", ("Zephyrine Quillfeather",))])
    path = made.root / place
    (made.root / "work" / "run" / "state").mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("Zephyrine Quillfeather")
    assert (made.leaks() == []) is allowed
    if not allowed:
        assert made.leaks() == [f"{place}: person in utf-8 (1)"]

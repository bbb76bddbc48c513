"""Prefect: the same shards, and nothing of the text in anything that it stores or prints."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import urllib.parse
from pathlib import Path

import redactory
from redactory.redaction import RunFolder, parts

SECRET = "Zephyrine Quillfeather"
PRIVATE_PARTS = ("private", "vault", "quarantine", "state")

FAILING = """
import logging
logging.basicConfig(level=logging.DEBUG)
import redactory.pipelines.stages.redact as module
import redactory.pipelines.stages as stages
def broken(job, partition):
    import pyarrow.parquet as pq
    text = pq.read_table(job.part("points", partition))["text"].to_pylist()[0]
    raise ValueError(f"cannot redact {text}")
broken.__module__ = "redactory.pipelines.stages.redact"
module.redact_part = stages.redact_part = broken
from redactory.flows import prefect_flows
from redactory.pipelines.maps import timed
class Here:
    # the processes of a real run would import the unbroken stage
    def submit(self, work, *args):
        from concurrent.futures import Future
        future = Future()
        try: future.set_result(work(*args))
        except Exception as error: future.set_exception(error)
        return future
from contextlib import contextmanager
@contextmanager
def pool(workers): yield Here()
prefect_flows.process_pool = pool
from redactory.flows.cli import main
main()
"""


def _environment(home: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    return {**kept, "HOME": str(home), "TMPDIR": str(home)}


def _forms(secret: str) -> list[bytes]:
    plain = secret.encode()
    encoded = [base64.b64encode(b"x" * shift + plain)[4:-4] for shift in range(3)]
    return [plain, secret.encode("utf-16-le"), urllib.parse.quote(secret).encode(), *encoded]


def test_a_failing_task_leaks_nothing(tmp_path: Path) -> None:
    corpus, out, home = tmp_path / "rows.jsonl", tmp_path / "run", tmp_path / "home"
    home.mkdir()
    corpus.write_text(json.dumps({"id": "1", "text": f"My name is {SECRET}."}) + "\n")
    (tmp_path / "failing.py").write_text(FAILING)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "failing.py"), "curate", str(corpus), "--out", str(out), "--prefect"],
        capture_output=True,
        text=True,
        check=False,
        env=_environment(home),
    )
    assert done.returncode == 1, done.stderr
    assert "ValueError" in done.stderr
    assert SECRET.split()[0] not in done.stdout + done.stderr
    sealed = list((out / "state").glob("traceback-*.txt"))
    assert any(SECRET in p.read_text() for p in sealed)
    home_of_prefect = out / "state" / "prefect"
    assert (home_of_prefect / "prefect.db").is_file()
    searched = [p for p in tmp_path.rglob("*") if p.is_file() and p != corpus]
    allowed = {
        p for p in searched if p.relative_to(tmp_path).parts[:2] in {("run", part) for part in PRIVATE_PARTS}
    }
    orchestrator = {p for p in allowed if home_of_prefect in p.parents}
    for path in (set(searched) - allowed) | orchestrator:
        content = path.read_bytes()
        assert not [form for form in _forms(SECRET) if form in content], path.relative_to(tmp_path)


def test_the_flow_writes_the_same_shards(corpus: Path, curated: Path, tmp_path: Path) -> None:
    config = {"input": str(corpus), "segment": {"mode": "turn"}, "partition": {"documents": 25}}
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    (tmp_path / "home").mkdir()
    code = "from redactory.flows.cli import main; main()"
    arguments = ["curate", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "run"), "--prefect", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=_environment(tmp_path / "home"),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 60
    plain, flow = RunFolder(curated), RunFolder(tmp_path / "run")
    for ours, theirs in zip(plain.data_folders, flow.data_folders, strict=True):
        assert [p.read_bytes() for p in parts(ours)] == [p.read_bytes() for p in parts(theirs)]
    assert redactory.verify(tmp_path / "run")["ok"]

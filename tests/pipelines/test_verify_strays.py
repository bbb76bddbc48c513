"""Verify finds what lies in a run and is not of it, and what was measured of the shards and changed since."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.evaluation.report import write_report
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed
from redactory.foundation.files import is_held, only_one
from redactory.pipelines.checks import Check, Seen, checked
from redactory.pipelines.evaluate_detection import known_since
from redactory.pipelines.label import keep_recall, kept_recall
from redactory.pipelines.share import sums_text
from redactory.pipelines.verify import OF_A_RUN
from redactory.redaction import RunFolder, read_manifest, seal
from tests.pipelines.leaving import small_run

ONE_DAY = datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a finished folder of a model and of an evaluation, and measured misses."""
    run = RunFolder(small_run(tmp_path_factory.mktemp("strays")))
    shares = {"misses": 1, "rate": 0.1, "upper": 0.2}
    misses = {"n": 10, "confidence": 0.95, "joint_confidence": 0.9, "gamma": shares, "delta_2": shares}
    left = {"labels": {}, "secrets": 10, "left_public": 0, "left_private": 0}
    result = {"secrets": 20, "misses": misses, "left": left, "date": "2021-11-02"}
    keep_recall(run, result)
    assert kept_recall(run) == result
    model = run.model("crt")
    for folder in (model, model.result("perplexity")):
        folder.root.mkdir(parents=True, exist_ok=True)
        (folder.root / "result.json").write_text("{}")
        seal(folder, {"parent": file_sha256(run.manifest)}, [folder.root / "result.json"])
    for page in (model.report, model.measured, run.lock):
        page.write_text("")
    run.samples.mkdir()
    (run.samples / "labels.jsonl").write_text("anything")
    return run.root


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(made, tmp_path / "run")))


def found_by(name: str, run: RunFolder, **manifest: Any) -> Check:
    seen = Seen(run.root)
    seen.manifest = {**read_manifest(run), **manifest}
    [found] = checked(seen, OF_A_RUN, [name])
    return found


def strays(run: RunFolder) -> Check:
    return found_by("no stray files", run)


def modes(run: RunFolder) -> Check:
    return found_by("modes", run)


def put(run: RunFolder, name: str) -> Path:
    path = run.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    return path


def test_a_true_run_holds_no_stray(made: Path) -> None:
    found = strays(RunFolder(made))
    assert (found.ok, found.made) == (True, True), found.detail
    sealed = found_by("measured", RunFolder(made))
    assert sealed.ok, sealed.detail


@pytest.mark.parametrize(
    "name",
    [
        *("secret.txt", "guarantee.json", "GUARANTEE/card.json", "public/notes.txt", "private/a/b"),
        *("audit/extra.json", "audit/spans/notes", "vault/part-09999.parquet", "manifest.json.bak"),
        *("models/readme.txt", "models/crt2/guarantee.json", "models/crt/secret.txt", "models/crt/x/y/z"),
        *("models/crt/membership/result.json", "models/crt/perplexity/note.md", ".hidden", "_SUCCESS.old"),
        *("public/.tmp-1-part-00000.parquet", ".tmp-1-secret.txt", "models/crt/.tmp-x-manifest.json"),
        # what a killed process left of a file is no part of a run either
        *(".tmp-1-README.md", ".tmp-12-report.html", "models/crt/.tmp-3-MEASURED.md"),
    ],
)
def test_a_file_that_nobody_declared_fails_by_its_name(copy: RunFolder, name: str) -> None:
    put(copy, name)
    found = strays(copy)
    assert not found.ok
    assert found.detail.startswith(f"{name}: ")


def test_a_mode_that_lets_others_in_fails(copy: RunFolder) -> None:
    assert modes(copy).ok, modes(copy).detail
    others = {"public/part-00000.parquet": 0o664, "vault/part-00000.parquet": 0o644, "manifest.json": 0o4600}
    for name, mode in {**others, "audit": 0o755, "state": 0o711, "quarantine": 0o701}.items():
        before = (copy.root / name).stat().st_mode
        (copy.root / name).chmod(mode)
        found = modes(copy)
        assert (found.ok, found.detail.startswith(f"{name} ({mode:04o}): ")) == (False, True)
        (copy.root / name).chmod(before)


def test_an_unknown_file_in_the_state_is_told_and_leaves_the_check_open(copy: RunFolder) -> None:
    for name in ("state/notes.txt", "state/recall/more.json"):
        put(copy, name)
    found = strays(copy)
    assert (found.ok, found.made) == (True, False)
    assert "state/notes.txt" in found.detail
    assert "state/recall/more.json" in found.detail


def test_a_training_at_work_leaves_the_check_open_and_may_not_promise_yet(copy: RunFolder) -> None:
    put(copy, "models/next/ledger.jsonl")
    put(copy, "state/train-next.key")
    put(copy, "state/train-next.checkpoint")
    found = strays(copy)
    assert (found.ok, found.made) == (True, False)
    assert found.detail.startswith(
        "models/next is not finished: none of it is checked; state/ holds 1 sample"
    )
    put(copy, "models/next/guarantee.json")
    assert not strays(copy).ok


@pytest.mark.parametrize("name", ["recall", "redaction", "gate"])
def test_figures_without_a_seal_fail(copy: RunFolder, name: str) -> None:
    shutil.rmtree(copy.recall.root)
    put(copy, f"state/{name}/.tmp-1-result.json")
    assert not strays(copy).ok
    shutil.rmtree(copy.state / name)
    assert strays(copy).ok
    put(copy, f"state/{name}/result.json")
    assert strays(copy).detail.startswith(f"state/{name}/result.json (not sealed): ")


def test_what_work_left_is_told_unless_it_goes_on(copy: RunFolder) -> None:
    left = ["state/dask/x", "state/staging/x", "state/train-crt.key", "state/train-old.checkpoint"]
    for name in (*left, "state/work/x"):
        put(copy, name)
    found = strays(copy)
    assert (found.ok, found.made) == (True, False)
    named = ", ".join(sorted([*left, "state/work/x"]))
    assert found.detail.startswith(f"{named} is no work that goes on: none of it is checked")
    with only_one(copy.lock, "a run"):
        assert is_held(copy.lock)
        assert strays(copy).made
    assert not is_held(copy.lock)


def test_what_no_digest_covers_is_counted(copy: RunFolder) -> None:
    put(copy, "state/traceback-1.txt")
    told = "state/ holds 1 sample with original text, 1 traceback that can quote it, which no digest covers"
    assert strays(copy).detail.endswith(told)
    shutil.rmtree(copy.samples)
    copy.tracebacks()[0].unlink()
    assert strays(copy).detail == "the run holds nothing but what it declares"


def test_a_manifest_that_lists_a_stray_does_not_make_it_the_runs(copy: RunFolder) -> None:
    path = put(copy, "models/crt2/guarantee.json")
    manifest = read_manifest(copy)
    manifest["files"]["models/crt2/guarantee.json"] = {"sha256": file_sha256(path), "bytes": 2}
    assert not found_by("no stray files", copy, files=manifest["files"]).ok


def test_the_sums_of_a_fetched_run_say_what_the_manifest_says(copy: RunFolder) -> None:
    digests = {name: entry["sha256"] for name, entry in read_manifest(copy)["files"].items()}
    digests["manifest.json"] = file_sha256(copy.manifest)
    copy.sums.write_text(sums_text(digests | {"report.html": "0" * 64}))
    assert strays(copy).ok
    copy.sums.write_text(sums_text(digests | {"public/part-00000.parquet": "0" * 64}))
    assert "SHA256SUMS (it says another sha256 of public/part-00000.parquet)" in strays(copy).detail
    for more in (f"{'0' * 64}  nobody.txt\n", f"{'0' * 64}  public/part-00000.parquet\n", "anything"):
        copy.sums.write_text(sums_text(digests) + more)
        assert not strays(copy).ok


def _change(run: RunFolder) -> None:
    path = run.recall.root / "result.json"
    value: dict[str, Any] = json.loads(path.read_text())
    value["misses"]["gamma"]["misses"] = 0
    path.write_text(json.dumps(value))


def _of_another_run(run: RunFolder) -> None:
    seal(run.recall, {"parent": "0" * 64}, [run.recall.root / "result.json"])


@pytest.mark.parametrize(
    ("change", "told"), [(_change, "result.json: sha256 differs"), (_of_another_run, "of another run")]
)
def test_measured_misses_that_were_changed_fail(
    copy: RunFolder, change: Callable[[RunFolder], None], told: str
) -> None:
    change(copy)
    found = found_by("measured", copy)
    assert (found.ok, told in found.detail) == (False, True)


def test_no_guarantee_rests_on_misses_that_were_changed(copy: RunFolder) -> None:
    _change(copy)
    with pytest.raises(CheckFailed, match="not as it was sealed"):
        kept_recall(copy)


def test_what_is_measured_again_keeps_the_day_of_the_first_time(made: Path) -> None:
    run = RunFolder(made)
    result = {key: value for key, value in (kept_recall(run) or {}).items() if key != "date"}
    assert known_since(run, result) == "2021-11-02"
    today = datetime.datetime.now(datetime.UTC).date()
    assert today - datetime.date.fromisoformat(known_since(run, {**result, "secrets": 21})) <= ONE_DAY


@pytest.fixture
def no_rescan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engines look at texts, not at files, and take seconds to load."""
    monkeypatch.setitem(OF_A_RUN, "re-scan of public", lambda _: "left out")


@pytest.mark.usefixtures("no_rescan")
def test_a_card_that_says_something_else_fails(copy: RunFolder) -> None:
    copy.card.write_text(copy.card.read_text().replace("everything else", "nothing else"))
    manifest = read_manifest(copy)
    listed = manifest.pop("files")
    seal(copy, manifest, [copy.root / name for name in listed])
    for path in (copy.recall.root, copy.models):
        shutil.rmtree(path, ignore_errors=True)
    write_report(copy)
    failed = [check for check in redactory.verify(copy.root)["checks"] if not check["ok"]]
    assert [(check["name"], "README.md" in check["detail"]) for check in failed] == [("report", True)]


@pytest.mark.usefixtures("no_rescan")
def test_what_is_no_part_fails_the_checks_that_read_it_and_nothing_is_written(copy: RunFolder) -> None:
    shutil.rmtree(copy.models)
    put(copy, "public/part-00009.parquet").write_text("junk")
    before = {path: path.read_bytes() for path in copy.root.rglob("*") if path.is_file()}
    checks = {check["name"]: check for check in redactory.verify(copy.root)["checks"]}
    assert {path: path.read_bytes() for path in copy.root.rglob("*") if path.is_file()} == before
    assert not checks["no stray files"]["ok"]
    assert checks["no mask in public"]["detail"] == "public/part-00009.parquet cannot be read"
    assert not checks["point ids"]["ok"]
    assert all(checks[name]["ok"] for name in ("files", "journal", "measured"))

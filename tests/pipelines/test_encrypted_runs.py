"""Encrypted and signed runs through the real pipeline: every command works with the keys, none without."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyarrow.parquet.encryption import create_decryption_properties

import redactory
from redactory.detectors import Detection
from redactory.foundation.errors import CheckFailed, ConfigurationError, RedactoryError, RunStateError, SealedError
from redactory.foundation.keys import create_key_file, load_digest_key
from redactory.foundation.records import RecordLog
from redactory.pipelines.curation.error_sealing import run_with_sealed_traceback
from redactory.redaction import (
    RunFolder,
    find_run_key,
    get_or_create_run_key,
    is_encrypted,
    list_parts,
    read_column,
    read_manifest,
    read_part,
    read_secret,
    seal_folder,
)
from redactory.redaction.shards import compute_keyed_digest, compute_table_digest
from redactory.training.mechanisms.ledger import begin_or_resume_stream
from tests.pipelines.support import (
    DigitDetector,
    invoke_command,
    leave_out_rescan,
    list_failed_checks,
    read_files,
    run_checks,
    write_rows,
)

ENCRYPTION, SIGNING = "REDACTORY_ENCRYPTION_KEY_FILE", "REDACTORY_SIGNING_KEY_FILE"
NAMES = ("ann", "bob")
TRAINING = {"epochs": 1, "sampling_rate": 0.25, "noise_multiplier": 1.0, "model": {"embedding_size": 8}}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two people's encryption keys, and two signing keys."""
    folder = tmp_path_factory.mktemp("keys")
    for name in NAMES:
        create_key_file("encryption", folder / f"{name}.key")
        create_key_file("signing", folder / f"{name}.sign")
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(autouse=True)
def _configured(keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENCRYPTION, str(keys["ann.key"]))
    monkeypatch.setenv(SIGNING, str(keys["ann.sign"]))


@pytest.fixture(scope="module")
def config(corpus: Path) -> dict[str, Any]:
    return {
        "input": str(corpus),
        "segment": {"mode": "turn"},
        "partition": {"documents": 25},
        "train": TRAINING,
        "evaluate": {"test": [str(corpus)], "canaries": f"{corpus}.canaries.json"},
    }


@pytest.fixture(scope="module")
def whole(config: dict[str, Any], keys: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encrypted and signed run: curated, sampled for people to label, trained on, evaluated."""
    run = tmp_path_factory.mktemp("whole") / "run"
    # not longer than for this run: fixtures of the session must not become encrypted
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENCRYPTION, str(keys["ann.key"]))
        patch.setenv(SIGNING, str(keys["ann.sign"]))
        redactory.curate(config, output=run)
        redactory.label_random(run, 20, seed=1)
        redactory.train(config, output=run)
        redactory.evaluate_canary(run)
    return run


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.fixture
def no_rescan(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_rescan(monkeypatch)


@pytest.mark.parametrize("variable", [ENCRYPTION, SIGNING, "REDACTORY_KEY_FILE", "REDACTORY_KEY_SERVICE"])
def test_a_key_that_is_none_is_told_before_anything_is_written(
    curated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [{"id": "a", "text": "A text."}])
    trained = Path(shutil.copytree(curated, tmp_path / "curated"))
    for other in ("REDACTORY_KEY", ENCRYPTION):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "nope.key"))
    work: list[Callable[[], object]] = [
        lambda: redactory.curate({"input": str(rows)}, output=tmp_path / "run", detector=DigitDetector()),
        lambda: redactory.nightly({"input": str(rows)}, output=tmp_path / "run"),
        lambda: redactory.train({"input": str(rows), "segment": {"mode": "line"}, "train": {}}, output=trained),
    ]
    for one in work:
        with pytest.raises(ConfigurationError, match=variable):
            one()
        assert not (tmp_path / "run").exists()
        assert not RunFolder(trained).models.exists()


def test_an_encrypted_run_holds_what_an_open_one_holds(whole: Path, curated: Path) -> None:
    closed, opened = RunFolder(whole), RunFolder(curated)
    listed, key = read_manifest(closed)["files"], load_digest_key()
    for one, other in zip(closed.data_folders, opened.data_folders, strict=True):
        assert [path.name for path in list_parts(one)] == [path.name for path in list_parts(other)]
        for path, same in zip(list_parts(one), list_parts(other), strict=True):
            name = path.relative_to(whole).as_posix()
            assert is_encrypted(path) == (one != closed.public)
            assert read_part(path).equals(read_part(same)), name
            content = compute_keyed_digest(key, name, compute_table_digest(read_part(same)))
            assert listed[name].get("content") == (content if one != closed.public else None)
    assert [p.read_bytes() for p in list_parts(closed.public)] == [p.read_bytes() for p in list_parts(opened.public)]


def test_no_private_text_lies_open(whole: Path, curated: Path) -> None:
    """Samples are drawn for people to read; nothing else may show a masked text or an original one."""
    run = RunFolder(whole)
    sample = {json.loads(line)["text"] for line in run.get_sample_folder("sample").rows.read_text().splitlines()}
    assert sample <= {*read_column(run.vault, "text")}
    private = {*read_column(run.vault, "text"), *read_column(run.private, "text")} - {*read_column(run.public, "text")}
    texts = {text.encode() for text in private if len(text) >= 20}
    assert len(texts) > 100
    key = find_run_key(run.vault / "part")
    assert key is not None
    secrets = {key.secret, key.secret.hex().encode(), base64.b64encode(key.secret)}
    for path, data in read_files(whole).items():
        assert not any(secret in data for secret in secrets), path
        if run.get_sample_folder("sample").root not in path.parents:
            assert not any(text in data for text in texts), path
        assert path.stat().st_mode & 0o077 == 0 or run.public in path.parents, path


@pytest.mark.parametrize("command", ["train", "label", "evaluate"])
def test_whatever_needs_the_private_part_is_refused_without_the_key(
    copy: Path, config: dict[str, Any], keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    work: dict[str, Callable[[], object]] = {
        "train": lambda: redactory.train(config, output=copy, name="another"),
        "label": lambda: redactory.label_random(copy, 20, name="another"),
        "evaluate": lambda: redactory.evaluate_canary(copy),
    }
    monkeypatch.delenv(ENCRYPTION)
    with pytest.raises(ConfigurationError, match="set REDACTORY_ENCRYPTION_KEY_FILE"):
        work[command]()
    monkeypatch.setenv(ENCRYPTION, str(keys["bob.key"]))
    with pytest.raises(CheckFailed, match="is not the run's"):
        work[command]()
    RunFolder(copy).data_key.unlink()
    with pytest.raises(RunStateError, match="data key was shredded or lost"):
        work[command]()


@pytest.mark.usefixtures("no_rescan")
def test_verify_says_what_it_left_out(copy: Path, keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    complete = run_checks(copy, public_key=keys["ann.sign.pub"])
    assert all(check["ok"] and check["made"] for check in complete.values()), complete
    assert "model crt" in complete
    needing = {"encryption", "conservation", "example ids", "whole documents", "values masked elsewhere", "report"}
    monkeypatch.delenv(ENCRYPTION)
    found = run_checks(copy)
    assert {name for name, check in found.items() if not check["made"]} == needing | {"signature"}
    assert not list_failed_checks(copy)
    assert found["re-scan of public"]["made"]
    assert "REDACTORY_ENCRYPTION_KEY" in found["encryption"]["detail"]
    assert "--public-key" in found["signature"]["detail"]
    monkeypatch.setenv(ENCRYPTION, str(keys["bob.key"]))
    assert list_failed_checks(copy) == {"encryption"}
    monkeypatch.setenv(ENCRYPTION, str(keys["ann.key"]))
    monkeypatch.setenv("REDACTORY_KEY", "another key than that of this run")
    found = run_checks(copy)
    assert found["encryption"]["ok"]
    assert "not compared" in found["encryption"]["detail"]
    RunFolder(copy).data_key.unlink()
    assert list_failed_checks(copy) == {"encryption"}


def reseal(run: RunFolder, **changes: Any) -> None:
    """What a forger would do after changing a file: make the digests right again."""
    manifest = {**read_manifest(run), **changes}
    for key in ("files", "signed_by"):
        manifest.pop(key, None)
    seal_folder(run, manifest, [*(p for f in run.data_folders for p in list_parts(f)), run.card])


def exchange_parts(run: RunFolder, name: str) -> None:
    one, other = list_parts(run.root / name)[:2]
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    reseal(run)


def cut_shard(run: RunFolder) -> None:
    path = list_parts(run.public)[0]
    pq.write_table(read_part(path).slice(1), path)
    reseal(run)


@pytest.mark.parametrize(
    ("forge", "expected"),
    [
        *(
            (lambda run, name=name: exchange_parts(run, name), {"journal", "encryption"})
            for name in ("private", "vault", "audit/spans", "quarantine")
        ),
        # the journal binds each ledger to its shards: neither can be exchanged alone
        (cut_shard, {"journal"}),
        (lambda run: reseal(run, encrypted=False), {"encryption"}),
    ],
)
@pytest.mark.usefixtures("no_rescan")
def test_forgeries_with_right_digests_fail(copy: Path, forge: Callable[[RunFolder], None], expected: set[str]) -> None:
    forge(RunFolder(copy))
    failed = list_failed_checks(copy)
    assert "files" not in failed
    assert expected <= failed


class Dying(DigitDetector):
    """Fails in the last partition, quoting the text."""

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        for text, found in zip(texts, super().detect(texts), strict=False):
            if "there 25" in text:
                raise ValueError(f"cannot read {text}: Rosalind Marlowe")
            yield found


@pytest.fixture
def small(tmp_path: Path) -> dict[str, Any]:
    """A configuration of a small corpus in three partitions."""
    rows = [
        {"id": f"d{i}", "user_id": f"u{i % 4}", "text": f"Hello there {i}. Rosalind Marlowe says {i % 7}. broken"}
        for i in range(30)
    ]
    source = write_rows(tmp_path / "rows.jsonl", [*rows, {"text": 3}])
    return {"input": str(source), "partition": {"documents": 10}}


def contents(run: Path) -> dict[str, Any]:
    """Of every part the digest that does not depend on a key drawn for the run."""
    files = read_manifest(RunFolder(run))["files"]
    return {name: e.get("content", e["sha256"]) for name, e in files.items() if name.endswith(".parquet")}


@pytest.mark.slow
def test_a_killed_run_leaves_nothing_open_and_can_be_resumed(
    small: dict[str, Any], tmp_path: Path, keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    with pytest.raises(SealedError, match="traceback-"):
        redactory.curate(small, output=run, detector=Dying())
    # its key may be rotated amid the work
    redactory.rotate_key(run, to_key_file=keys["bob.key"])
    with pytest.raises(CheckFailed, match="is not the run's"):
        redactory.curate(small, output=run, detector=DigitDetector(), resume=True)
    monkeypatch.setenv(ENCRYPTION, str(keys["bob.key"]))
    state = RunFolder(run).state
    work = [path for path in RunFolder(run).work.rglob("*") if path.is_file()]
    assert {path.suffix for path in work} == {".parquet", ".npy"}
    assert all(is_encrypted(path) for path in work if path.suffix == ".parquet")
    (traceback,) = state.glob("traceback-*.txt")
    assert b"Rosalind" in read_secret(traceback)
    assert not [path for path, data in read_files(run).items() if b"Rosalind" in data]
    redactory.curate(small, output=run, detector=DigitDetector(), resume=True, workers=2)
    redactory.curate(small, output=undisturbed, detector=DigitDetector())
    assert contents(run) == contents(undisturbed)
    one, other = (read_manifest(RunFolder(folder))["files"] for folder in (run, undisturbed))
    assert all((one[name] == other[name]) == name.startswith("public/") for name in contents(run))
    assert not RunFolder(run).work.exists()


def test_an_open_run_is_not_resumed_as_an_encrypted_one_nor_the_other_way(
    small: dict[str, Any], tmp_path: Path, keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def resumed(run: Path, error: type[RedactoryError], match: str) -> None:
        before = {path: path.stat().st_mtime_ns for path in run.rglob("*.parquet")}
        with pytest.raises(error, match=match):
            redactory.curate(small, output=run, detector=DigitDetector(), resume=True)
        assert {path: path.stat().st_mtime_ns for path in run.rglob("*.parquet")} == before
        assert "Rosalind" not in "".join(p.read_text() for p in run.rglob("traceback-*") if p not in known)

    closed, opened = tmp_path / "closed", tmp_path / "open"
    known: set[Path] = set()
    with pytest.raises(SealedError):
        redactory.curate(small, output=closed, detector=Dying())
    monkeypatch.delenv(ENCRYPTION)
    with pytest.raises(SealedError):
        redactory.curate(small, output=opened, detector=Dying())
    known |= {*opened.rglob("traceback-*"), *closed.rglob("traceback-*")}
    # the control of the leak search: without a key the same traceback shows the text
    assert any(b"Rosalind" in path.read_bytes() for path in opened.rglob("traceback-*"))
    resumed(closed, ConfigurationError, "is encrypted: set")
    monkeypatch.setenv(ENCRYPTION, str(keys["bob.key"]))
    resumed(closed, CheckFailed, "is not the run's")
    resumed(opened, RunStateError, "was started without encryption")
    monkeypatch.setenv(ENCRYPTION, str(keys["ann.key"]))
    RunFolder(closed).data_key.unlink()
    resumed(closed, RunStateError, "is missing")


@pytest.fixture
def keyed(tmp_path: Path) -> RunFolder:
    """A run folder with a data key and nothing else."""
    run = RunFolder(tmp_path / "keyed")
    run.state.mkdir(parents=True)
    get_or_create_run_key(run, has_data=False)
    return run


def test_a_traceback_is_encrypted_or_not_written(keyed: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("Rosalind")

    with monkeypatch.context() as patch:
        patch.delenv(ENCRYPTION)
        with pytest.raises(SealedError, match="was not written") as caught:
            run_with_sealed_traceback(keyed.state, fail)
    assert "Rosalind" not in str(caught.value)
    assert not list(keyed.state.glob("traceback-*"))
    # nor is the root key of a training
    root_key = keyed.get_root_key_path("crt")
    with RecordLog(keyed.get_model_folder("crt").ledger) as log:
        stream = begin_or_resume_stream(log, {"parent": "x"}, root_key, None)
        assert stream.root not in root_key.read_bytes()
        assert begin_or_resume_stream(log, {"parent": "x"}, root_key, None) == stream
    with pytest.raises(SealedError):
        run_with_sealed_traceback(keyed.state, fail)
    (file,) = keyed.state.glob("traceback-*.txt")
    assert b"Rosalind" not in file.read_bytes()
    assert "ValueError: Rosalind" in invoke_command("keys", "unwrap", file).stdout


def test_the_data_key_opens_the_parts_in_other_programs(whole: Path, curated: Path, tmp_path: Path) -> None:
    file = tmp_path / "data.key"
    done = invoke_command("keys", "unwrap", whole, "--data-key", file)
    assert done.exit_code == 0, done.output
    assert file.read_text().strip() not in done.output
    assert file.stat().st_mode & 0o777 == 0o600
    opened = create_decryption_properties(base64.b64decode(file.read_text()))
    path = list_parts(RunFolder(whole).vault)[0]
    table = pq.read_table(path, decryption_properties=opened)
    assert table.equals(read_part(path))
    assert isinstance(invoke_command("keys", "unwrap", whole, "--data-key", file).exception, ConfigurationError)
    assert isinstance(invoke_command("keys", "unwrap", curated, "--data-key", tmp_path / "b").exception, RunStateError)

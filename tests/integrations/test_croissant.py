"""Croissant metadata: Croissant's own library takes it, reads the rows by it, and finds what was changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlcroissant
import pytest

import redactory
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.foundation.keys import new_key
from redactory.redaction import RunFolder, read_manifest
from tests.integrations.sides import SIDES, rows_of, run_of
from tests.pipelines.leaving import NAME

MORE = {
    "license": "https://spdx.org/licenses/CC-BY-4.0.html",
    "url": "https://example.org/letters",
    "creator": "Letters, Inc.",
    "citeAs": "Letters, Inc. (2026). Letters.",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("croissant"))


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    return Path(redactory.export(run, run.parent / "shards")["to"])


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where mlcroissant would keep what it fetches."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def records(dataset: mlcroissant.Dataset, side: str) -> list[dict[str, Any]]:
    """The rows of a record set, its fields by the names of the columns, bytes as text."""
    return [
        {field.removeprefix(f"{side}/"): _plain(value) for field, value in record.items()}
        for record in dataset.records(side)
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, str) else [_plain(own) for own in value]


def test_the_file_of_an_export_is_valid_and_leads_to_its_rows(run: Path, exported: Path) -> None:
    dataset = mlcroissant.Dataset(exported / "croissant.json")
    assert not dataset.metadata.issues.errors
    assert [own.name for own in dataset.metadata.record_sets] == ["public"]
    assert records(dataset, "public") == rows_of(run, "public")


def test_every_shard_is_there_with_the_digest_of_the_manifest(run: Path, exported: Path) -> None:
    metadata = mlcroissant.Dataset(exported / "croissant.json").metadata
    said = {own.content_url: own.sha256 for own in metadata.file_objects}
    assert said == {f"public/{path.name}": file_sha256(path) for path in (run / "public").iterdir()}
    assert metadata.name == "run"
    assert metadata.version == "1.0.0"
    assert metadata.date_published is not None


def test_verify_finds_a_file_that_says_something_else(exported: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(exported, tmp_path / "copy"))
    path, manifest = copy / "croissant.json", json.loads((copy / "manifest.json").read_text())
    path.write_text(path.read_text().replace("redacted", "original"))
    assert {c["name"] for c in redactory.verify(copy)["checks"] if not c["ok"]} == {"files"}
    # sealed anew by whoever changed it
    manifest["files"][path.name] = {"sha256": file_sha256(path), "bytes": path.stat().st_size}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    (copy / "_SUCCESS").write_text(file_sha256(copy / "manifest.json") + "\n")
    assert {c["name"] for c in redactory.verify(copy)["checks"] if not c["ok"]} == {"croissant", "sha256sums"}


def test_a_run_is_described_by_its_public_side(run: Path, exported: Path, tmp_path: Path) -> None:
    document = redactory.croissant(run)
    assert document == redactory.croissant(exported) == json.loads((exported / "croissant.json").read_text())
    manifest = read_manifest(RunFolder(run))
    told = json.dumps(document)
    for secret in (NAME, "letters.jsonl", manifest["inputs"][0]["digest"], manifest["key"]["fingerprint"]):
        assert secret not in told
    for name, entry in manifest["files"].items():
        assert (entry["sha256"] in told) == name.startswith("public/")


def test_both_sides_of_a_run_where_one_asks_for_it(run: Path) -> None:
    out = run.parent / "both.json"
    redactory.croissant(run, out=out, private=True, more=MORE)
    assert out.stat().st_mode & 0o777 == 0o600
    dataset = mlcroissant.Dataset(out)
    assert not dataset.metadata.issues.errors
    for side in SIDES:
        assert records(dataset, side) == rows_of(run, side)


@pytest.mark.parametrize("name", ["letters?", "letters[1]", "my letters, grün"])
def test_a_folder_of_any_name_leads_to_its_own_rows_alone(run: Path, tmp_path: Path, name: str) -> None:
    for other in (name, "letters1"):
        shutil.copytree(run, tmp_path / other)
    redactory.croissant(tmp_path / name, out=tmp_path / "letters.json")
    assert records(mlcroissant.Dataset(tmp_path / "letters.json"), "public") == rows_of(run, "public")


def test_a_publisher_says_what_only_she_knows(run: Path) -> None:
    out = run.parent / "published.json"
    redactory.croissant(run, out=out, more=MORE)
    metadata = mlcroissant.Dataset(out).metadata
    assert not metadata.issues.errors
    assert not metadata.issues.warnings
    assert metadata.license == [MORE["license"]]
    assert metadata.url == MORE["url"]
    assert [own.name for own in metadata.creators] == [MORE["creator"]]
    assert metadata.cite_as == MORE["citeAs"]
    assert out.stat().st_mode & 0o777 == 0o644


def test_what_cannot_be_described_is_refused(
    run: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match="an export holds the public side alone"):
        redactory.croissant(exported, private=True)
    for out, told in (
        (run / "croissant.json", "is sealed; write the file beside it"),
        (tmp_path / "croissant.json", "so that its names lead there"),
        (run.parent / "croissant.txt", "ends in .json"),
        (exported / "manifest.json", "a new file"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            redactory.croissant(run, out=out)
    with pytest.raises(ConfigurationError, match="license, url, creator, citeAs"):
        redactory.croissant(run, more={"licence": "x"})
    copy = RunFolder(Path(shutil.copytree(run, tmp_path / "run")))
    (copy.public / "part-00000.parquet").write_bytes(b"x")
    with pytest.raises(CheckFailed, match="public/part-00000"):
        redactory.croissant(copy.root)
    copy.success.unlink()
    with pytest.raises(RunStateError, match="no finished folder"):
        redactory.croissant(copy.root)
    new_key("encryption", tmp_path / "key")
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY_FILE", str(tmp_path / "key"))
    with pytest.raises(ConfigurationError, match="it is encrypted"):
        redactory.croissant(run_of(tmp_path / "closed"), private=True)

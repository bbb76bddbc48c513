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
from redactory.redaction import RunFolder, read_manifest
from tests.integrations.sides import rows_of, run_of
from tests.pipelines.leaving import NAME


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


def test_a_run_is_described_by_its_public_side(run: Path, exported: Path) -> None:
    told = (exported / "croissant.json").read_text()
    manifest = read_manifest(RunFolder(run))
    for secret in (NAME, "letters.jsonl", manifest["inputs"][0]["digest"], manifest["key"]["fingerprint"]):
        assert secret not in told
    for name, entry in manifest["files"].items():
        assert (entry["sha256"] in told) == name.startswith("public/")


def test_a_publisher_adds_what_only_they_know(run: Path, exported: Path) -> None:
    """As the how-to page of integrations says it."""
    described = json.loads((exported / "croissant.json").read_text())
    described |= {"license": "https://spdx.org/licenses/CC-BY-4.0.html", "url": "https://example.org/letters"}
    described["creator"] = {"@type": "sc:Organization", "name": "Letters, Inc."}
    for entry in described["distribution"]:
        for key in {"contentUrl", "includes"} & entry.keys():
            entry[key] = f"shards/{entry[key]}"
    out = exported.parent / "described.json"
    out.write_text(json.dumps(described))
    dataset = mlcroissant.Dataset(out)
    assert not dataset.metadata.issues.errors
    assert [own.name for own in dataset.metadata.creators] == ["Letters, Inc."]
    assert records(dataset, "public") == rows_of(run, "public")

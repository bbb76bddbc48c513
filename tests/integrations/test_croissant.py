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
from tests.pipelines.support import list_failed_checks


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export, beside its run."""
    run = run_of(tmp_path_factory.mktemp("croissant"))
    return Path(redactory.export(run, run.parent / "shards")["to"])


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where mlcroissant would keep what it fetches."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _same_rows(dataset: mlcroissant.Dataset, run: Path) -> bool:
    """Whether the document holds no mistake and leads to the public rows of ``run``."""
    found = [
        {name.removeprefix("public/"): value.decode() for name, value in record.items()}
        for record in dataset.records("public")
    ]
    return not dataset.metadata.issues.errors and found == rows_of(run, "public")


def test_the_file_of_an_export_is_valid_leads_to_its_rows_and_says_nothing_else(exported: Path) -> None:
    run, said = exported.parent / "run", (exported / "croissant.json").read_text()
    dataset = mlcroissant.Dataset(exported / "croissant.json")
    metadata = dataset.metadata
    assert _same_rows(dataset, run)
    assert [own.name for own in metadata.record_sets] == ["public"]
    shards = {own.content_url: own.sha256 for own in metadata.file_objects}
    assert shards == {f"public/{path.name}": file_sha256(path) for path in (run / "public").iterdir()}
    assert (metadata.name, metadata.version) == ("run", "1.0.0")
    assert metadata.date_published is not None
    manifest = read_manifest(RunFolder(run))
    for secret in (NAME, "letters.jsonl", manifest["inputs"][0]["digest"], manifest["key"]["fingerprint"]):
        assert secret not in said
    for name, entry in manifest["files"].items():
        assert (entry["sha256"] in said) == name.startswith("public/")


def test_verify_finds_a_file_that_says_something_else(exported: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(exported, tmp_path / "copy"))
    path, manifest = copy / "croissant.json", json.loads((copy / "manifest.json").read_text())
    path.write_text(path.read_text().replace("redacted", "original"))
    assert list_failed_checks(copy) == {"files"}
    # sealed anew by whoever changed it
    manifest["files"][path.name] = {"sha256": file_sha256(path), "bytes": path.stat().st_size}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    (copy / "_SUCCESS").write_text(file_sha256(copy / "manifest.json") + "\n")
    assert list_failed_checks(copy) == {"card", "sha256sums"}


def test_a_publisher_adds_what_only_they_know(exported: Path) -> None:
    """As the how-to page of integrations says it."""
    described: dict[str, Any] = json.loads((exported / "croissant.json").read_text())
    described |= {"license": "https://spdx.org/licenses/CC-BY-4.0.html", "url": "https://example.org/letters"}
    described["creator"] = {"@type": "sc:Organization", "name": "Letters, Inc."}
    for entry in described["distribution"]:
        for key in {"contentUrl", "includes"} & entry.keys():
            entry[key] = f"shards/{entry[key]}"
    out = exported.parent / "described.json"
    out.write_text(json.dumps(described))
    dataset = mlcroissant.Dataset(out)
    assert [own.name for own in dataset.metadata.creators] == ["Letters, Inc."]
    assert _same_rows(dataset, exported.parent / "run")

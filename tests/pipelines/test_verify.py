"""Verify: a true run passes, and each thing it checks fails once it is broken."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import redactory
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import RunStateError
from redactory.pipelines.verify import OF_A_RUN
from redactory.redaction import RunFolder, parts, seal
from tests.pipelines.support import failed


@pytest.fixture
def copy(curated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(curated, tmp_path / "run"))


def test_a_true_run_passes_every_check(curated: Path) -> None:
    result = redactory.verify(curated)
    assert result["ok"], result["checks"]
    assert len(result["checks"]) == 13
    assert [check["name"] for check in result["checks"] if not check["made"]] == ["signature"]
    json.dumps(result, allow_nan=False)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_flipped_byte_anywhere_fails(
    curated: Path, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    # the re-scan looks at texts, not at bytes, and takes seconds: it is tested by itself
    monkeypatch.setitem(OF_A_RUN, "re-scan of public", lambda _: "left out here")
    files = sorted(p for p in curated.rglob("*") if p.is_file() and "traceback" not in p.name)
    path = data.draw(st.sampled_from(files), label="file")
    content = path.read_bytes()
    offset = data.draw(st.integers(0, len(content) - 1), label="offset")
    bit = data.draw(st.integers(0, 7), label="bit")
    broken = bytearray(content)
    broken[offset] ^= 1 << bit
    path.write_bytes(bytes(broken))
    try:
        found = failed(curated)
    finally:
        path.write_bytes(content)
    assert found, path.relative_to(curated)


def _reseal(run: Path) -> None:
    """What a forger would do after changing a file: make the digests right again."""
    folder = RunFolder(run)
    manifest = json.loads(folder.manifest.read_text())
    del manifest["files"]
    seal(folder, manifest, [*(p for f in folder.data_folders for p in parts(f)), folder.card])


def _add_public(text: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        path = parts(RunFolder(run).public)[0]
        table = pq.read_table(path).to_pylist()
        table[0]["text"] = text
        pq.write_table(pa.Table.from_pylist(table, pq.read_schema(path)), path)

    return change


def _drop_public(run: Path) -> None:
    path = parts(RunFolder(run).public)[0]
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (_add_public("Goodbye <MASK>"), "no mask in public"),
        (_add_public("Call Anna Smith on 212-555-0143"), "re-scan of public"),
        (_drop_public, "conservation"),
        (_drop_public, "point ids"),
    ],
)
def test_a_forged_run_with_right_digests_fails(
    copy: Path, change: Callable[[Path], None], check: str
) -> None:
    change(copy)
    _reseal(copy)
    found = failed(copy)
    assert check in found
    assert "files" not in found


def test_a_value_masked_elsewhere_is_listed_without_being_shown(tmp_path: Path) -> None:
    rows = [{"text": "My name is Rosalind Marlowe."}, {"text": "so it was rosalind marlowe again"}]
    corpus = tmp_path / "rows.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config: dict[str, Any] = {
        "input": str(corpus),
        "segment": {"mode": "document"},
        # an engine that overlooks names in small letters
        "detect": {
            "tagger": None,
            "spacy": {},
            "conservative": {"plain_confidence": 0.0, "rules": []},
        },
        "release": {"max_open_values": 0},
    }
    redactory.curate(config, output=tmp_path / "run")
    result = redactory.verify(tmp_path / "run")
    listed = result["open_values"]
    if listed:
        assert [entry["labels"] for entry in listed] == [["PERSON"]]
        assert not result["ok"]
    assert "rosalind" not in json.dumps(result).lower()
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["counts"]["public"] == len(listed) == 1


def test_without_the_key_the_check_is_named_as_not_made(
    curated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDACTORY_KEY", "not the key of this run")
    check = {c["name"]: c for c in redactory.verify(curated)["checks"]}["values masked elsewhere"]
    assert check["ok"]
    assert not check["made"]
    assert check["detail"].startswith("not made")


def test_other_engines_than_the_runs_fail_the_re_scan(copy: Path) -> None:
    folder = RunFolder(copy)
    manifest = json.loads(folder.manifest.read_text())
    manifest["policies"]["strict"]["hash"] = "0" * 64
    folder.manifest.write_text(json.dumps(manifest))
    folder.success.write_text(file_sha256(folder.manifest) + "\n")
    assert "re-scan of public" in failed(copy)


def test_an_unfinished_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunStateError, match="_SUCCESS"):
        redactory.verify(tmp_path)


@pytest.mark.parametrize("place", ["vault/part-00000.parquet", "public", "state/journal.jsonl", "README.md"])
def test_a_part_that_is_a_link_is_refused_by_name_wherever_a_run_is_changed_or_leaves(
    copy: Path, tmp_path: Path, place: str
) -> None:
    """Its text would be left where it truly lies, and success reported."""
    elsewhere = tmp_path / "elsewhere"
    (copy / place).rename(elsewhere)
    (copy / place).symlink_to(elsewhere)
    content = elsewhere.read_bytes() if elsewhere.is_file() else b""
    for asked in (
        lambda: redactory.purge(copy, ["vault"]),
        lambda: redactory.takedown([copy], user_ids=["somebody"], dry_run=True),
        lambda: redactory.export(copy, tmp_path / "out"),
    ):
        try:
            problems = asked().get("problems", [])
        except RunStateError as error:
            problems = [{"problem": str(error)}]
        assert f"neither a folder nor a regular file: {place}" in problems[0]["problem"]
    assert "files" in failed(copy)
    assert elsewhere.exists()
    assert not elsewhere.is_file() or elsewhere.read_bytes() == content


def test_files_that_a_strangers_manifest_names_are_opened_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe hung it, and a device filled the memory."""
    monkeypatch.setenv("REDACTORY_KEY", "a digest key of enough bytes")
    terms = tmp_path / "terms.txt"
    terms.write_text("Rosalind\n")
    corpus = tmp_path / "rows.jsonl"
    corpus.write_text(json.dumps({"text": "hello there"}) + "\n")
    lists = {"deny": [{"label": "PERSON", "file": str(terms)}]}
    detect = {"tagger": None, "patterns": None, "lists": lists, "conservative": {"rules": []}}
    redactory.curate({"input": str(corpus), "detect": detect}, output=tmp_path / "run")
    assert _rescanned(tmp_path / "run")["made"]
    monkeypatch.setenv("REDACTORY_KEY", "the key of somebody else")
    terms.unlink()
    os.mkfifo(terms)
    found = _rescanned(tmp_path / "run")
    assert (found["ok"], found["made"], "detect.lists.file names files outside" in found["detail"]) == (
        True,
        False,
        True,
    )


def _rescanned(run: Path) -> dict[str, Any]:
    [found] = [c for c in redactory.verify(run)["checks"] if c["name"] == "re-scan of public"]
    return found

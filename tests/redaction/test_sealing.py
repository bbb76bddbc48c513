"""Sealing: whatever changes in a finished folder is found and named."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import RunStateError
from redactory.redaction import (
    RunFolder,
    broken_files,
    is_finished,
    part_name,
    read_manifest,
    seal,
    sealing,
    write_part,
)
from redactory.redaction.shards import PUBLIC

BODY = {"format": "redactory-run/1", "counts": {"points": 3}}


def finished(root: Path) -> RunFolder:
    """A small finished run."""
    run = RunFolder(root)
    table = pa.table({"point_id": ["a", "b", "c"], "text": ["one", "two", ""]}, schema=PUBLIC)
    files = [run.public / part_name(0), run.private / part_name(0), run.card, run.points / "note"]
    write_part(files[0], table)
    write_part(files[1], table.slice(1))
    files[2].write_text("# Card\né\n", encoding="utf-8")
    files[3].parent.mkdir(parents=True)
    files[3].write_bytes(b"")
    seal(run, BODY, files)
    return run


@pytest.fixture(scope="module")
def run() -> Iterator[RunFolder]:
    with tempfile.TemporaryDirectory() as folder:
        yield finished(Path(folder))


NAMES = [
    "public/part-00000.parquet",
    "private/part-00000.parquet",
    "README.md",
    "audit/points/note",
    "manifest.json",
    "_SUCCESS",
]


def test_a_sealed_folder_is_whole(run: RunFolder) -> None:
    assert broken_files(run) == []
    assert is_finished(run)
    manifest = read_manifest(run)
    assert {name: manifest[name] for name in BODY} == BODY
    assert sorted(manifest["files"]) == sorted(NAMES[:4])
    for name, entry in manifest["files"].items():
        path = run.root / name
        assert entry == {"sha256": file_sha256(path), "bytes": path.stat().st_size}
    assert run.success.read_text(encoding="utf-8") == file_sha256(run.manifest) + "\n"
    assert {p.stat().st_mode & 0o777 for p in (run.manifest, run.success)} == {0o600}


def what_is_found(run: RunFolder, name: str, data: bytes) -> list[str]:
    """What is broken while ``name`` holds ``data``; afterwards it is as it was."""
    path = run.root / name
    before = path.read_bytes()
    path.write_bytes(data)
    try:
        return broken_files(run)
    finally:
        path.write_bytes(before)


@settings(max_examples=400)
@given(st.sampled_from([n for n in NAMES if n != "audit/points/note"]), st.data(), st.integers(1, 255))
def test_one_flipped_byte_is_found_and_named(
    run: RunFolder, name: str, data: st.DataObject, change: int
) -> None:
    content = bytearray((run.root / name).read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= change
    found = what_is_found(run, name, bytes(content))
    assert len(found) == 1
    assert found[0].startswith("manifest.json" if name in NAMES[4:] else name)


@pytest.mark.parametrize("name", NAMES)
def test_bytes_more_or_less_are_found(run: RunFolder, name: str) -> None:
    content = (run.root / name).read_bytes()
    for other in {content + b"\0", content + b"\n", content[:-1], content[1:], b""} - {content}:
        assert len(what_is_found(run, name, other)) == 1
    assert broken_files(run) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_found(tmp_path: Path, name: str) -> None:
    run = finished(tmp_path / "run")
    (run.root / name).unlink()
    if name == "_SUCCESS":
        assert not is_finished(run)
        for question in (read_manifest, broken_files):
            with pytest.raises(RunStateError, match="_SUCCESS is missing"):
                question(run)
    else:
        assert broken_files(run) == [f"{name}: missing"]


def test_a_manifest_that_was_rewritten_is_found(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    run.card.write_text("another", encoding="utf-8")
    digest = run.success.read_text(encoding="utf-8")
    seal(run, BODY, [run.card])
    assert broken_files(run) == []
    run.success.write_text(digest, encoding="utf-8")
    assert broken_files(run) == ["manifest.json: differs from the digest in _SUCCESS"]


def test_what_stops_before_success_is_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sealing, "write_text", stop)
    with pytest.raises(KeyboardInterrupt):
        finished(tmp_path / "run")
    assert (tmp_path / "run" / "manifest.json").exists()
    assert not is_finished(RunFolder(tmp_path / "run"))


def test_the_seal_does_not_depend_on_the_order_of_files(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    files = [run.root / name for name in NAMES[:4]]
    assert seal(run, BODY, files) == seal(run, BODY, reversed(files)) == file_sha256(run.manifest)


def test_a_seal_that_skips_a_file_is_found(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage: a checker that looks at sizes only lets a flipped byte pass; the test above would see it."""
    monkeypatch.setattr(
        sealing, "file_sha256", lambda path: {"manifest.json": file_sha256(path)}.get(path.name, "")
    )
    assert len(broken_files(run)) == 4

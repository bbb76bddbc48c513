"""Sealing: whatever changes in a finished folder is found and named, and a signature is the signer's."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.foundation.files import read_json
from redactory.foundation.keys import create_key_file, read_public_key
from redactory.redaction import (
    RunFolder,
    SealedFolder,
    format_part_name,
    is_finished,
    list_broken_files,
    read_manifest,
    seal_folder,
    sealing,
    write_part,
    write_success,
)
from redactory.redaction.folder import FolderPath
from redactory.redaction.sealing import check_signature, compute_fingerprint, list_releases
from redactory.redaction.shards import PUBLIC

VARIABLE = "REDACTORY_SIGNING_KEY_FILE"
BODY = {"format": "redactory-run/1", "counts": {"examples": 3}}
FILES = ["README.md", "audit/examples/note", "private/part-00000.parquet", "public/part-00000.parquet"]
SEALS = ["manifest.json", "_SUCCESS"]


def finished(root: Path) -> RunFolder:
    """A small finished run, signed where a key is configured."""
    run = RunFolder(root)
    table = pa.table({"example_id": ["a", "b", "c"], "text": ["one", "two", ""]}, schema=PUBLIC)
    write_part(run.public / format_part_name(0), table)
    write_part(run.private / format_part_name(0), table.slice(1))
    run.card.write_text("# Card\né\n", encoding="utf-8")
    (run.examples / "note").parent.mkdir(parents=True)
    (run.examples / "note").write_bytes(b"")
    seal_folder(run, BODY, [run.root / name for name in FILES])
    return run


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two signers' key files."""
    folder = tmp_path_factory.mktemp("keys")
    return {name: create_key_file("signing", folder / name)[0] for name in ("ann", "bob")}


def public(key: Path) -> Any:
    return read_public_key(key.with_name(f"{key.name}.pub"))


@pytest.fixture(scope="module")
def run(keys: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that Ann signed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(keys["ann"]))
        return finished(tmp_path_factory.mktemp("signed") / "run")


@pytest.fixture
def copy(run: RunFolder, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(run.root, tmp_path / "run")))


def test_a_sealed_folder_is_whole_whatever_the_order_of_its_files(copy: RunFolder) -> None:
    assert list_broken_files(copy) == []
    manifest = read_manifest(copy)
    assert {name: manifest[name] for name in BODY} == BODY
    assert manifest["files"] == {
        name: {"sha256": file_sha256(copy.root / name), "bytes": (copy.root / name).stat().st_size} for name in FILES
    }
    assert {p.stat().st_mode & 0o777 for p in (copy.manifest, copy.success)} == {0o600}
    files = [copy.root / name for name in FILES]
    assert seal_folder(copy, BODY, files) == seal_folder(copy, BODY, reversed(files)) == file_sha256(copy.manifest)
    assert copy.success.read_text(encoding="utf-8") == file_sha256(copy.manifest) + "\n"


@pytest.mark.parametrize("name", FILES + SEALS)
def test_other_bytes_more_or_less_or_no_file_are_found_and_named(copy: RunFolder, name: str) -> None:
    path, content = copy.root / name, (copy.root / name).read_bytes()
    flipped = {content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1 :] for i in range(0, len(content), 37)}
    for other in {*flipped, content + b"\0", content + b"\n", content[:-1], content[1:], b""} - {content}:
        path.write_bytes(other)
        [found] = list_broken_files(copy)
        assert found.startswith("manifest.json" if name in SEALS else name)
    path.unlink()
    if name == "_SUCCESS":
        assert not is_finished(copy)
        for question in (read_manifest, list_broken_files):
            with pytest.raises(RunStateError, match="_SUCCESS is missing"):
                question(copy)
    else:
        assert list_broken_files(copy) == [f"{name}: missing"]


def test_what_stops_before_success_is_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sealing, "write_text", stop)
    with pytest.raises(KeyboardInterrupt):
        finished(tmp_path / "run")
    assert (tmp_path / "run" / "manifest.json").exists()
    assert not is_finished(RunFolder(tmp_path / "run"))


# -------------------------------------------------------------------------------------------- signatures


def test_the_signature_is_plain_ed25519_and_its_key_known_by_the_given_one_alone(
    run: RunFolder, keys: dict[str, Path]
) -> None:
    ann, bob = public(keys["ann"]), public(keys["bob"])
    assert check_signature(run, ann)[:2] == (True, True)
    alone = check_signature(run, None)
    assert (alone[:2], "pass --public-key" in alone.detail) == ((True, False), True)
    other = check_signature(run, bob)
    assert other[:2] == (False, True)
    assert compute_fingerprint(ann) in other.detail
    assert compute_fingerprint(bob) in other.detail
    # so that it can be checked without Redactory
    signature = run.signature.read_bytes()
    assert len(signature) == 64
    ann.verify(signature, run.manifest.read_bytes())
    der = ann.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert read_json(run.manifest)["signed_by"]["fingerprint"] == hashlib.sha256(der).hexdigest()


@settings(max_examples=120, deadline=None)
@given(st.booleans(), st.data(), st.integers(1, 255))
def test_one_flipped_byte_breaks_a_signature(
    run: RunFolder, keys: dict[str, Path], manifest: bool, data: st.DataObject, change: int
) -> None:
    path = run.manifest if manifest else run.signature
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[data.draw(st.integers(0, len(whole) - 1))] ^= change
    path.write_bytes(flipped)
    try:
        assert not check_signature(run, None).good
        assert not check_signature(run, public(keys["ann"])).good
    finally:
        path.write_bytes(whole)


def test_a_manifest_or_a_named_key_of_any_content_is_answered(copy: RunFolder, keys: dict[str, Path]) -> None:
    """Some of these are keys of another kind, or of a kind that the library does not know."""
    der = public(keys["ann"]).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    manifest = read_json(copy.manifest)
    # another key under the signer's fingerprint
    other = {**manifest["signed_by"], "fingerprint": compute_fingerprint(public(keys["bob"]))}
    copy.manifest.write_text(json.dumps({**manifest, "signed_by": other}))
    assert not any(check_signature(copy, known).good for known in (None, public(keys["ann"]), public(keys["bob"])))
    for value in (None, 3, "x", [], [{}], {}, {"public_key": None}, {"public_key": "AAAA", "fingerprint": 1}):
        for content in (value, {"signed_by": value}):
            copy.manifest.write_text(json.dumps(content))
            assert not check_signature(copy, None).good
    for offset in range(len(der)):
        for change in (1, 2, 0x80):
            flipped = der[:offset] + bytes([der[offset] ^ change]) + der[offset + 1 :]
            manifest["signed_by"]["public_key"] = base64.b64encode(flipped).decode()
            copy.manifest.write_text(json.dumps(manifest))
            assert not check_signature(copy, None).good


def test_without_a_key_or_with_another_than_at_the_begin(
    copy: RunFolder, keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy.success.unlink()
    for other in (str(keys["bob"]), None):
        monkeypatch.delenv(VARIABLE) if other is None else monkeypatch.setenv(VARIABLE, other)
        with pytest.raises(RunStateError, match="signing key was changed"):
            write_success(copy)
    assert not copy.success.exists()
    seal_folder(copy, {}, [copy.card])
    assert not copy.signature.exists()
    assert "signed_by" not in read_json(copy.manifest)
    found = check_signature(copy, None)
    assert found[:2] == (True, False)
    assert found.detail.startswith("skipped: not signed")


# --------------------------------------- the run folder: distinct places, all inside it, and plain names


RUN = RunFolder(Path("/somewhere/run"))
TRICKS = [
    *("", ".", "..", "...", "a/b", "/etc", "../x", "a\\b", "a b", "a\n", "\na", "a\0", "-x", ".x", "_x", "é"),
    *("x" * 65, "~", "a:b", "$HOME", "*", "a/.."),
]


@pytest.mark.parametrize("name", TRICKS)
def test_path_tricks_are_no_names(name: str) -> None:
    with pytest.raises(ConfigurationError, match="name must consist of"):
        RUN.get_model_folder(name)


def places(folder: SealedFolder) -> list[Path]:
    kinds = {name: kind for own in type(folder).__mro__ for name, kind in vars(own).items()}
    found = [getattr(folder, name) for name, kind in kinds.items() if isinstance(kind, FolderPath)]
    return [place for place in found if isinstance(place, Path)]


@pytest.mark.parametrize("folder", [RUN, RUN.get_model_folder("crt")])
def test_no_two_places_meet_and_none_lies_outside_or_in_a_data_folder(folder: SealedFolder) -> None:
    found = places(folder)
    assert len(set(found)) == len(found) >= 8
    assert all(place.is_relative_to(folder.root) and place != folder.root for place in found)
    for data in RUN.data_folders:
        assert not any(place.is_relative_to(data) and place != data for place in found)


# Earlier releases.


def _reissued(root: Path, count: int) -> RunFolder:
    """A run in its release number ``count``, with those before it kept."""
    run = RunFolder(root)
    root.mkdir()
    digest = None
    for number in range(1, count + 1):
        if digest is not None:
            kept = run.get_release_folder(number - 1)
            kept.root.mkdir(parents=True)
            shutil.copy(run.manifest, kept.manifest)
        more = {} if digest is None else {"release": number, "supersedes": digest}
        digest = seal_folder(run, {**BODY, **more}, [])
    return run


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("harm", ["a flipped byte", "gone", "another release", "cut off"])
def test_each_release_is_the_one_that_the_next_names(tmp_path: Path, number: int, harm: str) -> None:
    run = _reissued(tmp_path / "run", 4)
    assert [release.number for release in list_releases(run)] == [1, 2, 3, 4]
    kept = run.get_release_folder(number).manifest
    data = kept.read_bytes()
    if harm == "gone":
        kept.unlink()
    elif harm == "another release":
        shutil.copy(run.get_release_folder(number % 3 + 1).manifest, kept)
    else:
        kept.write_bytes(data[:-1] if harm == "cut off" else data.replace(b"3", b"4", 1))
    with pytest.raises(
        CheckFailed, match=f"releases/{number}/manifest.json is not the one that release {number + 1} names"
    ):
        list_releases(run)

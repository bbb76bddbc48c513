"""Sealing: whatever changes in a finished folder is found and named."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.keys import new_key, read_public_key
from redactory.redaction import (
    RunFolder,
    SealedFolder,
    broken_files,
    is_finished,
    part_name,
    read_manifest,
    seal,
    sealing,
    succeed,
    write_part,
)
from redactory.redaction.folder import Inside
from redactory.redaction.sealing import check_signature, fingerprint
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


@settings(max_examples=150)
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


# Signing: a manifest is the signer's, byte for byte, or it is found not to be.


VARIABLE = "REDACTORY_SIGNING_KEY_FILE"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two signers' key files."""
    folder = tmp_path_factory.mktemp("keys")
    return {name: new_key("signing", folder / name)[0] for name in ("ann", "bob")}


def public(key: Path) -> Any:
    return read_public_key(key.with_name(f"{key.name}.pub"))


def sealed(root: Path) -> RunFolder:
    """A small finished folder, signed where a key is configured."""
    run = RunFolder(root)
    run.card.parent.mkdir(parents=True)
    run.card.write_text("card")
    seal(run, {"format": "redactory-run/1"}, [run.card])
    return run


@pytest.fixture(scope="module")
def signed(keys: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A folder that Ann signed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(keys["ann"]))
        return sealed(tmp_path_factory.mktemp("signed") / "run")


@pytest.fixture
def copy(signed: RunFolder, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(signed.root, tmp_path / "run")))


def test_the_signer_is_known_by_the_given_key_alone(signed: RunFolder, keys: dict[str, Path]) -> None:
    ann, bob = public(keys["ann"]), public(keys["bob"])
    assert check_signature(signed, ann)[:2] == (True, True)
    alone = check_signature(signed, None)
    assert alone[:2] == (True, False)
    assert "give --public-key" in alone.detail
    other = check_signature(signed, bob)
    assert other[:2] == (False, True)
    assert fingerprint(ann) in other.detail
    assert fingerprint(bob) in other.detail


def test_the_signature_is_plain_ed25519_of_the_manifest(signed: RunFolder, keys: dict[str, Path]) -> None:
    """So that it can be checked without Redactory."""
    signature = signed.signature.read_bytes()
    assert len(signature) == 64
    public(keys["ann"]).verify(signature, signed.manifest.read_bytes())
    der = public(keys["ann"]).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    named = json.loads(signed.manifest.read_text())["signed_by"]
    assert named["fingerprint"] == hashlib.sha256(der).hexdigest() == fingerprint(public(keys["ann"]))
    assert signed.success.read_text() == file_sha256(signed.manifest) + "\n"


@settings(max_examples=120, deadline=None)
@given(st.booleans(), st.data(), st.integers(1, 255))
def test_one_flipped_byte_is_found(
    signed: RunFolder, keys: dict[str, Path], manifest: bool, data: st.DataObject, change: int
) -> None:
    path = signed.manifest if manifest else signed.signature
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[data.draw(st.integers(0, len(whole) - 1))] ^= change
    path.write_bytes(flipped)
    try:
        assert not check_signature(signed, None).good
        assert not check_signature(signed, public(keys["ann"])).good
    finally:
        path.write_bytes(whole)


def test_a_signature_that_was_taken_away(copy: RunFolder, keys: dict[str, Path]) -> None:
    copy.signature.unlink()
    assert not check_signature(copy, None).good
    manifest = json.loads(copy.manifest.read_text())
    del manifest["signed_by"]
    copy.manifest.write_text(json.dumps(manifest))
    assert check_signature(copy, None).good
    assert not check_signature(copy, public(keys["ann"])).good


def test_a_forger_can_sign_only_in_his_own_name(
    copy: RunFolder, keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(keys["bob"]))
    copy.card.write_text("another card")
    seal(copy, {"format": "redactory-run/1"}, [copy.card])
    assert sealing.broken_files(copy) == []
    assert check_signature(copy, None)[:2] == (True, False)
    assert not check_signature(copy, public(keys["ann"])).good


def test_another_key_under_the_signers_fingerprint(copy: RunFolder, keys: dict[str, Path]) -> None:
    manifest = json.loads(copy.manifest.read_text())
    manifest["signed_by"]["fingerprint"] = fingerprint(public(keys["bob"]))
    copy.manifest.write_text(json.dumps(manifest))
    for known in (None, public(keys["ann"]), public(keys["bob"])):
        assert not check_signature(copy, known).good


def test_a_named_key_of_any_bytes_is_answered(copy: RunFolder, keys: dict[str, Path]) -> None:
    """Some of these are keys of another kind, or of a kind that the library does not know."""
    der = public(keys["ann"]).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    manifest = json.loads(copy.manifest.read_text())
    for offset in range(len(der)):
        for change in (1, 2, 0x80):
            flipped = der[:offset] + bytes([der[offset] ^ change]) + der[offset + 1 :]
            manifest["signed_by"]["public_key"] = base64.b64encode(flipped).decode()
            copy.manifest.write_text(json.dumps(manifest))
            assert not check_signature(copy, None).good


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=5,
)
_ENTRY = st.fixed_dictionaries({"public_key": _JSON | st.just("AAAA"), "fingerprint": _JSON})


@settings(max_examples=100, deadline=None)
@given(_JSON | _ENTRY, st.booleans())
def test_a_manifest_of_any_content_is_answered(signed: RunFolder, value: Any, whole: bool) -> None:
    before = signed.manifest.read_bytes()
    signed.manifest.write_text(json.dumps(value if whole else {"signed_by": value}))
    try:
        assert not check_signature(signed, None).good
    finally:
        signed.manifest.write_bytes(before)


def test_without_a_key_nothing_is_signed_and_nothing_is_left(
    copy: RunFolder, keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    seal(copy, {}, [copy.card])
    assert not copy.signature.exists()
    assert "signed_by" not in json.loads(copy.manifest.read_text())
    found = check_signature(copy, None)
    assert found.good
    assert not found.known
    assert found.detail.startswith("not made: it is not signed")
    assert not check_signature(copy, public(keys["ann"])).good


def test_a_key_that_changes_in_between_signs_nothing(
    copy: RunFolder, keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy.success.unlink()
    for other in (str(keys["bob"]), None):
        monkeypatch.delenv(VARIABLE) if other is None else monkeypatch.setenv(VARIABLE, other)
        with pytest.raises(RunStateError, match="signing key was changed"):
            succeed(copy)
    assert not copy.success.exists()


# The run folder: distinct places, all inside it, and model names that cannot lead out of it.


RUN = RunFolder(Path("/somewhere/run"))

TRICKS = [
    "", ".", "..", "...", "a/b", "/etc", "../x", "a\\b", "a b", "a\n", "\na", "a\0", "-x", ".x", "_x", "é",
    "x" * 65, "~", "a:b", "$HOME", "*", "a/..",
]  # fmt: skip


@pytest.mark.parametrize("name", TRICKS)
def test_path_tricks_are_no_names(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RUN.model(name)
    assert "name must be" in str(caught.value)


@given(
    st.text(st.sampled_from("./\\ab0_-~\0\n é"), max_size=6) | st.sampled_from(["crt", "a.b-c_1", "x" * 64])
)
def test_a_name_is_refused_or_lies_right_below_models(name: str) -> None:
    try:
        model = RUN.model(name)
    except ConfigurationError:
        return
    assert model.root.resolve().parent == RUN.models.resolve()
    assert model.root.name == name


def places(folder: SealedFolder) -> list[Path]:
    kinds = {name: kind for own in type(folder).__mro__ for name, kind in vars(own).items()}
    found = [getattr(folder, name) for name, kind in kinds.items() if isinstance(kind, Inside)]
    return [place for place in found if isinstance(place, Path)]


@pytest.mark.parametrize("folder", [RUN, RUN.model("crt")])
def test_no_two_places_meet_and_none_lies_outside(folder: SealedFolder) -> None:
    found = places(folder)
    assert len(found) >= 8
    assert len(set(found)) == len(found)
    assert all(place.is_relative_to(folder.root) and place != folder.root for place in found)


def test_nothing_else_lies_in_the_data_folders() -> None:
    for data in RUN.data_folders:
        assert not any(place.is_relative_to(data) and place != data for place in places(RUN))


def test_only_finished_models_are_named(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.model_names() == []
    for name in ("sgd", "crt", "broken"):
        run.model(name).root.mkdir(parents=True)
        if name != "broken":
            run.model(name).success.touch()
    assert run.model_names() == ["crt", "sgd"]


@given(st.sets(st.integers(0, 99_999), min_size=2, max_size=5))
def test_part_names_sort_as_partitions_do(partitions: set[int]) -> None:
    ordered = sorted(partitions)
    assert sorted(part_name(n) for n in ordered) == [part_name(n) for n in ordered]

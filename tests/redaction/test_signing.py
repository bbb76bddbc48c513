"""Signing: a manifest is the signer's, byte for byte, or it is found not to be."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import RunStateError
from redactory.foundation.keys import new_key, read_public_key
from redactory.redaction import RunFolder, seal, sealing, succeed
from redactory.redaction.sealing import check_signature, fingerprint

VARIABLE = "REDACTORY_SIGNING_KEY_FILE"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two signers' key files."""
    folder = tmp_path_factory.mktemp("keys")
    return {name: new_key("signing", folder / name)[0] for name in ("ann", "bob")}


def public(key: Path) -> Any:
    return read_public_key(key.with_name(f"{key.name}.pub"))


def finished(root: Path) -> RunFolder:
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
        return finished(tmp_path_factory.mktemp("signed") / "run")


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


@settings(max_examples=300, deadline=None)
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

"""The keys: where they come from, how new ones are made, and what digests under one promise."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import logging
import os
import re
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.keys import (
    DigestKey,
    create_key_file,
    load_digest_key,
    load_encryption_key,
    load_signing_key,
    read_encryption_key,
    read_public_key,
    unicode_variants,
)

SECRET = "correct horse battery staple"
VARIABLES = ["REDACTORY_KEY", "REDACTORY_ENCRYPTION_KEY", "REDACTORY_SIGNING_KEY"]
NAMES = [name for variable in VARIABLES for name in (variable, f"{variable}_FILE")]
LOADERS = dict(zip(VARIABLES, (load_digest_key, load_encryption_key, load_signing_key), strict=True))
KINDS = dict(zip(VARIABLES, ("digest", "encryption", "signing"), strict=True))


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("length", [16, 40])
def test_a_key_comes_from_the_environment_or_from_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, length: int
) -> None:
    secret = b"\xff\x80" * (length // 2)
    monkeypatch.setenv("REDACTORY_KEY", os.fsdecode(secret))
    assert load_digest_key() == DigestKey(secret, is_generated=False)
    monkeypatch.delenv("REDACTORY_KEY")
    (tmp_path / "key").write_bytes(secret + b"\n")
    monkeypatch.setenv("REDACTORY_KEY_FILE", str(tmp_path / "key"))
    assert load_digest_key() == DigestKey(secret, is_generated=False)
    assert load_encryption_key() is None
    assert secret.hex() not in repr(load_digest_key()) + load_digest_key().fingerprint
    assert "xff" not in repr([load_digest_key()])


PEM = "-----BEGIN PRIVATE KEY-----\nzQ7zQ7\n-----END PRIVATE KEY-----"
X25519 = """-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VuBCIEIHB1dCBhIHByaXZhdGUga2V5IGluIGhlcmUgbm93ISE=
-----END PRIVATE KEY-----"""


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize(
    ("variable", "given_key", "says"),
    [
        ("REDACTORY_KEY", "z", "1 bytes"),
        ("REDACTORY_KEY", "zQ7" * 5, "15 bytes, but needs at least 16"),
        ("REDACTORY_ENCRYPTION_KEY", "zQ7" * 10, "30 bytes, but needs at least 32"),
        ("REDACTORY_SIGNING_KEY", "zQ7 gibberish", "Ed25519"),
        ("REDACTORY_SIGNING_KEY", PEM, "Ed25519"),
        ("REDACTORY_SIGNING_KEY", X25519, "Ed25519"),
    ],
)
def test_what_is_no_key_is_refused_and_not_quoted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, given_key: str, says: str, in_file: bool
) -> None:
    (tmp_path / "key").write_text(given_key + " " * 20)
    if in_file:
        monkeypatch.setenv(f"{variable}_FILE", str(tmp_path / "key"))
    else:
        monkeypatch.setenv(variable, given_key)
    with pytest.raises(ConfigurationError, match=says) as caught:
        LOADERS[variable]()
    assert variable + "_FILE" * in_file in str(caught.value)
    assert "z" not in str(caught.value).replace(str(tmp_path), "")


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_key_that_was_meant_and_is_not_there_is_not_an_absent_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    in_file = f"{variable}_FILE"
    for name, value in itertools.product((variable, in_file), ("", " \n")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(ConfigurationError, match=f"^{name} is set but empty: .* or unset it$"):
                LOADERS[variable]()
    monkeypatch.setenv(in_file, str(tmp_path / "absent"))
    for load in (LOADERS[variable], lambda: read_encryption_key(tmp_path / "absent")):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            load()
    monkeypatch.setenv(variable, SECRET)
    with pytest.raises(ConfigurationError, match="both") as caught:
        LOADERS[variable]()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_new_key_is_private_is_loaded_and_is_never_overwritten(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    path, other = tmp_path / "deep" / "a.key", tmp_path / "b.key"
    files = create_key_file(KINDS[variable], path)  # type: ignore[arg-type]
    create_key_file(KINDS[variable], other)  # type: ignore[arg-type]
    assert path.read_bytes() != other.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv(f"{variable}_FILE", str(path))
    assert LOADERS[variable]() is not None
    if variable == "REDACTORY_ENCRYPTION_KEY":
        assert read_encryption_key(path) == load_encryption_key() != read_encryption_key(other)
    before = path.read_bytes()
    for name in [path, *files[1:]]:
        with pytest.raises(ConfigurationError, match="never overwritten"):
            create_key_file(KINDS[variable], name)  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert not list(tmp_path.rglob(".tmp-*"))


def test_a_signing_key_has_its_public_key_beside_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, public = create_key_file("signing", tmp_path / "signing.key")
    assert public == tmp_path / "signing.key.pub"
    monkeypatch.setenv("REDACTORY_SIGNING_KEY", path.read_text())
    key = load_signing_key()
    assert key is not None
    assert key.public_key() == read_public_key(public)
    with pytest.raises(ConfigurationError, match="not an Ed25519 public key"):
        read_public_key(path)


def test_a_fresh_key_lives_as_long_as_the_process() -> None:
    key = load_digest_key()
    assert key.is_generated
    assert len(key.secret) == 32
    assert load_digest_key() is key
    source = "from redactory.foundation.keys import load_digest_key as k; print(k().fingerprint, k().fingerprint)"
    said = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
    one, other = said.split()
    assert one == other != key.fingerprint


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_purposes_never_meet(one: str, other: str, value: str) -> None:
    key = DigestKey(SECRET.encode())
    same = one == other
    assert (key.derive_subkey(one) == key.derive_subkey(other)) == same
    assert (key.make_pseudonym(one, value) == key.make_pseudonym(other, value)) == same
    data = value.encode()
    digests = {key.compute_text_digest(key.derive_subkey(name), data) for name in (one, other)}
    assert len(digests) == 2 - same
    assert hashlib.blake2b(data, digest_size=16).digest() not in digests


@given(st.text(max_size=20) | st.integers())
def test_a_pseudonym_is_the_hmac_that_is_promised(value: str | int) -> None:
    key = DigestKey(SECRET.encode())
    subkey = hmac.new(SECRET.encode(), b"redactory/user", hashlib.sha256).digest()
    expected = hmac.new(subkey, str(value).encode(), hashlib.sha256).hexdigest()[:32]
    assert key.make_pseudonym("user", value) == expected
    assert re.fullmatch("[0-9a-f]{32}", expected)
    assert re.fullmatch("[0-9a-f]{8}", key.fingerprint)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that others can go into: pytest's own is closed to them."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o755)
        yield Path(place)


@pytest.mark.parametrize(
    ("mode", "folder", "told"),
    [(0o644, 0o755, True), (0o640, 0o755, True), (0o600, 0o755, False), (0o644, 0o700, False)],
)
def test_a_key_file_that_others_can_open_is_told_of_once(
    open_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mode: int,
    folder: int,
    told: bool,
) -> None:
    key = open_folder / "a.key"
    key.write_bytes(b"k" * 40)
    key.chmod(mode)
    open_folder.chmod(folder)
    monkeypatch.setenv("REDACTORY_KEY_FILE", str(key))
    # as in a command, where nobody has set a handler
    events = logging.getLogger("redactory.events")
    for name, value in (("propagate", False), ("handlers", []), ("disabled", False)):
        monkeypatch.setattr(events, name, value)
    assert load_digest_key().secret == load_digest_key().secret == b"k" * 40
    said = capsys.readouterr().err
    assert said.count(str(key)) == told
    assert ("chmod 600" in said) == told
    assert "kkkk" not in said


def test_a_key_file_of_somebody_else_is_read_in_silence(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = open_folder / "mounted"
    key.write_bytes(b"k" * 40)
    key.chmod(0o444)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    monkeypatch.setenv("REDACTORY_KEY_FILE", str(key))
    assert load_digest_key().secret == b"k" * 40
    assert not caplog.records


@given(st.text(st.sampled_from("eé\u0301İ\u0307ﬁa\u1100\u1161가Å\u212b"), max_size=6))
def test_a_user_is_known_in_each_form_that_unicode_has(user: str) -> None:
    forms = unicode_variants(user)
    assert forms[0] == unicodedata.normalize("NFC", user)
    assert set(forms) == {forms[0], unicodedata.normalize("NFD", user), user}
    assert len(set(forms)) == len(forms)
    assert {unicode_variants(form)[0] for form in forms} == {forms[0]}

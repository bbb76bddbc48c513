"""AWS KMS as the key service, against a real server of its protocol (moto) on the loopback address."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from cryptography.exceptions import InvalidTag
from moto.core.exceptions import JsonRESTError
from moto.kms.models import KmsBackend
from moto.server import ThreadedMotoServer

import redactory
from redactory.foundation.errors import CheckFailed, ConfigurationError, RedactoryError, RunStateError
from redactory.foundation.keys import create_key_file
from redactory.redaction import RunFolder, aws_kms, find_run_key, get_or_create_run_key, read_batches
from redactory.redaction.aws_kms import KmsKey
from redactory.redaction.encryption import SERVICE_VARIABLE
from tests.pipelines.support import DigitDetector, write_rows

LOCAL_KEY = "REDACTORY_ENCRYPTION_KEY_FILE"
HERE, THERE = "redactory.redaction.aws_kms:service", "redactory.redaction.aws_kms:new_service"
DATA_KEY, CONTEXT = bytes(range(32)), b'{"redactory":"data key","run":"ab12"}'
BLANK = {"tagger": None, "patterns": None, "spacy": {"model": "blank:en"}}


@dataclass(frozen=True)
class Kms:
    """A running server, and a client of it for what an operator does."""

    url: str
    client: Any

    def key(self) -> str:
        """The id of a new key."""
        return str(self.client.create_key()["KeyMetadata"]["KeyId"])


@pytest.fixture(scope="module")
def server() -> Iterator[Kms]:
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    url = f"http://{host}:{port}"
    session = boto3.Session("id", "secret", region_name="eu-central-1")
    yield Kms(url, session.client("kms", endpoint_url=url))
    moto.stop()


@pytest.fixture(autouse=True)
def kms(server: Kms, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kms]:
    """The server, with a client of this process that finds it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", server.url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    for method in ("encrypt", "decrypt"):
        monkeypatch.setattr(KmsBackend, method, _as_aws_does(getattr(KmsBackend, method)))
    aws_kms._create_client.cache_clear()
    yield server
    aws_kms._create_client.cache_clear()


def _as_aws_does(call: Any) -> Any:
    """The server's answer, or the refusal of a key that is not enabled, which moto leaves out."""

    def asked(self: KmsBackend, **given: Any) -> Any:
        named = given.get("key_id")
        state = self.keys[named].key_state if named in self.keys else "Enabled"
        if state == "Disabled":
            raise JsonRESTError("DisabledException", f"{named} is disabled.")
        if state == "PendingDeletion":
            raise JsonRESTError("KMSInvalidStateException", f"{named} is pending deletion.")
        return call(self, **given)

    return asked


@pytest.fixture
def configured(kms: Kms, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a new key, which is the configured key service."""
    key = kms.key()
    monkeypatch.delenv(LOCAL_KEY, raising=False)
    _configure(key, monkeypatch)
    return key


def _configure(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from redactory.redaction.encryption import load_key_service

    # asked once a process, which serves one key
    load_key_service.cache_clear()
    monkeypatch.setenv(SERVICE_VARIABLE, HERE)
    monkeypatch.setenv(aws_kms.KEY_VARIABLE, key)


def _curated(folder: Path) -> RunFolder:
    rows = [{"id": f"d{i}", "text": f"Hello there.\nMy number is 55-{i:04d}."} for i in range(6)]
    config = {"input": str(write_rows(folder / "rows.jsonl", rows)), "segment": {"mode": "line"}, "detect": BLANK}
    redactory.curate(config, output=folder / "run", detector=DigitDetector())
    return RunFolder(folder / "run")


def _rows(run: RunFolder) -> int:
    return sum(batch.num_rows for folder in (run.private, run.vault) for batch in read_batches(folder))


# ------------------------------------------------------------------------------------------------- the client


def test_what_is_wrapped_for_a_run_unwraps_for_that_run_alone(kms: Kms) -> None:
    key, other = KmsKey(kms.key()), KmsKey(kms.key())
    # workers of a cluster are asked to unwrap for a context that is plain words
    for context in (CONTEXT, b"redactory/dask/probe", b"[1]", b'{"run":1}', b"\xff"):
        wrapped = key.wrap(DATA_KEY, context)
        assert DATA_KEY not in wrapped
        assert key.unwrap(wrapped, context) == DATA_KEY
        with pytest.raises(InvalidTag):
            key.unwrap(wrapped, context.replace(b"ab12", b"ab13") if context == CONTEXT else context + b"2")
        with pytest.raises(InvalidTag):
            key.unwrap(wrapped[:-1] + bytes([wrapped[-1] ^ 1]), context)
        # KMS calls that IncorrectKeyException, moto an access that is denied
        with pytest.raises((InvalidTag, RunStateError)):
            other.unwrap(wrapped, context)


def test_the_run_stands_in_the_encryption_context(kms: Kms, configured: str, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.state.mkdir(parents=True)
    get_or_create_run_key(run, has_data=False)
    record = json.loads(run.data_key.read_text())
    opened = kms.client.decrypt(
        KeyId=configured,
        CiphertextBlob=base64.b64decode(record["wrapped"]),
        EncryptionContext={"redactory": "data key", "run": record["run_id"]},
    )
    key = find_run_key(run.vault / "part")
    assert key is not None
    assert opened["Plaintext"] == key.secret


def test_the_key_is_named_and_not_by_an_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(aws_kms.KEY_VARIABLE, raising=False)
    with pytest.raises(ConfigurationError, match="REDACTORY_KMS_KEY is not set"):
        aws_kms.service()
    for alias in ("alias/redactory", "arn:aws:kms:eu-central-1:111122223333:alias/redactory"):
        monkeypatch.setenv(aws_kms.NEW_KEY_VARIABLE, alias)
        with pytest.raises(ConfigurationError, match="REDACTORY_KMS_NEW_KEY is an alias"):
            aws_kms.new_service()


# --------------------------------------------------------------------------------------------- whole runs


def test_from_a_local_key_to_kms_to_another_kms_key_and_back(
    kms: Kms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_key_file("encryption", tmp_path / "local.key")
    monkeypatch.delenv(SERVICE_VARIABLE, raising=False)
    monkeypatch.setenv(LOCAL_KEY, str(tmp_path / "local.key"))
    run = _curated(tmp_path)
    rows, one, other = _rows(run), kms.key(), kms.key()

    monkeypatch.setenv(aws_kms.KEY_VARIABLE, one)
    assert redactory.rotate_key(run.root, to_service=HERE)["ok"]
    with pytest.raises(CheckFailed):
        _rows(run)
    monkeypatch.delenv(LOCAL_KEY)
    _configure(one, monkeypatch)
    assert _rows(run) == rows

    monkeypatch.setenv(aws_kms.NEW_KEY_VARIABLE, other)
    assert redactory.rotate_key(run.root, to_service=THERE)["service"] == f"aws-kms:{other}"
    with pytest.raises((CheckFailed, RunStateError)):
        _rows(run)
    _configure(other, monkeypatch)
    assert _rows(run) == rows

    assert redactory.rotate_key(run.root, to_key_file=tmp_path / "local.key")["rotated"] == [str(run.root)]
    monkeypatch.delenv(SERVICE_VARIABLE)
    monkeypatch.setenv(LOCAL_KEY, str(tmp_path / "local.key"))
    assert _rows(run) == rows
    assert redactory.verify(run.root)["ok"]
    key = find_run_key(run.vault / "part")
    assert key is not None
    secret = {key.secret, key.secret.hex().encode(), base64.b64encode(key.secret)}
    for path in (path for path in run.root.rglob("*") if path.is_file()):
        assert not any(form in path.read_bytes() for form in secret), path


# --------------------------------------------------------------------------------------------- it refuses


@pytest.mark.parametrize(("state", "told"), [("disabled", "DisabledException"), ("deleted", "pending")])
def test_a_key_that_is_not_enabled_opens_nothing_and_closes_nothing_in_the_open(
    kms: Kms, configured: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, told: str
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    run = _curated(before)
    rows = _rows(run)
    if state == "disabled":
        kms.client.disable_key(KeyId=configured)
    else:
        kms.client.schedule_key_deletion(KeyId=configured, PendingWindowInDays=7)
    _forget()
    with pytest.raises(RunStateError, match=told):
        _rows(run)
    check = next(c for c in redactory.verify(run.root)["checks"] if c["name"] == "encryption")
    assert (check["ok"], told in check["detail"]) == (False, True)
    with pytest.raises(RunStateError, match=told):
        _curated(after)
    assert not list(after.rglob("*.parquet"))
    if state == "disabled":
        kms.client.enable_key(KeyId=configured)
        assert _rows(run) == rows


def _forget() -> None:
    """As another process would: nothing that was unwrapped is remembered."""
    from redactory.redaction import encryption

    encryption._unwrap_key.cache_clear()


def test_unknown_and_denied_are_told_apart_and_quote_nothing(kms: Kms) -> None:
    with pytest.raises(RunStateError, match="does not exist in this account and region"):
        KmsKey("12345678-1234-1234-1234-123456789012").wrap(DATA_KEY, CONTEXT)
    wrapped = KmsKey(kms.key()).wrap(DATA_KEY, CONTEXT)
    with pytest.raises(RunStateError, match="AccessDeniedException"):
        KmsKey(kms.key()).unwrap(wrapped, CONTEXT)
    with pytest.raises(RunStateError, match="ParamValidationError") as caught:
        KmsKey("").wrap(DATA_KEY, CONTEXT)
    assert caught.value.__context__ is None


def test_a_service_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws_kms, "ANSWER_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(RunStateError, match="did not answer in time"):
            KmsKey("a-key").unwrap(b"wrapped", CONTEXT)
    # now nobody listens there
    aws_kms._create_client.cache_clear()
    with pytest.raises(RunStateError, match="cannot be reached"):
        KmsKey("a-key").unwrap(b"wrapped", CONTEXT)
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    aws_kms._create_client.cache_clear()
    with pytest.raises(RedactoryError, match="set AWS_DEFAULT_REGION"):
        KmsKey("a-key").wrap(DATA_KEY, CONTEXT)

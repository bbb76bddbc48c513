"""No digest that leaves, or that outlives the key, can be computed from a guess of private text."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import redactory
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.keys import KEY_VARIABLE, create_key_file, load_digest_key
from redactory.pipelines.curation.keys import shred_key
from redactory.pipelines.operations.incremental import FileSlice
from redactory.redaction import RunFolder, read_column, read_manifest
from redactory.training.data import open_public_text
from tests.pipelines.nightly.made_job import Job

SECRET = "My card PIN is 4831."
ALGORITHMS = ("md5", "sha1", "sha224", "sha256", "sha384", "sha512", "sha3_256", "blake2b", "blake2s")


@pytest.fixture(scope="module", autouse=True)
def _keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("keys")
    create_key_file("encryption", folder / "encryption")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDACTORY_ENCRYPTION_KEY_FILE", str(folder / "encryption"))
        patch.setenv(KEY_VARIABLE, "a digest key of enough bytes")
        yield


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Two encrypted nights of a file with a line each; published, and exported."""
    job = Job(tmp_path_factory.mktemp("job"), nightly={"publish": str(tmp_path_factory.mktemp("store"))})
    for name, text in (("a.jsonl", SECRET), ("b.jsonl", "so be it, then")):
        job.write(name, text)
        redactory.export(job.run().root, job.folder / f"out-{name}")
    return job


def _runs(job: Job) -> list[RunFolder]:
    return [RunFolder(path) for path in sorted(job.job.root.glob("20*"))]


def _guesses(job: Job) -> set[bytes]:
    """What somebody would try out: each file, row and text, as bytes."""
    found: set[bytes] = set()
    for path in job.input.iterdir():
        for line in path.read_bytes().splitlines(keepends=True):
            found |= {line, line.strip(), json.loads(line)["text"].encode()}
        found.add(path.read_bytes())
    for run in _runs(job):
        for column in ("text", "prefix", "suffix"):
            found |= {text.encode() for text in read_column(run.vault, column)}
    return {guess for guess in found if guess.strip()}


def _spelled(guess: bytes) -> Iterator[bytes]:
    """Unkeyed digests of a guess as a file could hold them, also the shorter ones of BLAKE2."""
    digests = [hashlib.new(name, guess).digest() for name in ALGORITHMS]
    digests += [hashlib.blake2b(guess, digest_size=size).digest() for size in (16, 32)]
    for digest in digests:
        # a digest that was cut begins alike
        yield from (digest[:8].hex().encode(), digest[:8], base64.b64encode(digest)[:10])


def test_no_file_of_a_job_that_leaves_or_stays_holds_an_unkeyed_digest_of_its_text(job: Job) -> None:
    spelled = {form: guess for guess in _guesses(job) for form in _spelled(guess)}
    assert len(spelled) > 150
    for run in _runs(job):
        shred_key(run.root, by="Ann")
    places = [job.folder / "job", Path(job.config["nightly"]["publish"])]
    places += sorted(job.folder.glob("out-*"))
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    assert len(files) > 60
    held = [(path.name, path.read_bytes()) for path in files]
    found = {(name, spelled[form]) for name, data in held for form in spelled if form in data or form in data.lower()}
    assert found == set()


def test_an_input_of_a_run_and_of_an_earlier_version_is_no_public_text(job: Job, tmp_path: Path) -> None:
    run = _runs(job)[0]
    own, other, longer = job.input / "a.jsonl", tmp_path / "other.jsonl", tmp_path / "longer.jsonl"
    other.write_text(own.read_text().replace("4831", "1234"))
    longer.write_text(own.read_text() + own.read_text())
    with pytest.raises(ConfigurationError, match="part of the corpus"):
        open_public_text(run, own)
    assert open_public_text(run, other) is not None
    with pytest.MonkeyPatch.context() as patch:
        # nobody can tell under another key: what may be one of the files is refused
        patch.setenv(KEY_VARIABLE, "another key of enough bytes")
        assert open_public_text(run, longer) is not None
        with pytest.raises(ConfigurationError, match="part of the corpus"):
            open_public_text(run, other)
    [entry] = read_manifest(run)["inputs"]
    assert sorted(entry) == ["bytes", "digest", "path", "rows", "slices"]


def test_a_piece_that_was_read_under_another_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "one"}\n')
    key = load_digest_key()
    digest = key.compute_file_digest([path.read_bytes()])
    piece = FileSlice(path.as_uri(), "a.jsonl", "jsonl", 0, 16, 0, 1, digest, key.fingerprint)
    assert piece.is_unchanged()
    path.write_bytes(b'{"text": "two"}\n')
    assert not piece.is_unchanged()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY_VARIABLE, "another key of enough bytes")
        with pytest.raises(ConfigurationError, match="restore that key"):
            piece.is_unchanged()

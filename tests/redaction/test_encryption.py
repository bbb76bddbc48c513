"""Encryption: what is written for one place under one key is read there with that key, and nowhere else."""

from __future__ import annotations

import ast
import hmac
import json
import multiprocessing
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow.parquet.encryption import create_decryption_properties

from redactory.foundation.errors import CheckFailed, ConfigurationError, RedactoryError, RunStateError
from redactory.pipelines.documents.unmask import PseudonymVault
from redactory.redaction import (
    RunFolder,
    RunKey,
    count_part_rows,
    encryption,
    find_run_key,
    format_part_name,
    get_or_create_run_key,
    is_encrypted,
    read_batches,
    read_content_sha256,
    read_part,
    read_secret,
    shards,
    write_part,
    write_secret,
)
from redactory.redaction.encryption import SERVICE_VARIABLE, KeyService, LocalKey
from redactory.redaction.shards import compute_table_digest

VARIABLE = "REDACTORY_ENCRYPTION_KEY"
SECRET, OTHER = "correct horse battery staple, twice", "another horse, another battery, 32 b"
TEXT = "Rosalind Marlowe of 12 Quiet Lane"
TABLE = pa.table(
    {"example_id": ["a", "b", "c"], "user": ["u"] * 3, "text": [TEXT, "é", ""], "reasons": [["x", "y"], [], None]},
    shards.PRIVATE,
)
ROOM = Path(shards.__file__).parents[1]


@pytest.fixture(autouse=True)
def _configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(f"{VARIABLE}_FILE", raising=False)
    monkeypatch.delenv(SERVICE_VARIABLE, raising=False)
    monkeypatch.setenv(VARIABLE, SECRET)


def begun(root: Path) -> RunFolder:
    """A run folder with a data key of its own, under the configured key."""
    run = RunFolder(root)
    run.state.mkdir(parents=True)
    assert get_or_create_run_key(run, has_data=False) is not None
    return run


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return begun(tmp_path / "run")


def data_key(run: RunFolder) -> RunKey:
    key = find_run_key(run.vault / "part")
    assert key is not None
    return key


# ------------------------------------------------------------------------------------ reading and writing

CELLS = {
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.binary(16): st.binary(min_size=16, max_size=16),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False).filter(lambda x: x or str(x) == "0.0"),
    pa.float64(): st.floats(allow_nan=False).filter(lambda x: x or str(x) == "0.0"),
    pa.bool_(): st.booleans(),
    pa.list_(pa.string()): st.lists(st.text(max_size=3), max_size=3),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Tables of the kinds of columns that parts have, nulls among the values."""
    kinds = draw(st.lists(st.sampled_from(list(CELLS)), min_size=1, max_size=4))
    rows = draw(st.integers(0, 6))
    columns = [pa.array(draw(st.lists(st.none() | CELLS[k], min_size=rows, max_size=rows)), k) for k in kinds]
    return pa.table(columns, names=[f"c{number}" for number in range(len(kinds))])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The vaults of an encrypted run and of one in the open."""
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, SECRET)
        closed, opened = begun(root / "closed"), RunFolder(root / "open")
    opened.state.mkdir(parents=True)
    return closed.vault, opened.vault


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables())
def test_a_part_is_read_as_it_was_written_encrypted_or_not(folders: tuple[Path, Path], table: pa.Table) -> None:
    for folder in folders:
        path = folder / "part-00000.parquet"
        write_part(path, table)
        for found in (read_part(path), pa.Table.from_batches(read_batches(folder), table.schema)):
            assert found.equals(table)
            assert found.schema.metadata is None
        assert read_part(path, table.column_names[:1]).equals(table.select([0]))
        assert count_part_rows(path) == table.num_rows
    assert read_content_sha256(folders[0] / "part-00000.parquet") == compute_table_digest(table)
    assert read_content_sha256(folders[1] / "part-00000.parquet") is None


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables(), tables(), st.integers(0, 6))
def test_digests_tell_tables_apart_and_chunks_not(one: pa.Table, other: pa.Table, cut: int) -> None:
    same = one.schema == other.schema and one.to_pylist() == other.to_pylist()
    assert (compute_table_digest(one) == compute_table_digest(other)) == same
    assert compute_table_digest(pa.concat_tables([one.slice(0, cut), one.slice(cut)])) == compute_table_digest(one)


LISTS = pa.list_(pa.string())


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (LISTS, [["ab", "c"]], [["a", "bc"]]),
        (LISTS, [["a"], []], [[], ["a"]]),
        (LISTS, [None, []], [[], None]),
        (LISTS, [[None]], [[""]]),
        (LISTS, [["a"], None], [["a"], [""]]),
        (pa.string(), [None, ""], ["", None]),
        (pa.binary(), [None], [b""]),
        (pa.int64(), [None], [0]),
        (pa.float32(), [None], [0.0]),
        (pa.bool_(), [None], [False]),
    ],
)
def test_digests_tell_near_misses_apart(kind: pa.DataType, one: list[Any], other: list[Any]) -> None:
    digests = {compute_table_digest(pa.table({"c": pa.array(values, kind)})) for values in (one, other)}
    assert len(digests) == 2


def test_two_writings_have_the_same_content_and_the_plain_data_key_opens_them(run: RunFolder, tmp_path: Path) -> None:
    path, written = run.private / "part-00000.parquet", set()
    for _ in range(2):
        write_part(path, TABLE)
        written.add((path.read_bytes(), read_content_sha256(path)))
    assert [len({pair[at] for pair in written}) for at in (0, 1)] == [2, 1]
    opened = create_decryption_properties(data_key(run).secret)
    assert pq.read_table(path, decryption_properties=opened).equals(TABLE)
    # the public side and files outside of a run stay open
    table = pa.table({"example_id": ["a"], "text": [TEXT]}, shards.PUBLIC)
    staged = run.reissue.files / "public" / "part-00000.parquet"
    places = [run.public / "part-00000.parquet", tmp_path / "elsewhere" / "part-00000.parquet", staged]
    for path in places:
        write_part(path, table)
        assert pq.read_table(path).equals(table)
    assert len({path.read_bytes() for path in places}) == 1


def test_what_is_staged_is_bound_to_the_place_that_it_is_to_take(run: RunFolder) -> None:
    (run.reissue.files / "state").mkdir(parents=True)
    staged, place = (root / "vault" / "part-00000.parquet" for root in (run.reissue.files, run.root))
    write_part(staged, TABLE)
    assert read_part(staged).equals(TABLE)
    assert is_encrypted(staged)
    place.parent.mkdir()
    staged.rename(place)
    assert read_part(place).equals(TABLE)


# ------------------------------------------------------------------------------------------ what is refused


@pytest.fixture
def part(run: RunFolder) -> Path:
    """One private part."""
    path = run.private / "part-00000.parquet"
    write_part(path, TABLE)
    return path


def refused(path: Path, error: type[RedactoryError], match: str) -> None:
    """Every way to read ``path`` is refused with a message without text."""
    for read in (read_part, lambda path: list(read_batches(path.parent)), count_part_rows, read_content_sha256):
        with pytest.raises(error, match=match) as caught:
            read(path)
        assert caught.value.__cause__ is None
        assert "Rosalind" not in str(caught.value)


def test_without_a_key_or_with_another_nothing_is_read_or_written(
    run: RunFolder, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, OTHER)
    refused(part, CheckFailed, "the encryption key is not the run's")
    monkeypatch.delenv(VARIABLE)
    refused(part, ConfigurationError, f"is encrypted: set {VARIABLE}_FILE")
    with pytest.raises(ConfigurationError):
        write_part(part.with_name("part-00001.parquet"), TABLE)
    assert len(list(part.parent.iterdir())) == 1
    run.data_key.unlink()
    refused(part, RunStateError, "data key was shredded or lost")
    monkeypatch.setenv(VARIABLE, SECRET)
    with pytest.raises(RunStateError, match=r"state/data-key.json is missing"):
        get_or_create_run_key(run, has_data=True)


@pytest.mark.parametrize(
    ("put", "place", "error", "match"),
    [
        (lambda _, at: pq.write_table(TABLE, at), "run/private", CheckFailed, "is not encrypted in an encrypted run"),
        (shutil.copy, "run/public", RunStateError, "data key was shredded or lost"),
        (shutil.copy, "run/vault", CheckFailed, "written as another part"),
        (shutil.copy, "other/private", CheckFailed, "cannot be decrypted"),
        *(
            (lambda at, to, n=n: to.write_bytes(at.read_bytes()[:n]), "run/private", CheckFailed, "part-0")
            for n in (0, 3, 4, 40, -40, -4, -1)
        ),
    ],
)
def test_what_lies_in_the_place_of_a_part_is_refused(
    part: Path, tmp_path: Path, put: Any, place: str, error: type[RedactoryError], match: str
) -> None:
    begun(tmp_path / "other")
    at = tmp_path / place / part.name
    at.parent.mkdir(exist_ok=True, parents=True)
    put(part, at)
    refused(at, error, match)


def test_a_copied_run_is_read_and_a_key_file_that_was_changed_is_refused(
    run: RunFolder, part: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere" / "moved"
    shutil.copytree(run.root, moved)
    assert read_part(moved / "private" / part.name).equals(TABLE)
    record = json.loads(run.data_key.read_text())
    for change in (
        {"run_id": "0" * 32},
        {"wrapped": record["wrapped"][:-8] + "AAAAAAA="},
        *({"wrapped": value} for value in ("", "?", None)),
        {"format": "redactory-data-key/2"},
        {"run_id": 3},
    ):
        run.data_key.write_text(json.dumps({**record, **change}))
        refused(part, RedactoryError, "data-key.json|refused")
    run.data_key.write_text("[]")
    refused(part, CheckFailed, "not a run.s key file")
    shutil.copy(begun(tmp_path / "other").data_key, run.data_key)
    refused(part, CheckFailed, "private/part-00000.parquet cannot be decrypted")


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), change=st.integers(1, 255))
def test_one_flipped_byte_never_gives_other_content(
    folders: tuple[Path, Path], data: st.DataObject, change: int
) -> None:
    path = folders[0] / "flipped" / "part-00000.parquet"
    if not path.exists():
        write_part(path, TABLE)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[data.draw(st.integers(0, len(whole) - 1))] ^= change
    path.write_bytes(flipped)
    try:
        assert read_part(path).equals(TABLE)
    except CheckFailed:
        pass
    finally:
        path.write_bytes(whole)


# ---------------------------------------------------------------------------------- files that are no parts


@given(st.binary(max_size=50).filter(lambda data: not data.startswith(encryption._MAGIC)))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_secret_file_is_read_as_it_was_written(folders: tuple[Path, Path], data: bytes) -> None:
    for folder in folders:
        path = folder.parent / "state" / "traceback-1.txt"
        write_secret(path, data)
        assert read_secret(path) == data
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_secret_file_is_refused_like_a_part(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = run.state / "one.txt", run.state / "other.txt"
    write_secret(path, TEXT.encode())
    whole = path.read_bytes()
    assert b"Rosalind" not in whole
    for offset in range(len(whole)):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        with pytest.raises(CheckFailed, match="was changed"):
            read_secret(path)
    for data in (b"", whole[:30], TEXT.encode()):
        path.write_bytes(data)
        with pytest.raises(CheckFailed, match="was changed"):
            read_secret(path)
    other.write_bytes(whole)
    with pytest.raises(CheckFailed, match="not belong"):
        read_secret(other)
    path.write_bytes(whole)
    assert read_secret(path) == TEXT.encode()
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(ConfigurationError):
        read_secret(path)
    run.data_key.unlink()
    with pytest.raises(RunStateError, match="data key of its run is missing"):
        read_secret(path)


@given(st.binary(min_size=16, max_size=40), st.sampled_from(["name", "wrap", "file", "fingerprint"]))
def test_each_purpose_has_a_subkey_of_its_own_by_rfc_5869(secret: bytes, purpose: str) -> None:
    extracted = hmac.digest(bytes(32), secret, "sha256")
    expected = hmac.digest(extracted, f"redactory/encryption/{purpose}".encode() + b"\x01", "sha256")
    assert encryption.derive_key(secret, purpose) == expected


# ------------------------------------------------------------------------------------- nonces

_NONCE = 12
_DRAWN = 1_500
"""Nonces of 32 bits of chance or less would meet, or show the same byte at a place far too often."""


def _drawn(_: int = 0) -> list[bytes]:
    return [encryption.encrypt(bytes(32), b"the same data", b"the same place")[:_NONCE] for _ in range(50)]


def _written(run: RunFolder, tmp_path: Path, kind: str) -> Iterator[bytes]:
    """Nonces of the same data, written again and again to the same place."""
    file, part, vault = run.state / "secret", run.private / format_part_name(0), tmp_path / "v.vault"
    for _ in range(25):
        if kind == "a secret":
            write_secret(file, b"the same data")
            yield file.read_bytes()[len(encryption._MAGIC) :][:_NONCE]
        elif kind == "a part":
            write_part(part, TABLE)
            # each module of the format begins with its length, then its nonce
            yield part.read_bytes()[8 : 8 + _NONCE]
        elif kind == "a vault":
            PseudonymVault(["text"], {"<NAME_a>": "Rosalind"}).merge_into(vault)
            yield vault.read_bytes()[:_NONCE]
        elif kind == "a wrapped key":
            yield LocalKey(SECRET.encode()).wrap(bytes(32), b"the same run")[:_NONCE]
        else:
            run.data_key.unlink()
            assert get_or_create_run_key(run, has_data=False) is not None
            yield (data_key(run).secret if kind == "a data key" else data_key(run).run_id.encode())[:_NONCE]


@pytest.mark.parametrize("kind", ["a secret", "a part", "a vault", "a wrapped key", "a data key", "the id of a run"])
def test_the_same_data_in_the_same_place_has_another_nonce_each_time(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    # that files outlast a power cut is tested elsewhere
    monkeypatch.setattr(os, "fsync", lambda _: None)
    written = list(_written(run, tmp_path, kind))
    assert len(set(written)) == len(written) == 25


def test_nonces_are_chance_of_the_system_in_every_process() -> None:
    # a fork has the state of every generator but the system's
    with multiprocessing.get_context("fork").Pool(2) as children:
        drawn = [n for each in (*children.map(_drawn, range(4), chunksize=1), *map(_drawn, range(26))) for n in each]
        # not left to `terminate`, which a fork that handles SIGTERM as its parent does may outlive
        children.close()
        children.join()
    assert len(set(drawn)) == len(drawn) == _DRAWN
    for place in range(_NONCE):
        often = Counter(nonce[place] for nonce in drawn)
        # 256 values that are alike: each some 6 times in 1,500, none 30 times but once in 10^12 tests
        assert len(often) > 230
        assert max(often.values()) < 30


# ------------------------------------------------------------------------------------- keys and services


def test_every_run_has_a_data_key_of_its_own_and_writes_none(run: RunFolder, tmp_path: Path) -> None:
    one, other = data_key(run), data_key(begun(tmp_path / "other"))
    assert one.secret != other.secret
    assert len(one.secret) == 32
    assert one.run_id != other.run_id
    assert get_or_create_run_key(run, has_data=True) == one
    assert run.data_key.stat().st_mode & 0o777 == 0o600
    record = json.loads(run.data_key.read_text())
    shown = json.dumps([record, one.to_json(), repr(one)])
    for secret in (one.secret.hex(), SECRET, repr(one.secret)):
        assert secret not in shown
    assert set(record) == {"format", "run_id", "wrapped_by", "wrapped"}


def test_what_is_not_configured_is_told_apart_from_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SERVICE_VARIABLE, f"{__name__}:backwards")
    with pytest.raises(ConfigurationError, match="both"):
        begun(tmp_path / "both")
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv(SERVICE_VARIABLE, "")
    with pytest.raises(ConfigurationError, match=f"^{SERVICE_VARIABLE} is set but empty: .* or unset it$"):
        begun(tmp_path / "empty")
    monkeypatch.delenv(SERVICE_VARIABLE)
    run = RunFolder(tmp_path / "run")
    run.state.mkdir(parents=True)
    assert get_or_create_run_key(run, has_data=False) is get_or_create_run_key(run, has_data=True) is None
    assert not run.data_key.exists()


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=20), st.binary(max_size=20))
def test_a_local_key_unwraps_what_it_wrapped_for_that_run_only(key: bytes, one: bytes, other: bytes) -> None:
    from cryptography.exceptions import InvalidTag

    local, stranger = LocalKey(SECRET.encode()), LocalKey(OTHER.encode())
    wrapped = local.wrap(key, one)
    assert local.unwrap(wrapped, one) == key
    assert key not in wrapped
    assert local.name != stranger.name
    assert SECRET not in repr(local) + local.name
    with pytest.raises(InvalidTag):
        stranger.unwrap(wrapped, one)
    if one != other:
        with pytest.raises(InvalidTag):
            local.unwrap(wrapped, other)


class Backwards:
    """A key service that counts its calls; its wrapping would fool nobody."""

    name = "backwards:1"

    def __init__(self) -> None:
        self.calls = 0

    def wrap(self, data_key: bytes, context: bytes) -> bytes:
        return context + data_key[::-1]

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        self.calls += 1
        if not wrapped.startswith(context):
            raise PermissionError(f"not for you: {TEXT}")
        return wrapped[len(context) :][::-1]


BACKWARDS = Backwards()


def backwards() -> KeyService:
    """What the variable names."""
    return BACKWARDS


class Short(Backwards):
    """Gives back too little."""

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        return b"short"


class Unable(Backwards):
    """Refuses to wrap, and says too much."""

    def wrap(self, data_key: bytes, context: bytes) -> bytes:
        raise PermissionError(TEXT)


no_service = object


def broken() -> KeyService:
    """Fails."""
    raise RuntimeError(TEXT)


def needy() -> KeyService:
    """Needs what is not installed."""
    raise ModuleNotFoundError(TEXT, name="a_client")


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Configures a function of this module as the key service."""

    def name(function: str) -> None:
        monkeypatch.delenv(VARIABLE, raising=False)
        monkeypatch.setenv(SERVICE_VARIABLE, f"{__name__}:{function}")

    return name


def test_a_key_service_is_named_and_asked_once(tmp_path: Path, named: Callable[[str], None]) -> None:
    named("backwards")
    run = begun(tmp_path / "run")
    asked = BACKWARDS.calls
    for number in range(5):
        path = run.private / f"part-{number:05d}.parquet"
        write_part(path, TABLE)
        assert read_part(path).equals(TABLE)
    assert BACKWARDS.calls == asked
    assert json.loads(run.data_key.read_text())["wrapped_by"] == "backwards:1"
    assert data_key(run).to_json()["wrapped_by"] == "backwards:1"
    record = json.loads(run.data_key.read_text())
    run.data_key.write_text(json.dumps({**record, "run_id": "another"}))
    refused(path, RunStateError, r"backwards:1 refused \(PermissionError\)")


@pytest.mark.parametrize(
    ("function", "error", "match"),
    [
        ("Short", CheckFailed, "5 bytes"),
        ("Unable", RunStateError, r"refused \(PermissionError\)"),
        ("no_service", ConfigurationError, "no key service"),
        ("broken", ConfigurationError, r"failed \(RuntimeError\)"),
        ("absent", ConfigurationError, r"failed \(AttributeError\)"),
        ("needy", ConfigurationError, "needs the module 'a_client', which is not installed"),
    ],
)
def test_a_key_service_that_fails_stops_the_run(
    tmp_path: Path, named: Callable[[str], None], function: str, error: type[RedactoryError], match: str
) -> None:
    named(function)
    with pytest.raises(error, match=match) as caught:
        begun(tmp_path / "run")
    assert "Rosalind" not in str(caught.value)


# ------------------------------------------------------------------------------------------------- one door


def test_parts_are_read_and_written_in_one_module() -> None:
    """Whoever opens Parquet files elsewhere would meet encrypted ones, or leave open ones behind."""
    allowed = {"redaction/shards.py"}
    found = set()
    for path in ROOM.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            if any(name.startswith("pyarrow.parquet") for name in names):
                found.add(path.relative_to(ROOM).as_posix())
    # what a person gives is read, and a copy of it written, in the open
    readers = {name for name in found if name.startswith("pipelines/readers/")}
    assert readers
    assert found - readers == allowed

"""Runs on a real S3 server: published, fetched, verified, interrupted, damaged; and the errors of stores."""

from __future__ import annotations

import contextlib
import io
import shutil
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import redactory
from redactory.foundation.errors import CheckFailed, ConfigurationError, RedactoryError, RunStateError
from redactory.foundation.files import write_json, write_text
from redactory.pipelines.curation import reissue as reissuing
from redactory.pipelines.curation.loading import load_config
from redactory.pipelines.store import Store, StoreError, StoreProblem, classify_store_error
from redactory.redaction import RunFolder, SealedFolder, list_parts, read_manifest, seal_folder
from tests.pipelines.leaving import BUCKET, Numbers, configuration, rows, s3_server, small_run
from tests.pipelines.support import read_data_bytes, write_rows

S3 = f"s3://{BUCKET}"
KILLED = """
import os, shutil, signal, sys
from redactory.pipelines.curation import share
from redactory.pipelines import store
left, within = [int(sys.argv[3])], sys.argv[4] == "within"
def counted():
    left[0] -= 1
    return not left[0]
put, copy = store.Store.write_file, shutil.copyfileobj
def before(self, name, source, mode):
    if counted():
        os.kill(os.getpid(), signal.SIGKILL)
    put(self, name, source, mode)
def half(source, file, length):
    if counted():
        data = source.read()
        file.write(data[: len(data) // 2])
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    copy(source, file, length)
if within:
    shutil.copyfileobj = half
else:
    store.Store.write_file = before
share.publish(sys.argv[1], sys.argv[2])
"""


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[str]:
    with s3_server() as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDACTORY_ENCRYPTION_KEY", "an encryption key of these tests, long enough")
        yield address


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encrypted run; copy it before writing."""
    return small_run(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("other"), segment={"mode": "document"})


@pytest.fixture
def own(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """A place that no other test uses."""
    return f"{S3}/{request.node.name.replace('[', '-').replace(']', '')}/run"


def there(url: str) -> set[str]:
    return Store.from_url(url).list_names()


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def came_back(url: str, run: Path, to: Path) -> None:
    """What lies at ``url`` is fetched, and is ``run`` byte for byte."""
    redactory.fetch(url, to)
    assert content(to) == content(run)


def killed(run: Path, url: str, number: int, how: str = "before") -> None:
    """Publishing, killed at the file of this ``number``, before it or within."""
    command = [sys.executable, "-c", KILLED, str(run), url, str(number), how]
    assert subprocess.run(command, check=False).returncode == -9


def sealed_result(folder: SealedFolder, format_: str) -> None:
    """As if something had been measured: another sealed folder of the run."""
    write_json(folder.root / "result.json", {"figures": 1})
    seal_folder(folder, {"format": format_}, [folder.root / "result.json"])


def put(store: Store, name: str, data: bytes, folder: Path) -> None:
    (folder / "object").write_bytes(data)
    store.upload_file(folder / "object", name)


def test_a_run_comes_back_as_it_left(own: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, back = RunFolder(own), tmp_path / "back"
    # without the gate, the report of a job's run could not be told from a changed one at its URL
    sealed_result(folder.gate, "redactory-gate/1")
    kept = content(own)
    # what people label and what quotes text stays here
    sample, sealed = folder.get_sample_folder("s").rows, folder.state / "traceback-00.txt"
    for path in (sample, sealed, folder.orchestrator / "x", folder.work / "y"):
        write_text(path, "call 555")
    left = redactory.publish(own, url)
    assert left["written"] == left["files"] == len(kept) - 1
    assert there(url) == {*kept, "SHA256SUMS"}
    for path in (folder.samples, folder.orchestrator, folder.work):
        shutil.rmtree(path)
    sealed.unlink()
    came_back(url, own, back)
    for path in (back, *back.rglob("*")):
        public = path.is_file() and path.parent == back / "public"
        due = 0o644 if public else 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == due, path
    again = redactory.publish(own, url)
    assert (again["written"], again["removed"], again["bytes"]) == (0, 0, 0)
    with pytest.raises(RunStateError, match="exists"):
        redactory.fetch(url, back)
    # the detector of these tests is none of the engines: a re-scan by them is another matter
    monkeypatch.setattr("redactory.pipelines.operations.verify.Detector", lambda settings: Numbers())
    here, found = redactory.verify(own), redactory.verify(url)
    assert (found["run"], found["checks"]) == (url, here["checks"])
    # a gate that no job made
    assert {c["name"] for c in found["checks"] if not c["ok"]} == {"measured", "report"}


def test_an_open_run_is_not_published_whole(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDACTORY_ENCRYPTION_KEY")
    run = small_run(tmp_path)
    with pytest.raises(RunStateError, match="redactory export"):
        redactory.publish(run, url)
    assert there(url) == set()
    redactory.export(run, url)
    assert redactory.verify(url)["ok"]
    shards = {f"public/{p.name}" for p in list_parts(RunFolder(run).public)}
    assert {name for name in there(url) if "/" in name} == shards
    with pytest.raises(RunStateError, match="something else is already there"):
        redactory.export(small_run(tmp_path / "other", segment={"mode": "document"}), url)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 9])
def test_a_killed_upload_is_never_taken_for_a_run(own: Path, url: str, tmp_path: Path, number: int) -> None:
    killed(own, url, number)
    assert len(there(url)) == number - 1
    assert "_SUCCESS" not in there(url)
    for ask in (lambda: redactory.fetch(url, tmp_path / "back"), lambda: redactory.verify(url)):
        with pytest.raises(RunStateError, match="nothing finished"):
            ask()
    again = redactory.publish(own, url)
    assert again["written"] == again["files"] - (number - 1)
    came_back(url, own, tmp_path / "back")
    # a change takes the seal away first
    sealed_result(RunFolder(own).redaction, "redactory-evaluation/1")
    killed(own, url, 1)
    assert "_SUCCESS" not in there(url)
    assert redactory.publish(own, url)["written"] == 3
    assert {"state/redaction/result.json", "_SUCCESS"} <= there(url)


def test_a_folder_as_a_store_has_whole_files_whenever_it_is_killed(run: Path, tmp_path: Path) -> None:
    own = content(run)
    for number in (1, len(own), len(own) + 1):
        place, url = tmp_path / str(number), f"file://{tmp_path}/{number}"
        killed(run, url, number, "within")
        there = {name: data for name, data in content(place).items() if ".tmp-" not in name}
        assert all(own[name] == data for name, data in there.items() if name != "SHA256SUMS")
        assert "_SUCCESS" not in there
        redactory.publish(run, url)
        assert {*content(place)} == {*own, "SHA256SUMS"}
    private = (p for p in place.rglob("*") if p.is_file() and p.parent.name != "public")
    assert {stat.S_IMODE(p.stat().st_mode) for p in private} == {0o600}
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    came_back(url, run, tmp_path / "back")


@pytest.mark.parametrize("name", ["manifest.json", "SHA256SUMS", "_SUCCESS", "public/part-00000.parquet"])
@pytest.mark.parametrize("cut", [0, 30])
def test_what_was_cut_off_in_writing_is_mended(own: Path, tmp_path: Path, name: str, cut: int) -> None:
    """Where it is written in place: such a file looked like somebody else's, or whole."""
    place, url = tmp_path / "mirror", f"file://{tmp_path}/mirror"
    redactory.publish(own, url)
    (place / name).write_bytes((place / name).read_bytes()[:cut])
    if name != "_SUCCESS":
        (place / "_SUCCESS").unlink()
        # what went meanwhile goes there, too: a shredded key that stayed would be no shredded key
        RunFolder(own).data_key.unlink()
    redactory.publish(own, url)
    came_back(url, own, tmp_path / "back")
    assert {*content(place)} == {*content(own), "SHA256SUMS"}


def test_a_changed_object_is_found(run: Path, url: str, tmp_path: Path) -> None:
    redactory.publish(run, url)
    store, back = Store.from_url(url), tmp_path / "back"
    for number, name in enumerate(("vault/part-00001.parquet", "state/journal.jsonl", "manifest.json")):
        kept, place = store.read_file(name) or b"", tmp_path / str(number)
        put(store, name, kept[:-1] + bytes([kept[-1] ^ 1]), tmp_path)
        with pytest.raises(CheckFailed, match=name):
            redactory.fetch(url, place)
        with pytest.raises(CheckFailed, match=name):
            redactory.verify(url)
        assert not place.exists()
        put(store, name, kept, tmp_path)
    sums = store.read_file("SHA256SUMS") or b""
    # a list that leads elsewhere
    for name in ("../outside", "/etc/passwd", "a/../../b", "./x"):
        put(store, "SHA256SUMS", sums + f"{'0' * 64}  {name}\n".encode(), tmp_path)
        with pytest.raises(CheckFailed, match="SHA256SUMS"):
            redactory.fetch(url, back)
    put(store, "SHA256SUMS", sums, tmp_path)
    store.remove_file("private/part-00000.parquet")
    with pytest.raises(CheckFailed, match=r"private/part-00000.parquet is missing"):
        redactory.fetch(url, back)


def test_a_store_that_cuts_data_is_found(run: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Store.write_file

    def cut(self: Store, name: str, source: BinaryIO, mode: int) -> None:
        real(self, name, io.BytesIO(source.read()[:-1]) if name.startswith("vault") else source, mode)

    monkeypatch.setattr(Store, "write_file", cut)
    with pytest.raises(CheckFailed, match="changed after sealing"):
        redactory.publish(run, url)
    assert "_SUCCESS" not in there(url)


def test_nothing_that_lies_there_is_written_over(run: Path, other: Path, url: str, tmp_path: Path) -> None:
    redactory.publish(run, url)
    with pytest.raises(RunStateError, match="something else is already there"):
        redactory.publish(other, url)
    put(Store.from_url(url), "vault/notes.txt", b"mine", tmp_path)
    with pytest.raises(RunStateError, match=r"first vault/notes.txt"):
        redactory.publish(run, url)
    put(Store.from_url(f"{url}-2"), "notes.txt", b"mine", tmp_path)
    with pytest.raises(RunStateError, match="something else is already there"):
        redactory.publish(run, f"{url}-2")
    assert Store.from_url(f"{url}-2").read_file("notes.txt") == b"mine"


WAYS: dict[str, Callable[[Path, Path], Any]] = {
    "export to a folder": lambda run, to: redactory.export(run, to),
    "export to a URL": lambda run, to: redactory.export(run, f"file://{to}"),
    "publish": lambda run, to: redactory.publish(run, f"file://{to}"),
}


@pytest.fixture
def keyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that people can be taken out of."""
    monkeypatch.setenv("REDACTORY_KEY", "a key for taking people out")
    return small_run(tmp_path)


@pytest.mark.parametrize("locked", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_an_erasure_waits_for_what_is_leaving_or_nothing_leaves(
    keyed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, locked: bool
) -> None:
    done: list[Any] = []
    real = Store.copy_file

    def slow(self: Store, source: Store, name: str, digest: str) -> int:
        # once, while what leaves is copied and is not there yet
        if not done and name.startswith("public"):
            done.append(None)
            done[0] = redactory.erase([keyed], doc_ids=["document-3"])
        return real(self, source, name, digest)

    monkeypatch.setattr(Store, "copy_file", slow)
    if locked:
        WAYS[way](keyed, tmp_path / "there")
        assert not done[0]["ok"]
        assert "is being written by" in done[0]["problems"][0]["problem"]
        assert redactory.erase([keyed], doc_ids=["document-3"])["ok"]
        return
    monkeypatch.setattr(reissuing, "file_lock", lambda *_: contextlib.nullcontext())
    # or, of a run that is mirrored as it lies there, a file that is another one by now
    with pytest.raises(RedactoryError, match=r"changed during the export|changed after sealing"):
        WAYS[way](keyed, tmp_path / "there")
    assert done[0]["ok"]
    assert not (tmp_path / "there" / "_SUCCESS").exists()
    WAYS[way](keyed, tmp_path / "later")
    assert (tmp_path / "later" / "_SUCCESS").exists()


def test_nothing_leaves_during_an_erasure(keyed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(reissuing, "_move_release", cut_off)
        with pytest.raises(KeyboardInterrupt):
            redactory.erase([keyed], doc_ids=["document-3"])
    for way, leave in WAYS.items():
        with pytest.raises(RunStateError, match="erasure or purge"):
            leave(keyed, tmp_path / way)


def test_an_output_at_a_url_is_worked_on_here(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, file = write_rows(tmp_path / "letters.jsonl", rows()), tmp_path / "job.yaml"
    write_json(file, {**configuration("letters.jsonl"), "output": url})
    settings = load_config(file)
    assert (settings.output, settings.store) == (tmp_path / "run", url)
    made = redactory.curate(file, detector=Numbers())
    assert (made["run"], made["published"]["to"]) == (str(tmp_path / "run"), url)
    assert redactory.curate(file, detector=Numbers(), resume=True)["published"]["written"] == 0
    configured = read_manifest(RunFolder(tmp_path / "run"))["configuration"]
    assert not {"store", "output"} & set(configured)
    monkeypatch.setenv("REDACTORY_WORK", str(tmp_path / "work"))
    assert load_config(file).output == tmp_path / "work" / "run"
    assert load_config({"input": str(source)}, output=url).store == url
    assert load_config(file, output=tmp_path / "mine").store is None
    assert load_config(settings).store == url


def test_an_output_at_a_url_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_rows(tmp_path / "letters.jsonl", rows())
    wanted = configuration(source)
    monkeypatch.setenv("REDACTORY_WORK", str(tmp_path / "work"))
    with pytest.raises(StoreError) as refused:
        redactory.curate({**wanted, "output": "s3://no-such-bucket-here/run"}, detector=Numbers())
    assert refused.value.kind is StoreProblem.NOT_FOUND
    Store.from_url(f"{S3}/taken/run").upload_file(source, "letters.jsonl")
    with pytest.raises(RunStateError, match="something else is already there"):
        redactory.curate({**wanted, "output": f"{S3}/taken/run"}, detector=Numbers())
    monkeypatch.delenv("REDACTORY_ENCRYPTION_KEY")
    with pytest.raises(RunStateError, match="needs an encryption key"):
        redactory.curate({**wanted, "output": f"{S3}/x/run"}, detector=Numbers())
    assert not (tmp_path / "work").exists()
    for bad in ("s3://", "s3://bucket/.."):
        with pytest.raises(ConfigurationError):
            load_config({**wanted, "output": bad})
    with pytest.raises(ConfigurationError, match="expected a URL"):
        load_config({**wanted, "store": "folder"})


def test_a_url_input_gives_equal_shards(run: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store.from_url(url).upload_file(run.parent / "letters.jsonl", "in/letters.jsonl")
    monkeypatch.delenv("REDACTORY_ENCRYPTION_KEY")
    here = small_run(tmp_path / "here")
    for number, path in enumerate(("in", "in/*.jsonl")):
        out = tmp_path / str(number)
        redactory.curate(configuration(f"{url}/{path}"), output=out, detector=Numbers())
        assert read_data_bytes(out) == read_data_bytes(here), path
    for missing in (f"{url}/nowhere", "s3://no-such-bucket-here/in"):
        with pytest.raises(ConfigurationError, match="nothing to read at"):
            redactory.describe(configuration(missing))


@contextmanager
def users_are_checked(server: str) -> Iterator[None]:
    """Meanwhile the server lets in only users that it knows, and it knows none."""
    place, headers = f"{server}/moto-api/reset-auth", {"Content-Type": "text/plain"}
    urllib.request.urlopen(urllib.request.Request(place, b"0", headers)).close()
    yield
    urllib.request.urlopen(urllib.request.Request(place, b"inf", headers)).close()


def test_errors_are_reported_by_kind(run: Path, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kind(ask: Callable[[], Any]) -> StoreProblem:
        with pytest.raises(StoreError) as found:
            ask()
        assert "Access Key" not in str(found.value)
        return found.value.kind

    assert kind(lambda: redactory.publish(run, "s3://no-such-bucket-here/run")) is StoreProblem.NOT_FOUND
    assert kind(lambda: redactory.publish(run, "nothing://host/run")) is StoreProblem.NOT_KNOWN
    assert kind(lambda: redactory.publish(run, "gs://bucket/run")) is StoreProblem.NOT_INSTALLED
    with users_are_checked(server):
        for ask in (
            lambda: redactory.publish(run, f"{S3}/run"),
            lambda: redactory.fetch(f"{S3}/run", tmp_path / "x"),
            lambda: Store.from_url(f"{S3}/run").upload_file(run / "manifest.json", "x"),
        ):
            assert kind(ask) is StoreProblem.NOT_PERMITTED
        with pytest.raises(ConfigurationError, match="not permitted"):
            redactory.describe(configuration(f"{S3}/in"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert kind(lambda: redactory.fetch(f"{S3}/run", tmp_path / "x")) is StoreProblem.NOT_REACHED


def test_an_error_says_nothing_of_its_own_and_no_password_of_a_url(run: Path, other: Path) -> None:
    for error in (ValueError("Zelda"), OSError("AWS Error UNKNOWN (HTTP status 403) Zelda"), KeyError("Zelda")):
        assert "Zelda" not in str(StoreError("s3://b/x", classify_store_error(error), type(error).__name__))
    with pytest.raises(StoreError) as found:
        Store.from_url("nothing://ann:secret@host/run")
    assert "secret" not in str(found.value)
    place = "memory://ann:a-secret@or-two@host/out"
    left = redactory.export(run, place)
    assert left["to"] == redactory.verify(place)["run"] == "memory://host/out"
    assert redactory.publish(run, f"{place}-2")["to"] == "memory://host/out-2"
    with pytest.raises(RunStateError, match=r"host/out: something else") as refused:
        redactory.publish(other, place)
    assert "secret" not in str(refused.value)
    assert "two" not in str(refused.value)

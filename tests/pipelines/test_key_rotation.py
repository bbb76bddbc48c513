"""Rotation and shredding of data keys: what opens a run before, between and after, and what the log says."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import redactory
from redactory.foundation import files
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, RedactoryError, RunStateError
from redactory.foundation.files import file_lock
from redactory.foundation.keys import create_key_file
from redactory.pipelines.curation import keys as key_rotation
from redactory.pipelines.curation.release_log import Event, append_event, get_log_path, read_history
from redactory.pipelines.operations.checks import CheckResult
from redactory.pipelines.operations.nightly import publish_released_runs
from redactory.redaction import RunFolder, find_run_key, get_or_create_run_key, list_parts, read_batches, read_manifest
from redactory.redaction.encryption import LocalKey
from redactory.redaction.folder import JobFolder
from tests.pipelines.support import DigitDetector, invoke_command, make_check, read_data_bytes, write_rows

VARIABLE = "REDACTORY_ENCRYPTION_KEY_FILE"
BLANK = {"tagger": None, "patterns": None, "spacy": {"model": "blank:en"}}
CONFIG: dict[str, Any] = {"segment": {"mode": "line"}, "detect": BLANK, "partition": {"documents": 6}}
KEYS = ("old", "new", "third")
ROWS = [
    {"id": f"d{i}", "user_id": f"u{i % 3}", "text": f"Hello there.\nMy number is 55-{i:04d}, says Rosalind."}
    for i in range(12)
]


class Killed(BaseException):
    """Stands in for a process that is gone: nothing in Redactory catches it."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three encryption keys."""
    folder = tmp_path_factory.mktemp("keys")
    for name in KEYS:
        create_key_file("encryption", folder / name)
    return {name: folder / name for name in KEYS}


@pytest.fixture(scope="module")
def made(keys: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of three runs under the old key, and one in the open."""
    root = tmp_path_factory.mktemp("made")
    job = JobFolder(root / "job")
    job.state.mkdir(parents=True)
    config = {**CONFIG, "input": str(write_rows(root / "rows.jsonl", ROWS))}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("a", "b", "c", "open"):
            patch.setenv(VARIABLE, str(keys["old"])) if name != "open" else patch.delenv(VARIABLE)
            redactory.curate(config, output=job.get_run_folder(name).root, detector=DigitDetector())
    return job.root


@pytest.fixture
def job(made: Path, tmp_path: Path, keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> JobFolder:
    """A copy of it; the old key is configured."""
    monkeypatch.setenv(VARIABLE, str(keys["old"]))
    return JobFolder(Path(shutil.copytree(made, tmp_path / "job")))


def opens(run: RunFolder, file: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the private parts of the run can be read with the key in ``file``: all of them, or none."""
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, str(file))
        found = []
        for folder in (run.private, run.vault, run.examples, run.spans):
            try:
                found.append(sum(batch.num_rows for batch in read_batches(folder)) > 0)
            except RedactoryError:
                found.append(False)
        assert len(set(found)) == 1
        return found[0]


def entered(run: RunFolder, event: Event) -> list[dict[str, Any]]:
    return [record.body for record in read_history(run) if record.type == event]


def checked(run: RunFolder) -> CheckResult:
    """The check of the encryption; where it holds, so does everything else, or is named as not made."""
    found = make_check(run.root, "encryption")
    result = redactory.verify(run.root) if found.ok else {"checks": [found._asdict()], "ok": True}
    assert found._asdict() in result["checks"]
    assert result["ok"], result["checks"]
    return found


def test_rotation_replaces_the_old_key(job: JobFolder, keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [job.get_run_folder(name) for name in "abc"]
    before = {run: (read_data_bytes(run.root), run.manifest.read_bytes()) for run in runs}
    redactory.rotate_key(runs[1].root, to_key_file=keys["new"])
    told = redactory.rotate_key(job.root, to_key_file=keys["new"])
    assert (told["rotated"], told["already"]) == ([str(runs[0].root), str(runs[2].root)], [str(runs[1].root)])
    assert (told["open"], told["ok"]) == ([str(job.get_run_folder("open").root)], True)
    names = [LocalKey(keys[name].read_bytes().strip()).name for name in ("old", "new")]
    for run in runs:
        assert [opens(run, keys[name], monkeypatch) for name in ("old", "new")] == [False, True]
        assert (read_data_bytes(run.root), run.manifest.read_bytes()) == before[run]
        (record,) = entered(run, Event.ROTATED)
        assert [record["before"], record["service"]] == names
        assert set(record) == {"run", "time", "service", "before"}
        assert (read_manifest(run)["encryption"] or {})["wrapped_by"] == names[0]
    assert not checked(runs[2]).ok
    monkeypatch.setenv(VARIABLE, str(keys["new"]))
    found = checked(runs[2])
    assert (found.ok, found.made) == (True, True)
    kept = {path: path.read_bytes() for path in job.root.rglob("*") if path.is_file()}
    assert len(redactory.rotate_key(job.root, to_key_file=keys["new"])["already"]) == 3
    for path, content in kept.items():
        assert path.read_bytes() == content
        assert not any(keys[name].read_bytes().strip() in content for name in KEYS), path


def test_a_run_that_cannot_be_opened_is_named_and_the_others_are_done(job: JobFolder, keys: dict[str, Path]) -> None:
    redactory.rotate_key(job.get_run_folder("b").root, to_key_file=keys["third"])
    job.get_run_folder("c").data_key.unlink()
    kept = job.get_run_folder("b").data_key.read_bytes()
    done = invoke_command("keys", "rotate", job.root, "--to-key-file", keys["new"], "--json")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["rotated"]) == (1, [str(job.get_run_folder("a").root)])
    assert [failed["run"] for failed in told["failed"]] == [str(job.get_run_folder(name).root) for name in "bc"]
    assert "is not the run's" in told["failed"][0]["error"]
    assert "is missing" in told["failed"][1]["error"]
    assert job.get_run_folder("b").data_key.read_bytes() == kept
    shown = invoke_command("keys", "rotate", job.root, "--to-key-file", keys["new"])
    assert (shown.exit_code, str(job.get_run_folder("c").root) in shown.stdout) == (1, True)


def _kill_at(patch: pytest.MonkeyPatch, step: str) -> None:
    """Have the process end where the log is to be entered, the key file written, or once it is in place."""
    place: tuple[Any, str] = {
        "log": (key_rotation, "append_event"),
        "write": (key_rotation, "write_json"),
        "replace": (files, "sync_to_disk"),
    }[step]
    real: Callable[..., Any] = getattr(*place)

    def dying(*given: Any, **named: Any) -> Any:
        # of the syncs, the one of the key file's folder, once the file is in place
        if step != "replace" or (Path(given[0]).is_dir() and Path(given[0]).name == "state"):
            raise Killed
        return real(*given, **named)

    patch.setattr(*place, dying)


class Liar:
    name = "liar:1"

    def wrap(self, data_key: bytes, context: bytes) -> bytes:
        return data_key[::-1]

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        return bytes(len(wrapped))


def liar() -> Liar:
    """A key service that unwraps something else than it wrapped."""
    return Liar()


def test_what_is_no_place_no_key_or_no_service_is_refused(
    job: JobFolder, keys: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = job.get_run_folder("a").data_key.read_bytes()
    told = redactory.rotate_key(job.get_run_folder("a").root, to_service=f"{__name__}:liar")
    assert "cannot unwrap what it wrapped" in told["failed"][0]["error"]
    for lock in (job.lock, job.get_run_folder("a").lock):
        with file_lock(lock, "the night"):
            told = redactory.rotate_key(job.get_run_folder("a").root, to_key_file=keys["new"])
            assert "is being written by process" in told["failed"][0]["error"]
    assert (job.get_run_folder("a").data_key.read_bytes(), job.log.exists()) == (kept, False)
    (tmp_path / "short").write_text("too short")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "with one of --to-key-file"),
        ({"to_key_file": keys["new"], "to_service": "a:b"}, "with one of --to-key-file"),
        ({"to_key_file": tmp_path / "short"}, "at least 32"),
        ({"to_service": "no.such:thing"}, r"--to-service: there is no module 'no\.such'"),
    ]
    for named, match in wrong:
        with pytest.raises(ConfigurationError, match=match):
            redactory.rotate_key(job.root, **named)
    with pytest.raises(ConfigurationError, match="neither a run nor"):
        redactory.rotate_key(job.state, to_key_file=keys["new"])
    monkeypatch.delenv(VARIABLE)
    told = redactory.rotate_key(job.root, to_key_file=keys["new"])
    assert ["run's key (the current one)" in failed["error"] for failed in told["failed"]] == [True] * 3


STEPS = st.tuples(st.sampled_from(KEYS), st.sampled_from([None, "log", "write", "replace"]))


@given(steps=st.lists(STEPS, min_size=1, max_size=8))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_rotations_with_any_crashes_leave_a_log_that_tells_them(
    steps: list[tuple[str, str | None]], keys: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    services = {name: LocalKey(keys[name].read_bytes().strip()).name for name in KEYS}
    run = RunFolder(tmp_path_factory.mktemp("rotated") / "run")
    run.state.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(keys["old"]))
        get_or_create_run_key(run, has_data=False)
        first = find_run_key(run.vault / "part")
        assert first is not None
        present, wrapped = "old", []
        for name, killed in steps:
            if name != present:
                wrapped.append((services[present], services[name]))
            with pytest.MonkeyPatch.context() as crash:
                if killed and name != present:
                    _kill_at(crash, killed)
                    with pytest.raises(Killed):
                        redactory.rotate_key(run.root, to_key_file=keys[name])
            # the operator asks again, with the key that was the present one
            assert redactory.rotate_key(run.root, to_key_file=keys[name])["ok"]
            present = name
            patch.setenv(VARIABLE, str(keys[present]))
        last = find_run_key(run.vault / "part")
        assert last is not None
        assert (last.run_id, last.secret) == (first.run_id, first.secret)
        assert [(b["before"], b["service"]) for b in entered(run, Event.ROTATED)] == wrapped
        for other in set(KEYS) - {present}:
            patch.setenv(VARIABLE, str(keys[other]))
            with pytest.raises(CheckFailed):
                find_run_key(run.vault / "part")


def test_a_night_takes_the_old_key_out_of_the_mirror(
    job: JobFolder, keys: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, url = job.get_run_folder("a"), f"file://{tmp_path}/mirror"
    append_event(run, Event.RELEASED, manifest=file_sha256(run.manifest), counts={})
    there = tmp_path / "mirror" / "a" / run.data_key.relative_to(run.root)
    assert publish_released_runs(job, url) == ["a"]
    assert publish_released_runs(job, url) == []
    redactory.rotate_key(run.root, to_key_file=keys["new"])
    monkeypatch.setenv(VARIABLE, str(keys["new"]))
    assert publish_released_runs(job, url) == ["a"]
    assert there.read_bytes() == run.data_key.read_bytes()
    redactory.shred_key(run.root, by="Ann Example")
    assert publish_released_runs(job, url) == ["a"]
    assert not there.exists()
    assert publish_released_runs(job, url) == []


def test_a_shredded_run_verifies_and_says_when_and_by_whom(job: JobFolder, keys: dict[str, Path]) -> None:
    run = job.get_run_folder("a")
    training = run.get_root_key_path("crt")
    training.write_bytes(b"the root key of a training")
    before = {path: path.read_bytes() for path in (run.data_key, training)}
    # what is open shows, when the name is gone, that the bytes were written over
    held = {path: path.open("rb") for path in before}
    told = redactory.shred_key(run.root, by="Ann Example")
    assert told["destroyed"] == ["state/data-key.json", "state/train-crt.key"]
    assert not any(path.exists() for path in before)
    for path, file in held.items():
        with file:
            assert file.read() != before[path]
    (record,) = entered(run, Event.SHREDDED)
    assert (record["by"], record["time"]) == ("Ann Example", told["time"])
    found = checked(run)
    assert found.ok
    assert not found.made
    assert f"was shredded on {told['time']} by Ann Example" in found.detail
    config = {"input": str(job.root), "detect": BLANK, "output": str(run.root), "train": {}}
    with pytest.raises(RunStateError, match=r"was shredded on .* by Ann Example"):
        redactory.train(config)
    with pytest.raises(RunStateError, match="data key was shredded or lost"):
        redactory.label_random(run.root, 3)
    again = redactory.shred_key(run.root, by="Bob")
    assert (again["by"], again["destroyed"]) == ("Ann Example", [])
    assert redactory.rotate_key(job.root, to_key_file=keys["new"])["shredded"] == [str(run.root)]
    assert not checked(job.get_run_folder("b")).ok  # it is under the new key
    assert sum(batch.num_rows for batch in read_batches(run.public)) > 0


@pytest.mark.parametrize("linked", [os.symlink, os.link])
@pytest.mark.parametrize("name", ["data-key.json", ".tmp-77-data-key.json", "train-crt.key"])
def test_no_link_is_shredded(job: JobFolder, name: str, linked: Callable[[Path, Path], None], tmp_path: Path) -> None:
    run, mine = job.get_run_folder("a"), tmp_path / "letter.txt"
    mine.write_text("mine")
    place = run.state / name
    place.unlink(missing_ok=True)
    linked(mine, place)
    with pytest.raises(RunStateError, match=f"{name} is no"):
        redactory.shred_key(run.root, by="Ann Example")
    assert (mine.read_text(), os.path.lexists(place)) == ("mine", True)
    assert entered(run, Event.SHREDDED) == []
    place.unlink()


def test_only_the_log_tells_a_shredded_key_from_a_lost_one(job: JobFolder, tmp_path: Path) -> None:
    run, other = job.get_run_folder("a"), job.get_run_folder("b")
    alone = RunFolder(Path(shutil.copytree(run.root, tmp_path / "alone")))
    kept = alone.data_key.read_bytes()
    run.data_key.unlink()
    redactory.shred_key(other.root, by="Ann")
    with pytest.raises(RunStateError, match="but the log does not record that it was shredded"):
        redactory.shred_key(run.root, by="Ann")
    assert not checked(run).ok
    # another run that takes the name of a shredded one is not that run
    shutil.rmtree(other.root)
    run.root.rename(other.root)
    assert not checked(other).ok
    # a backup that comes back is shredded again
    redactory.shred_key(alone.root, by="Ann")
    alone.data_key.write_bytes(kept)
    assert not checked(alone).ok
    assert redactory.shred_key(alone.root, by="Bob")["by"] == "Bob"
    assert [body["by"] for body in entered(alone, Event.SHREDDED)] == ["Ann", "Bob"]
    moved = RunFolder(alone.root.rename(tmp_path / "moved"))
    assert checked(moved).ok
    log = get_log_path(moved)
    log.write_bytes(log.read_bytes().replace(b"Ann", b"Eve") + b'{"seq": 5}\n')
    assert not checked(moved).ok


@pytest.mark.parametrize(("place", "name"), [(key_rotation, "shred_file"), (Path, "unlink")])
def test_an_interrupted_shredding_fails(job: JobFolder, monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> None:
    run = job.get_run_folder("a")
    real = getattr(place, name)

    def dying(path: Path, *arguments: Any, **options: Any) -> None:
        if place is not Path or path.name == "data-key.json":
            raise Killed
        real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(place, name, dying)
        with pytest.raises(Killed):
            redactory.shred_key(run.root, by="Ann")
    found = checked(run)
    assert not found.ok
    assert "exists, although it was shredded" in found.detail
    redactory.shred_key(run.root, by="Ann")
    assert checked(run).ok


def test_only_an_encrypted_run_is_shredded_and_only_when_it_is_meant(job: JobFolder) -> None:
    with pytest.raises(RunStateError, match="redactory purge"):
        redactory.shred_key(job.get_run_folder("open").root, by="Ann")
    with pytest.raises(RunStateError, match="is not a run folder"):
        redactory.shred_key(job.state, by="Ann")
    with pytest.raises(ConfigurationError, match="--by"):
        redactory.shred_key(job.get_run_folder("a").root, by="  ")
    unmeant = invoke_command("keys", "shred", job.get_run_folder("a").root, "--by", "Ann")
    assert isinstance(unmeant.exception, ConfigurationError)
    assert job.get_run_folder("a").data_key.exists()
    assert not job.log.exists()
    job.get_run_folder("a").samples.mkdir()
    done = invoke_command("keys", "shred", job.get_run_folder("a").root, "--by", "Ann", "--yes")
    assert done.exit_code == 0, done.output
    assert "backups" in done.stdout
    assert "state/samples is unencrypted" in done.stdout
    assert all(list_parts(folder) for folder in (job.get_run_folder("a").private, job.get_run_folder("a").vault))

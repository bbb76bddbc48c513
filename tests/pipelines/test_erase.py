"""A person out of finished runs: what is left is what a curation without them would have left."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import redactory
from redactory.dedup.index import IndexFolder
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.files import file_lock, read_json
from redactory.foundation.keys import create_key_file, load_digest_key
from redactory.pipelines.curation import finish
from redactory.pipelines.curation import reissue as reissue_steps
from redactory.pipelines.curation.reissue import finish_reissue
from redactory.pipelines.curation.release_log import Event, append_event, explain_rollback, read_history
from redactory.pipelines.operations import erase as erasing
from redactory.redaction import MASK, RunFolder, list_parts, read_column, seal_folder, write_success
from tests.conftest import KEY
from tests.pipelines.support import (
    LINE_CONFIG,
    DigitDetector,
    invoke_command,
    list_failed_checks,
    read_files,
    read_rows,
    run_checks,
    write_rows,
)

CONFIG: dict[str, Any] = {**LINE_CONFIG, "partition": {"documents": 3}}
LONG = "the parcel that was sent to our house last week is not here"
LINES = [
    *("hello there", "Hello there!", "call 555", "CALL 777", "tel 5 now", "it is me", "broken 1", "ask Anna"),
    *(f"{LONG} yet", f"{LONG} now", f"{LONG} said 5"),
]
"""Public lines and private ones, some alike or nearly alike, and one that is quarantined."""
COMPOSED, APART = "Jos\u00e9", "Jose\u0301"
"""One name in both forms that Unicode calls the same."""
SIGNING = "REDACTORY_SIGNING_KEY_FILE"
ENCRYPTION_KEY = "a key of more than thirty-two bytes, for tests"
People = dict[str, tuple[str | None, list[str]]]
PEOPLE: People = {
    "d0": ("v", ["hello there", "call 1"]),
    "theirs": ("u", ["it is me", "call 4", "only they say so", "my number is 4711", "broken 9"]),
    "d1": ("w1", ["it is me", "call 22"]),
    "d2": ("w2", ["HELLO there"]),
    "d3": ("w3", ["so be it", "ask Anna now"]),
    "theirs too": ("u", ["so be it", "hello there"]),
}
"""The person is u, with two documents; others say some of the same, before and after."""
pytestmark = pytest.mark.usefixtures("unsynced", "few_hash_ranges")


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a view, and takes most of the time."""
    for module in (finish, reissue_steps):
        monkeypatch.setattr(module, "write_report", lambda _run: None)


def curate(folder: Path, documents: People, **more: Any) -> Path:
    """A run of documents by id: the user, and the lines."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = [
        {"id": name, "text": "\n".join(lines), "lang": ["german", "english", "french"][ord(name[-1]) % 3]}
        | ({} if user is None else {"user_id": user})
        for name, (user, lines) in documents.items()
    ]
    columns = {"metadata_columns": ["lang"], "emit_document_order": True}
    return curate_file(write_rows(folder / "rows.jsonl", rows), input=columns, **more)


def curate_file(path: Path, **more: Any) -> Path:
    config = {**CONFIG, **more, "input": {"path": str(path), **more.get("input", {})}}
    redactory.curate(config, output=path.with_name("run"), detector=DigitDetector())
    return path.with_name("run")


def shards(run: Path) -> dict[str, Counter[str]]:
    return {side: Counter(read_column(run / side, "text")) for side in ("public", "private")}


def carried(folder: Path) -> Counter[tuple[Any, ...]]:
    names = ("text", "document_id", "position", "lang")
    return Counter(tuple(row[name] for name in names) for row in read_rows(folder))


def duplicate_targets(run: Path) -> Counter[tuple[str, ...]]:
    """Which document's point each duplicate is said to repeat, by keyed ids that two runs share."""
    rows = read_rows(RunFolder(run).examples)
    by_id = {row["example_id"]: row for row in rows}
    names = ("document", "decision", "split", "position", "lang")
    targets = ((by_id.get(row["dup_of"]) or {}).get("document", "") for row in rows)
    return Counter((*(row[name] for name in names), target) for row, target in zip(rows, targets, strict=True))


def erase_one(run: Path, **person: Any) -> dict[str, Any]:
    """What an erasure in one run reports of it."""
    result = redactory.erase([run], **person)
    assert result["ok"], result["problems"]
    [report] = result["runs"]
    return dict(report)


def erase_problem(run: Path) -> str:
    return str(redactory.erase([run], user_ids=["u"])["problems"][0]["problem"])


@contextmanager
def killed_before_moving() -> Iterator[None]:
    """A process that dies once the next release is sealed."""

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reissue_steps, "_move_release", die)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return curate(tmp_path_factory.mktemp("made"), PEOPLE)


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


@pytest.fixture
def job(made: Path, tmp_path: Path) -> Path:
    """A job with two runs."""
    job = tmp_path / "job"
    (job / "_job").mkdir(parents=True)
    for name in ("monday", "tuesday"):
        run = Path(shutil.copytree(made, job / name))
        append_event(RunFolder(run), Event.RELEASED, manifest=file_sha256(run / "manifest.json"), counts={})
    (job / "latest").symlink_to("tuesday")
    return job


MODES, SCOPES = ["none", "exact", "folded", "bloom", "minhash"], ["corpus", "user"]
DEDUP = st.fixed_dictionaries({"mode": st.sampled_from(MODES), "scope": st.sampled_from(SCOPES)})
SAID = st.lists(st.sampled_from(LINES), min_size=1, max_size=4)
DOCUMENTS = st.lists(st.tuples(st.sampled_from(["u", "v", None]), SAID), min_size=2, max_size=7)
SAME = [("u", ["so be it", "call 1", "broken 9"]), *((name, ["so be it", "call 22"]) for name in ("v", None, None))]


@pytest.mark.usefixtures("no_report")
@settings(max_examples=16, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(dedup=DEDUP, documents=DOCUMENTS, which=st.integers(0, 6), by_user=st.booleans(), purged=st.booleans())
@example(dedup={"mode": "exact", "scope": "corpus"}, documents=SAME, which=0, by_user=True, purged=True)
@example(dedup={"mode": "exact", "scope": "corpus"}, documents=SAME, which=0, by_user=True, purged=False)
def test_what_is_left_is_a_curation_without_the_person(
    tmp_path: Path, dedup: dict[str, str], documents: list[Any], which: int, by_user: bool, purged: bool
) -> None:
    """Also where the originals were purged, in the modes that know who says the same."""
    purged &= dedup["mode"] in ("none", "exact")
    named = {f"d{number}": document for number, document in enumerate(documents)}
    gone = f"d{which % len(named)}"
    user = named[gone][0]
    person = {"user_ids": [user]} if by_user and user is not None else {"doc_ids": [gone]}
    rest = {name: own for name, own in named.items() if (own[0] != user if "user_ids" in person else name != gone)}
    run = curate(tmp_path / "with", named, dedup=dedup)
    if purged:
        redactory.purge(run, ["vault", "state"])
    erase_one(run, **person)
    manifest = read_json(run / "manifest.json")
    if not rest:
        assert manifest["counts"]["examples"] == 0
        return
    without = curate(tmp_path / "without", rest, dedup=dedup)
    fresh = read_json(without / "manifest.json")
    for side in ("public", "private"):
        assert carried(run / side) == carried(without / side)
    # how many masks a duplicate had is not known without the originals
    for key in ("counts", "reasons", "spans", "quarantined", "rejected", *(() if purged else ("masks",))):
        assert manifest[key] == fresh[key], key
    assert duplicate_targets(run) == duplicate_targets(without)


def test_places_are_taken_words_are_gone_and_the_log_names_a_pseudonym(run: Path) -> None:
    key, folder = load_digest_key(), RunFolder(run)
    theirs = {r["example_id"] for r in read_rows(folder.examples) if r["user"] == key.make_pseudonym("user", "u")}
    told = erase_one(run, user_ids=["u"])
    # "it is me" is somebody else's now; "so be it" was all along
    assert (told["examples"], told["documents"], told["release"], told["moved_up"]) == (7, 2, 2, 1)
    assert shards(run)["public"]["it is me"] == 1
    for path in (path for data in folder.data_folders for path in list_parts(data)):
        table = pq.read_table(path)
        assert "only they say so" not in str(table.to_pydict())
        assert b"only they" not in path.read_bytes()
        for column in {"example_id", "dup_of", "private_example"} & set(table.column_names):
            assert not theirs & set(table[column].to_pylist())
    assert not list_failed_checks(run)
    (record,) = [r for r in read_history(folder) if r.type == "reissued"]
    assert record.body["persons"] == [{"kind": "user", "pseudonym": key.make_pseudonym("user", "u")}]
    assert record.body["manifest"] == file_sha256(folder.manifest)
    assert "Release 2: erasure on" in folder.card.read_text()

    # asked again it says what was done, and writes nothing but a receipt
    def read_all() -> dict[Path, bytes]:
        return {path: data for path, data in read_files(run).items() if path.parent.name != "receipts"}

    before = read_all()
    told = erase_one(run, user_ids=["u"])
    assert (told["examples"], told["release"], told["already"]) == (0, None, 2)
    assert erase_one(run, user_ids=["nobody"])["already"] is None
    told = erase_one(run, doc_ids=["d0"], dry_run=True)
    assert (told["examples"], told["release"]) == (2, None)
    assert read_all() == before


@pytest.mark.parametrize("mode", ["exact", "folded", "minhash", "bloom"])
def test_the_index_forgets_what_only_they_said(no_report: None, tmp_path: Path, mode: str) -> None:
    dedup = {"mode": mode, "index": {"path": str(tmp_path / "index")}}
    first = curate(tmp_path / "a", PEOPLE, dedup=dedup)
    index = IndexFolder(tmp_path / "index")
    (before,) = index.list_entries()
    if mode == "exact":
        # a run that was killed before its entry counted
        before.folder.rename(index.get_draft_folder(before.body["token"]))
    assert erase_one(first, user_ids=["u"])["index"] is True
    (after,) = index.list_entries()
    after.verify_files()
    assert after.name == before.name or mode == "exact"
    assert not index.list_pending_entries()
    assert after.body["counts"] == {s: n - 1 for s, n in before.body["counts"].items()}
    words = {"n1": ("s", ["only they say so", "hello there", "my number is 12"])}
    second = curate(tmp_path / "b", words, dedup=dedup)
    assert shards(second) == {"public": Counter(["only they say so"]), "private": Counter([f"my number is {MASK}"])}
    # of the second run, what repeats the first is still said to
    erase_one(second, doc_ids=["none of it"])
    assert next(iter(index.list_entries())).body == after.body


def test_a_lost_key_stops_no_other_run(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDACTORY_KEY", "another key than the first")
    other = curate(tmp_path / "other", PEOPLE)
    monkeypatch.delenv("REDACTORY_KEY")
    fresh = curate(tmp_path / "fresh", PEOPLE)
    monkeypatch.setenv("REDACTORY_KEY", KEY)
    result = redactory.erase([other, fresh, job], user_ids=["u"])
    assert not result["ok"]
    assert [(Path(r["run"]).name, r["release"]) for r in result["runs"]] == [("monday", 2), ("tuesday", 2)]
    told = {problem["run"]: problem["problem"] for problem in result["problems"]}
    assert "REDACTORY_KEY" in told[str(other)]
    assert "used a temporary key" in told[str(fresh)]
    assert not list_failed_checks(job / "tuesday")


def test_public_rows_of_a_shredded_run(no_report: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can tell whose its public rows are: it is done where it has none, or was without them before."""
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY", ENCRYPTION_KEY)
    job = tmp_path / "job"
    (job / "_job").mkdir(parents=True)
    for name, lines in (("none", ["call 5", "tel 6"]), ("some", ["call 5", "only they say so"])):
        curate(tmp_path / "made", {"theirs": ("u", lines), "d0": ("v", lines[:1])}).rename(job / name)
    before = Path(shutil.copytree(job / "some", tmp_path / "before"))
    redactory.erase([job / "some"], doc_ids=["d0"])
    for name in ("none", "some"):
        redactory.shred_key(job / name, by="Ann Example")
    for dry_run in (True, False):
        result = redactory.erase([job], user_ids=["u"], dry_run=dry_run)
        [done], [problem] = result["runs"], result["problems"]
        assert (done["run"], done["shredded"], done["files"]) == (str(job / "none"), True, ["input.path"])
        told = r"some was shredded on .* by Ann Example, .*; 1 row of public/ can still be read: remove the run"
        assert re.match(told, problem["problem"])
    # who was taken out before the key was destroyed is in none of its rows
    assert redactory.erase([job], doc_ids=["d0"])["ok"]
    samples = RunFolder(job / "none").samples
    (samples / "week").mkdir(parents=True)
    assert "state/samples can still be read" in erase_problem(job / "none")
    shutil.rmtree(samples)
    # an older folder that comes back without its key may hold anybody
    shutil.rmtree(job / "some")
    shutil.copytree(before, job / "some").joinpath("state/data-key.json").unlink()
    assert not redactory.erase([job], doc_ids=["d0"])["ok"]
    shutil.rmtree(job / "some")
    told = invoke_command("erase", job, "--user-id", "u")
    assert (told.exit_code, "nothing in it can be read" in told.output) == (0, True)


def test_ids_and_spellings(no_report: None, tmp_path: Path) -> None:
    people: People = {
        "a": (COMPOSED, ["call 1"]),
        "b": (APART, ["call 2"]),
        "c": ("v", ["call 3"]),
        "7": (None, ["hello there"]),
        "8": ("7", ["it is me"]),
    }
    runs = [curate(tmp_path / name, people) for name in ("one", "two")]
    for user in (COMPOSED, APART):
        result = redactory.erase(runs[:1], user_ids=[user], dry_run=True)
        assert (result["runs"][0]["examples"], result["unmatched"]) == (2, [])
    # a document without a user is said, and left
    told = erase_one(runs[0], user_ids=["7"])
    assert (told["documents"], told["lone_documents"]) == (1, 1)
    assert shards(runs[0])["public"] == Counter(["hello there"])
    result = redactory.erase(runs, doc_ids=["c", "nobody"], user_ids=["v"])
    assert [unknown["kind"] for unknown in result["unmatched"]] == ["document"]
    assert redactory.erase(runs, doc_ids=["c"], user_ids=["v"])["unmatched"] == [], "it was there, and was taken out"


def test_rejected_rows_are_searched_where_they_can_be(no_report: None, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "a", "user_id": "u", "text": "hello"},
        {"id": "b", "user_id": "u", "text": 5},
        {"id": "u", "user_id": "v", "text": 5},
        {"id": "a", "text": "an id twice"},
    ]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"id": "c", "user_id": "u", "text": "torn\n{"id": "c", "user_id": "you", "text": "torn\n')
        for number, user in enumerate((COMPOSED, APART, f"{COMPOSED}x", "Jose")):
            row = {"id": f"d{number}", "user_id": user, "text": 5}
            file.write(json.dumps(row, ensure_ascii=bool(number % 2)) + "\n")
            file.write(f'{{"id": "t{number}", "user_id": "{user}", "text": "torn\n')
    run = curate_file(path)
    for user in (COMPOSED, APART):
        told = erase_one(run, user_ids=[user], dry_run=True)
        assert (told["rejected"], told["unsearched"]) == (4, 5)
    result = redactory.erase([run], user_ids=["u"], doc_ids=["b", "z"])
    assert [unknown["kind"] for unknown in result["unmatched"]] == ["document"]
    [report] = result["runs"]
    assert (report["rejected"], report["unsearched"], report["files"]) == (2, 6, ["input.path"])
    assert sorted(row["row"] for row in read_rows(RunFolder(run).quarantine)) == [3, 4, *range(6, 15)]
    counts = read_json(run / "manifest.json")["counts"]
    assert (counts["rows"], counts["rejected"], counts["documents"]) == (11, 11, 0)
    assert not list_failed_checks(run) - {"report"}
    # of the rejected rows alone
    assert erase_one(run, user_ids=["Jose"])["release"] == 3


@pytest.mark.parametrize("separator", ",;|")
def test_rejected_rows_of_a_table_are_searched(no_report: None, tmp_path: Path, separator: str) -> None:
    rows = [["id", "user_id", "text"], ["a", "u", ""], ["b", "you", ""], ["c", "v", "hello"]]
    (tmp_path / "rows.csv").write_text("".join(separator.join(row) + "\n" for row in rows))
    told = erase_one(curate_file(tmp_path / "rows.csv"), user_ids=["u"], dry_run=True)
    assert (told["rejected"], told["unsearched"]) == (1, 0)


def test_rejected_rows_whose_ids_are_doubtful_are_searched_by_words(no_report: None, tmp_path: Path) -> None:
    """Ids that occur twice, that are no text, or that were cut off: found by a word, or counted as not searched."""
    lines = [
        '{"id": "a", "user_id": "u1", "user_id": "u2", "text": "hello"}',
        '{"id": "b", "user_id": ["u1"], "text": "hello"}',
        '{"text": 5}',
        '{"id": "c", "user_id": "u3", "text": 5}',
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    table = ["id,text,user_id", f'd,"{"x" * 100_000}",u1', 'e,"torn"x,"u1 ""O""Brien"""', "f,hello,v"]
    (tmp_path / "rows.csv").write_text("\n".join(table) + "\n", encoding="utf-8")
    paths = [str(tmp_path / "rows.jsonl"), str(tmp_path / "rows.csv")]
    run = curate_file(tmp_path / "rows.csv", input={"path": paths, "max_row_bytes": 80_000})
    told = erase_one(run, user_ids=["u1"], dry_run=True)
    # not searched: the row of nobody, and the one whose end was cut off
    assert (told["rejected"], told["unsearched"]) == (3, 2)
    assert erase_one(run, user_ids=['u1 "O"Brien"'], dry_run=True)["rejected"] == 1


@pytest.mark.parametrize("size", [100, 100_000], ids=["whole", "cut"])
@pytest.mark.parametrize("ending", ["xlsx", "parquet", "eml"])
def test_rejected_rows_are_found_by_ids_in_other_columns(
    no_report: None, tmp_path: Path, ending: str, size: int
) -> None:
    """The first 64 KiB of a text that is too long say nothing of whose it is."""
    path, text = tmp_path / f"rows.{ending}", "x" * size
    if ending == "eml":
        path.write_text(f"From: Ann <u@example.org>\nSubject: x\n\n{text}\n")
    elif ending == "xlsx":
        book = openpyxl.Workbook()
        for row in (["id", "user_id", "text"], ["a", "u@example.org", text[:32_000]], ["b", "you", text[:32_000]]):
            book.active.append(row)
        book.save(path)
    else:
        pq.write_table(pa.table({"text": [text, text], "user_id": ["u@example.org", "you"], "id": ["a", "b"]}), path)
    write_rows(tmp_path / "rest.jsonl", [{"id": "c", "user_id": "v", "text": "hello"}])
    run = curate_file(path, input={"path": [str(path), str(tmp_path / "rest.jsonl")], "max_chars": 50})
    told = erase_one(run, user_ids=["u@example.org"], dry_run=True)
    is_cut = size > 64_000 and ending == "parquet"
    assert (told["rejected"], told["unsearched"]) == (1, int(is_cut))


def test_samples_with_their_text_go_and_others_stay(run: Path) -> None:
    redactory.label_random(run, n=20, name="all", seed=1)
    assert erase_one(run, user_ids=["u"])["samples"] == ["all"]
    assert not (run / "state" / "samples" / "all").exists()
    redactory.label_random(run, n=20, name="rest", seed=1)
    assert erase_one(run, doc_ids=["none of these"])["examples"] == 0
    assert (run / "state" / "samples" / "rest" / "_SUCCESS").is_file()


def test_a_run_at_work_or_half_written_is_left_alone(run: Path) -> None:
    with file_lock(RunFolder(run).lock, "a curation"):
        assert "is being written by" in erase_problem(run)
    with killed_before_moving():
        redactory.erase([run], user_ids=["u"])
    dry = redactory.erase([run], user_ids=["u"], dry_run=True)
    assert "run again without --dry-run" in dry["problems"][0]["problem"]
    assert erase_one(run, user_ids=["u"])["already"] == 2
    (run / "_SUCCESS").unlink()
    assert "is unfinished: resume it" in erase_problem(run)


def test_the_command(run: Path, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("theirs\n\ntheirs too\n")
    told = invoke_command("erase", run, "--doc-ids-from", tmp_path / "ids", "--json")
    assert json.loads(told.stdout)["runs"][0]["documents"] == 2
    assert "removed with release 2" in invoke_command("erase", run, "--doc-id", "theirs").output
    page = invoke_command("erase", run, "--doc-id", "d0").output
    assert "2 examples of 1 document removed; this is release 3" in page
    assert "Texts of others" not in page
    page = invoke_command("erase", run, "--user-id", "w1").output
    assert "Texts of others about a user remain: put the names on a deny list" in page
    assert invoke_command("erase", run).exit_code != 0


def test_a_signed_encrypted_run_stays_that_or_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("signing", "encryption"):
        create_key_file(name, tmp_path / name)  # type: ignore[arg-type]
    monkeypatch.setenv(SIGNING, str(tmp_path / "signing"))
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY", ENCRYPTION_KEY)
    run = curate(tmp_path / "signed", PEOPLE)
    assert redactory.rotate_key(run, to_key_file=tmp_path / "encryption")["ok"]
    monkeypatch.delenv("REDACTORY_ENCRYPTION_KEY")
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY_FILE", str(tmp_path / "encryption"))
    before = read_files(run)
    for wrong in (None, tmp_path / "nope.key"):
        monkeypatch.delenv(SIGNING) if wrong is None else monkeypatch.setenv(SIGNING, str(wrong))
        assert ("is signed" if wrong is None else SIGNING) in erase_problem(run)
        assert read_files(run) == before
    monkeypatch.setenv(SIGNING, str(tmp_path / "signing"))
    with killed_before_moving():
        redactory.erase([run], user_ids=["u"])
    # the next release was signed before it began to take its place
    monkeypatch.delenv(SIGNING)
    finish_reissue(RunFolder(run))
    assert redactory.verify(run, public_key=tmp_path / "signing.pub")["ok"]
    files = read_json(run / "manifest.json")["files"]
    assert all("content" in entry for name, entry in files.items() if name.startswith("vault/"))
    # who may write in the folder and has no key can make it all fit, but for a signer that was there
    with monkeypatch.context() as patch:
        patch.setattr(erasing, "prepare_reissue", lambda _run: None)
        assert redactory.erase([run], doc_ids=["d0"])["ok"]
    assert list_failed_checks(run) == {"earlier releases", "signature"}
    signature = run / "releases" / "1" / "manifest.json.sig"
    signature.write_bytes(bytes([signature.read_bytes()[0] ^ 1]) + signature.read_bytes()[1:])
    assert "release 1: manifest.json.sig" in run_checks(run)["earlier releases"]["detail"]


@pytest.mark.parametrize("name", ["public/part-00000.parquet", "README.md"])
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_file_that_is_not_what_was_staged_ends_no_erasure(run: Path, name: str, is_gone: bool) -> None:
    folder = RunFolder(run)
    with killed_before_moving():
        redactory.erase([run], user_ids=["u"])
    staged = folder.reissue.files / name
    staged.unlink() if is_gone else staged.write_bytes(b"another")
    with pytest.raises(CheckFailed, match=f"{name} does not match the staged copy; restore the run from a backup"):
        finish_reissue(folder)
    assert not (run / "_SUCCESS").exists()


def reseal(run: Path, **removed: int) -> None:
    """A forger makes the digests right again, and changes the counts of the last change."""
    folder = RunFolder(run)
    body = read_json(folder.manifest)
    del body["files"]
    body["changes"][-1]["removed"] |= removed
    seal_folder(folder, body, [*(p for f in folder.data_folders for p in list_parts(f)), folder.card])


def restore_part(run: Path, before: Path) -> None:
    shutil.copy(before / "public/part-00000.parquet", run / "public/part-00000.parquet")
    reseal(run)


def cut_journal(run: Path, _before: Path) -> None:
    journal = run / "state" / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-2]))


@pytest.mark.parametrize(
    ("sabotage", "checks"),
    [
        (restore_part, {"journal"}),
        (cut_journal, {"journal", "earlier releases"}),
        (lambda run, _before: reseal(run, examples=0), {"earlier releases"}),
    ],
)
def test_sabotage_shows(run: Path, made: Path, sabotage: Callable[[Path, Path], None], checks: set[str]) -> None:
    for name in ("theirs", "theirs too"):
        assert erase_one(run, doc_ids=[name])["examples"]
    assert not list_failed_checks(run)
    sabotage(run, made)
    assert checks <= list_failed_checks(run)


def test_a_folder_from_before_is_refused_by_all_who_use_a_run(job: Path, made: Path, tmp_path: Path) -> None:
    run = job / "monday"
    erase_one(run, doc_ids=["theirs"])
    assert redactory.list_releases(job)["problems"] == []
    assert not list_failed_checks(run)
    other = Path(shutil.copytree(made, job / "wednesday"))
    assert "release log" in list_failed_checks(other), "under another name too"
    shutil.rmtree(other)
    shutil.rmtree(run)
    shutil.copytree(made, run)
    told = "the log records release 2, but this is release 1: a folder from before the erasure was restored"
    assert run_checks(run)["release log"]["detail"] == told
    assert redactory.list_releases(job)["problems"] == [f"monday: {told}"]
    asked = invoke_command("release", "list", job)
    assert (asked.exit_code, told in asked.output) == (1, True)
    uses: list[Callable[[], Any]] = [
        lambda: redactory.export(run, tmp_path / "export"),
        lambda: redactory.publish(run, str(tmp_path / "store")),
        lambda: redactory.train({**CONFIG, "input": "rows.jsonl", "output": str(run), "train": {}}),
        lambda: redactory.purge(run, ["vault"]),
        lambda: redactory.guarantee(run, also=[run]),
    ]
    for use in uses:
        with pytest.raises(RunStateError, match="from before the erasure was restored"):
            use()
    # the way back where the newer folder is lost
    assert erase_one(run, doc_ids=["theirs"])["release"] == 2
    assert not list_failed_checks(run)
    # a record that names what lies here as superseded, whatever its number says
    assert explain_rollback(RunFolder(run)) is None
    append_event(RunFolder(run), Event.REISSUED, release=3, supersedes=file_sha256(run / "manifest.json"))
    assert "release log" in list_failed_checks(run)
    (job / "latest").unlink()
    (job / "latest").symlink_to("monday")
    *_, problem = redactory.list_releases(job)["problems"]
    assert problem.startswith("latest points to monday, but according to the log it is tuesday")


def test_a_run_on_its_own_has_its_log_inside_and_may_be_renamed(run: Path, made: Path, tmp_path: Path) -> None:
    erase_one(run, doc_ids=["theirs"])
    kept = Path(shutil.copytree(made, tmp_path / "kept"))
    shutil.copy(RunFolder(run).release_log, RunFolder(kept).release_log)
    assert "release log" in list_failed_checks(kept)
    moved = RunFolder(run.rename(tmp_path / "renamed"))
    assert not list_failed_checks(moved.root)
    assert read_history(moved)
    # another manifest of a known release is called that
    moved = RunFolder(moved.root.rename(run))
    moved.manifest.write_text(moved.manifest.read_text() + "\n")
    write_success(moved)
    check = run_checks(run)["release log"]
    assert (check["ok"], check["detail"]) == (False, "the log has no record of this manifest (release 2)")

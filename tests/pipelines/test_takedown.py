"""A person out of finished runs: what is left is what a curation without her would have left."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import redactory
from redactory.dedup.index import IndexFolder
from redactory.flows.cli import app
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.keys import load_digest_key, new_key
from redactory.pipelines import reissue as reissue_steps
from redactory.pipelines import release
from redactory.pipelines.reissue import finish_reissue
from redactory.pipelines.release_log import Event, enter, history, put_back
from redactory.redaction import MASK, RunFolder, parts, read_batches, read_column, seal, succeed
from redactory.redaction.releases import releases
from tests.conftest import KEY
from tests.pipelines.support import LINES, DigitDetector, data_bytes, failed, write_rows

CONFIG: dict[str, Any] = {**LINES, "partition": {"documents": 3}}
LINES = [
    "hello there",
    "Hello there!",
    "call 555",
    "CALL 777",
    "tel 5 now",
    "it is me",
    "broken 1",
    "ask Anna",
]
"""Public lines and private ones, some alike but for case, signs and digits, and one that is quarantined."""
OTHERS = [["hello there", "call 1"], ["it is me", "call 22"], ["HELLO there"], ["so be it", "ask Anna now"]]


pytestmark = pytest.mark.usefixtures("unsynced", "few_hash_ranges")


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> None:
    """No report: it is a view, and takes most of the time."""
    monkeypatch.setattr(release, "write_report", lambda _run: None)
    monkeypatch.setattr(reissue_steps, "write_report", lambda _run: None)


def _curate(folder: Path, documents: dict[str, tuple[str | None, list[str]]], **more: Any) -> Path:
    """A run of documents by id: the user, and the lines."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = [
        {"id": name, "text": "\n".join(lines)} | ({} if user is None else {"user_id": user})
        for name, (user, lines) in documents.items()
    ]
    config = {**CONFIG, "input": str(write_rows(folder / "rows.jsonl", rows)), **more}
    redactory.curate(config, output=folder / "run", detector=DigitDetector())
    return folder / "run"


def _shards(run: Path) -> dict[str, Counter[str]]:
    folder = RunFolder(run)
    return {side: Counter(read_column(getattr(folder, side), "text")) for side in ("public", "private")}


def _person() -> dict[str, tuple[str | None, list[str]]]:
    """She is u, with two documents; others say some of the same, before and after."""
    found: dict[str, tuple[str | None, list[str]]] = {"d0": ("v", OTHERS[0])}
    found["hers"] = ("u", ["it is me", "call 4", "only she says so", "my number is 4711", "broken 9"])
    for number, lines in enumerate(OTHERS[1:], 1):
        found[f"d{number}"] = (f"w{number}", lines)
    found["hers too"] = ("u", ["so be it", "hello there"])
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _curate(tmp_path_factory.mktemp("made"), _person())


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def _one(result: dict[str, Any]) -> dict[str, Any]:
    assert result["ok"], result["problems"]
    (own,) = result["runs"]
    return dict(own)


_LINES = st.lists(st.sampled_from(LINES), min_size=1, max_size=4)
_DOCUMENTS = st.lists(st.tuples(st.sampled_from(["u", "v", None]), _LINES), min_size=2, max_size=7)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    mode=st.sampled_from(["none", "exact", "folded", "bloom", "minhash"]),
    scope=st.sampled_from(["corpus", "user"]),
    documents=_DOCUMENTS,
    which=st.integers(0, 6),
    by_user=st.booleans(),
)
def test_what_is_left_is_a_curation_without_her(
    views: None,
    tmp_path: Path,
    mode: str,
    scope: str,
    documents: list[tuple[str | None, list[str]]],
    which: int,
    by_user: bool,
) -> None:
    named = {f"d{number}": document for number, document in enumerate(documents)}
    gone = f"d{which % len(named)}"
    user = named[gone][0]
    asked = {"user_ids": [user]} if by_user and user is not None else {"doc_ids": [gone]}
    rest = {
        name: own for name, own in named.items() if (own[0] != user if "user_ids" in asked else name != gone)
    }
    dedup = {"mode": mode, "scope": scope}
    run = _curate(tmp_path / "with", named, dedup=dedup)
    _one(redactory.takedown([run], **asked))
    manifest = json.loads((run / "manifest.json").read_text())
    if not rest:
        assert manifest["counts"]["points"] == 0
        return
    without = _curate(tmp_path / "without", rest, dedup=dedup)
    fresh = json.loads((without / "manifest.json").read_text())
    assert _shards(run) == _shards(without)
    for key in ("counts", "reasons", "hits", "masks", "quarantined"):
        assert manifest[key] == fresh[key], key
    assert _pointed(run) == _pointed(without)


def _pointed(run: Path) -> Counter[tuple[str, ...]]:
    """What each original is told to be of its duplicates, by keyed ids that two runs share."""
    rows = [row for batch in read_batches(RunFolder(run).points) for row in batch.to_pylist()]
    by_id = {row["point_id"]: row for row in rows}
    return Counter(
        (row["document"], row["fate"], row["side"], (by_id.get(row["dup_of"]) or {}).get("document", ""))
        for row in rows
    )


def test_her_places_are_taken_and_her_words_are_gone(run: Path) -> None:
    before = data_bytes(run)
    hers = set(_hers(run))
    told = _one(redactory.takedown([run], user_ids=["u"]))
    assert (told["points"], told["documents"], told["release"]) == (7, 2, 2)
    # "it is me" and "call <MASK>" are others' now; "so be it" was another's all along
    assert told["moved_up"] == 1
    assert _shards(run)["public"]["it is me"] == 1
    for folder in RunFolder(run).data_folders:
        for path in parts(folder):
            table = pq.read_table(path)
            assert "only she says so" not in str(table.to_pydict())
            assert b"only she" not in path.read_bytes()
            for column in ("point_id", "dup_of", "private_point"):
                if column in table.column_names:
                    assert not hers & set(table[column].to_pylist())
    assert not failed(run)
    assert data_bytes(run).keys() == before.keys()
    (record,) = [r for r in history(RunFolder(run)) if r.type == "reissued"]
    assert record.body["persons"] == [{"kind": "user", "pseudonym": load_digest_key().pseudonym("user", "u")}]
    assert record.body["manifest"] == file_sha256(run / "manifest.json")
    card = (run / "README.md").read_text()
    assert "Release 2: takedown on" in card


def _hers(run: Path) -> list[int]:
    user = load_digest_key().pseudonym("user", "u")
    batches = read_batches(RunFolder(run).points, ["point_id", "user"])
    return [row["point_id"] for batch in batches for row in batch.to_pylist() if row["user"] == user]


def test_asked_again_it_tells_what_was_done(run: Path) -> None:
    redactory.takedown([run], user_ids=["u"])
    bytes_ = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    told = _one(redactory.takedown([run], user_ids=["u"]))
    assert (told["points"], told["release"], told["already"]) == (0, None, 2)
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == bytes_
    assert _one(redactory.takedown([run], user_ids=["nobody"]))["already"] is None


def test_a_dry_run_writes_nothing(run: Path) -> None:
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    told = _one(redactory.takedown([run], doc_ids=["hers"], dry_run=True))
    assert (told["points"], told["release"]) == (5, None)
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_one_after_the_other_each_record_holds(run: Path) -> None:
    for name in ("hers", "d2", "hers too"):
        assert _one(redactory.takedown([run], doc_ids=[name]))["points"]
    assert [r.number for r in releases(RunFolder(run))] == [1, 2, 3, 4]
    assert not failed(run)


def test_a_lost_key_is_refused_by_name_and_other_runs_are_done(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDACTORY_KEY", "another key than the first")
    other = _curate(tmp_path / "other", _person())
    monkeypatch.delenv("REDACTORY_KEY")
    fresh = _curate(tmp_path / "fresh", _person())
    monkeypatch.setenv("REDACTORY_KEY", KEY)
    manifest = json.loads((fresh / "manifest.json").read_text())
    assert manifest["key"]["fresh"]
    result = redactory.takedown([other, fresh, run], user_ids=["u"])
    assert not result["ok"]
    assert [own["run"] for own in result["runs"]] == [str(run)]
    told = {problem["run"]: problem["problem"] for problem in result["problems"]}
    assert "REDACTORY_KEY" in told[str(other)]
    assert "drew a key of its own" in told[str(fresh)]


def test_a_job_is_gone_through_run_by_run(made: Path, tmp_path: Path) -> None:
    job = tmp_path / "job"
    (job / "_job").mkdir(parents=True)
    for name in ("monday", "tuesday"):
        shutil.copytree(made, job / name)
    (job / "latest").symlink_to("tuesday")
    result = redactory.takedown([job], doc_ids=["hers"])
    assert [Path(own["run"]).name for own in result["runs"]] == ["monday", "tuesday"]
    assert [own["release"] for own in result["runs"]] == [2, 2]
    assert (job / "_job" / "log.jsonl").is_file()
    assert not failed(job / "tuesday")
    with pytest.raises(ConfigurationError, match="neither a run"):
        redactory.takedown([tmp_path / "nowhere"], doc_ids=["hers"])


def test_a_document_without_a_user_is_told_not_taken(views: None, tmp_path: Path) -> None:
    run = _curate(tmp_path, {"7": (None, ["hello there"]), "8": ("7", ["it is me"])})
    told = _one(redactory.takedown([run], user_ids=["7"]))
    assert (told["documents"], told["lone_documents"]) == (1, 1)
    assert _shards(run)["public"] == Counter(["hello there"])
    assert _one(redactory.takedown([run], doc_ids=["7"]))["documents"] == 1


def test_two_spellings_of_a_user_are_one_person(views: None, tmp_path: Path) -> None:
    composed, apart = "Jos\u00e9", "Jose\u0301"
    people = {"a": (composed, ["call 1"]), "b": (apart, ["call 2"]), "c": ("v", ["call 3"])}
    run = _curate(tmp_path / "now", people)
    assert len(set(read_column(RunFolder(run).points, "user"))) == 2
    for asked in (composed, apart):
        told = redactory.takedown([run], user_ids=[asked], dry_run=True)
        assert (_one(told)["points"], told["unmatched"]) == (2, [])


def test_an_id_that_is_nowhere_is_told(views: None, tmp_path: Path) -> None:
    rows = {"a": ("u", ["hello there"]), "b": ("v", ["it is me"])}
    runs = [_curate(tmp_path / name, rows) for name in ("one", "two")]
    result = redactory.takedown(runs, doc_ids=["a", "u"], user_ids=["v"], dry_run=True)
    (unknown,) = result["unmatched"]
    assert unknown["kind"] == "document"
    assert redactory.takedown(runs, doc_ids=["a"])["unmatched"] == []
    again = redactory.takedown(runs, doc_ids=["a"], user_ids=["v"])
    assert again["unmatched"] == [], "it was there, and has been taken out"
    assert all(run["unmatched"] == [] for run in again["runs"])


def test_an_id_in_a_rejected_row_alone_is_known(views: None, tmp_path: Path) -> None:
    rows = [{"id": "a", "user_id": "u", "text": "hello"}, {"id": "b", "user_id": "v", "text": 5}]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    run = tmp_path / "run"
    redactory.curate({**CONFIG, "input": str(path)}, output=run, detector=DigitDetector())
    result = redactory.takedown([run], doc_ids=["b", "c"], user_ids=["v"])
    assert [unknown["kind"] for unknown in result["unmatched"]] == ["document"]
    assert result["runs"][0]["files"] == ["input.path"]


def test_rejected_rows_are_searched_where_they_can_be(views: None, tmp_path: Path) -> None:
    rows = [
        {"id": "a", "user_id": "u", "text": "hello"},
        {"id": "b", "user_id": "u", "text": 5},
        {"id": "u", "user_id": "v", "text": 5},
        {"id": "a", "text": "an id twice"},
    ]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    with path.open("a") as file:
        file.write('{"id": "c", "user_id": "u", "text": "torn\n')
        file.write('{"id": "c", "user_id": "you", "text": "torn\n')
    run = tmp_path / "run"
    redactory.curate({**CONFIG, "input": str(path)}, output=run, detector=DigitDetector())
    told = _one(redactory.takedown([run], user_ids=["u"]))
    assert (told["rejected"], told["unsearched"]) == (2, 2)
    left = [row for batch in read_batches(RunFolder(run).quarantine) for row in batch.to_pylist()]
    assert sorted(row["row"] for row in left) == [3, 4, 6]
    counts = json.loads((run / "manifest.json").read_text())["counts"]
    assert (counts["rows"], counts["rejected"], counts["documents"]) == (3, 3, 0)
    assert not failed(run) - {"report"}


@pytest.mark.parametrize("mode", ["bloom", "minhash"])
def test_modes_without_a_proof_keep_one_text_a_group(views: None, tmp_path: Path, mode: str) -> None:
    line = "the parcel that was sent to our house last week is not here yet"
    near = line.replace("yet", "now") if mode == "minhash" else line
    documents = {
        name: ("u" if name == "hers" else name, [own])
        for name, own in {"hers": line, "x": near, "y": near}.items()
    }
    run = _curate(tmp_path, documents, dedup={"mode": mode})
    keeper = next(iter(read_batches(RunFolder(run).points))).to_pylist()
    kept = next(row for row in keeper if row["fate"] == "public")
    # whoever it is that stands for the others is the one to go
    names = {load_digest_key().pseudonym("document", name): name for name in documents}
    told = _one(redactory.takedown([run], doc_ids=[names[kept["document"]]]))
    assert told["moved_up"] == 1
    assert sum(_shards(run)["public"].values()) == 1
    assert not failed(run) - {"report"}


def test_the_index_forgets_what_only_she_said(views: None, tmp_path: Path) -> None:
    dedup = {"mode": "exact", "index": {"path": str(tmp_path / "index")}}
    first = _curate(tmp_path / "a", _person(), dedup=dedup)
    index = IndexFolder(tmp_path / "index")
    (before,) = index.entries()
    assert _one(redactory.takedown([first], user_ids=["u"]))["index"] is True
    (after,) = index.entries()
    after.check()
    assert after.name == before.name
    assert after.body["counts"] == {"public": before.body["counts"]["public"] - 1, "private": 3 - 1}
    words = {"n1": ("s", ["only she says so", "hello there", "my number is 12"])}
    second = _curate(tmp_path / "b", words, dedup=dedup)
    assert _shards(second) == {
        "public": Counter(["only she says so"]),
        "private": Counter([f"my number is {MASK}"]),
    }
    # asked again, nothing changes
    redactory.takedown([first], user_ids=["u"])
    assert next(iter(index.entries())).body == after.body


@pytest.mark.parametrize(("mode", "forgets"), [("folded", True), ("minhash", True), ("bloom", True)])
def test_an_index_of_another_mode_forgets_as_far_as_it_can(
    views: None, tmp_path: Path, mode: str, forgets: bool
) -> None:
    dedup = {"mode": mode, "index": {"path": str(tmp_path / "index")}}
    first = _curate(tmp_path / "a", _person(), dedup=dedup)
    assert _one(redactory.takedown([first], user_ids=["u"]))["index"] is forgets
    IndexFolder(tmp_path / "index").entries()[0].check()
    second = _curate(tmp_path / "b", {"n1": ("s", ["only she says so", "hello there"])}, dedup=dedup)
    assert _shards(second)["public"] == Counter(["only she says so"] if forgets else [])


def test_encrypted_parts_stay_encrypted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY", "a key of more than thirty-two bytes, for tests")
    run = _curate(tmp_path, _person())
    redactory.takedown([run], user_ids=["u"])
    assert not failed(run)
    manifest = json.loads((run / "manifest.json").read_text())
    assert all("content" in e for n, e in manifest["files"].items() if n.startswith("vault/"))


def test_a_signing_key_that_is_none_is_told_before_anything_is_written(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(run.rglob("*"))
    monkeypatch.setenv("REDACTORY_SIGNING_KEY_FILE", str(run / "nope.key"))
    told = redactory.takedown([run], user_ids=["u"])
    assert [p["problem"].split(":")[0] for p in told["problems"]] == ["REDACTORY_SIGNING_KEY_FILE"]
    assert sorted(run.rglob("*")) == before


def test_a_signed_run_needs_a_key_to_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_key("signing", tmp_path / "key")
    monkeypatch.setenv("REDACTORY_SIGNING_KEY_FILE", str(tmp_path / "key"))
    run = _curate(tmp_path / "signed", _person())
    monkeypatch.delenv("REDACTORY_SIGNING_KEY_FILE")
    result = redactory.takedown([run], user_ids=["u"])
    assert "is signed" in result["problems"][0]["problem"]
    monkeypatch.setenv("REDACTORY_SIGNING_KEY_FILE", str(tmp_path / "key"))
    assert redactory.takedown([run], user_ids=["u"])["ok"]
    assert redactory.verify(run, public_key=tmp_path / "key.pub")["ok"]
    signer = json.loads((run / "manifest.json").read_text())["signed_by"]["fingerprint"]
    assert f"signed by <code>{signer[:12]}</code>" in (run / "report.html").read_text()
    assert (run / "releases" / "1" / "manifest.json.sig").is_file()
    _flip(run / "releases" / "1" / "manifest.json.sig")
    assert "earlier releases" in failed(run)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def _a_part_comes_back(run: Path, before: Path) -> None:
    """A forger who makes the digests right again: the journal remembers other files."""
    name = "public/part-00000.parquet"
    shutil.copy(before / name, run / name)
    folder = RunFolder(run)
    body = json.loads(folder.manifest.read_text())
    del body["files"]
    seal(folder, body, [*(p for f in folder.data_folders for p in parts(f)), folder.card])


def _no_record_in_the_journal(run: Path, _before: Path) -> None:
    journal = run / "state" / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-2]))


def _another_history(run: Path, _before: Path) -> None:
    """Counts that do not follow from those before, in a manifest with right digests."""
    folder = RunFolder(run)
    body = json.loads(folder.manifest.read_text())
    body["changes"][-1]["removed"]["points"] -= 1
    del body["files"]
    seal(folder, body, [*(p for f in folder.data_folders for p in parts(f)), folder.card])


def test_a_reissue_of_a_signed_run_is_not_finished_without_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_key("signing", tmp_path / "key")
    monkeypatch.setenv("REDACTORY_SIGNING_KEY_FILE", str(tmp_path / "key"))
    run = _curate(tmp_path / "signed", _person())

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("redactory.pipelines.reissue._swap", dies)
        with pytest.raises(KeyboardInterrupt):
            redactory.takedown([run], user_ids=["u"])
    monkeypatch.delenv("REDACTORY_SIGNING_KEY_FILE")
    with pytest.raises(RunStateError, match="is signed"):
        finish_reissue(RunFolder(run))
    monkeypatch.setenv("REDACTORY_SIGNING_KEY_FILE", str(tmp_path / "key"))
    assert finish_reissue(RunFolder(run)) == "takedown"
    assert redactory.verify(run, public_key=tmp_path / "key.pub")["ok"]


def test_a_release_that_lost_the_signature_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may write in the folder and has no key can make it all fit, but for a signer that was there."""
    new_key("signing", tmp_path / "key")
    monkeypatch.setenv("REDACTORY_SIGNING_KEY_FILE", str(tmp_path / "key"))
    run = _curate(tmp_path / "signed", _person())
    monkeypatch.delenv("REDACTORY_SIGNING_KEY_FILE")
    monkeypatch.setattr("redactory.pipelines.reissue._require_signer", lambda *_: None)
    assert redactory.takedown([run], user_ids=["u"])["ok"]
    assert failed(run) == {"earlier releases"}


@pytest.mark.parametrize(
    ("sabotage", "check"),
    [
        (_a_part_comes_back, "journal"),
        (_no_record_in_the_journal, "journal"),
        (_no_record_in_the_journal, "earlier releases"),
        (_another_history, "earlier releases"),
    ],
)
def test_sabotage_shows(run: Path, made: Path, sabotage: Callable[[Path, Path], None], check: str) -> None:
    for name in ("hers", "hers too"):
        redactory.takedown([run], doc_ids=[name])
    sabotage(run, made)
    assert check in failed(run)


def _of_a_job(made: Path, job: Path) -> tuple[Path, Path]:
    """A run of a job, without ``hers``; and a copy of its folder from before."""
    (job / "_job").mkdir(parents=True)
    before = shutil.copytree(made, job.parent / "before")
    run = Path(shutil.copytree(made, job / "monday"))
    enter(RunFolder(run), Event.RELEASED, manifest=file_sha256(run / "manifest.json"), counts={})
    (job / "latest").symlink_to("monday")
    assert redactory.list_releases(job)["problems"] == []
    _one(redactory.takedown([job], doc_ids=["hers"]))
    assert redactory.list_releases(job)["problems"] == []
    return run, before


def test_a_folder_from_before_is_refused_by_all_who_use_a_run(made: Path, tmp_path: Path) -> None:
    run, before = _of_a_job(made, tmp_path / "job")
    assert not failed(run)
    shutil.rmtree(run)
    shutil.copytree(before, run)
    told = "the log knows release 2, and this is release 1: a folder from before a takedown was put back"
    [found] = [check for check in redactory.verify(run)["checks"] if not check["ok"]]
    assert (found["name"], found["detail"]) == ("release log", told)
    assert redactory.list_releases(run.parent)["problems"] == [f"monday: {told}"]
    asked = CliRunner().invoke(app, ["release", "list", str(run.parent)])
    assert (asked.exit_code, told in asked.output) == (1, True)
    uses: list[Callable[[], Any]] = [
        lambda: redactory.export(run, tmp_path / "export"),
        lambda: redactory.publish(run, str(tmp_path / "store")),
        lambda: redactory.train({**CONFIG, "input": "rows.jsonl", "output": str(run)}),
        lambda: redactory.purge(run, ["vault"]),
        lambda: redactory.guarantee(run, also=[run]),
    ]
    for use in uses:
        with pytest.raises(RunStateError, match="from before a takedown was put back"):
            use()
    # the way back where the newer folder is lost
    assert _one(redactory.takedown([run], doc_ids=["hers"]))["release"] == 2
    assert not failed(run)


def test_a_folder_from_before_is_seen_under_another_name_too(made: Path, tmp_path: Path) -> None:
    run, before = _of_a_job(made, tmp_path / "job")
    other = Path(shutil.copytree(before, run.parent / "tuesday"))
    assert "release log" in failed(other)
    with pytest.raises(RunStateError, match="from before a takedown was put back"):
        redactory.export(other, tmp_path / "export")
    # a run on its own has its log inside
    alone = Path(shutil.copytree(made, tmp_path / "alone"))
    kept = Path(shutil.copytree(alone, tmp_path / "kept"))
    _one(redactory.takedown([alone], doc_ids=["hers"]))
    shutil.copy(RunFolder(alone).release_log, RunFolder(kept).release_log)
    assert "release log" in failed(kept)
    moved = alone.rename(tmp_path / "renamed")
    assert not failed(moved)
    assert history(RunFolder(moved))


def test_an_older_folder_is_seen_by_its_digest_too_and_latest_by_where_it_leads(
    made: Path, tmp_path: Path
) -> None:
    run, _ = _of_a_job(made, tmp_path / "job")
    _one(redactory.takedown([run], doc_ids=["hers too"]))
    log = [record.body for record in history(RunFolder(run)) if record.type == Event.REISSUED]
    assert [body["release"] for body in log] == [2, 3]
    assert put_back(RunFolder(run)) is None
    # a record that names what lies here as superseded, whatever its number says
    enter(RunFolder(run), Event.REISSUED, release=3, supersedes=file_sha256(run / "manifest.json"))
    assert "release log" in failed(run)
    (run.parent / "latest").unlink()
    (run.parent / "latest").symlink_to("tuesday")
    [_, problem] = redactory.list_releases(run.parent)["problems"]
    assert problem.startswith("latest leads to tuesday, and by the log it is monday")


def test_another_manifest_of_a_known_release_is_called_that(run: Path) -> None:
    redactory.takedown([run], doc_ids=["hers"])
    folder = RunFolder(run)
    manifest = json.loads(folder.manifest.read_text())
    seal(folder, manifest, [folder.root / name for name in manifest.pop("files")])
    folder.manifest.write_text(folder.manifest.read_text() + "\n")
    succeed(folder)
    [found] = [c for c in redactory.verify(run)["checks"] if c["name"] == "release log"]
    assert (found["ok"], found["detail"]) == (False, "the log has no record of this manifest (release 2)")


def test_a_run_at_work_is_left_alone(run: Path) -> None:
    from redactory.foundation.files import only_one

    with only_one(RunFolder(run).lock, "a curation"):
        result = redactory.takedown([run], user_ids=["u"])
    assert "is being written by" in result["problems"][0]["problem"]
    (run / "_SUCCESS").unlink()
    assert "not a finished folder" in redactory.takedown([run], user_ids=["u"])["problems"][0]["problem"]


def test_samples_with_her_text_go_and_others_stay(run: Path) -> None:
    redactory.audit_sample(run, n=20, name="all", seed=1)
    told = _one(redactory.takedown([run], user_ids=["u"]))
    assert told["samples"] == ["all"]
    assert not (run / "state" / "samples" / "all").exists()
    redactory.audit_sample(run, n=20, name="rest", seed=1)
    kept = json.loads((run / "state" / "samples" / "rest" / "draw.json").read_text())["rows"]
    assert kept
    assert _one(redactory.takedown([run], doc_ids=["none of these"]))["points"] == 0
    assert (run / "state" / "samples" / "rest" / "_SUCCESS").is_file()


def test_the_command(run: Path, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("hers\n\nhers too\n")
    runner = CliRunner()
    told = runner.invoke(app, ["takedown", str(run), "--doc-ids-from", str(tmp_path / "ids"), "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["runs"][0]["documents"] == 2
    page = runner.invoke(app, ["takedown", str(run), "--doc-id", "hers"])
    assert "taken out with release 2" in page.output
    page = runner.invoke(app, ["takedown", str(run), "--doc-id", "d0"])
    assert "2 points of 1 document are gone; this is release 3" in page.output
    assert "What others wrote" not in page.output
    page = runner.invoke(app, ["takedown", str(run), "--user-id", "w1"])
    assert "What others wrote about a user stays: put the names on a deny list" in page.output
    assert runner.invoke(app, ["takedown", str(run)]).exit_code != 0


def test_curation_goes_on_with_no_half_written_run(run: Path) -> None:
    plan = RunFolder(run).reissue.plan
    plan.parent.mkdir()
    plan.write_text("{}")
    (run / "_SUCCESS").unlink()
    with pytest.raises(RunStateError, match="interrupted"):
        redactory.curate(
            {**CONFIG, "input": str(run / "rows.jsonl")}, output=run, resume=True, detector=DigitDetector()
        )

"""A hundred ways to tamper with a signed run, a job's night or an export: each is detected, or documented.

Whoever tampers can write to every folder and has no signing key; whoever verifies has the public key.  The
table at the end is the list; ``pytest -v`` prints it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.evaluation.report import write_report
from redactory.foundation.canonical import canonical_json, file_sha256
from redactory.foundation.errors import RedactoryError
from redactory.foundation.files import read_json
from redactory.foundation.keys import create_key_file
from redactory.pipelines.curation.share import format_checksums
from redactory.pipelines.measure.label import save_recall_measurement
from redactory.redaction import RunFolder, list_files, seal_folder, write_manifest, write_success
from tests.docs.pages import ROOT
from tests.pipelines.leaving import small_run
from tests.pipelines.nightly.made_job import Job
from tests.pipelines.test_export import TRAINING

PAGE = (ROOT / "docs" / "how-to" / "audit.md").read_text(encoding="utf-8")
Tampering = Callable[[Path], Any]


@pytest.fixture(scope="module", autouse=True)
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The signer's key, and that of whoever tampers."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ann", "mallory"):
        create_key_file("signing", folder / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDACTORY_SIGNING_KEY_FILE", str(folder / "ann"))
        patch.setenv("REDACTORY_KEY", "a digest key of enough bytes")
        yield folder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an erasure, a model, an evaluation and measured misses; its export; another run; a job."""
    before, root = os.umask(0), tmp_path_factory.mktemp("world")
    try:
        run = RunFolder(small_run(root, train=TRAINING))
        small_run(root / "other")
        shutil.copytree(run.root, root / "before")
        redactory.erase([run.root], user_ids=["user-9"])
        config = {"input": str(root / "letters.jsonl"), "train": TRAINING}
        redactory.train(config, output=run.root)
        shares = {"misses": 1, "rate": 0.1, "upper": 0.2}
        misses = {"n": 10, "confidence": 0.95, "joint_confidence": 0.9, "gamma": shares, "delta_2": shares}
        left = {"labels": {}, "secrets": 10, "left_public": 0, "left_private": 0}
        save_recall_measurement(run, {"secrets": 20, "misses": misses, "left": left, "date": "2021-11-02"})
        result = run.get_model_folder("crt").get_result_folder("accuracy")
        result.root.mkdir(mode=0o700)
        (result.root / "result.json").write_text("{}")
        body = {"parent": file_sha256(run.get_model_folder("crt").manifest), "evaluation": "accuracy"}
        seal_folder(result, body, [result.root / "result.json"])
        (result.root / "result.json").chmod(0o600)
        write_report(run)
        redactory.export(run.root, root / "out", models=["crt"])
        job = Job(root)
        for name in ("a.jsonl", "b.jsonl"):
            job.write(name, f"hello {name[0]}", "call 12")
            job.night()
    finally:
        os.umask(before)
    return root


def _at(world: Path, place: str) -> Path:
    """The folder that is verified: the run, its export, or the first night of the job, whatever its day."""
    return sorted((world / "job").glob("20*"))[0] if place == "night" else world / place


def _failed(folder: Path, keys: Path) -> list[str]:
    """The checks that fail; a refusal to look at it at all is one."""
    try:
        told = redactory.verify(folder, public_key=f"{keys / 'ann'}.pub")
    except RedactoryError as error:
        return [type(error).__name__]
    return [check["name"] for check in told["checks"] if not check["ok"]]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def grow(path: Path) -> None:
    """As long as a disk, without a byte on it: whoever reads it to its end never ends."""
    os.truncate(path, 1 << 38)


def gone(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def link(path: Path) -> None:
    elsewhere = path.parents[1] / f"{path.name}.elsewhere"
    while elsewhere.is_relative_to(WITHIN[0]):
        elsewhere = WITHIN[0].parent / elsewhere.name
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def pipe(path: Path) -> None:
    """A pipe, at which whoever opens it waits for ever."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def zero(path: Path) -> None:
    """A device that never ends."""
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def add(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")


def empty(path: Path) -> None:
    path.mkdir(parents=True)


def wide(path: Path) -> None:
    path.chmod(0o777)


def more(path: Path) -> None:
    with path.open("a") as file:
        file.write(f"{'0' * 64}  notes.txt\n")


WITHIN: list[Path] = []
"""The folder that is tampered with."""


def _keyless(folder: RunFolder, **body: Any) -> None:
    """What a forger without the key can do: digests and ``_SUCCESS`` right again, under the old signature."""
    manifest = {**read_json(folder.manifest), **body}
    folder.manifest.write_text(json.dumps(manifest, indent=2) + "\n")
    folder.success.write_text(file_sha256(folder.manifest) + "\n")


def _resigned(root: Path, **body: Any) -> None:
    """The forger's own signature, whose key the manifest then names."""
    folder = RunFolder(root)
    manifest = {k: v for k, v in read_json(folder.manifest).items() if k not in ("files", "signed_by")} | body
    files = list_files(folder, [root / name for name in read_json(folder.manifest)["files"]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDACTORY_SIGNING_KEY_FILE", os.environ["REDACTORY_SIGNING_KEY_FILE"][:-3] + "mallory")
        write_manifest(folder, manifest, files)
        write_success(folder)


def _unsigned(root: Path) -> None:
    folder = RunFolder(root)
    manifest = {k: v for k, v in read_json(folder.manifest).items() if k != "signed_by"}
    folder.manifest.write_text(json.dumps(manifest))
    folder.signature.unlink()
    folder.success.write_text(file_sha256(folder.manifest) + "\n")


def _listed(root: Path, name: str, size: int = 7) -> None:
    files = read_json(root / "manifest.json")["files"]
    _keyless(RunFolder(root), files={**files, name: {"sha256": "0" * 64, "bytes": size}})


def _relisted(root: Path, *names: str, **body: Any) -> None:
    """The digests of what lies there now."""
    paths = [root / name for name in {*read_json(root / "manifest.json")["files"], *names}]
    _keyless(RunFolder(root), files=list_files(RunFolder(root), paths), **body)


def _of_another_ledger(root: Path) -> None:
    """A guarantee that names the head of another ledger: all digests hold, the two do not go together."""
    card = root / MODEL / "guarantee.json"
    card.write_text(json.dumps({**read_json(card), "ledger": {**read_json(card)["ledger"], "head": "0" * 64}}))
    _relisted(root / MODEL)
    _relisted(root, models={"crt": file_sha256(root / MODEL / "manifest.json")})


def _swapped(one: Path, two: Path) -> None:
    aside = one.with_name("aside")
    for source, place in ((one, aside), (two, one), (aside, two)):
        source.rename(place)


def _instead(root: Path, other: str) -> None:
    """Another run, of the same signer, under this one's name."""
    shutil.rmtree(root)
    shutil.copytree(root.parent / other, root)


def _rewritten_log(root: Path, change: Callable[[list[Any]], list[Any]]) -> None:
    """A release log whose records are others, chained anew."""
    path, prev = root / "state" / "releases.jsonl", "0" * 64
    lines = []
    for number, record in enumerate(change([json.loads(line) for line in path.read_bytes().splitlines()])):
        lines.append(canonical_json({**record, "seq": number, "prev": prev}))
        prev = hashlib.sha256(lines[-1]).hexdigest()
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def _other_body(record: Any, **body: Any) -> Any:
    return {**record, "body": {**record["body"], **body}}


def _edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def _renamed(root: Path, name: str) -> None:
    WITHIN[0] = root.rename(root.with_name(name))


def _resealed_sums(root: Path) -> None:
    """``SHA256SUMS`` of the export says what lies there, and no more what was sealed."""
    digests = {p.relative_to(root).as_posix(): file_sha256(p) for p in root.rglob("*") if p.is_file()}
    del digests["_SUCCESS"], digests["SHA256SUMS"]
    (root / "SHA256SUMS").write_text(format_checksums(digests))


def _seal_alone(root: Path, figures: dict[str, Any]) -> None:
    folder = RunFolder(root).recall
    parent = read_json(folder.manifest)["parent"]
    (folder.root / "result.json").write_text(json.dumps(figures))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("REDACTORY_SIGNING_KEY_FILE")
        seal_folder(folder, {"parent": parent}, [folder.root / "result.json"])


DOCUMENTED = {
    "GONE": "What is gone is not missed",
    "TAIL": "What came after the last seal is held by nothing",
    "NAMED": "Another run of the same signer, under the name of this one",
    "PRIVATE": "**Not looked at**: ",
    "MOVED": "A run that was moved out of its job has left its log behind",
    "BOTH": "It is not noticed where the log was put back as well",
    "OPEN": "leaves the check `open`",
}
"""Not detected, and what the page on ``verify`` says of it."""
Case = tuple[str, str, Tampering, str]
PART, MODEL = "part-00000.parquet", "models/crt"
LISTED = {n: f"{n}/{PART}" for n in ("public", "private", "vault", "quarantine", "examples", "spans")}
LISTED |= {name: f"audit/{name}/{PART}" for name in ("examples", "spans")}
SEALS = ("manifest.json", "_SUCCESS")
SIMPLE = """
run | files | flip | {public} {private} {vault} {quarantine} {examples} {spans} README.md manifest.json
run | files | flip | _SUCCESS
run | files | cut | {public} {examples} manifest.json
run | files | grow | {public} {vault} _SUCCESS
run | files | gone | {public} {vault} README.md manifest.json
run | RunStateError | gone | _SUCCESS
run | signature | gone | manifest.json.sig
run | signature | flip | manifest.json.sig
run | signature | grow | manifest.json.sig
run | files | link | {public} {private} {vault} manifest.json _SUCCESS manifest.json.sig public vault
run | files | link | state/journal.jsonl state/recall releases/1/manifest.json {model}/ledger.jsonl
run | files | link | report.html
run | files | pipe | {public} manifest.json _SUCCESS state/journal.jsonl state/releases.jsonl public/more
run | files | zero | {vault} report.html state/data-key.json
run | no stray files | add | notes.txt public/part-00009.parquet audit/x models/crt/notes models/x/card.json
run | no stray files | add | .hidden GUARANTEE/card.json _SUCCESS.old {model}/accuracy/x private/a/b
run | no stray files | add | .tmp-1-README.md .tmp-9-config.json public/.tmp-1-{part} state/gate/result.json
run | no stray files | add | {model}/.tmp-9-config.json
run | no stray files | add | SHA256SUMS
run | no stray files | empty | more public/more models/more state/gate
run | earlier releases | empty | releases/2
run | modes | wide | . public {public} {vault} README.md state state/journal.jsonl {model}
run | journal | flip | state/journal.jsonl
run | journal | cut | state/journal.jsonl
run | journal | gone | state/journal.jsonl
run | report | flip | report.html {model}/report.html {model}/MEASURED.md
run | report | grow | report.html
run | report | gone | report.html {model}/MEASURED.md models state/recall
run | earlier releases | flip | releases/1/manifest.json releases/1/manifest.json.sig
run | earlier releases | gone | releases/1/manifest.json releases/1 releases
run | earlier releases | add | releases/1/notes.txt releases/notes.txt/x
run | measured | flip | state/recall/result.json state/recall/manifest.json
run | no stray files | gone | state/recall/_SUCCESS
run | model crt | flip | {model}/model.safetensors {model}/config.json {model}/tokenizer.json
run | model crt | flip | {model}/ledger.jsonl {model}/guarantee.json {model}/README.md
run | model crt | gone | {model}/model.safetensors
run | model crt | flip | {model}/manifest.json {model}/accuracy/result.json
run | model crt | gone | {model}/manifest.json.sig {model}/accuracy/result.json
run | no stray files | gone | {model}/_SUCCESS {model}/accuracy/_SUCCESS
out | files | flip | {public} README.md croissant.json manifest.json _SUCCESS {model}/model.safetensors
out | sha256sums | flip | SHA256SUMS
out | sha256sums | more | SHA256SUMS
out | sha256sums | gone | SHA256SUMS
out | files | gone | {public} {model}
out | signature | gone | manifest.json.sig
out | no stray files | empty | more models/more public/more
out | no stray files | add | notes.txt .tmp-1-README.md public/.tmp-1-{part}
out | files | link | {public} public manifest.json {model}/model.safetensors
out | files | pipe | README.md SHA256SUMS
out | files | grow | {public}
out | sha256sums | grow | SHA256SUMS
out | modes | wide | . {public}
run | GONE | gone | {model}/accuracy
run | MOVED | gone | state/releases.jsonl
run | PRIVATE | add | state/samples/s/labels.jsonl state/prefect/x state/traceback-1.txt
run | OPEN | add | state/notes.txt state/train-x.key state/work/x
"""
"""What is verified, the check that fails (or what is documented), the change, and the files."""
LOG = "state/releases.jsonl"
CUNNING: dict[tuple[str, str], dict[str, Tampering]] = {
    ("run", "release log"): {
        "the log without the erasure": lambda r: _rewritten_log(r, lambda log: log[1:]),
        "the log tells of a later release": lambda r: _rewritten_log(
            r, lambda log: [*log, _other_body(log[0], release=3, supersedes=file_sha256(r / "manifest.json"))]
        ),
        "the log names another manifest": lambda r: _rewritten_log(
            r, lambda log: [_other_body(log[0], manifest="0" * 64), *log[1:]]
        ),
        "a line of the log changed": lambda r: _edited(r / LOG, "reissued", "exported"),
        "the folder from before the erasure": lambda r: _older(r, log=False),
    },
    ("run", "measured"): {"measured misses sealed without the key": lambda r: _seal_alone(r, {"misses": 0})},
    ("run", "model crt"): {
        "an evaluation under another name": lambda r: (r / MODEL / "accuracy").rename(r / MODEL / "audit"),
        "a model of another run": lambda r: _model_of_another(r),
    },
    ("run", "model nine"): {"a model under another name": lambda r: (r / MODEL).rename(r / "models/nine")},
    ("run", "files"): {
        "a manifest that lists a file outside": lambda r: _listed(r, "../letters.jsonl"),
        "a manifest that lists /dev/zero": lambda r: _listed(r, "/dev/zero"),
        "a manifest that lists a folder": lambda r: _listed(r, "public"),
        "a manifest that says another size": lambda r: _listed(r, LISTED["public"], 1),
        "two parts exchanged": lambda r: _swapped(r / LISTED["public"], r / "public/part-00001.parquet"),
        "two folders exchanged": lambda r: _swapped(r / "private", r / "vault"),
        "the parts of another run": lambda r: shutil.copy(r.parent / "other/run/vault/part-00001.parquet", r / "vault"),
        "the manifest of another run": lambda r: _seals_of_another(r),
    },
    ("run", "signature"): {
        "counts that were changed": lambda r: _keyless(RunFolder(r), counts={}),
        "an id that was changed": lambda r: _keyless(RunFolder(r), id="0" * 32),
        "no signature, and a manifest that names none": _unsigned,
        "signed by another key": _resigned,
        "another id, signed by another key": lambda r: _resigned(r, id="0" * 32),
    },
    ("night", "release log"): {
        "another night's run under this one's name": lambda r: _swapped(*sorted(r.parent.glob("20*"))),
        "a run of the same signer under a night's name": lambda r: _instead(r, "../other/run"),
        "the log of the job emptied": lambda r: os.truncate(r.parent / "_job/log.jsonl", 0),
    },
    ("out", "files"): {
        "a file changed, and SHA256SUMS made to say so": lambda r: (flip(r / LISTED["public"]), _resealed_sums(r))
    },
    ("out", "signature"): {"an export signed by another key": _resigned},
    ("out", "no stray files"): {
        f"{name}, and listed": lambda r, n=name: (add(r / n), _relisted(r, n))  # type: ignore[misc]
        for name in (LISTED["vault"], "public/notes.txt", "models/open/model.safetensors")
    },
    ("out", "card"): {"another card": lambda r: (_edited(r / "README.md", "split", "part"), _relisted(r))},
    ("out", "model crt"): {"a guarantee of another ledger": _of_another_ledger},
    ("run", "GONE"): {
        "a model gone, and the report made anew": lambda r: (gone(r / MODEL), write_report(RunFolder(r))),
        "misses gone, and the report made anew": lambda r: (gone(r / "state/recall"), write_report(RunFolder(r))),
    },
    ("run", "TAIL"): {
        "the log's last record gone": lambda r: _rewritten_log(r, lambda log: log[:-1]),
        "the log's last record changed": lambda r: _rewritten_log(
            r, lambda log: [*log[:-1], _other_body(log[-1], to="elsewhere")]
        ),
    },
    ("night", "TAIL"): {"the log's later half gone": lambda r: cut(r.parent / "_job/log.jsonl")},
    ("run", "BOTH"): {"the folder and the log from before the erasure": lambda r: _older(r, log=True)},
    ("run", "NAMED"): {
        "another run of the signer under its name": lambda r: _instead(r, "other/run"),
        "the run renamed": lambda r: _renamed(r, "elsewhere"),
    },
    ("night", "NAMED"): {"a night renamed": lambda r: _renamed(r, "2001-01-01")},
    ("run", "PRIVATE"): {
        "times of files": lambda r: os.utime(r / LISTED["public"], (0, 0)),
        "a second name of a part": lambda r: os.link(r / LISTED["vault"], r.parent / "copy"),
    },
}


def _cases() -> Iterator[Case]:
    names = {**LISTED, "model": MODEL, "part": PART}
    for line in SIMPLE.strip().splitlines():
        place, check, change, files = (field.strip() for field in line.split("|"))
        tampering: Callable[[Path], None] = globals()[change]
        for file in files.format(**names).split():
            yield place, f"{change} {file}", lambda r, f=file, t=tampering: t(r / f), check  # type: ignore[misc]
    for (place, check), changes in CUNNING.items():
        yield from ((place, name, tampering, check) for name, tampering in changes.items())


def _older(root: Path, *, log: bool) -> None:
    kept = (root / "state" / "releases.jsonl").read_bytes()
    shutil.rmtree(root)
    shutil.copytree(root.parent / "before", root)
    if not log:
        path = root / "state" / "releases.jsonl"
        path.write_bytes(kept)
        path.chmod(0o600)


def _seals_of_another(root: Path) -> None:
    for name in (*SEALS, "manifest.json.sig"):
        shutil.copy(root.parent / "other/run" / name, root / name)


def _model_of_another(root: Path) -> None:
    """The sealed model of another run of the same signer: here, one that names another parent."""
    model = RunFolder(root).get_model_folder("crt")
    body = {k: v for k, v in read_json(model.manifest).items() if k not in ("files", "signed_by")}
    listed = [model.root / name for name in read_json(model.manifest)["files"]]
    seal_folder(model, {**body, "parent": file_sha256(root.parent / "other/run/manifest.json")}, listed)


@pytest.mark.parametrize("place", ["run", "other/run", "before", "out", "night"])
def test_nothing_is_detected_before_anything_is_tampered_with(world: Path, keys: Path, place: str) -> None:
    assert _failed(_at(world, place), keys) == []


CASES = list(_cases())


def test_the_list_has_a_hundred_and_no_two_alike() -> None:
    assert len({(place, name) for place, name, _, _ in CASES}) == len(CASES) >= 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "name", "tampering", "expected"), CASES, ids=[f"{c[0]}: {c[1]} -> {c[3]}" for c in CASES]
)
def test_each_tampering_is_detected_or_documented(
    world: Path, keys: Path, tmp_path: Path, place: str, name: str, tampering: Tampering, expected: str
) -> None:
    copy = Path(shutil.copytree(world, tmp_path / "world", symlinks=True))
    WITHIN[:] = [_at(copy, place)]
    tampering(WITHIN[0])
    failed = _failed(WITHIN[0], keys)
    if expected in DOCUMENTED:
        assert (failed, DOCUMENTED[expected] in PAGE) == ([], True)
    else:
        assert expected in failed

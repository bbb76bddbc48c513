"""A hundred ways to tamper with a signed run, a job's night or an export: each is detected, or documented.

Whoever tampers can write to every folder and has no signing key; whoever verifies has the public key.  The
table at the end is the list; ``pytest -v`` prints it.
"""

from __future__ import annotations

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
from redactory.foundation.keys import new_key
from redactory.pipelines.sample import keep_recall
from redactory.pipelines.share import sums_text
from redactory.redaction import RunFolder, list_files, read_manifest, seal, succeed, write_manifest
from tests.docs.pages import ROOT
from tests.pipelines.leaving import small_run
from tests.pipelines.nightly.test_nights import Job
from tests.pipelines.test_export import TRAINING

DOCUMENTED = (ROOT / "docs" / "how-to" / "audit.md").read_text(encoding="utf-8")
Tampering = Callable[[Path], Any]


# ------------------------------------------------------------------------------- what is tampered with


@pytest.fixture(scope="module", autouse=True)
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The signer's key, and that of whoever tampers."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ann", "mallory"):
        new_key("signing", folder / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDACTORY_SIGNING_KEY_FILE", str(folder / "ann"))
        patch.setenv("REDACTORY_KEY", "a digest key of enough bytes")
        yield folder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a takedown, a model, an evaluation and measured misses; its export; another run; a job."""
    before, root = os.umask(0), tmp_path_factory.mktemp("world")
    try:
        run = RunFolder(small_run(root, train=TRAINING))
        small_run(root / "other")
        shutil.copytree(run.root, root / "before")
        redactory.takedown([run.root], user_ids=["user-9"])
        config = {"input": str(root / "letters.jsonl"), "train": TRAINING}
        redactory.train(config, output=run.root)
        shares = {"misses": 1, "rate": 0.1, "upper": 0.2}
        misses = {"n": 10, "confidence": 0.95, "joint_confidence": 0.9, "gamma": shares, "delta_2": shares}
        left = {"labels": {}, "secrets": 10, "left_public": 0, "left_private": 0}
        keep_recall(run, {"secrets": 20, "misses": misses, "left": left, "date": "2021-11-02"})
        result = run.model("crt").result("accuracy")
        result.root.mkdir(mode=0o700)
        (result.root / "result.json").write_text("{}")
        body = {"parent": file_sha256(run.model("crt").manifest), "evaluation": "accuracy"}
        seal(result, body, [result.root / "result.json"])
        (result.root / "result.json").chmod(0o600)
        digests = {name: entry["sha256"] for name, entry in read_manifest(run)["files"].items()}
        run.sums.write_text(sums_text({**digests, "manifest.json": file_sha256(run.manifest)}))
        run.sums.chmod(0o600)
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


# -------------------------------------------------------------------------------------- single changes


def flip(path: Path) -> None:
    """One bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def cut(path: Path) -> None:
    """The second half is gone."""
    os.truncate(path, path.stat().st_size // 2)


def grow(path: Path) -> None:
    """As long as a disk, without a byte on it: whoever reads it to its end never ends."""
    os.truncate(path, 1 << 38)


def gone(path: Path) -> None:
    """The file, or the folder, is taken away."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def link(path: Path) -> None:
    """The same content behind a link."""
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
    """A file that nobody declared."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")


def empty(path: Path) -> None:
    """A folder that nobody declared."""
    path.mkdir(parents=True)


def wide(path: Path) -> None:
    """Everybody may do everything."""
    path.chmod(0o777)


def more(path: Path) -> None:
    """One more line."""
    with path.open("a") as file:
        file.write(f"{'0' * 64}  notes.txt\n")


WITHIN: list[Path] = []
"""The folder that is tampered with."""


# ------------------------------------------------------------------------------------- cunning changes


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
        succeed(folder)


def _unsigned(root: Path) -> None:
    folder = RunFolder(root)
    manifest = {k: v for k, v in read_json(folder.manifest).items() if k != "signed_by"}
    folder.manifest.write_text(json.dumps(manifest))
    folder.signature.unlink()
    folder.success.write_text(file_sha256(folder.manifest) + "\n")


def _listed(root: Path, name: str, size: int = 7) -> None:
    files = read_json(root / "manifest.json")["files"]
    _keyless(RunFolder(root), files={**files, name: {"sha256": "0" * 64, "bytes": size}})


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
    import hashlib

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


def _renamed_night(root: Path) -> None:
    root.rename(root.with_name("2001-01-01"))
    WITHIN[0] = root.with_name("2001-01-01")


def _renamed(root: Path) -> None:
    root.rename(root.with_name("elsewhere"))
    WITHIN[0] = root.with_name("elsewhere")


def _resealed_sums(root: Path) -> None:
    """``SHA256SUMS`` of the export says what lies there, and no more what was sealed."""
    digests = {p.relative_to(root).as_posix(): file_sha256(p) for p in root.rglob("*") if p.is_file()}
    del digests["_SUCCESS"], digests["SHA256SUMS"]
    (root / "SHA256SUMS").write_text(sums_text(digests))


def _seal_alone(root: Path, figures: dict[str, Any]) -> None:
    """Measured misses that a forger without the key sealed."""
    folder = RunFolder(root).recall
    parent = read_json(folder.manifest)["parent"]
    (folder.root / "result.json").write_text(json.dumps(figures))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("REDACTORY_SIGNING_KEY_FILE")
        seal(folder, {"parent": parent}, [folder.root / "result.json"])


# -------------------------------------------------------------------------------------------- the list


class Told(str):
    """Not detected: what the page on ``verify`` says of it."""


GONE = Told("What is gone is not missed")
TAIL = Told("What came after the last seal is held by nothing")
NAMED = Told("Another run of the same signer, under the name of this one")
PRIVATE = Told("**Not looked at**: ")
MOVED = Told("A run that was moved out of its job has left its log behind")
BOTH = Told("It is not noticed where the log was put back as well")
KIND = PRIVATE
Case = tuple[str, str, Tampering, str]
PART, MODEL = "part-00000.parquet", "models/crt"
LISTED = [
    f"{folder}/{PART}"
    for folder in ("public", "private", "vault", "quarantine", "audit/points", "audit/spans")
]
SEALS = ["manifest.json", "_SUCCESS"]
MODELS = [
    f"{MODEL}/{name}"
    for name in (
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "ledger.jsonl",
        "guarantee.json",
        "README.md",
    )
]


def on(place: str, tampering: Callable[[Path], None], names: list[str], check: str) -> list[Case]:
    """The same change of several files."""
    return [
        (place, f"{tampering.__name__} {name}", lambda root, name=name: tampering(root / name), check)  # type: ignore[misc]
        for name in names
    ]


CASES: list[Case] = [
    # the parts, and what seals them
    *on("run", flip, [*LISTED, "README.md", *SEALS], "files"),
    *on("run", cut, [LISTED[0], LISTED[4], "manifest.json"], "files"),
    *on("run", grow, [LISTED[0], LISTED[2], "_SUCCESS"], "files"),
    *on("run", gone, [LISTED[0], LISTED[2], "README.md", "manifest.json"], "files"),
    *on("run", gone, ["_SUCCESS"], "RunStateError"),
    *on("run", gone, ["manifest.json.sig"], "signature"),
    *on("run", flip, ["manifest.json.sig"], "signature"),
    *on("run", grow, ["manifest.json.sig"], "signature"),
    *on(
        "run",
        link,
        [*LISTED[:3], *SEALS, "manifest.json.sig", "public", "vault", "state/journal.jsonl"],
        "files",
    ),
    *on(
        "run",
        link,
        ["state/recall", "releases/1/manifest.json", f"{MODEL}/ledger.jsonl", "report.html"],
        "files",
    ),
    *on(
        "run",
        pipe,
        [LISTED[0], *SEALS, "state/journal.jsonl", "state/releases.jsonl", "public/more"],
        "files",
    ),
    *on("run", zero, [LISTED[2], "report.html", "SHA256SUMS", "state/data-key.json"], "files"),
    # what nobody declared
    *on(
        "run",
        add,
        ["notes.txt", "public/part-00009.parquet", "audit/x", "models/crt/notes", "models/x/card.json"],
        "no stray files",
    ),
    *on(
        "run",
        add,
        [".tmp-1-README.md", ".tmp-9-config.json", f"public/.tmp-1-{PART}", "state/gate/result.json"],
        "no stray files",
    ),
    *on("run", add, [f"{MODEL}/.tmp-9-config.json"], "no stray files"),
    *on("run", empty, ["more", "public/more", "models/more", "state/gate"], "no stray files"),
    *on("run", empty, ["releases/2"], "earlier releases"),
    *on("run", more, ["SHA256SUMS"], "no stray files"),
    (
        "run",
        "another digest in SHA256SUMS",
        lambda root: _edited(root / "SHA256SUMS", (root / "SHA256SUMS").read_text()[:64], "0" * 64),
        "no stray files",
    ),
    *on(
        "run",
        wide,
        [".", "public", LISTED[0], LISTED[2], "README.md", "state", "state/journal.jsonl", MODEL],
        "modes",
    ),
    # the journal, the pages, the logs and what was kept of earlier releases
    *on("run", flip, ["state/journal.jsonl"], "journal"),
    *on("run", cut, ["state/journal.jsonl"], "journal"),
    *on("run", gone, ["state/journal.jsonl"], "journal"),
    *on("run", flip, ["report.html", f"{MODEL}/report.html", f"{MODEL}/MEASURED.md"], "report"),
    *on("run", grow, ["report.html"], "report"),
    *on("run", gone, ["report.html", f"{MODEL}/MEASURED.md", "models", "state/recall"], "report"),
    *on("run", flip, ["releases/1/manifest.json", "releases/1/manifest.json.sig"], "earlier releases"),
    *on("run", gone, ["releases/1/manifest.json", "releases/1", "releases"], "earlier releases"),
    *on("run", add, ["releases/1/notes.txt", "releases/notes.txt/x"], "earlier releases"),
    ("run", "the log without the takedown", lambda r: _rewritten_log(r, lambda log: log[1:]), "release log"),
    (
        "run",
        "the log tells of a later release",
        lambda r: _rewritten_log(
            r, lambda log: [*log, _other_body(log[0], release=3, supersedes=file_sha256(r / "manifest.json"))]
        ),
        "release log",
    ),
    (
        "run",
        "the log names another manifest",
        lambda r: _rewritten_log(r, lambda log: [_other_body(log[0], manifest="0" * 64), *log[1:]]),
        "release log",
    ),
    (
        "run",
        "a line of the log changed",
        lambda r: _edited(r / "state/releases.jsonl", "reissued", "exported"),
        "release log",
    ),
    ("run", "the folder from before the takedown", lambda r: _older(r, log=False), "release log"),
    # measurements
    *on("run", flip, ["state/recall/result.json", "state/recall/manifest.json"], "measured"),
    *on("run", gone, ["state/recall/_SUCCESS"], "no stray files"),
    ("run", "measured misses sealed without the key", lambda r: _seal_alone(r, {"misses": 0}), "measured"),
    # a model and its evaluation
    *on("run", flip, MODELS, "model crt"),
    *on("run", gone, MODELS[:1], "model crt"),
    *on("run", flip, [f"{MODEL}/manifest.json", f"{MODEL}/accuracy/result.json"], "model crt"),
    *on("run", gone, [f"{MODEL}/manifest.json.sig", f"{MODEL}/accuracy/result.json"], "model crt"),
    *on("run", gone, [f"{MODEL}/_SUCCESS", f"{MODEL}/accuracy/_SUCCESS"], "no stray files"),
    (
        "run",
        "an evaluation under another name",
        lambda r: (r / MODEL / "accuracy").rename(r / MODEL / "audit"),
        "model crt",
    ),
    ("run", "a model under another name", lambda r: (r / MODEL).rename(r / "models/nine"), "model nine"),
    ("run", "a model of another run", lambda r: _model_of_another(r), "model crt"),
    # what a forger makes fit again
    ("run", "a manifest that lists a file outside", lambda r: _listed(r, "../letters.jsonl"), "files"),
    ("run", "a manifest that lists /dev/zero", lambda r: _listed(r, "/dev/zero"), "files"),
    ("run", "a manifest that lists a folder", lambda r: _listed(r, "public"), "files"),
    ("run", "a manifest that says another size", lambda r: _listed(r, LISTED[0], 1), "files"),
    ("run", "counts that were changed", lambda r: _keyless(RunFolder(r), counts={}), "signature"),
    ("run", "an id that was changed", lambda r: _keyless(RunFolder(r), id="0" * 32), "signature"),
    ("run", "no signature, and a manifest that names none", _unsigned, "signature"),
    ("run", "signed by another key", _resigned, "signature"),
    ("run", "another id, signed by another key", lambda r: _resigned(r, id="0" * 32), "signature"),
    (
        "run",
        "two parts exchanged",
        lambda r: _swapped(r / LISTED[0], r / "public/part-00001.parquet"),
        "files",
    ),
    ("run", "two folders exchanged", lambda r: _swapped(r / "private", r / "vault"), "files"),
    (
        "run",
        "the parts of another run",
        lambda r: shutil.copy(r.parent / "other/run/vault/part-00001.parquet", r / "vault"),
        "files",
    ),
    ("run", "the manifest of another run", lambda r: _seals_of_another(r), "files"),
    (
        "night",
        "another night's run under this one's name",
        lambda r: _swapped(*sorted(r.parent.glob("20*"))),
        "release log",
    ),
    (
        "night",
        "a run of the same signer under a night's name",
        lambda r: _instead(r, "../other/run"),
        "release log",
    ),
    (
        "night",
        "the log of the job emptied",
        lambda r: os.truncate(r.parent / "_job/log.jsonl", 0),
        "release log",
    ),
    # exports
    *on("out", flip, [LISTED[0], "README.md", "croissant.json", *SEALS, MODELS[0]], "files"),
    *on("out", flip, ["SHA256SUMS"], "sha256sums"),
    *on("out", more, ["SHA256SUMS"], "sha256sums"),
    *on("out", gone, ["SHA256SUMS"], "sha256sums"),
    *on("out", gone, [LISTED[0], MODEL], "files"),
    *on("out", gone, ["manifest.json.sig"], "signature"),
    *on("out", empty, ["more", "models/more", "public/more"], "no stray files"),
    *on("out", add, ["notes.txt", ".tmp-1-README.md", f"public/.tmp-1-{PART}"], "no stray files"),
    *on("out", link, [LISTED[0], "public", "manifest.json", MODELS[0]], "files"),
    *on("out", pipe, ["README.md", "SHA256SUMS"], "files"),
    *on("out", grow, [LISTED[0]], "files"),
    *on("out", grow, ["SHA256SUMS"], "sha256sums"),
    *on("out", wide, [".", LISTED[0]], "modes"),
    (
        "out",
        "a file changed, and SHA256SUMS made to say so",
        lambda r: (flip(r / LISTED[0]), _resealed_sums(r)),
        "files",
    ),
    ("out", "an export signed by another key", _resigned, "signature"),
    # what is documented
    *on("run", gone, [f"{MODEL}/accuracy"], GONE),
    (
        "run",
        "a model gone, and the report made anew",
        lambda r: (gone(r / MODEL), write_report(RunFolder(r))),
        GONE,
    ),
    (
        "run",
        "misses gone, and the report made anew",
        lambda r: (gone(r / "state/recall"), write_report(RunFolder(r))),
        GONE,
    ),
    *on("run", gone, ["SHA256SUMS"], GONE),
    ("run", "the log's last record gone", lambda r: _rewritten_log(r, lambda log: log[:-1]), TAIL),
    (
        "run",
        "the log's last record changed",
        lambda r: _rewritten_log(r, lambda log: [*log[:-1], _other_body(log[-1], to="elsewhere")]),
        TAIL,
    ),
    *on("run", gone, ["state/releases.jsonl"], MOVED),
    ("night", "the log's later half gone", lambda r: cut(r.parent / "_job/log.jsonl"), TAIL),
    ("run", "the folder and the log from before the takedown", lambda r: _older(r, log=True), BOTH),
    ("run", "another run of the signer under its name", lambda r: _instead(r, "other/run"), NAMED),
    ("run", "the run renamed", _renamed, NAMED),
    ("night", "a night renamed", _renamed_night, NAMED),
    *on("run", add, ["state/samples/s/labels.jsonl", "state/prefect/x", "state/traceback-1.txt"], PRIVATE),
    *on(
        "run", add, ["state/notes.txt", "state/train-x.key", "state/work/x"], Told("leaves the check `open`")
    ),
    ("run", "times of files", lambda r: os.utime(r / LISTED[0], (0, 0)), KIND),
    ("run", "a second name of a part", lambda r: os.link(r / LISTED[2], r.parent / "copy"), KIND),
]


def _older(root: Path, *, log: bool) -> None:
    """What a backup from before the takedown holds."""
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
    model = RunFolder(root).model("crt")
    body = {k: v for k, v in read_json(model.manifest).items() if k not in ("files", "signed_by")}
    listed = [model.root / name for name in read_json(model.manifest)["files"]]
    seal(model, {**body, "parent": file_sha256(root.parent / "other/run/manifest.json")}, listed)


# ------------------------------------------------------------------------------------------- the tests


@pytest.mark.parametrize("place", ["run", "other/run", "before", "out", "night"])
def test_nothing_is_detected_before_anything_is_tampered_with(world: Path, keys: Path, place: str) -> None:
    assert _failed(_at(world, place), keys) == []


def test_the_list_has_a_hundred_and_no_two_alike() -> None:
    assert len({(place, name) for place, name, _, _ in CASES}) == len(CASES) >= 100


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
    if isinstance(expected, Told):
        assert (failed, expected in DOCUMENTED) == ([], True)
    else:
        assert expected in failed

"""Export: what leaves, what stays, what the receiver can check, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import redactory
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import (
    CheckFailed,
    ConfigurationError,
    GuaranteeError,
    RunStateError,
)
from redactory.foundation.keys import new_key
from redactory.pipelines.export import what_may_be_said
from redactory.pipelines.release_log import Event, enter, history, log_of
from redactory.pipelines.share import sums_text
from redactory.redaction import RunFolder, parts, read_manifest
from tests.pipelines.leaving import NAME, small_run
from tests.pipelines.support import failed

TRAINING: dict[str, Any] = {
    "epochs": 1,
    "sampling_rate": 0.5,
    "noise_multiplier": 4.0,
    "model": {"embedding_size": 4, "hidden_size": 4},
    "minimum_plain_steps": 1,
    "group_sizes": (),
    "threads": 1,
}


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    key = tmp_path_factory.mktemp("keys") / "signing.key"
    new_key("signing", key)
    return key


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, signer: Path) -> Path:
    """A signed run with the models ``crt`` and ``open``; copy it before writing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDACTORY_SIGNING_KEY_FILE", str(signer))
        run = small_run(tmp_path_factory.mktemp("export"), train=TRAINING)
        config = {"input": str(run.parent / "letters.jsonl"), "train": TRAINING}
        redactory.train(config, output=run)
        redactory.train(config, output=run, trainer="redact-only", name="open")
    return run


@pytest.fixture(scope="module")
def exported(run: Path, signer: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDACTORY_SIGNING_KEY_FILE", str(signer))
        told = redactory.export(run, run.parent / "exported", models=["crt"])
    assert told["public"] == 23
    return Path(told["to"])


@pytest.fixture
def own(run: Path, tmp_path: Path) -> Path:
    """A copy to change, which nothing was ever exported of."""
    copy = RunFolder(Path(shutil.copytree(run, tmp_path / "run")))
    log_of(copy).unlink(missing_ok=True)
    return copy.root


@pytest.fixture
def out(exported: Path, tmp_path: Path) -> Path:
    """A copy of the export to change."""
    return Path(shutil.copytree(exported, tmp_path / "exported"))


def names(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def coreutils(folder: Path) -> int:
    done = subprocess.run(
        ["sha256sum", "-c", "--strict", "--quiet", "SHA256SUMS"], cwd=folder, capture_output=True
    )
    return done.returncode


def test_what_leaves_is_the_public_side_and_what_proves_it(run: Path, exported: Path) -> None:
    model = {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "ledger.jsonl",
        "guarantee.json",
        "README.md",
    }
    model |= {"manifest.json", "manifest.json.sig", "_SUCCESS"}
    shards = {f"public/{path.name}" for path in parts(RunFolder(run).public)}
    assert len(shards) == 2
    own = {"README.md", "croissant.json", "manifest.json", "manifest.json.sig", "SHA256SUMS", "_SUCCESS"}
    assert names(exported) == own | shards | {f"models/crt/{name}" for name in model}
    for name in shards:
        assert (exported / name).read_bytes() == (run / name).read_bytes()
    assert {stat.S_IMODE(p.stat().st_mode) for p in exported.rglob("*")} == {0o755, 0o644}


def test_nothing_that_leaves_says_what_must_stay(run: Path, exported: Path) -> None:
    """The run's manifest says each of these, and the export none."""
    manifest = (run / "manifest.json").read_text()
    private = read_manifest(RunFolder(run))
    secrets = (
        NAME,
        "letters.jsonl",
        str(run.parent),
        private["key"]["fingerprint"],
        private["inputs"][0]["digest"],
    )
    text = b"".join(p.read_bytes() for p in exported.rglob("*") if p.is_file())
    for secret in secrets:
        assert secret in manifest or secret == str(run.parent)
        assert secret.encode() not in text, secret
    said = json.loads((exported / "manifest.json").read_text())
    assert said["counts"] == {"public": 23}
    assert said["parent"] == file_sha256(run / "manifest.json")
    # 24 points are private: no figure of the card is
    assert "24" not in (exported / "README.md").read_text().replace(said["date"], "").replace(
        said["policies"]["strict"][:16], ""
    ).replace(said["policies"]["conservative"][:16], "")


@pytest.fixture(scope="module")
def manifest(run: Path) -> dict[str, Any]:
    return read_manifest(RunFolder(run))


@settings(max_examples=40)
@given(st.dictionaries(st.text(min_size=1), st.integers() | st.text()), st.integers(0), st.text())
def test_what_is_said_is_a_function_of_the_allow_list_alone(
    manifest: dict[str, Any], more: dict[str, Any], count: int, name: str
) -> None:
    said = what_may_be_said(manifest, "0" * 64)
    extra = {key: value for key, value in more.items() if key not in said}
    private = {**manifest["counts"], "rows": count, "private": count, "duplicate": count}
    other = {**manifest, **extra, "counts": private, "configuration": {"lists": name}, "inputs": [name]}
    assert what_may_be_said(other, "0" * 64) == said


def test_coreutils_and_verify_hold(exported: Path, signer: Path) -> None:
    assert coreutils(exported) == 0
    found = redactory.verify(exported, public_key=f"{signer}.pub")
    assert found["ok"]
    unmade = {check["name"] for check in found["checks"] if not check["made"]}
    assert unmade == {
        *("re-scan of public", "conservation", "journal", "values masked elsewhere", "model crt"),
    }


def test_any_changed_file_is_found(out: Path) -> None:
    for name in sorted(names(out)):
        path = out / name
        kept = path.read_bytes()
        path.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        assert failed(out), name
        if name not in ("_SUCCESS", "SHA256SUMS"):
            assert coreutils(out) != 0, name
        path.write_bytes(kept)
    assert not failed(out)
    (out / "public" / "notes.txt").write_text("left behind")
    assert failed(out) == {"no stray files"}


def test_another_signer_is_told(out: Path, tmp_path: Path) -> None:
    new_key("signing", tmp_path / "other")
    assert failed(out, public_key=tmp_path / "other.pub") == {"signature"}


def test_points_that_must_not_be_public_are_found(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was sealed with a mask in public/: its own export does not hold, and nothing leaves."""
    import pyarrow as pa

    from redactory.redaction import MASK, list_files, succeed, write_manifest, write_part
    from redactory.redaction.shards import PUBLIC

    folder = RunFolder(own)
    manifest = read_manifest(folder)
    bad = pa.table({"point_id": ["a", "a"], "text": ["hello", f"hello {MASK}"]}, schema=PUBLIC)
    write_part(parts(folder.public)[0], bad)
    monkeypatch.delenv("REDACTORY_SIGNING_KEY_FILE", raising=False)
    body = {key: value for key, value in manifest.items() if key not in ("files", "signed_by")}
    write_manifest(folder, body, {**manifest["files"], **list_files(folder, parts(folder.public))})
    succeed(folder)
    with pytest.raises(CheckFailed, match=r"no mask in public, point ids"):
        redactory.export(own, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not history(folder)


def test_it_is_verified_without_keys_and_engines(exported: Path) -> None:
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name in ('torch', 'spacy', 'presidio_analyzer', 'dp_accounting'): raise ImportError\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import redactory\n"
        f"print(redactory.verify({str(exported)!r})['ok'])"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REDACTORY")}
    done = subprocess.run([sys.executable, "-c", code], env=kept, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr[-2000:]


def test_a_model_that_left_says_what_it_is_and_can_be_used(exported: Path) -> None:
    answer = redactory.predict(exported / "models" / "crt", ["the parcel"], top=1)
    assert answer["guarantee"]["holds"] is True
    assert len(answer["results"]) == 1
    assert "seconds" not in (exported / "models" / "crt" / "manifest.json").read_text()


def _entry(path: Path) -> dict[str, Any]:
    return {"sha256": file_sha256(path), "bytes": path.stat().st_size}


def test_a_ledger_of_another_model_is_found(own: Path, exported: Path, tmp_path: Path) -> None:
    """Sealed anew by whoever changed it: the digests hold, ledger and guarantee do not go together."""
    from redactory.pipelines.checks import Seen
    from redactory.pipelines.verify import check_export
    from redactory.redaction.folder import ExportFolder

    folder = ExportFolder(Path(shutil.copytree(exported, tmp_path / "x")))
    model = folder.model("crt")
    card = json.loads(model.guarantee.read_text())
    model.guarantee.write_text(json.dumps({**card, "ledger": {**card["ledger"], "head": "0" * 64}}))
    for sealed_folder in (model, folder):
        manifest = json.loads(sealed_folder.manifest.read_text())
        for name in manifest["files"]:
            manifest["files"][name] = _entry(sealed_folder.root / name)
        if "models" in manifest:
            manifest["models"]["crt"] = file_sha256(model.manifest)
        sealed_folder.manifest.write_text(json.dumps(manifest))
        sealed_folder.success.write_text(file_sha256(sealed_folder.manifest) + "\n")
    found = {check.name: check.detail for check in check_export(Seen(folder.root)) if not check.ok}
    assert "another ledger" in found["model crt"]


def _sealed_anew(folder: Path, **changes: Any) -> None:
    """As whoever changed it would do, who has no signing key."""
    manifest = json.loads((folder / "manifest.json").read_text())
    listed = names(folder) - {"manifest.json", "manifest.json.sig", "SHA256SUMS", "_SUCCESS"}
    files = {
        name: {"sha256": file_sha256(folder / name), "bytes": (folder / name).stat().st_size}
        for name in sorted(listed)
    }
    kept = {key: value for key, value in manifest.items() if key != "signed_by"}
    (folder / "manifest.json.sig").unlink()
    (folder / "manifest.json").write_text(json.dumps({**kept, "files": files, **changes}))
    digests = {
        **{n: e["sha256"] for n, e in files.items()},
        "manifest.json": file_sha256(folder / "manifest.json"),
    }
    (folder / "SHA256SUMS").write_text(sums_text(digests))
    (folder / "_SUCCESS").write_text(digests["manifest.json"] + "\n")


def test_what_no_export_has_is_found_though_it_is_listed(out: Path, signer: Path) -> None:
    for name in ("vault/part-00000.parquet", "public/notes.txt", "models/open/model.safetensors"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(b"x")
    (out / "README.md").write_text("# 24 private points")
    _sealed_anew(out)
    found = {c["name"]: c["detail"] for c in redactory.verify(out)["checks"] if not c["ok"]}
    assert set(found) == {"no stray files", "card"}
    assert found["no stray files"] == (
        "models/open/model.safetensors, public/notes.txt, vault/part-00000.parquet"
    )
    assert "signature" in failed(out, public_key=f"{signer}.pub")


def test_a_manifest_that_says_anything_is_an_error_without_words(out: Path) -> None:
    _sealed_anew(out, counts="Zelda")
    found = redactory.verify(out)
    assert not found["ok"]
    assert "Zelda" not in json.dumps(found)


def test_what_is_made_leads_nowhere_else(own: Path, tmp_path: Path) -> None:
    """A link in its place would have another folder emptied."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    (tmp_path / ".out.unfinished").symlink_to(tmp_path / "mine")
    with pytest.raises(RunStateError, match="leads elsewhere"):
        redactory.export(own, tmp_path / "out")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"


def test_what_lies_beside_the_target_is_left_alone(own: Path, tmp_path: Path) -> None:
    letter, link = tmp_path / ".out.lock", tmp_path / ".other.lock"
    letter.write_text("mine")
    link.symlink_to(letter)
    for name in ("out", "other"):
        redactory.export(own, tmp_path / name)
    assert (letter.read_text(), link.is_symlink()) == ("mine", True)
    assert sorted(path.name for path in tmp_path.iterdir() if "unfinished" in path.name) == []
    (tmp_path / ".third.unfinished").mkdir()
    (tmp_path / ".third.unfinished" / "notes.txt").write_text("mine")
    with pytest.raises(RunStateError, match=r"holds notes\.txt, which no export"):
        redactory.export(own, tmp_path / "third")
    assert (tmp_path / ".third.unfinished" / "notes.txt").read_text() == "mine"


def test_what_must_not_leave_is_refused(own: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(GuaranteeError, match="nothing is guaranteed"):
        redactory.export(own, out, models=["open"])
    with pytest.raises(RunStateError, match="no finished model nobody; there are: crt, open"):
        redactory.export(own, out, models=["nobody"])
    with pytest.raises(ConfigurationError):
        redactory.export(own, out, models=["../crt"])
    enter(RunFolder(own), Event.HELD, manifest="0" * 64, counts={}, findings=[])
    with pytest.raises(RunStateError, match="release approve"):
        redactory.export(own, out)
    enter(RunFolder(own), Event.REJECTED, by="ann", reason="format")
    with pytest.raises(RunStateError, match="rejected"):
        redactory.export(own, out)
    enter(RunFolder(own), Event.APPROVED, by="ann", reason="looked at")
    (own / "vault" / "part-00000.parquet").write_bytes(b"x")
    with pytest.raises(CheckFailed, match="vault/part-00000"):
        redactory.export(own, out)
    (own / "_SUCCESS").unlink()
    with pytest.raises(RunStateError, match="not a finished folder"):
        redactory.export(own, out)
    assert not out.exists()
    assert [r.type for r in history(RunFolder(own))] == ["held", "rejected", "approved"]


def test_a_file_that_nobody_listed_stays(own: Path, tmp_path: Path) -> None:
    shutil.copy(own / "vault" / "part-00000.parquet", own / "public" / "part-00009.parquet")
    redactory.export(own, tmp_path / "out")
    assert not (tmp_path / "out" / "public" / "part-00009.parquet").exists()


def test_an_existing_folder_is_left_alone(own: Path, tmp_path: Path) -> None:
    with pytest.raises(RunStateError, match="exists"):
        redactory.export(own, tmp_path)
    assert names(tmp_path) == {f"run/{name}" for name in names(own)}


def test_the_log_has_it_before_it_leaves(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, real = tmp_path / "out", Path.rename

    def refused(self: Path, target: Path) -> Path:
        if Path(target) == out:
            raise OSError(28, "No space left on device")
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refused)
        with pytest.raises(Exception, match="the disk is full"):
            redactory.export(own, out)
    assert not out.exists()
    monkeypatch.chdir(out.parent)
    told = redactory.export(own, out.name, by="A. Keeper")
    entered = [record.body for record in history(RunFolder(own))]
    assert [body.get("by") for body in entered] == [None, "A. Keeper"]
    assert [body["manifest"] for body in entered] == [told["manifest"]] * 2
    assert entered[1]["to"] == str(out)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}

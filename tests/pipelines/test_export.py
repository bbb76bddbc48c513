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
from hypothesis import example, given, settings
from hypothesis import strategies as st

import redactory
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError, RunStateError
from redactory.foundation.keys import create_key_file
from redactory.pipelines.curation.release_log import Event, append_event, get_log_path, read_history
from redactory.pipelines.operations.export import select_public_fields
from redactory.redaction import (
    MASK,
    RunFolder,
    list_files,
    list_parts,
    read_manifest,
    write_manifest,
    write_part,
    write_success,
)
from redactory.redaction.shards import PUBLIC
from tests.pipelines.leaving import NAME, small_run
from tests.pipelines.support import list_failed_checks, read_files
from tests.training.tiny_folders import causal_folder

TRAINING: dict[str, Any] = {"epochs": 1, "sampling_rate": 0.5, "noise_multiplier": 4.0, "group_sizes": ()}
TRAINING |= {"model": {"embedding_size": 4, "hidden_size": 4}, "min_public_steps": 1, "threads": 1}


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    key = tmp_path_factory.mktemp("keys") / "signing.key"
    create_key_file("signing", key)
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
    get_log_path(copy).unlink(missing_ok=True)
    return copy.root


@pytest.fixture
def out(exported: Path, tmp_path: Path) -> Path:
    """A copy of the export to change."""
    return Path(shutil.copytree(exported, tmp_path / "exported"))


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in read_files(folder)}


def test_only_the_public_split_and_its_proofs_leave(run: Path, exported: Path, manifest: Any, signer: Path) -> None:
    sealed = {"README.md", "manifest.json", "manifest.json.sig", "_SUCCESS"}
    model = {"model.safetensors", "config.json", "tokenizer.json", "ledger.jsonl", "guarantee.json", *sealed}
    shards = {f"public/{path.name}" for path in list_parts(RunFolder(run).public)}
    assert len(shards) == 2
    own = {*sealed, "croissant.json", "SHA256SUMS"}
    assert names(exported) == own | shards | {f"models/crt/{name}" for name in model}
    assert all((exported / name).read_bytes() == (run / name).read_bytes() for name in shards)
    assert {stat.S_IMODE(p.stat().st_mode) for p in exported.rglob("*")} == {0o755, 0o644}
    # what the run's manifest says, and the export nowhere
    text = b"".join(read_files(exported).values())
    key, digest = manifest["key"]["fingerprint"], manifest["inputs"][0]["digest"]
    for secret in (NAME, "letters.jsonl", key, digest):
        assert secret in json.dumps(manifest)
        assert secret.encode() not in text, secret
    assert str(run.parent).encode() not in text
    said = json.loads((exported / "manifest.json").read_text())
    assert (said["counts"], said["parent"]) == ({"public": 23}, file_sha256(run / "manifest.json"))
    # 24 points are private: no figure of the card is
    card = (exported / "README.md").read_text()
    hashes = (said["policies"]["strict"][:16], said["policies"]["conservative"][:16])
    for known in (said["date"], said["versions"]["redactory"], *hashes):
        card = card.replace(known, "")
    assert "24" not in card
    # whoever receives it checks all but what stays with the run
    command = ["sha256sum", "-c", "--strict", "--quiet", "SHA256SUMS"]
    assert subprocess.run(command, cwd=exported, capture_output=True, check=False).returncode == 0
    found = redactory.verify(exported, public_key=f"{signer}.pub")
    assert found["ok"]
    stays = {"re-scan of public", "conservation", "journal", "values masked elsewhere", "model crt"}
    assert {check["name"] for check in found["checks"] if not check["made"]} == stays


@pytest.fixture(scope="module")
def manifest(run: Path) -> dict[str, Any]:
    return read_manifest(RunFolder(run))


ALLOWED = frozenset(
    ("run", "id", "uncovered", "release", "created", "versions", "policies", "counts", "columns", "route", "dedup")
)
"""Keys of a run's manifest that an export's may depend on; of ``counts`` only the public one, of its
configuration only the public labels, and which of the columns is the class."""


@settings(max_examples=40)
@example({"created": 0, "route": ""}, 7, "Zelda Quibble")
@given(st.dictionaries(st.text(min_size=1), st.integers() | st.text()), st.integers(0), st.text())
def test_what_is_said_is_a_function_of_the_allow_list_alone(
    manifest: dict[str, Any], more: dict[str, Any], count: int, name: str
) -> None:
    """Every other key may have any value, or be new."""
    said = select_public_fields(manifest, "0" * 64)
    other = {key: value if key in ALLOWED else name for key, value in manifest.items()}
    other |= {key: value for key, value in more.items() if key not in ALLOWED}
    labels = manifest["configuration"]["detect"]["public_labels"]
    other["configuration"] = {"input": name, "detect": {"public_labels": labels, "lists": name}}
    other["counts"] = {key: value if key == "public" else count for key, value in manifest["counts"].items()}
    assert select_public_fields(other, "0" * 64) == said


@pytest.mark.slow
def test_it_is_verified_without_keys_and_engines_and_its_model_can_be_used(exported: Path) -> None:
    code = f"""import sys
class Absent:
    def find_spec(self, name, *_):
        if name in ('torch', 'spacy', 'presidio_analyzer', 'dp_accounting'): raise ImportError
sys.meta_path.insert(0, Absent())
import redactory
print(redactory.verify({str(exported)!r})["ok"])"""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REDACTORY")}
    done = subprocess.run([sys.executable, "-c", code], env=kept, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr[-2000:]
    answer = redactory.predict(exported / "models" / "crt", ["the parcel"], top=1)
    assert (answer["guarantee"]["holds"], len(answer["results"])) == (True, 1)
    assert "seconds" not in (exported / "models" / "crt" / "manifest.json").read_text()


def test_a_manifest_of_any_words_is_not_quoted(out: Path) -> None:
    manifest = {**json.loads((out / "manifest.json").read_text()), "counts": "Zelda"}
    (out / "manifest.json").write_text(json.dumps(manifest))
    (out / "_SUCCESS").write_text(file_sha256(out / "manifest.json") + "\n")
    result = redactory.verify(out)
    assert not result["ok"]
    assert "Zelda" not in json.dumps(result)


def test_points_that_must_not_be_public_are_found(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was sealed with a mask in public/: its own export does not hold, and is refused."""
    import pyarrow as pa

    folder = RunFolder(own)
    manifest = read_manifest(folder)
    bad = pa.table({"example_id": ["a", "a"], "text": ["hello", f"hello {MASK}"]}, schema=PUBLIC)
    write_part(list_parts(folder.public)[0], bad)
    monkeypatch.delenv("REDACTORY_SIGNING_KEY_FILE", raising=False)
    body = {key: value for key, value in manifest.items() if key not in ("files", "signed_by")}
    write_manifest(folder, body, {**manifest["files"], **list_files(folder, list_parts(folder.public))})
    write_success(folder)
    with pytest.raises(CheckFailed, match=r"no mask in public, example ids"):
        redactory.export(own, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not read_history(folder)


def test_adapters_leave_in_their_folder(own: Path, tmp_path: Path) -> None:
    model = {"folder": str(causal_folder(tmp_path / "gpt2", "gpt2")), "lora": {"rank": 1}}
    config = {"input": "letters.jsonl", "train": {**TRAINING, "model": model, "max_tokens": 8}}
    redactory.train(config, output=own, name="adapted")
    out = tmp_path / "out"
    redactory.export(own, out, models=["adapted"])
    held = {name for name in names(own / "models" / "adapted") if name.startswith("adapter/")}
    assert held
    assert held == {name for name in names(out / "models" / "adapted") if "adapter" in name}
    assert not list_failed_checks(out)


def test_what_must_not_leave_is_refused(own: Path, tmp_path: Path) -> None:
    out, folder = tmp_path / "out", RunFolder(own)
    with pytest.raises(GuaranteeError, match="it has no guarantee"):
        redactory.export(own, out, models=["open"])
    with pytest.raises(RunStateError, match="no finished model nobody; finished models: crt, open"):
        redactory.export(own, out, models=["nobody"])
    with pytest.raises(ConfigurationError):
        redactory.export(own, out, models=["../crt"])
    append_event(folder, Event.HELD, manifest="0" * 64, counts={}, findings=[])
    with pytest.raises(RunStateError, match="release approve"):
        redactory.export(own, out)
    append_event(folder, Event.REJECTED, by="ann", reason="format")
    with pytest.raises(RunStateError, match="rejected"):
        redactory.export(own, out)
    append_event(folder, Event.APPROVED, by="ann", reason="looked at")
    kept = (own / "vault" / "part-00000.parquet").read_bytes()
    (own / "vault" / "part-00000.parquet").write_bytes(b"x")
    with pytest.raises(CheckFailed, match="vault/part-00000"):
        redactory.export(own, out)
    (own / "vault" / "part-00000.parquet").write_bytes(kept)
    with pytest.raises(RunStateError, match="exists"):
        redactory.export(own, tmp_path)
    assert not out.exists()
    assert [r.type for r in read_history(folder)] == ["held", "rejected", "approved"]
    # a file that nobody listed stays
    shutil.copy(own / "vault" / "part-00000.parquet", own / "public" / "part-00009.parquet")
    redactory.export(own, out)
    assert not (out / "public" / "part-00009.parquet").exists()
    (own / "_SUCCESS").unlink()
    with pytest.raises(RunStateError, match="not a finished folder"):
        redactory.export(own, tmp_path / "later")


def test_what_is_made_leads_nowhere_else_and_leaves_alone_what_lies_beside(own: Path, tmp_path: Path) -> None:
    for name in ("mine", ".third.unfinished"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("mine")
    # a link in its place would have another folder emptied
    (tmp_path / ".out.unfinished").symlink_to(tmp_path / "mine")
    with pytest.raises(RunStateError, match="was not created by Redactory"):
        redactory.export(own, tmp_path / "out")
    with pytest.raises(RunStateError, match=r"contains notes\.txt, which no export"):
        redactory.export(own, tmp_path / "third")
    assert {(tmp_path / name / "notes.txt").read_text() for name in ("mine", ".third.unfinished")} == {"mine"}
    letter, link = tmp_path / ".fourth.lock", tmp_path / ".fifth.lock"
    letter.write_text("mine")
    link.symlink_to(letter)
    for name in ("fourth", "fifth"):
        redactory.export(own, tmp_path / name)
    assert (letter.read_text(), link.is_symlink()) == ("mine", True)
    assert not [p for p in tmp_path.glob("*.unfinished") if p.name not in (".out.unfinished", ".third.unfinished")]


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
    left = redactory.export(own, out.name, by="A. Keeper")
    entered = [record.body for record in read_history(RunFolder(own))]
    assert [body.get("by") for body in entered] == [None, "A. Keeper"]
    assert [body["manifest"] for body in entered] == [left["manifest"]] * 2
    assert entered[1]["to"] == str(out)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}

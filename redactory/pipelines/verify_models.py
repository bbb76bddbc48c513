"""The checks of a run's models."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.foundation.files import read_json
from redactory.foundation.versions import version_of
from redactory.pipelines.train import guarantee
from redactory.pipelines.verify_attempts import attempted
from redactory.pipelines.verify_seals import Check
from redactory.redaction import ModelFolder, RunFolder, broken_files, measured_on, read_manifest
from redactory.redaction.releases import release_with
from redactory.redaction.signing import check_signature

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def models(run: RunFolder, known: Ed25519PublicKey | None) -> Iterator[Check]:
    """One check a model: it and its evaluations are as sealed, and its guarantee follows from its ledger."""
    for name in run.model_names():
        yield from attempted(run, f"model {name}", partial(_model, run, name, known))


def _model(run: RunFolder, name: str, known: Ed25519PublicKey | None) -> list[Check]:
    model = run.model(name)
    results = [model.result(path.parent.name) for path in model.root.glob("*/_SUCCESS")]
    folders = [model, *results]
    problems = [f"{folder.root.name}/{problem}" for folder in folders for problem in broken_files(folder)]
    findings = [(folder, check_signature(folder, known)) for folder in folders if folder.manifest.is_file()]
    problems += [f"{folder.root.name}: {found.detail}" for folder, found in findings if not found.good]
    if not problems:
        others = [result for result in results if not measured_on(model, result)]
        problems += [f"{other.root.name}/ is of another model, or of another evaluation" for other in others]
    fine = "its guarantee follows from its ledger"
    if not problems:
        try:
            parent = release_with(run, str(read_manifest(model).get("parent")))
            if parent is None:
                problems.append("its manifest names another run as its parent")
            elif parent.digest != file_sha256(run.manifest):
                fine += f"; it was trained on release {parent.number}, and knows what was taken out since"
            card: dict[str, Any] = dict(guarantee(run.root, name))
            audit = card.pop("audit", None)
            if card != read_json(model.guarantee):
                problems.append("guarantee.json is not what ledger and manifest say")
            elif not _page_of(model, card):
                problems.append("README.md is not what guarantee.json says")
            if audit is not None and not audit["holds"]:
                problems.append("an audit shows a larger epsilon than its guarantee states")
        except ConfigurationError:
            fine = "its files hold; its guarantee was not derived again: the extra 'train' is not installed"
        except (CheckFailed, RunStateError) as error:
            problems.append(str(error))
    return [Check(f"model {name}", not problems, "; ".join(problems) or fine)]


def _page_of(model: ModelFolder, card: dict[str, Any]) -> bool:
    """Whether the model's card for people says what ``card`` says; True where another version wrote it."""
    from redactory.training import guarantee_page

    if not same_version(read_manifest(model)):
        return True
    due: bytes = guarantee_page(card).encode("utf-8", "backslashreplace")
    return model.card.read_bytes() == due


def same_version(manifest: dict[str, Any]) -> bool:
    """Whether this version of Redactory wrote what ``manifest`` seals."""
    return bool(version_of("redactory") == manifest["versions"].get("redactory"))

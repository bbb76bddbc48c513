"""Export: what may leave a run, and nothing else, in a folder or at a URL."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from redactory.detectors import blind_said
from redactory.detectors.settings import public_of, public_words
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError, RunStateError
from redactory.foundation.files import make_private_folder, read_json, sync, write_text
from redactory.foundation.progress import Progress, silent
from redactory.foundation.records import read_records
from redactory.pipelines.checks import Seen
from redactory.pipelines.models import audited
from redactory.pipelines.output_folder import new_folder, open_to_read
from redactory.pipelines.release import croissant_text, export_card
from redactory.pipelines.release_log import Event, enter
from redactory.pipelines.sealed import sealed
from redactory.pipelines.share import finish_export, leaving, mirror, names_in
from redactory.pipelines.store import Store, is_url, without_secrets
from redactory.pipelines.synthesize import promise_of
from redactory.pipelines.verify import check_export
from redactory.redaction import ModelFolder, RunFolder, broken_files, is_finished, read_manifest, seal
from redactory.redaction.folder import FORMAT, SYNTHETIC, ExportFolder, SyntheticFolder
from redactory.redaction.sealing import result_of


def export(
    run: str | Path,
    to: str | Path,
    *,
    models: Sequence[str] = (),
    by: str | None = None,
    synthetic: str | Path | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Copy what may leave a finished run to the new folder, or the URL, ``to``.

    With ``synthetic`` that is what ``synthesize`` had a model of the run write into this folder, and nothing
    else, once it was measured (``evaluate_synthetic``) and shows no more than chance.

    ``{"run", "to", "manifest", "release", "public", "models", "files", "bytes"}``; ``manifest`` is the sha256
    of the export's own, which the release log has too: it is entered there before anything leaves.
    ``models`` are the names of trained models to bring along, ``by`` who exports, for the log.  Raises
    ``RunStateError`` where the run is not finished or is held, where ``to`` exists and where a model is not
    there; ``CheckFailed`` where a file is not as it was sealed; ``GuaranteeError`` where nothing is
    guaranteed of a model.
    """
    folder = RunFolder(Path(run))
    if synthetic is None:
        fill = partial(_filled, folder, models=tuple(dict.fromkeys(models)), by=by)
    elif models:
        raise ConfigurationError("export: --synthetic excludes --model and the public split: give one")
    else:
        fill = partial(_written, folder, SyntheticFolder(Path(synthetic)), by=by)
    return sealed(folder.state, _export, folder, str(to), fill, progress)


def _export(
    run: RunFolder, to: str, fill: Callable[[ExportFolder, str], dict[str, Any]], progress: Progress
) -> dict[str, Any]:
    with leaving(run) as still:
        if broken := broken_files(run):
            raise CheckFailed(f"cannot export {run.root}, which changed after sealing: {'; '.join(broken)}")
        if not is_url(to):
            with new_folder(Path(to), still) as staging:
                return fill(ExportFolder(staging), to)
        store = Store.at(to)
        store.names()  # one that cannot be read is known before anything is entered in the log
        with tempfile.TemporaryDirectory(prefix="redactory-") as temporary:
            made = ExportFolder(make_private_folder(Path(temporary) / run.root.resolve().name))
            result = fill(made, to)
            own = (made.success, made.sums)
            files = {name: path for name, path in names_in(made.root).items() if path not in own}
            mirror(files, store, progress, still)
            return result


def _filled(run: RunFolder, made: ExportFolder, to: str, *, models: tuple[str, ...], by: str | None) -> dict[str, Any]:
    """Make the export, check it as whoever receives it will, and enter it in the log; the summary."""
    manifest = read_manifest(run)
    for name, entry in manifest["files"].items():
        if (path := run.root / name).parent == run.public:
            _copy_sealed(path, made.public / path.name, entry["sha256"])
    said = what_may_be_said(manifest, file_sha256(run.manifest))
    said["models"] = {name: _copy_model(run, name, made.model(name)) for name in models}
    write_text(made.card, export_card(said))
    write_text(made.croissant, croissant_text(said, manifest["files"]))
    finish_export(made, said)
    facts = {"release": said["release"], "models": list(models)}
    return _entered(run, made, to, facts, by) | {"public_labels": public_words(said["public_labels"])}


def _entered(run: RunFolder, made: ExportFolder, to: str, facts: dict[str, Any], by: str | None) -> dict[str, Any]:
    """Check what is to leave as whoever receives it will, and enter it in the log; the summary."""
    failed = [check.name for check in check_export(Seen(made.root)) if not check.ok]
    if failed:
        raise CheckFailed(f"cannot export {run.root}: these checks fail: {', '.join(failed)}")
    where, digest = without_secrets(to), file_sha256(made.manifest)
    # whoever reads the log later stands elsewhere
    lies_at = where if is_url(to) else str(Path(to).absolute())
    enter(run, Event.EXPORTED, manifest=digest, to=lies_at, **facts, **({} if by is None else {"by": by}))
    there = names_in(made.root).values()
    return {
        "run": str(run.root),
        "to": where,
        "manifest": digest,
        "public": read_manifest(made)["counts"]["public"],
        "public_labels": None,
        **facts,
        "files": len(there),
        "bytes": sum(path.stat().st_size for path in there),
    }


def _written(run: RunFolder, corpus: SyntheticFolder, made: ExportFolder, to: str, *, by: str | None) -> dict[str, Any]:
    """Copy what a model wrote, byte for byte; its summary.

    ``RunStateError`` where it is not of a model of ``run``, or was not measured; ``GuaranteeError`` where
    nothing is guaranteed of it, or it shows more than chance; ``CheckFailed`` where its card is not what the
    ledger says now.
    """
    said = read_manifest(corpus)
    if said["format"] != SYNTHETIC:
        raise RunStateError(f"{corpus.root} was not written by redactory synthesize")
    name, card = said["model"], read_json(corpus.guarantee)
    model = run.model(name)
    if not is_finished(model) or file_sha256(model.manifest) != said["model_manifest"]:
        raise RunStateError(f"{corpus.root} was not written by the model {name} of {run.root}")
    if not (said["holds"] and card["holds"]):
        raise GuaranteeError(f"cannot export {corpus.root}: it has no guarantee ({card['holds_reason']})")
    if card != promise_of(run, name):
        raise CheckFailed(
            f"cannot export {corpus.root}: guarantee.json does not match {name}'s current ledger and "
            "histogram; write the texts again (redactory synthesize)"
        )
    measured = result_of(model, "synthetic")
    if measured is None or measured["corpus"] != file_sha256(corpus.manifest):
        raise RunStateError(
            f"cannot export {corpus.root} before it is measured: redactory evaluate synthetic {run.root} "
            f"{corpus.root} --model {name}"
        )
    if not measured["holds"]:
        raise GuaranteeError(
            f"cannot export {corpus.root}: it reveals more than chance about the training text of {name} "
            f"({', '.join(measured['above_chance'])})"
        )
    for path in names_in(corpus.root).values():
        _copy_sealed(path, made.root / path.relative_to(corpus.root), file_sha256(path))
    open_to_read(made.root)
    return _entered(run, made, to, {"release": read_manifest(run).get("release", 1), "models": []}, by)


def _copy_model(run: RunFolder, name: str, to: ModelFolder) -> str:
    """Copy model ``name`` of ``run``; the sha256 of its own manifest there.

    Weights, architecture, tokenizer, guarantee, ledger, card: its evaluations are releases of their own,
    and stay.  Raises ``RunStateError`` where the run has no such model, ``CheckFailed`` where it is not as it
    was sealed, ``GuaranteeError`` where nothing is guaranteed of it.
    """
    model = run.model(name)
    if not is_finished(model):
        known = ", ".join(run.model_names()) or "none"
        raise RunStateError(f"{run.root} has no finished model {name}; finished models: {known}")
    if broken := broken_files(model):
        raise CheckFailed(f"cannot export models/{name}, which changed after sealing: {'; '.join(broken)}")
    card, audit, manifest = read_json(model.guarantee), audited(run, name), read_manifest(model)
    if not card["holds"]:
        raise GuaranteeError(f"cannot export models/{name}: it has no guarantee ({card['holds_reason']})")
    if audit is not None and not audit["holds"]:
        raise GuaranteeError(f"cannot export models/{name}: an audit contradicts its guarantee")
    # the files that the ledger's last record names, and those that say what is promised of them
    written = [model.root / name for name in read_records(model.ledger)[-1].body["files"]]
    for path in (*written, model.ledger, model.guarantee, model.card):
        inside = path.relative_to(model.root).as_posix()  # an adapter's files lie in a folder of their own
        _copy_sealed(path, to.root / inside, manifest["files"][inside]["sha256"])
    # not how long it took, and how much memory: no epsilon covers these
    body = {key: manifest[key] for key in ("format", "parent", "settings", "versions")}
    return seal(to, body, list(names_in(to.root).values()))


def _copy_sealed(path: Path, to: Path, digest: str) -> None:
    """Copy one file; ``CheckFailed`` where the copy has not the sha256 that it was sealed with."""
    make_private_folder(to.parent)
    shutil.copyfile(path, to)
    sync(to)
    if file_sha256(to) != digest:
        raise CheckFailed(f"cannot export {path.parent.name}/{path.name}, which changed after sealing")


def what_may_be_said(manifest: dict[str, Any], digest: str) -> dict[str, Any]:
    """The export's manifest, of that of the run and its sha256: this list, and no other key of it.

    Not the configuration (deny lists have names in them) but the hashes of the policies and the labels that
    are public; not the counts of rows, documents, private, duplicate or quarantined points, of hits and of
    masks, for they speak about private text, but the languages that a sample of the corpus is in (no
    more than the configured one where counts decide what is public); not the
    names, sizes and digests of the input; nothing of keys; no time but the run's day.
    """
    return {
        "format": FORMAT,
        "run": manifest["run"],
        **({"id": manifest["id"]} if "id" in manifest else {}),
        "blind": dict(blind_said(manifest)),
        "public_labels": list(public_of(manifest)),
        "release": manifest.get("release", 1),
        "parent": digest,
        "date": manifest["created"][:10],
        "versions": manifest["versions"],
        "policies": {name: policy["hash"] for name, policy in manifest["policies"].items()},
        "counts": {"public": manifest["counts"]["public"]},
        **{name: manifest[name] for name in ("columns", "route") if name in manifest},
        "dedup": {"mode": manifest["dedup"]["sides"]["public"]["mode"], "scope": manifest["dedup"]["scope"]},
    }

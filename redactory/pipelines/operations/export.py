"""Export the parts of a run that may be shared, and nothing else, to a folder or a URL."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from redactory.detectors import get_publishable_gaps
from redactory.detectors.settings import format_public_label_note, get_public_labels
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError, RunStateError
from redactory.foundation.files import make_private_folder, read_json, write_text
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.records import read_records
from redactory.pipelines.curation.error_sealing import run_with_sealed_traceback
from redactory.pipelines.curation.finish import render_croissant, render_export_card
from redactory.pipelines.curation.models import load_audit
from redactory.pipelines.curation.output_folder import create_folder_atomically, make_world_readable
from redactory.pipelines.curation.release_log import Event, append_event
from redactory.pipelines.curation.share import (
    export_lock,
    finish_export,
    map_files_by_name,
    mirror_folder,
    parse_checksums,
)
from redactory.pipelines.modeling.synthesize import compose_guarantee
from redactory.pipelines.operations.checks import CheckContext, make_checks
from redactory.pipelines.operations.verify import CHECKS
from redactory.pipelines.store import Store, is_url, remove_credentials
from redactory.redaction import ModelFolder, RunFolder, is_finished, list_broken_files, read_manifest, seal_folder
from redactory.redaction.folder import FORMAT, SYNTHETIC, ExportFolder, SyntheticFolder
from redactory.redaction.sealing import read_result


def export(
    run: str | Path,
    to: str | Path,
    *,
    models: Sequence[str] = (),
    by: str | None = None,
    synthetic: str | Path | None = None,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Copy what may leave a finished run to the new folder, or the URL, ``to``.

    With ``synthetic`` this is only what ``synthesize`` wrote into this folder with a model of the run, after it was
    measured (``evaluate_synthetic``) and shows no more than chance.

    ``{"run", "to", "manifest", "release", "public", "models", "files", "bytes"}``; ``manifest`` is the sha256 of
    the export's own manifest, which is logged before anything leaves. ``models`` are the names of trained models to
    include, ``by`` the person who exports, for the log. ``RunStateError`` if the run is not finished or is held, if
    ``to`` exists or a model is missing; ``CheckFailed`` if a file differs from its sealed state; ``GuaranteeError``
    if a model has no guarantee.
    """
    folder = RunFolder(Path(run))
    if synthetic is None:
        fill = partial(_fill_export, folder, dict.fromkeys(models))
    elif models:
        raise ConfigurationError("export: --synthetic excludes --model and the public split: give one")
    else:
        fill = partial(_fill_synthetic_export, folder, SyntheticFolder(Path(synthetic)))
    return run_with_sealed_traceback(folder.state, _export, folder, str(to), fill, by, progress)


def _export(
    run: RunFolder, destination: str, fill: Callable[[ExportFolder], dict[str, Any]], by: str | None, progress: Progress
) -> dict[str, Any]:
    """Make the export with ``fill``, check it as a recipient will, and log it; return the summary."""

    def fill_and_log(export: ExportFolder) -> dict[str, Any]:
        facts = fill(export)
        failed = [check.name for check in make_checks(CheckContext(export.root), CHECKS) if not check.ok]
        if failed:
            raise CheckFailed(f"cannot export {run.root}: these checks fail: {', '.join(failed)}")
        where, digest = remove_credentials(destination), file_sha256(export.manifest)
        # the log is read from other folders
        location = where if is_url(destination) else str(Path(destination).absolute())
        append_event(run, Event.EXPORTED, manifest=digest, to=location, **facts, by=by)
        manifest, files = read_manifest(export), map_files_by_name(export.root).values()
        return {
            "run": str(run.root),
            "to": where,
            "manifest": digest,
            "public": manifest["counts"]["public"],
            "public_labels": format_public_label_note(manifest.get("public_labels", ())),
            **facts,
            "files": len(files),
            "bytes": sum(path.stat().st_size for path in files),
        }

    with export_lock(run) as ensure_unchanged:
        if problems := list_broken_files(run):
            raise CheckFailed(f"cannot export {run.root}, which changed after sealing: {'; '.join(problems)}")
        if not is_url(destination):
            with create_folder_atomically(Path(destination), ensure_unchanged) as staging:
                return fill_and_log(ExportFolder(staging))
        store = Store.from_url(destination)
        store.list_names()  # one that cannot be read is known before anything is entered in the log
        with tempfile.TemporaryDirectory(prefix="redactory-") as temporary:
            export = ExportFolder(make_private_folder(Path(temporary) / run.root.resolve().name))
            result = fill_and_log(export)
            digests = parse_checksums(export.sums.read_text(encoding="utf-8"))
            source = Store.from_folder(export.root)
            mirror_folder(source, digests, store, progress, before_final_files=ensure_unchanged)
            return result


def _fill_export(run: RunFolder, models: Iterable[str], export: ExportFolder) -> dict[str, Any]:
    """Copy the public split and ``models``, and seal the export; return the facts for the log."""
    manifest = read_manifest(run)
    source, target = Store.from_folder(run.root), Store.from_folder(export.root)
    for name, entry in manifest["files"].items():
        if (run.root / name).parent == run.public:
            target.copy_file(source, name, entry["sha256"])
    export_manifest = select_public_fields(manifest, file_sha256(run.manifest))
    export_manifest["models"] = {name: _copy_model(run, name, export.get_model_folder(name)) for name in models}
    write_text(export.card, render_export_card(export_manifest))
    write_text(export.croissant, render_croissant(export_manifest, manifest["files"]))
    finish_export(export, export_manifest)
    return {"release": export_manifest["release"], "models": list(models)}


def _fill_synthetic_export(run: RunFolder, corpus: SyntheticFolder, export: ExportFolder) -> dict[str, Any]:
    """Copy the text of a model, byte for byte; return the facts for the log.

    ``RunStateError`` if it is not of a model of ``run``, or was not measured; ``GuaranteeError`` if it has no
    guarantee, or shows more than chance; ``CheckFailed`` if its card is not what the ledger says now.
    """
    corpus_manifest = read_manifest(corpus)
    if corpus_manifest["format"] != SYNTHETIC:
        raise RunStateError(f"{corpus.root} was not written by redactory synthesize")
    name, card = corpus_manifest["model"], read_json(corpus.guarantee)
    model = run.get_model_folder(name)
    if not is_finished(model) or file_sha256(model.manifest) != corpus_manifest["model_manifest"]:
        raise RunStateError(f"{corpus.root} was not written by the model {name} of {run.root}")
    if not (corpus_manifest["holds"] and card["holds"]):
        raise GuaranteeError(f"cannot export {corpus.root}: it has no guarantee ({card['holds_reason']})")
    if card != compose_guarantee(run, name):
        raise CheckFailed(
            f"cannot export {corpus.root}: guarantee.json does not match {name}'s current ledger and "
            "histogram; write the texts again (redactory synthesize)"
        )
    measurement = read_result(model, "synthetic")
    if measurement is None or measurement["corpus"] != file_sha256(corpus.manifest):
        raise RunStateError(
            f"cannot export {corpus.root} before it is measured: redactory evaluate synthetic {run.root} "
            f"{corpus.root} --model {name}"
        )
    if not measurement["holds"]:
        raise GuaranteeError(
            f"cannot export {corpus.root}: it reveals more than chance about the training text of {name} "
            f"({', '.join(measurement['above_chance'])})"
        )
    for name, path in map_files_by_name(corpus.root).items():
        Store.from_folder(export.root).copy_file(Store.from_folder(corpus.root), name, file_sha256(path))
    make_world_readable(export.root)
    return {"release": read_manifest(run).get("release", 1), "models": []}


def _copy_model(run: RunFolder, name: str, target: ModelFolder) -> str:
    """Copy model ``name`` of ``run``; return the sha256 of its own manifest.

    Weights, architecture, tokenizer, guarantee, ledger, card. Its evaluations are releases of their own, and are
    not copied. ``RunStateError`` if the run has no such model, ``CheckFailed`` if it differs from its sealed state,
    ``GuaranteeError`` if it has no guarantee.
    """
    model = run.get_model_folder(name)
    if not is_finished(model):
        known = ", ".join(run.list_model_names()) or "none"
        raise RunStateError(f"{run.root} has no finished model {name}; finished models: {known}")
    if problems := list_broken_files(model):
        raise CheckFailed(f"cannot export models/{name}, which changed after sealing: {'; '.join(problems)}")
    card, audit, manifest = read_json(model.guarantee), load_audit(run, name), read_manifest(model)
    if not card["holds"]:
        raise GuaranteeError(f"cannot export models/{name}: it has no guarantee ({card['holds_reason']})")
    if audit is not None and not audit["holds"]:
        raise GuaranteeError(f"cannot export models/{name}: an audit contradicts its guarantee")
    # the files that the ledger's last record names, and those that say what is promised of them
    written, source = read_records(model.ledger)[-1].body["files"], Store.from_folder(model.root)
    for inside in (*written, model.ledger.name, model.guarantee.name, model.card.name):
        Store.from_folder(target.root).copy_file(source, inside, manifest["files"][inside]["sha256"])
    # not how long it took, and how much memory: no epsilon covers these
    body = {key: manifest[key] for key in ("format", "parent", "settings", "versions")}
    return seal_folder(target, body, list(map_files_by_name(target.root).values()))


def select_public_fields(manifest: dict[str, Any], digest: str) -> dict[str, Any]:
    """Select the export's manifest from that of the run and its sha256: these keys, and no other.

    Included: the hashes of the policies (not the configuration, because deny lists contain names), the public labels,
    the languages of a sample of the corpus (if counts decide what is public: only the configured one), and the run's
    day. Excluded, because they describe private text: the counts of rows, documents, private, duplicate or quarantined
    examples, of spans and of masks; the names, sizes and digests of the input; everything about keys; all other times.
    """
    columns = manifest.get("columns", {})
    label = manifest["configuration"]["input"]["label"] if columns else None
    return {
        "format": FORMAT,
        "run": manifest["run"],
        "id": manifest["id"],
        "uncovered": dict(get_publishable_gaps(manifest)),
        "public_labels": list(get_public_labels(manifest)),
        "release": manifest.get("release", 1),
        "parent": digest,
        "date": manifest["created"][:10],
        "versions": manifest["versions"],
        "policies": {name: policy["hash"] for name, policy in manifest["policies"].items()},
        "counts": {"public": manifest["counts"]["public"]},
        **{name: manifest[name] for name in ("columns", "route") if name in manifest},
        **({"label": label} if label in columns else {}),
        "dedup": {"mode": manifest["dedup"]["splits"]["public"]["mode"], "scope": manifest["dedup"]["scope"]},
    }

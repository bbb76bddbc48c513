"""Export: what may leave a run, and nothing else, in a folder or at a URL.

The public side, a card and a manifest that say no more than an allow-list (:func:`what_may_be_said`), and
models that are asked for, each under its own guarantee.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redactory.detectors import blind_of
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed
from redactory.foundation.files import make_private_folder, write_text
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.exports.card import export_card
from redactory.pipelines.exports.croissant_document import croissant_text
from redactory.pipelines.exports.model import copy_model, copy_sealed
from redactory.pipelines.exports.verify import check_export
from redactory.pipelines.leaving import leaving
from redactory.pipelines.new_folder import emptied, new_folder, open_to_read
from redactory.pipelines.releases.log import Event, enter
from redactory.pipelines.sealed import sealed
from redactory.pipelines.stores.mirror import PlacedFolder, mirror, sums_text
from redactory.pipelines.stores.store import Store, is_url, without_secrets
from redactory.redaction import (
    RunFolder,
    broken_files,
    list_files,
    read_manifest,
    succeed,
    write_manifest,
)
from redactory.redaction.export_folder import FORMAT, ExportFolder
from redactory.redaction.signing import sign


def export_run(
    run: str | Path,
    to: str | Path,
    *,
    models: Sequence[str] = (),
    by: str | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Copy what may leave a finished run to the new folder, or the URL, ``to``.

    ``{"run", "to", "manifest", "release", "public", "models", "files", "bytes"}``; ``manifest`` is the sha256
    of the export's own, which the release log has too: it is entered there before anything leaves.
    ``models`` are the names of trained models to bring along, ``by`` who exports, for the log.  Raises
    ``RunStateError`` where the run is not finished or is held, where ``to`` exists and where a model is not
    there; ``CheckFailed`` where a file is not as it was sealed; ``GuaranteeError`` where nothing is
    guaranteed of a model.
    """
    folder = RunFolder(Path(run))
    return sealed(folder.state, _export, folder, str(to), tuple(dict.fromkeys(models)), by, progress)


def _export(
    run: RunFolder, to: str, models: tuple[str, ...], by: str | None, progress: Progress
) -> dict[str, Any]:
    with leaving(run) as still:
        broken = broken_files(run)
        if broken:
            raise CheckFailed(
                f"{run.root} is not as it was sealed, and nothing leaves it: {'; '.join(broken)}"
            )
        if not is_url(to):
            with new_folder(Path(to), still) as staging:
                return _filled(run, ExportFolder(staging), to, models, by)
        store = Store.at(to)
        store.names()  # one that cannot be read is told of before anything is entered in the log
        with tempfile.TemporaryDirectory(prefix="redactory-") as temporary:
            made = ExportFolder(make_private_folder(Path(temporary) / run.root.resolve().name))
            result = _filled(run, made, to, models, by)
            own = (made.success, made.sums)
            files = {
                path.relative_to(made.root).as_posix(): path
                for path in made.root.rglob("*")
                if path.is_file() and path not in own
            }
            mirror(PlacedFolder(made.root, result["manifest"], files), store, progress, still)
            return result


def _filled(
    run: RunFolder, made: ExportFolder, to: str, models: tuple[str, ...], by: str | None
) -> dict[str, Any]:
    """Make the export, check it as whoever receives it will, and enter it in the log; the summary."""
    emptied(made.root)
    manifest = read_manifest(run)
    for name, entry in manifest["files"].items():
        if (path := run.root / name).parent == run.public:
            copy_sealed(path, made.public / path.name, entry["sha256"])
    said = what_may_be_said(manifest, file_sha256(run.manifest))
    said["models"] = {name: copy_model(run, name, made.model(name)) for name in models}
    write_text(made.card, export_card(said))
    write_text(made.croissant, croissant_text(said, manifest["files"]))
    write_manifest(made, said, list_files(made, [p for p in made.root.rglob("*") if p.is_file()]))
    sign(made)
    listed = [path for path in made.root.rglob("*") if path.is_file()]
    write_text(made.sums, sums_text({p.relative_to(made.root).as_posix(): file_sha256(p) for p in listed}))
    digest = succeed(made)
    open_to_read(made.root)
    failed = [check.name for check in check_export(made) if not check.ok]
    if failed:
        raise CheckFailed(f"{run.root}: nothing leaves it, what was made does not hold: {', '.join(failed)}")
    where = without_secrets(to)
    # whoever reads the log later stands elsewhere
    lies_at = where if is_url(to) else str(Path(to).absolute())
    told = {"release": said["release"], "models": list(models), **({} if by is None else {"by": by})}
    enter(run, Event.EXPORTED, manifest=digest, to=lies_at, **told)
    sizes = [path.stat().st_size for path in made.root.rglob("*") if path.is_file()]
    return {
        "run": str(run.root),
        "to": where,
        "manifest": digest,
        "release": said["release"],
        "public": said["counts"]["public"],
        "models": list(models),
        "files": len(sizes),
        "bytes": sum(sizes),
    }


def what_may_be_said(manifest: dict[str, Any], digest: str) -> dict[str, Any]:
    """The export's manifest, of that of the run and its sha256: this list, and no other key of it.

    Not the configuration (deny lists have names in them) but the hashes of the policies; not the counts of
    rows, documents, private, duplicate or quarantined points, of hits and of masks, for they speak about
    private text, but the languages that a sample of the corpus is in; not the names, sizes and digests of the
    input; nothing of keys; no time but the run's day.
    """
    return {
        "format": FORMAT,
        "run": manifest["run"],
        **({"id": manifest["id"]} if "id" in manifest else {}),
        "blind": dict(blind_of(manifest)),
        "release": manifest.get("release", 1),
        "parent": digest,
        "date": manifest["created"][:10],
        "versions": manifest["versions"],
        "policies": {name: policy["hash"] for name, policy in manifest["policies"].items()},
        "counts": {"public": manifest["counts"]["public"]},
        "dedup": {"mode": manifest["dedup"]["sides"]["public"]["mode"], "scope": manifest["dedup"]["scope"]},
    }

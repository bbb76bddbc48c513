"""Verify: read a finished run again and check everything that can be checked without trusting it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from pydantic import ValidationError

from redactory.detectors import Detector, DetectSettings, policies_of, policy_record
from redactory.evaluation.report import pages_of
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, RedactoryError
from redactory.foundation.files import read_json
from redactory.foundation.keys import load_digest_key, read_public_key
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.exports.verify import verify_export
from redactory.pipelines.open_values import find_open_values
from redactory.pipelines.release import check_conservation
from redactory.pipelines.sealed import sealed, wordless
from redactory.pipelines.stores.fetch import fetched
from redactory.pipelines.stores.store import is_url, without_secrets
from redactory.pipelines.train import guarantee
from redactory.pipelines.verify_releases import purged, superseded
from redactory.pipelines.verify_seals import Check, encryption, files, journal, no_strays, not_made, signature
from redactory.redaction import (
    MASK,
    RunFolder,
    broken_files,
    part_rows,
    parts,
    read_batches,
    read_manifest,
    route,
)
from redactory.redaction.export_folder import is_export_folder
from redactory.redaction.releases import release_with
from redactory.redaction.signing import check_signature

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def verify(
    run: str | Path, progress: Progress = silent, *, public_key: str | Path | None = None
) -> dict[str, Any]:
    """Check a finished run: ``{"run", "ok", "checks": [{name, ok, detail, made}], "open_values": [...]}``.

    ``public_key`` is a PEM file: the run, its models and their evaluations must then be signed by that
    key.  The keys of the run (``REDACTORY_KEY``, and ``REDACTORY_ENCRYPTION_KEY`` where it is encrypted)
    are needed for some checks alone; one that could not be made has ``made`` False and says why.
    ``run`` may be an export too, and the URL of either, which is then fetched into a private folder.
    ``RunStateError`` where there is no finished run, ``ConfigurationError`` for a file that is no key.
    """
    if is_url(run):
        with fetched(str(run), progress) as place:
            return {**verify(place, progress, public_key=public_key), "run": without_secrets(str(run))}
    folder = RunFolder(Path(run))
    known = None if public_key is None else read_public_key(Path(public_key))
    if is_export_folder(folder.root):
        # whoever made it may have written anything
        return wordless("an export was verified", verify_export, folder.root, known)
    return sealed(folder.state, _verify, folder, known, progress)


def _verify(run: RunFolder, known: Ed25519PublicKey | None, progress: Progress) -> dict[str, Any]:
    checks = [whole := files(run), signature(run, known)]
    opened: list[dict[str, Any]] = []
    if whole.ok:
        # what is not as it was sealed cannot be read any further
        opened, further = _contents(run, read_manifest(run), known, progress)
        checks += further
    return {
        "run": str(run.root),
        "ok": all(check.ok for check in checks),
        "checks": [check._asdict() for check in checks],
        "open_values": opened,
    }


def _contents(
    run: RunFolder, manifest: dict[str, Any], known: Ed25519PublicKey | None, progress: Progress
) -> tuple[list[dict[str, Any]], list[Check]]:
    opened: list[dict[str, Any]] = []
    checks = [no_strays(run, manifest), journal(run, manifest), encrypted := encryption(run, manifest)]
    checks += [*superseded(run, manifest), *purged(manifest)]
    readable = encrypted.ok and encrypted.made

    def private(name: str, check: Callable[[], Check]) -> Check:
        return check() if readable else not_made(name, "the private part cannot be read (see 'encryption')")

    def values() -> Check:
        found, check = _open_values(run, manifest, manifest["configuration"]["release"]["max_open_values"])
        opened.extend(found)
        return check

    checks += [
        private("conservation", lambda: _conservation(run, manifest)),
        _no_mask_in_public(run),
        private("point ids", lambda: _ids(run)),
        _rescan(run, manifest, progress),
        private("values masked elsewhere", values),
        *_models(run, known),
        private("report", lambda: _report(run, manifest)),
    ]
    return opened, checks


def _conservation(run: RunFolder, manifest: dict[str, Any]) -> Check:
    """The manifest's sums hold, and its counts are those of the parts as they are read now."""
    counts = manifest["counts"]
    try:
        check_conservation(counts)
    except RedactoryError as error:
        return Check("conservation", False, str(error))
    rows = {f: sum(map(part_rows, parts(f))) for f in run.data_folders}
    expected = {
        run.public: counts["public"],
        run.private: counts["private"],
        run.quarantine: counts["quarantined"] + counts["rejected"],
        run.vault: counts["points"] - counts["quarantined"],
        run.points: counts["points"],
        run.across: manifest["dedup"]["across"] or 0,
    }
    expected.update(dict.fromkeys((f for f in expected if f.name in manifest.get("purged", ())), 0))
    wrong = [f"{f.name}: {rows[f]} rows, not {n}" for f, n in expected.items() if rows[f] != n]
    fine = f"{counts['rows']} rows and {counts['points']} points are accounted for"
    return Check("conservation", not wrong, "; ".join(wrong) or fine)


def _no_mask_in_public(run: RunFolder) -> Check:
    found = sum(
        pc.sum(pc.match_substring(b["text"], MASK)).as_py() or 0 for b in read_batches(run.public, ["text"])
    )
    return Check("no mask in public", not found, f"{found} public points hold {MASK}")


def _ids(run: RunFolder) -> Check:
    """Released ids are unique, and a shard holds exactly the points whose fate sends them there."""
    problems = []
    for folder in (run.public, run.private):
        released = [i for b in read_batches(folder, ["point_id"]) for i in b["point_id"].to_pylist()]
        due = {
            i
            for b in read_batches(run.points, ["released_id", "fate"])
            for i, fate in zip(b["released_id"].to_pylist(), b["fate"].to_pylist(), strict=True)
            if fate == folder.name
        }
        if len(released) != len(set(released)):
            problems.append(f"{folder.name}: an id occurs twice")
        if set(released) != due:
            problems.append(f"{folder.name}: {len(set(released) ^ due)} ids do not go with audit/points")
    return Check("point ids", not problems, "; ".join(problems) or "each point lies where its fate says")


def _rescan(run: RunFolder, manifest: dict[str, Any], progress: Progress) -> Check:
    """Both policies find nothing in the public shards, with the very engines that the manifest names."""
    name, other = (
        "re-scan of public",
        "not made: the engines, models or versions here are not those of the run",
    )
    try:
        settings = DetectSettings.model_validate(manifest["configuration"]["detect"])
    except ValidationError:
        return Check(name, False, other, made=False)
    for policy in policies_of(settings):
        if policy_record(settings, policy)["hash"] != manifest["policies"][policy.name]["hash"]:
            return Check(name, False, other, made=False)
    detector, flagged, done = Detector(settings), [], 0
    for batch in read_batches(run.public):
        texts = batch["text"].to_pylist()
        for point, text, found in zip(
            batch["point_id"].to_pylist(), texts, detector.detect(texts), strict=True
        ):
            if route(text, found).reasons or found.failure:
                flagged.append(point)
        done += len(texts)
        progress("re-scan", done, manifest["counts"]["public"], "points")
    detail = f"{len(flagged)} of {done} public points are flagged"
    return Check(name, not flagged, detail + (f", first {flagged[0]}" if flagged else ""))


def _open_values(
    run: RunFolder, manifest: dict[str, Any], limit: int | None
) -> tuple[list[dict[str, Any]], Check]:
    name = "values masked elsewhere"
    key = load_digest_key()
    if key.fingerprint != manifest["key"]["fingerprint"]:
        made = "the run drew a key of its own" if manifest["key"]["fresh"] else "set the run's REDACTORY_KEY"
        return [], Check(name, limit is None, f"not made: {made}", made=False)
    found = find_open_values(run, key)
    within = limit is None or len(found) <= limit
    which = "--json names them; " if found else ""
    bound = "no limit is set (release.max_open_values)" if limit is None else f"at most {limit} are allowed"
    told = f"{len(found)} public points show a value masked elsewhere"
    return found, Check(name, within, f"{told}; {which}{bound}")


def _models(run: RunFolder, known: Ed25519PublicKey | None) -> Iterator[Check]:
    for name in run.model_names():
        yield _model(run, name, known)


def _model(run: RunFolder, name: str, known: Ed25519PublicKey | None) -> Check:
    model = run.model(name)
    folders = [model, *(model.result(p.parent.name) for p in model.root.glob("*/_SUCCESS"))]
    problems = [f"{folder.root.name}/{problem}" for folder in folders for problem in broken_files(folder)]
    findings = [(folder, check_signature(folder, known)) for folder in folders if folder.manifest.is_file()]
    problems += [f"{folder.root.name}: {found.detail}" for folder, found in findings if not found.good]
    fine = "its guarantee follows from its ledger"
    if not problems:
        try:
            parent = release_with(run, str(read_manifest(model).get("parent")))
            if parent is None:
                problems.append("its manifest names another run as its parent")
            elif parent.digest != file_sha256(run.manifest):
                fine += f"; it was trained on release {parent.number}, and knows what was taken out since"
            card = guarantee(run.root, name)
            audit = card.pop("audit", None)
            if card != read_json(model.guarantee):
                problems.append("guarantee.json is not what ledger and manifest say")
            if audit is not None and not audit["holds"]:
                problems.append("an audit shows a larger epsilon than its guarantee states")
        except CheckFailed as error:
            problems.append(str(error))
        except ConfigurationError:
            fine = "its files hold; its guarantee was not derived again: the extra 'train' is not installed"
    return Check(f"model {name}", not problems, "; ".join(problems) or fine)


def _report(run: RunFolder, manifest: dict[str, Any]) -> Check:
    if manifest["versions"]["redactory"] != importlib.metadata.version("redactory"):
        return not_made("report", "rendered by another version")
    changed = [
        path.relative_to(run.root).as_posix()
        for path, page in pages_of(run)
        # as write_text writes it
        if not path.is_file() or path.read_bytes() != page.encode("utf-8", "backslashreplace")
    ]
    if changed:
        return Check("report", False, f"differs from what the manifests say: {', '.join(changed)}")
    return Check("report", True, "says what the manifests say, and so does each model's page")

"""One check of a run that ends in an error is that check's failure, and the others are made all the same."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from pydantic import ValidationError

from redactory.detectors import Detector, DetectSettings, changed_since
from redactory.evaluation.report import pages_of
from redactory.foundation.canonical import file_sha256, version_of
from redactory.foundation.errors import (
    CheckFailed,
    ConfigurationError,
    RedactoryError,
    RunStateError,
    SealedError,
    some,
)
from redactory.foundation.files import read_json
from redactory.foundation.keys import KEY_VARIABLE, load_digest_key, read_public_key
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.export_verify import verify_export
from redactory.pipelines.fates import find_open_values
from redactory.pipelines.leaving import names_looked_for
from redactory.pipelines.publish import fetched
from redactory.pipelines.release import check_conservation, configuration_digest, dataset_card
from redactory.pipelines.sealed import wordless
from redactory.pipelines.store import is_url, without_secrets
from redactory.pipelines.train import guarantee
from redactory.pipelines.verify_seals import (
    Check,
    encryption,
    files,
    journal,
    logged,
    measured,
    not_made,
    purged,
    signature,
    superseded,
)
from redactory.pipelines.verify_strays import is_exactly, modes, no_strays
from redactory.redaction import (
    MASK,
    ModelFolder,
    RunFolder,
    broken_files,
    measured_on,
    part_rows,
    parts,
    read_batches,
    read_manifest,
    route,
)
from redactory.redaction.folder import is_export_folder
from redactory.redaction.releases import release_with
from redactory.redaction.sealing import check_signature, irregular_in

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def attempted(run: RunFolder, name: str, checks: Callable[[], Iterable[Check]]) -> list[Check]:
    """What ``checks`` gives; where it ends in an error, one failed check ``name`` that says why.

    An error that is not our own can quote text: its kind is told, and the part that cannot be read, if one
    cannot.  Nothing is written.
    """
    try:
        return wordless("it was checked", lambda: list(checks()))
    except ConfigurationError as error:
        # of this machine's settings: it says nothing about the run
        return [Check(name, False, str(error), made=False)]
    except SealedError as error:
        broken = _unreadable(run)
        return [Check(name, False, f"{broken} cannot be read" if broken else str(error))]
    except RedactoryError as error:
        return [Check(name, False, str(error))]


def _unreadable(run: RunFolder) -> str | None:
    """The first part of the data folders that is no part at all."""
    for path in (path for folder in run.data_folders for path in parts(folder)):
        try:
            wordless("a part was opened", part_rows, path)
        except RedactoryError:
            return path.relative_to(run.root).as_posix()
    return None


# The checks of a run's models.


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


# Verify: read a finished run again and check everything that can be checked without trusting it.


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
    # nor is anything written into what is verified
    return wordless("a run was verified", _verify, folder, known, progress)


def _verify(run: RunFolder, known: Ed25519PublicKey | None, progress: Progress) -> dict[str, Any]:
    whole, opened = files(run), list[dict[str, Any]]()
    # behind a link or a pipe nothing is read
    signed = not_made("signature", "see 'files'") if irregular_in(run) else signature(run, known)
    checks = [whole, signed]
    if whole.ok:
        # what is not as it was sealed cannot be read any further
        opened, further = _contents(run, read_manifest(run), known, progress, signed)
        checks += further
    return {
        "run": str(run.root),
        "ok": all(check.ok for check in checks),
        "checks": [check._asdict() for check in checks],
        "open_values": opened,
    }


def _contents(
    run: RunFolder,
    manifest: dict[str, Any],
    known: Ed25519PublicKey | None,
    progress: Progress,
    signed: Check,
) -> tuple[list[dict[str, Any]], list[Check]]:
    opened: list[dict[str, Any]] = []
    checks = attempted(run, "no stray files", lambda: [no_strays(run, manifest), modes(run)])
    checks += attempted(run, "journal", lambda: [journal(run, manifest)])
    encrypted = attempted(run, "encryption", lambda: [encryption(run, manifest)])
    checks += encrypted
    checks += attempted(run, "earlier releases", lambda: superseded(run, manifest))
    checks += attempted(run, "release log", lambda: logged(run, manifest))
    checks += attempted(run, "names looked for", lambda: [names_looked_for(manifest)])
    checks += [*purged(manifest), *attempted(run, "measured", lambda: measured(run, known))]
    readable = encrypted[0].ok and encrypted[0].made

    def public(name: str, check: Callable[[], Check]) -> list[Check]:
        return attempted(run, name, lambda: [check()])

    def private(name: str, check: Callable[[], Check]) -> list[Check]:
        if readable:
            return public(name, check)
        return [not_made(name, "the private part cannot be read (see 'encryption')")]

    def values() -> Check:
        found, check = _open_values(run, manifest, manifest["configuration"]["release"]["max_open_values"])
        opened.extend(found)
        return check

    checks += [
        *private("conservation", lambda: _conservation(run, manifest)),
        *public("no mask in public", lambda: _no_mask_in_public(run)),
        *private("point ids", lambda: _ids(run)),
        *public("re-scan of public", lambda: _rescan(run, manifest, progress, signed)),
        *private("values masked elsewhere", values),
        *models(run, known),
        *private("report", lambda: _report(run, manifest)),
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
    wrong = [f"{f.name}: {some(rows[f], 'row')}, not {n}" for f, n in expected.items() if rows[f] != n]
    fine = f"{some(counts['rows'], 'row')} and {some(counts['points'], 'point')} are accounted for"
    return Check("conservation", not wrong, "; ".join(wrong) or fine)


def _no_mask_in_public(run: RunFolder) -> Check:
    found = sum(
        pc.sum(pc.match_substring(b["text"], MASK)).as_py() or 0 for b in read_batches(run.public, ["text"])
    )
    return Check("no mask in public", not found, f"{some(found, 'public point')} with {MASK}")


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
            problems.append(f"{folder.name}: {some(len(set(released) ^ due), 'id')} not as in audit/points")
    return Check("point ids", not problems, "; ".join(problems) or "each point lies where its fate says")


def _rescan(run: RunFolder, manifest: dict[str, Any], progress: Progress, signed: Check) -> Check:
    """Both policies find nothing in the public shards, with the very engines that the manifest names.

    Files outside of the run that the manifest names are opened only where somebody who is known wrote it.
    """
    name, other = "re-scan of public", "not made: the settings are those of another version"
    try:
        settings = DetectSettings.model_validate(manifest["configuration"]["detect"])
    except ValidationError:
        return Check(name, False, other, made=False)
    named = settings.named_files()
    if named and not (signed.ok and signed.made) and not _is_ours(manifest):
        return not_made(
            name,
            f"{named[0]} names files outside of the run, and anybody may have written that: set the run's "
            f"{KEY_VARIABLE}, or give --public-key",
        )
    if changed := changed_since(settings, manifest["policies"]):
        return Check(name, False, f"not made: {changed}", made=False)
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
    detail = f"{len(flagged)} of {some(done, 'public point')} flagged"
    return Check(name, not flagged, detail + (f", first {flagged[0]}" if flagged else ""))


def _is_ours(manifest: dict[str, Any]) -> bool:
    """Whether somebody who has our digest key wrote the configuration; of earlier versions nobody knows."""
    due = configuration_digest(load_digest_key(), manifest["configuration"])
    return hmac.compare_digest(str(manifest["key"].get("configuration")), due)


def _open_values(
    run: RunFolder, manifest: dict[str, Any], limit: int | None
) -> tuple[list[dict[str, Any]], Check]:
    name = "values masked elsewhere"
    key = load_digest_key()
    if key.fingerprint != manifest["key"]["fingerprint"]:
        made = "the run drew a key of its own" if manifest["key"]["fresh"] else "set the run's REDACTORY_KEY"
        return [], Check(name, limit is None, f"not made: {made}", made=False)
    found = find_open_values(run, key, manifest["configuration"]["detect"]["language"])
    within = limit is None or len(found) <= limit
    which = "--json names them; " if found else ""
    bound = "no limit is set (release.max_open_values)" if limit is None else f"at most {limit} are allowed"
    told = f"{some(len(found), 'public point')} with a value masked elsewhere"
    return found, Check(name, within, f"{told}; {which}{bound}")


def _report(run: RunFolder, manifest: dict[str, Any]) -> Check:
    if not same_version(manifest):
        return not_made("report", "rendered by another version")
    due = [*pages_of(run), (run.card, dataset_card(manifest["run"], manifest))]
    changed = [
        path.relative_to(run.root).as_posix()
        for path, page in due
        # as write_text writes it
        if not is_exactly(path, page.encode("utf-8", "backslashreplace"))
    ]
    if changed:
        return Check("report", False, f"differs from what the manifests say: {', '.join(changed)}")
    return Check("report", True, "says what the manifests say, and so do the card and each model's page")

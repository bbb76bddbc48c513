"""Verify: read a finished run again and check everything that can be checked without trusting it."""

from __future__ import annotations

import hmac
import stat
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from redactory.detectors import Detector, DetectSettings, blind_words, changed_since
from redactory.detectors.settings import kinds_of, public_of, public_words
from redactory.evaluation.report import pages_of
from redactory.foundation.canonical import file_sha256, version_of
from redactory.foundation.errors import CheckFailed, ConfigurationError, RedactoryError, RunStateError, some
from redactory.foundation.files import leaves, read_json
from redactory.foundation.keys import KEY_VARIABLE, load_digest_key, read_public_key
from redactory.foundation.progress import Progress, silent
from redactory.foundation.records import chain_head, read_records
from redactory.pipelines.checks import (
    Check,
    Seen,
    Unmade,
    Work,
    checked,
    encryption,
    files,
    journal,
    logged,
    measured,
    no_strays,
    require,
    signature,
    superseded,
    unsealed,
)
from redactory.pipelines.release import (
    check_conservation,
    configuration_digest,
    croissant_text,
    dataset_card,
    export_card,
    synthetic_card,
)
from redactory.pipelines.sealed import wordless
from redactory.pipelines.share import fetched, sums_text, what_forbids
from redactory.pipelines.store import is_url, without_secrets
from redactory.pipelines.train import guarantee
from redactory.redaction import (
    MASK,
    ModelFolder,
    RunFolder,
    broken_files,
    measured_on,
    part_rows,
    part_schema,
    parts,
    read_batches,
    read_manifest,
    route,
)
from redactory.redaction.folder import SYNTHETIC, ExportFolder, SyntheticFolder, is_export_folder
from redactory.redaction.sealing import release_with
from redactory.redaction.shards import read_column, read_values, schema_of
from redactory.redaction.values import find_open_values


def verify(run: str | Path, progress: Progress = silent, *, public_key: str | Path | None = None) -> dict[str, Any]:
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
    seen = Seen(Path(run), None if public_key is None else read_public_key(Path(public_key)), progress)
    # whoever made it may have written anything; nor is anything written into what is verified
    checks = wordless("a run was verified", _checked, seen)
    return {
        "run": str(seen.root),
        "ok": all(one.ok for one in checks),
        "checks": [one._asdict() for one in checks],
        "open_values": seen.open_values,
    }


def _checked(seen: Seen) -> list[Check]:
    return check_export(seen) if is_export_folder(seen.root) else checked(seen, OF_A_RUN)


def check_export(seen: Seen) -> list[Check]:
    """Every check that whoever receives an export, or text that a model wrote, can make."""
    synthetic = seen.manifest["format"] == SYNTHETIC
    return checked(seen, OF_SYNTHETIC if synthetic else OF_AN_EXPORT, private=())


def same_version(manifest: dict[str, Any]) -> bool:
    """Whether this version of Redactory wrote what ``manifest`` seals."""
    return bool(version_of("redactory") == manifest["versions"].get("redactory"))


def _is_exactly(path: Path, content: str) -> bool:
    """Whether a file holds ``content``; of one of another length nothing is read."""
    due = content.encode("utf-8", "backslashreplace")
    return path.is_file() and path.stat().st_size == len(due) and path.read_bytes() == due


# No mode that lets others in.


def modes(seen: Seen) -> str:
    """Nobody but its owner can write to the run, nor read its private part; ``state/`` is closed."""
    run = seen.run
    closed = {folder.relative_to(run.root).parts[0] for folder in run.data_folders if folder != run.public}
    return closed_modes(run.root, closed | {run.state.name}, (run.orchestrator, run.cluster, run.samples))


def closed_modes(root: Path, closed: Collection[str], but: Collection[Path] = ()) -> str:
    """Nobody else can write anywhere, or read what lies below the ``closed`` names."""
    wide, waiting = [], [root]
    while waiting:
        path = waiting.pop()
        mode, (top, *inside) = path.lstat().st_mode, path.relative_to(root).parts or ("",)
        if stat.S_ISDIR(mode) and path not in but:
            waiting += sorted(path.iterdir(), reverse=True)
        # what is inside of state/ is guarded by that folder
        private = top in closed and not (inside and top == "state")
        barred = stat.S_IWGRP | stat.S_IWOTH | (stat.S_IRWXG | stat.S_IRWXO if private else 0)
        barred |= stat.S_ISUID | stat.S_ISGID if stat.S_ISREG(mode) else 0
        if mode & barred and not stat.S_ISLNK(mode):
            wide.append(f"{path.relative_to(root).as_posix()} ({stat.S_IMODE(mode):04o})")
    require(wide and [f"{', '.join(wide)}: others can read or write there; run chmod go-rwx"])
    return "only the owner can write, and read what is private"


def purged(seen: Seen) -> str | None:
    """What was purged, as a note; nothing where nothing was."""
    gone = seen.manifest.get("purged")
    return f"{', '.join(gone)}: deleted on purpose" if gone else None


def public_labels(seen: Seen) -> str | None:
    """The labels that were made public, as a note; nothing where there are none."""
    return public_words(public_of(seen.manifest))


# The points: what a run holds, and that it lies where it is to lie.


def names_looked_for(seen: Seen) -> str:
    """Names of every kind were looked for, or their being missed was accepted."""
    require(filter(None, [what_forbids(seen.manifest)]))
    accepted = blind_words(seen.manifest["blind"])
    return f"accepted (release.allow_uncovered_kinds). {accepted}" if accepted else "of persons, places, organisations"


def conservation(seen: Seen) -> str:
    """The manifest's sums hold, and its counts are those of the parts as they are read now."""
    run, manifest, counts = seen.run, seen.manifest, seen.manifest["counts"]
    check_conservation(counts)
    expected = {
        run.public: counts["public"],
        run.private: counts["private"],
        run.quarantine: counts["quarantined"] + counts["rejected"],
        run.vault: counts["points"] - counts["quarantined"],
        run.points: counts["points"],
        run.across: manifest["dedup"]["across"] or 0,
    }
    expected.update(dict.fromkeys((f for f in expected if f.name in manifest.get("purged", ())), 0))
    rows = {f: sum(map(part_rows, parts(f))) for f in expected}
    require(f"{f.name}: {some(rows[f], 'row')}, not {n}" for f, n in expected.items() if rows[f] != n)
    return f"{some(counts['rows'], 'row')} and {some(counts['points'], 'example')} are accounted for"


def no_mask_in_public(seen: Seen) -> str | None:
    """No public point holds a mask, unless counts decided."""
    if seen.manifest.get("route", {}).get("strategy") == "count":
        return None
    batches = read_batches(seen.run.public, ["text"])
    found = sum(pc.sum(pc.match_substring(batch["text"], MASK)).as_py() or 0 for batch in batches)
    words = f"{some(found, 'public example')} with {MASK}"
    require([words] if found else [])
    return words


def _columns(seen: Seen, folder: Path) -> list[str]:
    """What of a side's parts has other columns, or types, than the manifest says."""
    more, wrong = seen.manifest.get("columns", {}), set[str]()
    own = schema_of({**seen.manifest, "columns": {}}, folder.name)
    for path in parts(folder):
        found = part_schema(path)
        wrong |= {*found.names} ^ {*own.names, *more}
        types = {field.name: str(field.type) for field in found}
        wrong |= {name for name, kind in more.items() if types.get(name) != kind}
    named = ", ".join(sorted(wrong))
    return [f"{folder.name}: columns differ from the manifest: {named}"] if wrong else []


def ids(seen: Seen) -> str:
    """Released ids are unique, and a shard holds exactly the points whose fate sends them there."""
    problems = []
    for folder in (seen.run.public, seen.run.private):
        problems += _columns(seen, folder)
        released = read_column(folder, "point_id")
        fates = read_values(seen.run.points, "released_id", "fate")
        due = {i for i, fate in fates if fate == folder.name}
        if len(released) != len(set(released)):
            problems.append(f"{folder.name}: an id occurs twice")
        if set(released) != due:
            problems.append(f"{folder.name}: {some(len(set(released) ^ due), 'id')} not as in audit/points")
    require(problems)
    return "each example is where its decision says"


def whole_documents(seen: Seen) -> str | None:
    """Where documents decide as a whole: all points of each lie on one side, what was not processed too.

    No value is then known in a public document, since nothing was masked in it: the re-scan needs no more.
    """
    if seen.manifest["configuration"]["release"].get("unit") != "document":
        return None
    rows = groupby(read_values(seen.run.points, "document", "side"), itemgetter(0))
    whole = Counter(len({side for _, side in own}) == 1 for _, own in rows)
    require([some(whole[False], "document is", "documents are") + " divided"] if whole[False] else [])
    return f"{some(whole[True], 'document')}, none divided"


def rescan(seen: Seen) -> str | None:
    """Both policies find nothing in the public shards, with the very engines that the manifest names.

    Where counts alone decide what is public, the policies mask and say nothing of sides.

    Files outside of the run that the manifest names are opened only where somebody who is known wrote it.
    """
    manifest = seen.manifest
    if manifest.get("route", {}).get("strategy") == "count":
        return None
    try:
        settings = DetectSettings.read_back(manifest["configuration"]["detect"])
    except RunStateError as error:
        raise ConfigurationError(f"skipped: {error}") from None
    named = settings.named_files()
    if named and not seen.signed:
        key = load_digest_key()
        due = configuration_digest(key, manifest["configuration"])
        # of earlier versions nobody knows who wrote it
        if not hmac.compare_digest(str(manifest["key"].get("configuration")), due):
            raise Unmade(
                f"skipped: {named[0]} names files outside the run, and this could be forged: set the run's "
                f"{KEY_VARIABLE}, or give --public-key"
            )
    if changed := changed_since(settings, manifest["policies"]):
        raise ConfigurationError(f"skipped: {changed}")
    detector, flagged, done = Detector(settings), [], 0
    for batch in read_batches(seen.run.public):
        points, texts = batch["point_id"].to_pylist(), batch["text"].to_pylist()
        for point, text, found in zip(points, texts, detector.detect(texts), strict=True):
            if route(text, found).reasons or found.failure:
                flagged.append(point)
        done += len(texts)
        seen.progress("re-scan", done, manifest["counts"]["public"], "points")
    words = f"{len(flagged)} of {some(done, 'public example')} flagged"
    require([f"{words}, first {flagged[0]}"] if flagged else [])
    return words


def open_values(seen: Seen) -> str:
    """No more public points than allowed show a value that was masked in another one."""
    key, manifest = load_digest_key(), seen.manifest
    limit = manifest["configuration"]["release"]["max_open_values"]
    if key.fingerprint != manifest["key"]["fingerprint"]:
        why = "the run used a temporary key" if manifest["key"]["fresh"] else "set the run's REDACTORY_KEY"
        raise (Unmade if limit is None else ConfigurationError)(f"skipped: {why}")
    language, public = manifest["configuration"]["detect"]["language"], kinds_of(public_of(manifest))
    seen.open_values = find_open_values(seen.run, key, language, public)
    count = len(seen.open_values)
    which = "--json names them; " if count else ""
    bound = "no limit is set (release.max_open_values)" if limit is None else f"at most {limit} allowed"
    words = f"{some(count, 'public example')} with a value masked elsewhere; {which}{bound}"
    require([words] if limit is not None and count > limit else [])
    return words


# The models of a run, and the pages that people read.


def model(seen: Seen, name: str) -> str:
    """A model and its evaluations are as sealed, and its guarantee follows from its ledger."""
    run, own = seen.run, seen.run.model(name)
    results = own.results()
    require(problem for folder in (own, *results) for problem in unsealed(folder, seen.known))
    others = [result for result in results if not measured_on(own, result)]
    require(f"{other.root.name}/ belongs to another model, or to another evaluation" for other in others)
    parent = release_with(run, str(read_manifest(own).get("parent")))
    try:
        card: dict[str, Any] = dict(guarantee(run.root, name))
    except ConfigurationError:
        return "its files match; its guarantee was not recomputed: the extra 'train' is not installed"
    except RunStateError as error:
        raise CheckFailed(str(error)) from None
    audit, problems = card.pop("audit", None), list[str]()
    if parent is None:
        problems.append("its manifest names another parent run")
    if card != read_json(own.guarantee):
        problems.append("guarantee.json does not match ledger and manifest")
    elif not _is_page_of(own, card):
        problems.append("README.md does not match guarantee.json")
    if audit is not None and not audit["holds"]:
        problems.append("an audit proves a larger epsilon than its guarantee")
    require(problems)
    later = parent is not None and parent.digest != file_sha256(run.manifest)
    more = f"; it was trained on release {parent.number}, before later erasures" if later else ""  # type: ignore[union-attr]
    return f"its guarantee follows from its ledger{more}"


def _is_page_of(model: ModelFolder, card: dict[str, Any]) -> bool:
    """Whether the model's card for people says what ``card`` says; True where another version wrote it."""
    from redactory.training import guarantee_page

    return not same_version(read_manifest(model)) or _is_exactly(model.card, guarantee_page(card))


def report(seen: Seen) -> str:
    """The report, the dataset card and each model's page say what the manifests say."""
    if not same_version(seen.manifest):
        raise Unmade("skipped: rendered by another version")
    due = [*pages_of(seen.run), (seen.run.card, dataset_card(seen.manifest["run"], seen.manifest))]
    changed = [path.relative_to(seen.root).as_posix() for path, page in due if not _is_exactly(path, page)]
    require(changed and [f"differs from the manifests: {', '.join(changed)}"])
    return "matches the manifests, and so do the card and the page of each model"


# Of an export: what can be checked without the run, its keys, its models and the engines.


def nothing_else(seen: Seen) -> str:
    """Nothing lies in it but what seals it and what the manifest lists, and that is what an export has."""
    folder, listed = SyntheticFolder(seen.root), set(seen.manifest["files"])
    synthetic = seen.manifest["format"] == SYNTHETIC
    own = {folder.manifest, folder.signature, folder.success, folder.sums}
    there = {path.relative_to(seen.root).as_posix() for path in leaves(seen.root) if path not in own}
    homes = {RunFolder(seen.root).models / model for model in seen.manifest.get("models", ())}
    pages = (folder.card, folder.guarantee if synthetic else folder.croissant)

    def has_a_place(path: Path) -> bool:
        if path.parent == folder.public:
            return path.match("part-*.parquet")
        home = path.parent.parent if path.parent.name == "adapter" else path.parent
        return path in pages or home in homes

    strays = there - listed | {name for name in listed if not has_a_place(seen.root / name)}
    # of a run without a public point there are no parts
    strays.discard(folder.public.name)
    require(strays and [", ".join(sorted(strays))])
    return "it contains nothing else"


def sums(seen: Seen) -> str:
    """``SHA256SUMS`` says of every file what the manifest says, and of the manifest what is so."""
    folder = ExportFolder(seen.root)
    digests = {name: entry["sha256"] for name, entry in seen.manifest["files"].items()}
    beside = (path for path in (folder.manifest, folder.signature) if path.exists())
    digests |= {path.name: file_sha256(path) for path in beside}
    require([] if _is_exactly(folder.sums, sums_text(digests)) else ["differs from the manifest"])
    return "matches the manifest"


def _says(seen: Seen, path: Path, due: str) -> str:
    if not same_version(seen.manifest):
        raise Unmade("skipped: written by another version")
    require([] if _is_exactly(path, due) else ["differs from the manifest"])
    return "matches the manifest"


def exported_ids(seen: Seen) -> str:
    """Ids are unique, and there are as many points as counted, with their columns and no other."""
    folder, due = ExportFolder(seen.root).public, seen.manifest["counts"]["public"]
    found, problems = read_column(folder, "point_id"), list[str]()
    problems += _columns(seen, folder)
    if len(found) != len(set(found)):
        problems.append("an id occurs twice")
    if not len(found) == sum(map(part_rows, parts(folder))) == due:
        problems.append(f"{some(len(found), 'example')}, expected {due}")
    require(problems)
    return f"{some(due, 'example')}, each with a unique id"


def exported_model(seen: Seen, name: str) -> str:
    """Files, ledger and guarantee of a model that left go together."""
    try:
        require(_apart(ExportFolder(seen.root).model(name), seen.manifest["models"][name]))
    except (OSError, KeyError, IndexError, ValueError) as error:
        if isinstance(error, RedactoryError):
            raise
        # a ledger or a card that is none
        kind = type(error).__name__
        raise CheckFailed(f"its ledger or its guarantee cannot be read ({kind})") from None
    raise Unmade("guarantee and weights match its ledger; recomputing its epsilons needs the run")


def _apart(model: ModelFolder, digest: str) -> Iterator[str]:
    """What does not go together of a model: its files, its ledger, its guarantee."""
    yield from broken_files(model)
    if file_sha256(model.manifest) != digest:
        yield "its manifest is not the exported one"
    records, card = read_records(model.ledger), read_json(model.guarantee)
    head, end, steps = records[0].body, records[-1].body, len(records) - 2
    if end["weights"] != file_sha256(model.weights):
        yield "the ledger belongs to other weights"
    said = card["ledger"]
    if (said["head"], said["parent"]) != (chain_head(model.ledger), head["parent"]):
        yield "the guarantee belongs to another ledger"
    if not said["steps"] == head["steps"] == end["steps"] == steps:
        yield "the ledger has more or fewer steps than stated"
    if not card["holds"]:
        yield f"it has no guarantee ({card['holds_reason']})"


def promised(seen: Seen) -> str:
    """A guarantee holds of what a model wrote, and the card says it."""
    folder = SyntheticFolder(seen.root)
    card = read_json(folder.guarantee)
    if same_version(seen.manifest):
        _says(seen, folder.card, synthetic_card(seen.manifest, card))
    if not (card["holds"] and seen.manifest["holds"]):
        raise CheckFailed(f"these texts have no guarantee ({card['holds_reason']}) and must not be shared")
    raise Unmade("the card matches the guarantee; recomputing its epsilons needs the run")


def _stays(why: str) -> Work:
    """A check of a run that cannot be made of an export, and why."""

    def work(_: Seen) -> str:
        raise Unmade(f"skipped: {why}")

    return work


OF_A_RUN: dict[str, Work] = {
    "files": files,
    "signature": signature,
    "no stray files": no_strays,
    "modes": modes,
    "journal": journal,
    "encryption": encryption,
    "earlier releases": superseded,
    "release log": logged,
    "purged": purged,
    "measured": measured,
    "names looked for": names_looked_for,
    "public labels": public_labels,
    "conservation": conservation,
    "no mask in public": no_mask_in_public,
    "point ids": ids,
    "whole documents": whole_documents,
    "re-scan of public": rescan,
    "values masked elsewhere": open_values,
    "model": model,
    "report": report,
}
OF_AN_EXPORT: dict[str, Work] = {
    "files": files,
    "signature": signature,
    "no stray files": nothing_else,
    "modes": lambda seen: closed_modes(seen.root, ()),
    "sha256sums": sums,
    "card": lambda seen: _says(seen, ExportFolder(seen.root).card, export_card(seen.manifest)),
    "croissant": lambda seen: _says(
        seen, ExportFolder(seen.root).croissant, croissant_text(seen.manifest, seen.manifest["files"])
    ),
    "public labels": public_labels,
    "no mask in public": no_mask_in_public,
    "point ids": exported_ids,
    "model": exported_model,
    "re-scan of public": _stays("the configuration of the engines stays with the run"),
    "conservation": _stays("what was not made public stays with the run"),
    "journal": _stays("it stays with the run"),
    "values masked elsewhere": _stays("what was masked stays with the run, and so does its key"),
}
OF_SYNTHETIC: dict[str, Work] = {
    name: OF_AN_EXPORT[name]
    for name in ("files", "signature", "no stray files", "modes", "sha256sums", "no mask in public", "point ids")
} | {"guarantee": promised}
"""Which checks are made, in the order of the report."""

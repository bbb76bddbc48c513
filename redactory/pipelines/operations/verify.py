"""Verify a finished run: read it again and check everything that needs no trust in its maker."""

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

from redactory.detectors import Detector, DetectSettings, describe_gaps, describe_policy_changes
from redactory.detectors.settings import format_public_label_note, get_kinds, get_public_labels
from redactory.evaluation.report import render_pages
from redactory.foundation.canonical import file_sha256, get_package_version
from redactory.foundation.errors import CheckFailed, ConfigurationError, RedactoryError, RunStateError, pluralize
from redactory.foundation.files import list_leaf_paths, read_json
from redactory.foundation.keys import KEY_VARIABLE, load_digest_key, read_public_key
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.records import compute_chain_head, read_records
from redactory.pipelines.curation.error_sealing import run_with_hidden_error_text
from redactory.pipelines.curation.finish import (
    check_counts_add_up,
    digest_configuration,
    render_croissant,
    render_dataset_card,
    render_export_card,
    render_synthetic_card,
)
from redactory.pipelines.curation.share import explain_release_blocker, format_checksums, temporary_download
from redactory.pipelines.modeling.train import guarantee
from redactory.pipelines.operations.checks import (
    CheckContext,
    CheckFunction,
    CheckResult,
    CheckSkipped,
    check_earlier_releases,
    check_encryption,
    check_files,
    check_journal,
    check_measurements,
    check_release_log,
    check_run_signature,
    check_unlisted_files,
    list_seal_problems,
    raise_on_problems,
    run_check_registry,
)
from redactory.pipelines.store import is_url, remove_credentials
from redactory.redaction import (
    MASK,
    ModelFolder,
    RunFolder,
    count_part_rows,
    is_result_for,
    list_broken_files,
    list_parts,
    read_batches,
    read_manifest,
    read_part_schema,
    route_example,
)
from redactory.redaction.folder import SYNTHETIC, ExportFolder, SyntheticFolder, is_export_folder
from redactory.redaction.sealing import find_release
from redactory.redaction.shards import build_shard_schema, read_column, read_values
from redactory.redaction.values import find_unmasked_values


def verify(
    run: str | Path, progress: Progress = ignore_progress, *, public_key: str | Path | None = None
) -> dict[str, Any]:
    """Check a finished run: ``{"run", "ok", "checks": [{name, ok, detail, made}], "open_values": [...]}``.

    ``run`` may also be an export, or the URL of either, which is downloaded into a private folder. With
    ``public_key`` (a PEM file), that key must have signed the run, its models and their evaluations. Only some
    checks need the run's keys (``REDACTORY_KEY``, and ``REDACTORY_ENCRYPTION_KEY`` if it is encrypted); a check
    that could not be made has ``made`` False and says why. ``RunStateError`` if there is no finished run,
    ``ConfigurationError`` for a file without a key.
    """
    if is_url(run):
        with temporary_download(str(run), progress) as place:
            return {**verify(place, progress, public_key=public_key), "run": remove_credentials(str(run))}
    context = CheckContext(Path(run), None if public_key is None else read_public_key(Path(public_key)), progress)
    # its maker may have written anything, so hide error texts; never write into the run
    checks = run_with_hidden_error_text("a run was verified", _run_all_checks, context)
    return {
        "run": str(context.root),
        "ok": all(result.ok for result in checks),
        "checks": [result._asdict() for result in checks],
        "open_values": context.unmasked_values,
    }


def _run_all_checks(context: CheckContext) -> list[CheckResult]:
    return check_export(context) if is_export_folder(context.root) else run_check_registry(context, RUN_CHECKS)


def check_export(context: CheckContext) -> list[CheckResult]:
    """Make every check that the receiver of an export, or of synthetic text, can make."""
    synthetic = context.manifest["format"] == SYNTHETIC
    return run_check_registry(context, SYNTHETIC_CHECKS if synthetic else EXPORT_CHECKS, private=())


def is_from_this_version(manifest: dict[str, Any]) -> bool:
    """Whether this version of Redactory wrote the manifest."""
    return bool(get_package_version("redactory") == manifest["versions"].get("redactory"))


def _has_content(path: Path, content: str) -> bool:
    """Whether a file holds ``content``; a file of another length is not read."""
    due = content.encode("utf-8", "backslashreplace")
    return path.is_file() and path.stat().st_size == len(due) and path.read_bytes() == due


# File modes.


def check_file_modes(context: CheckContext) -> str:
    """Check that only the owner can write to the run and read its private part; ``state/`` is closed."""
    run = context.run
    closed = {folder.relative_to(run.root).parts[0] for folder in run.data_folders if folder != run.public}
    return check_owner_only_access(run.root, closed | {run.state.name}, (run.orchestrator, run.cluster, run.samples))


def check_owner_only_access(root: Path, private_names: Collection[str], excluded: Collection[Path] = ()) -> str:
    """Check that nobody else can write anywhere, or read below ``private_names``."""
    wide, remaining = [], [root]
    while remaining:
        path = remaining.pop()
        mode, (top, *inner) = path.lstat().st_mode, path.relative_to(root).parts or ("",)
        if stat.S_ISDIR(mode) and path not in excluded:
            remaining += sorted(path.iterdir(), reverse=True)
        # the mode of state/ itself protects its content
        private = top in private_names and not (inner and top == "state")
        barred = stat.S_IWGRP | stat.S_IWOTH | (stat.S_IRWXG | stat.S_IRWXO if private else 0)
        barred |= stat.S_ISUID | stat.S_ISGID if stat.S_ISREG(mode) else 0
        if mode & barred and not stat.S_ISLNK(mode):
            wide.append(f"{path.relative_to(root).as_posix()} ({stat.S_IMODE(mode):04o})")
    raise_on_problems(wide and [f"{', '.join(wide)}: others can read or write there; run chmod go-rwx"])
    return "only the owner can write, and read what is private"


def describe_purged_originals(context: CheckContext) -> str | None:
    """Note what was purged; None if nothing was."""
    kinds = context.manifest.get("purged")
    return f"{', '.join(kinds)}: deleted on purpose" if kinds else None


def describe_public_labels(context: CheckContext) -> str | None:
    """Note the labels that were made public; None if there are none."""
    return format_public_label_note(get_public_labels(context.manifest))


# The examples: what a run holds, and that each is in the right split.


def check_name_coverage(context: CheckContext) -> str:
    """Check that names of every kind were looked for, or that the gaps were accepted."""
    raise_on_problems(filter(None, [explain_release_blocker(context.manifest)]))
    allowed_text = describe_gaps(context.manifest["uncovered"])
    accepted = f"accepted (release.allow_uncovered_kinds). {allowed_text}"
    return accepted if allowed_text else "of persons, places, organisations"


def check_counts(context: CheckContext) -> str:
    """Check that the manifest's counts add up and match the rows of the parts."""
    run, manifest, counts = context.run, context.manifest, context.manifest["counts"]
    check_counts_add_up(counts)
    expected = {
        run.public: counts["public"],
        run.private: counts["private"],
        run.quarantine: counts["quarantined"] + counts["rejected"],
        run.vault: counts["examples"] - counts["quarantined"],
        run.examples: counts["examples"],
        run.across: manifest["dedup"]["across"] or 0,
    }
    expected.update(dict.fromkeys((f for f in expected if f.name in manifest.get("purged", ())), 0))
    rows = {f: sum(map(count_part_rows, list_parts(f))) for f in expected}
    raise_on_problems(f"{f.name}: {pluralize(rows[f], 'row')}, not {n}" for f, n in expected.items() if rows[f] != n)
    return f"{pluralize(counts['rows'], 'row')} and {pluralize(counts['examples'], 'example')} are accounted for"


def check_public_masks(context: CheckContext) -> str | None:
    """Check that no public example contains a mask, unless counts decided what is public."""
    if context.manifest.get("route", {}).get("strategy") == "count":
        return None
    batches = read_batches(context.run.public, ["text"])
    mask_count = sum(pc.sum(pc.match_substring(batch["text"], MASK)).as_py() or 0 for batch in batches)
    summary = f"{pluralize(mask_count, 'public example')} with {MASK}"
    raise_on_problems([summary] if mask_count else [])
    return summary


def _find_column_mismatches(context: CheckContext, folder: Path) -> list[str]:
    """Find columns of a split's parts that differ from the manifest in name or type."""
    more, wrong = context.manifest.get("columns", {}), set[str]()
    schema = build_shard_schema({**context.manifest, "columns": {}}, folder.name)
    for path in list_parts(folder):
        part_columns = read_part_schema(path)
        wrong |= {*part_columns.names} ^ {*schema.names, *more}
        types = {field.name: str(field.type) for field in part_columns}
        wrong |= {name for name, kind in more.items() if types.get(name) != kind}
    named = ", ".join(sorted(wrong))
    return [f"{folder.name}: columns differ from the manifest: {named}"] if wrong else []


def check_example_ids(context: CheckContext) -> str:
    """Check that released ids are unique and that each shard holds exactly the examples decided for it."""
    problems = []
    for folder in (context.run.public, context.run.private):
        problems += _find_column_mismatches(context, folder)
        released_ids = read_column(folder, "example_id")
        decisions = read_values(context.run.examples, "released_id", "decision")
        due = {i for i, decision in decisions if decision == folder.name}
        if len(released_ids) != len(set(released_ids)):
            problems.append(f"{folder.name}: an id occurs twice")
        if set(released_ids) != due:
            problems.append(f"{folder.name}: {pluralize(len(set(released_ids) ^ due), 'id')} not as in audit/examples")
    raise_on_problems(problems)
    return "each example is where its decision says"


def check_whole_documents(context: CheckContext) -> str | None:
    """With decisions per document: check that all examples of each, even unprocessed ones, are in one split.

    A public document then contains no known value, since nothing in it was masked: the re-scan is enough.
    """
    if context.manifest["configuration"]["release"].get("unit") != "document":
        return None
    rows = groupby(read_values(context.run.examples, "document", "split"), itemgetter(0))
    whole = Counter(len({side for _, side in document_rows}) == 1 for _, document_rows in rows)
    raise_on_problems([pluralize(whole[False], "document is", "documents are") + " divided"] if whole[False] else [])
    return f"{pluralize(whole[True], 'document')}, none divided"


def rescan_public_shards(context: CheckContext) -> str | None:
    """Check that both policies find nothing in the public shards, with the engines that the manifest names.

    None if counts alone decide what is public: the policies then only mask. Files outside the run that the
    manifest names are only opened if a trusted signature or the run's key confirms it.
    """
    manifest = context.manifest
    if manifest.get("route", {}).get("strategy") == "count":
        return None
    try:
        settings = DetectSettings.from_manifest(manifest["configuration"]["detect"])
    except RunStateError as error:
        raise ConfigurationError(f"skipped: {error}") from None
    named = settings.list_file_keys()
    if named and not context.is_signed:
        key = load_digest_key()
        due = digest_configuration(key, manifest["configuration"])
        # nobody knows who wrote a manifest of an earlier version
        if not hmac.compare_digest(str(manifest["key"].get("configuration")), due):
            raise CheckSkipped(
                f"skipped: {named[0]} names files outside the run, and this could be forged: set the run's "
                f"{KEY_VARIABLE}, or give --public-key"
            )
    if change := describe_policy_changes(settings, manifest["policies"]):
        raise ConfigurationError(f"skipped: {change}")
    detector, flagged, done = Detector(settings), [], 0
    for batch in read_batches(context.run.public):
        example_ids, texts = batch["example_id"].to_pylist(), batch["text"].to_pylist()
        for example_id, text, detection in zip(example_ids, texts, detector.detect(texts), strict=True):
            if route_example(text, detection).reasons or detection.failure:
                flagged.append(example_id)
        done += len(texts)
        context.progress("re-scan", done, manifest["counts"]["public"], "examples")
    summary = f"{len(flagged)} of {pluralize(done, 'public example')} flagged"
    raise_on_problems([f"{summary}, first {flagged[0]}"] if flagged else [])
    return summary


def check_unmasked_values(context: CheckContext) -> str:
    """Check that at most the allowed number of public examples show a value masked in another one."""
    key, manifest = load_digest_key(), context.manifest
    limit = manifest["configuration"]["release"]["max_open_values"]
    if key.fingerprint != manifest["key"]["fingerprint"]:
        reason = "the run used a temporary key" if manifest["key"]["fresh"] else "set the run's REDACTORY_KEY"
        raise (CheckSkipped if limit is None else ConfigurationError)(f"skipped: {reason}")
    language, public = manifest["configuration"]["detect"]["language"], get_kinds(get_public_labels(manifest))
    context.unmasked_values = find_unmasked_values(context.run, key, language, public)
    count = len(context.unmasked_values)
    hint = "--json names them; " if count else ""
    bound = "no limit is set (release.max_open_values)" if limit is None else f"at most {limit} allowed"
    summary = f"{pluralize(count, 'public example')} with a value masked elsewhere; {hint}{bound}"
    raise_on_problems([summary] if limit is not None and count > limit else [])
    return summary


# Models, and pages for readers.


def check_model(context: CheckContext, name: str) -> str:
    """Check that a model and its evaluations are as sealed, and that its ledger implies its guarantee."""
    run, model_folder = context.run, context.run.get_model_folder(name)
    results = model_folder.list_results()
    raise_on_problems(
        problem for folder in (model_folder, *results) for problem in list_seal_problems(folder, context.trusted_key)
    )
    others = [result for result in results if not is_result_for(model_folder, result)]
    raise_on_problems(f"{other.root.name}/ belongs to another model, or to another evaluation" for other in others)
    parent = find_release(run, str(read_manifest(model_folder).get("parent")))
    try:
        card: dict[str, Any] = dict(guarantee(run.root, name))
    except ConfigurationError:
        return "its files match; its guarantee was not recomputed: the extra 'train' is not installed"
    except RunStateError as error:
        raise CheckFailed(str(error)) from None
    audit, problems = card.pop("audit", None), list[str]()
    if parent is None:
        problems.append("its manifest names another parent run")
    if card != read_json(model_folder.guarantee):
        problems.append("guarantee.json does not match ledger and manifest")
    elif not _is_page_current(model_folder, card):
        problems.append("README.md does not match guarantee.json")
    if audit is not None and not audit["holds"]:
        problems.append("an audit proves a larger epsilon than its guarantee")
    raise_on_problems(problems)
    later = parent is not None and parent.digest != file_sha256(run.manifest)
    note = f"; it was trained on release {parent.number}, before later erasures" if later else ""  # type: ignore[union-attr]
    return f"its guarantee follows from its ledger{note}"


def _is_page_current(model: ModelFolder, card: dict[str, Any]) -> bool:
    """Whether the model's card matches ``card``; True if another version wrote it."""
    from redactory.training import render_guarantee_page

    return not is_from_this_version(read_manifest(model)) or _has_content(model.card, render_guarantee_page(card))


def check_report(context: CheckContext) -> str:
    """Check that report, dataset card and model pages match the manifests."""
    if not is_from_this_version(context.manifest):
        raise CheckSkipped("skipped: rendered by another version")
    pages = [
        *render_pages(context.run),
        (context.run.card, render_dataset_card(context.manifest["run"], context.manifest)),
    ]
    changed = [path.relative_to(context.root).as_posix() for path, page in pages if not _has_content(path, page)]
    raise_on_problems(changed and [f"differs from the manifests: {', '.join(changed)}"])
    return "matches the manifests, and so do the card and the page of each model"


# Exports: the checks that need no run, keys, models or engines.


def check_export_files(context: CheckContext) -> str:
    """Check that an export contains only its seal and the files of its manifest, all of the expected kinds."""
    folder, listed = SyntheticFolder(context.root), set(context.manifest["files"])
    synthetic = context.manifest["format"] == SYNTHETIC
    seal_files = {folder.manifest, folder.signature, folder.success, folder.sums}
    present = {
        path.relative_to(context.root).as_posix() for path in list_leaf_paths(context.root) if path not in seal_files
    }
    homes = {RunFolder(context.root).models / model for model in context.manifest.get("models", ())}
    pages = (folder.card, folder.guarantee if synthetic else folder.croissant)

    def is_expected_file(path: Path) -> bool:
        if path.parent == folder.public:
            return path.match("part-*.parquet")
        home = path.parent.parent if path.parent.name == "adapter" else path.parent
        return path in pages or home in homes

    strays = present - listed | {name for name in listed if not is_expected_file(context.root / name)}
    # a run without a public example has no parts
    strays.discard(folder.public.name)
    raise_on_problems(strays and [", ".join(sorted(strays))])
    return "it contains nothing else"


def check_checksums(context: CheckContext) -> str:
    """Check that ``SHA256SUMS`` matches the manifest, and the manifest itself."""
    folder = ExportFolder(context.root)
    digests = {name: entry["sha256"] for name, entry in context.manifest["files"].items()}
    seal_files = (path for path in (folder.manifest, folder.signature) if path.exists())
    digests |= {path.name: file_sha256(path) for path in seal_files}
    raise_on_problems([] if _has_content(folder.sums, format_checksums(digests)) else ["differs from the manifest"])
    return "matches the manifest"


def _check_rendered_page(context: CheckContext, path: Path, expected: str) -> str:
    if not is_from_this_version(context.manifest):
        raise CheckSkipped("skipped: written by another version")
    raise_on_problems([] if _has_content(path, expected) else ["differs from the manifest"])
    return "matches the manifest"


def check_exported_ids(context: CheckContext) -> str:
    """Check that ids are unique, and that the number of examples and their columns match the manifest."""
    folder, due = ExportFolder(context.root).public, context.manifest["counts"]["public"]
    exported, problems = read_column(folder, "example_id"), list[str]()
    problems += _find_column_mismatches(context, folder)
    if len(exported) != len(set(exported)):
        problems.append("an id occurs twice")
    if not len(exported) == sum(map(count_part_rows, list_parts(folder))) == due:
        problems.append(f"{pluralize(len(exported), 'example')}, expected {due}")
    raise_on_problems(problems)
    return f"{pluralize(due, 'example')}, each with a unique id"


def check_exported_model(context: CheckContext, name: str) -> str:
    """Check that files, ledger and guarantee of an exported model match each other."""
    try:
        raise_on_problems(
            _find_model_mismatches(ExportFolder(context.root).get_model_folder(name), context.manifest["models"][name])
        )
    except (OSError, KeyError, IndexError, ValueError) as error:
        if isinstance(error, RedactoryError):
            raise
        # an invalid ledger or card
        kind = type(error).__name__
        raise CheckFailed(f"its ledger or its guarantee cannot be read ({kind})") from None
    raise CheckSkipped("guarantee and weights match its ledger; recomputing its epsilons needs the run")


def _find_model_mismatches(model: ModelFolder, digest: str) -> Iterator[str]:
    """Find what does not match among a model's files, ledger and guarantee."""
    yield from list_broken_files(model)
    if file_sha256(model.manifest) != digest:
        yield "its manifest is not the exported one"
    records, card = read_records(model.ledger), read_json(model.guarantee)
    head, end, steps = records[0].body, records[-1].body, len(records) - 2
    if end["weights"] != file_sha256(model.weights):
        yield "the ledger belongs to other weights"
    ledger_facts = card["ledger"]
    if (ledger_facts["head"], ledger_facts["parent"]) != (compute_chain_head(model.ledger), head["parent"]):
        yield "the guarantee belongs to another ledger"
    if not ledger_facts["steps"] == head["steps"] == end["steps"] == steps:
        yield "the ledger has more or fewer steps than stated"
    if not card["holds"]:
        yield f"it has no guarantee ({card['holds_reason']})"


def check_synthetic_guarantee(context: CheckContext) -> str:
    """Check that synthetic texts have a guarantee, and that the card states it."""
    folder = SyntheticFolder(context.root)
    card = read_json(folder.guarantee)
    if is_from_this_version(context.manifest):
        _check_rendered_page(context, folder.card, render_synthetic_card(context.manifest, card))
    if not (card["holds"] and context.manifest["holds"]):
        raise CheckFailed(f"these texts have no guarantee ({card['holds_reason']}) and must not be shared")
    raise CheckSkipped("the card matches the guarantee; recomputing its epsilons needs the run")


def _skip_in_export(reason: str) -> CheckFunction:
    """Make a check that is always skipped in an export, with the reason."""

    def skip_check(_: CheckContext) -> str:
        raise CheckSkipped(f"skipped: {reason}")

    return skip_check


RUN_CHECKS: dict[str, CheckFunction] = {
    "files": check_files,
    "signature": check_run_signature,
    "no stray files": check_unlisted_files,
    "modes": check_file_modes,
    "journal": check_journal,
    "encryption": check_encryption,
    "earlier releases": check_earlier_releases,
    "release log": check_release_log,
    "purged": describe_purged_originals,
    "measured": check_measurements,
    "names looked for": check_name_coverage,
    "public labels": describe_public_labels,
    "conservation": check_counts,
    "no mask in public": check_public_masks,
    "example ids": check_example_ids,
    "whole documents": check_whole_documents,
    "re-scan of public": rescan_public_shards,
    "values masked elsewhere": check_unmasked_values,
    "model": check_model,
    "report": check_report,
}
EXPORT_CHECKS: dict[str, CheckFunction] = {
    "files": check_files,
    "signature": check_run_signature,
    "no stray files": check_export_files,
    "modes": lambda seen: check_owner_only_access(seen.root, ()),
    "sha256sums": check_checksums,
    "card": lambda seen: _check_rendered_page(seen, ExportFolder(seen.root).card, render_export_card(seen.manifest)),
    "croissant": lambda seen: _check_rendered_page(
        seen, ExportFolder(seen.root).croissant, render_croissant(seen.manifest, seen.manifest["files"])
    ),
    "public labels": describe_public_labels,
    "no mask in public": check_public_masks,
    "example ids": check_exported_ids,
    "model": check_exported_model,
    "re-scan of public": _skip_in_export("the configuration of the engines stays with the run"),
    "conservation": _skip_in_export("what was not made public stays with the run"),
    "journal": _skip_in_export("it stays with the run"),
    "values masked elsewhere": _skip_in_export("what was masked stays with the run, and so does its key"),
}
SYNTHETIC_CHECKS: dict[str, CheckFunction] = {
    name: EXPORT_CHECKS[name]
    for name in ("files", "signature", "no stray files", "modes", "sha256sums", "no mask in public", "example ids")
} | {"guarantee": check_synthetic_guarantee}
"""The checks, in the order of the report."""

"""Verify a finished run: read it again and check everything that needs no trust in its maker."""

from __future__ import annotations

import hmac
import stat
from collections import Counter
from collections.abc import Iterator
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
from redactory.pipelines.operations import checks as seal
from redactory.pipelines.operations.checks import (
    EXPORT,
    RUN,
    SHARED,
    Check,
    CheckContext,
    CheckSkipped,
    list_seal_problems,
    make_checks,
    raise_on_problems,
)
from redactory.pipelines.store import is_url, remove_credentials
from redactory.redaction import (
    MASK,
    ModelFolder,
    count_part_rows,
    is_result_for,
    list_broken_files,
    list_parts,
    read_batches,
    read_manifest,
    read_part_schema,
    route_example,
)
from redactory.redaction.folder import SYNTHETIC, ExportFolder, SyntheticFolder
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
    checks = run_with_hidden_error_text("a run was verified", make_checks, context, CHECKS)
    return {
        "run": str(context.root),
        "ok": all(result.ok for result in checks),
        "checks": [result._asdict() for result in checks],
        "open_values": context.unmasked_values,
    }


def is_from_this_version(manifest: dict[str, Any]) -> bool:
    """Whether this version of Redactory wrote the manifest."""
    return bool(get_package_version("redactory") == manifest["versions"].get("redactory"))


def _has_content(path: Path, content: str) -> bool:
    """Whether a file holds ``content``; a file of another length is not read."""
    due = content.encode("utf-8", "backslashreplace")
    return path.is_file() and path.stat().st_size == len(due) and path.read_bytes() == due


def check_file_modes(context: CheckContext) -> str:
    """Check that only the owner can write to the folder, and read what is private in it; ``state/`` is closed."""
    run, wide, remaining = context.run, list[str](), [context.root]
    closed = {*run.data_folders, run.spans.parent, run.state} - {run.public} if context.kind == RUN else set()
    while remaining:
        path = remaining.pop()
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode) and path not in (run.orchestrator, run.cluster, run.samples):
            remaining += sorted(path.iterdir(), reverse=True)
        # the mode of state/ itself protects its content
        private = path in closed or (not closed.isdisjoint(path.parents) and run.state not in path.parents)
        barred = stat.S_IWGRP | stat.S_IWOTH | (stat.S_IRWXG | stat.S_IRWXO if private else 0)
        barred |= stat.S_ISUID | stat.S_ISGID if stat.S_ISREG(mode) else 0
        if mode & barred and not stat.S_ISLNK(mode):
            wide.append(f"{path.relative_to(context.root).as_posix()} ({stat.S_IMODE(mode):04o})")
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
    """Check that ids are unique, and the columns as in the manifest, in each split.

    Each shard of a run holds exactly the examples decided for it; an export has as many as its manifest says.
    """
    problems, run = list[str](), context.run
    for folder in (run.public, run.private) if context.kind == RUN else (run.public,):
        problems += _find_column_mismatches(context, folder)
        ids = read_column(folder, "example_id")
        if len(ids) != len(set(ids)):
            problems.append(f"{folder.name}: an id occurs twice")
        if context.kind != RUN:
            due = context.manifest["counts"]["public"]
            problems += [f"{pluralize(len(ids), 'example')}, expected {due}"] if len(ids) != due else []
            continue
        decisions = read_values(run.examples, "released_id", "decision")
        if other := set(ids) ^ {i for i, decision in decisions if decision == folder.name}:
            problems.append(f"{folder.name}: {pluralize(len(other), 'id')} not as in audit/examples")
    raise_on_problems(problems)
    return "each example is where its decision says" if context.kind == RUN else "each example has a unique id"


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
    elif is_from_this_version(read_manifest(model_folder)):
        from redactory.training import render_guarantee_page

        if not _has_content(model_folder.card, render_guarantee_page(card)):
            problems.append("README.md does not match guarantee.json")
    if audit is not None and not audit["holds"]:
        problems.append("an audit proves a larger epsilon than its guarantee")
    raise_on_problems(problems)
    later = parent is not None and parent.digest != file_sha256(run.manifest)
    note = f"; it was trained on release {parent.number}, before later erasures" if later else ""  # type: ignore[union-attr]
    return f"its guarantee follows from its ledger{note}"


def check_pages(context: CheckContext) -> str:
    """Check that report, cards and model pages of a run, or the card and the description of an export, are current."""
    run, manifest = context.run, context.manifest
    if not is_from_this_version(manifest):
        raise CheckSkipped("skipped: rendered by another version")
    if context.kind == RUN:
        pages = [*render_pages(run), (run.card, render_dataset_card(manifest["run"], manifest))]
    else:
        croissant = render_croissant(manifest, manifest["files"])
        pages = [(run.card, render_export_card(manifest)), (ExportFolder(run.root).croissant, croissant)]
    changed = [path.relative_to(run.root).as_posix() for path, page in pages if not _has_content(path, page)]
    raise_on_problems(changed and [f"differs from the manifests: {', '.join(changed)}"])
    return "each page matches the manifests"


# Exports: the checks that need no run, keys, models or engines.


def check_exported_files(context: CheckContext) -> str:
    """Check that an export contains only its seal and the files of its manifest, all of the expected kinds."""
    folder, listed = SyntheticFolder(context.root), {context.root / name for name in context.manifest["files"]}
    seal_files = {folder.manifest, folder.signature, folder.success, folder.sums}
    # a run without a public example has no parts
    present = {*list_leaf_paths(context.root)} - seal_files - {folder.public}
    expected = {folder.card, folder.guarantee if context.kind == SYNTHETIC else folder.croissant}
    models = {folder.get_model_folder(name).root for name in context.model_names}

    expected |= {path for path in listed if path.parent == folder.public and path.match("part-*.parquet")}
    expected |= {p for p in listed if (p.parent.parent if p.parent.name == "adapter" else p.parent) in models}
    strays = present - listed | listed - expected
    names = sorted(path.relative_to(context.root).as_posix() for path in strays)
    raise_on_problems([", ".join(names)] if names else [])
    return "it contains nothing else"


def check_checksums(context: CheckContext) -> str:
    """Check that ``SHA256SUMS`` matches the manifest, and the manifest itself."""
    folder = ExportFolder(context.root)
    digests = {name: entry["sha256"] for name, entry in context.manifest["files"].items()}
    seal_files = (path for path in (folder.manifest, folder.signature) if path.exists())
    digests |= {path.name: file_sha256(path) for path in seal_files}
    raise_on_problems([] if _has_content(folder.sums, format_checksums(digests)) else ["differs from the manifest"])
    return "matches the manifest"


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
    folder, manifest = SyntheticFolder(context.root), context.manifest
    card = read_json(folder.guarantee)
    if is_from_this_version(manifest) and not _has_content(folder.card, render_synthetic_card(manifest, card)):
        raise CheckFailed("the card differs from the guarantee")
    if not (card["holds"] and manifest["holds"]):
        raise CheckFailed(f"these texts have no guarantee ({card['holds_reason']}) and must not be shared")
    raise CheckSkipped("the card matches the guarantee; recomputing its epsilons needs the run")


def skip_in_export(_: CheckContext) -> str:
    """Say that what this check needs stays with the run."""
    raise CheckSkipped("skipped: what this needs stays with the run")


EVERYWHERE = (RUN, *SHARED)
CHECKS = (
    Check("files", seal.check_files, EVERYWHERE),
    Check("signature", seal.check_run_signature, EVERYWHERE),
    Check("no stray files", seal.check_unlisted_files),
    Check("no stray files", check_exported_files, SHARED),
    Check("modes", check_file_modes, EVERYWHERE),
    Check("sha256sums", check_checksums, SHARED),
    Check("journal", seal.check_journal),
    Check("encryption", seal.check_encryption),
    Check("earlier releases", seal.check_earlier_releases),
    Check("release log", seal.check_release_log),
    Check("purged", describe_purged_originals),
    Check("measured", seal.check_measurements),
    Check("names looked for", check_name_coverage),
    Check("public labels", describe_public_labels, (RUN, EXPORT)),
    Check("conservation", check_counts, needs_private=True),
    Check("no mask in public", check_public_masks, EVERYWHERE),
    Check("example ids", check_example_ids, EVERYWHERE, needs_private=True),
    Check("whole documents", check_whole_documents, needs_private=True),
    Check("re-scan of public", rescan_public_shards),
    Check("values masked elsewhere", check_unmasked_values, needs_private=True),
    Check("model", check_model, per_model=True),
    Check("model", check_exported_model, (EXPORT,), per_model=True),
    Check("report", check_pages, needs_private=True),
    Check("card", check_pages, (EXPORT,)),
    *(
        Check(name, skip_in_export, (EXPORT,))
        for name in ("journal", "conservation", "re-scan of public", "values masked elsewhere")
    ),
    Check("guarantee", check_synthetic_guarantee, (SYNTHETIC,)),
)
"""All checks, in the order of the report. A row's function is in this module, or in ``checks.py`` if it is about the
seal."""

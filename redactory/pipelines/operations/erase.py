"""Erase a person from every run, and purge original text that is no longer needed.

Both rewrite the run by a reissue: staged parts, the manifest's counts minus what goes, a record in the log.
Models are not retrained: those that were trained on the person's text are listed.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import nullcontext, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args

from redactory.evaluation.report import list_card_metrics
from redactory.foundation.errors import (
    CheckFailed,
    ConfigurationError,
    RedactoryError,
    RunStateError,
    join_words,
    pluralize,
    shorten_name,
)
from redactory.foundation.files import (
    file_lock,
    list_leaf_paths,
    make_private_folder,
    read_json,
    remove_path,
    write_json,
)
from redactory.foundation.keys import DigestKey, load_digest_key
from redactory.foundation.records import MAX_RECORD_GAP, RecordLog, estimate_record_ages
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.error_sealing import run_with_sealed_traceback
from redactory.pipelines.curation.index import discard_run_drafts, find_index
from redactory.pipelines.curation.keys import describe_shredding, find_shred_record
from redactory.pipelines.curation.output_folder import lock_folders
from redactory.pipelines.curation.reissue import is_reissue_pending, prepare_reissue, reissue_lock, reissue_run
from redactory.pipelines.curation.release_log import (
    Event,
    check_not_rolled_back,
    read_history,
    read_log,
    require_one_line,
    run_statuses,
)
from redactory.pipelines.curation.stages.dedup import SPLIT_NUMBERS
from redactory.pipelines.operations.erase_examples import (
    Person,
    Row,
    build_manifest_changes,
    filter_parts_without_person,
    find_person_examples,
    find_rejected_rows,
    prepare_job,
    require_run_key,
    rerun_stages_without_person,
)
from redactory.pipelines.operations.persons import ShowContext, find_candidates, process_runs
from redactory.redaction import RunFolder, is_finished, list_parts, read_manifest, require_regular_files
from redactory.redaction.folder import JobFolder, find_containing_job, find_runs

ERASURE, PURGE = "erasure", "purge"
CONFIGURED_FILES = ("input.path", "evaluate.test", "evaluate.labelled", "train.public_text", "train.held_out")


def erase(
    paths: Iterable[str | Path],
    *,
    doc_ids: Iterable[str] = (),
    user_ids: Iterable[str] = (),
    dry_run: bool = False,
    by: str | None = None,
    person: str | None = None,
    show_context: ShowContext | None = None,
) -> dict[str, Any]:
    """Remove documents, and everything that users wrote, from runs.

    Returns {ok, dry_run, runs, problems, unmatched, receipts}; ``unmatched`` are the pseudonyms of ids that none of
    these runs has or ever had, ``receipts`` files that record the erasure ``by`` somebody. With the name of a
    ``person`` in place of ids, nothing is erased: ``candidates`` are the rows that may name them (run, state, doc_id,
    user_id, source, reason, matches), and ``show_context`` gets each with original text, for a terminal only.

    ``paths`` are run folders, or job folders with all their runs. A run that cannot be searched (its key is not the
    configured one) is a problem and makes ``ok`` False; the others are still processed. An interrupted run of a job
    loses all its work (``discarded``); one outside a job is a problem. ``dry_run`` writes nothing. A repeated call
    finishes interrupted work and reads finished work from the release log. Models are not retrained: each run lists
    those trained on the person's text. ``ConfigurationError`` without an id, or for a place without a run.
    """
    require_one_line(by)
    requested = Person(frozenset(doc_ids), frozenset(user_ids), by)
    ids = requested.doc_ids | requested.user_ids
    if person is not None:
        if ids:
            raise ConfigurationError("--person only lists rows: erase those that you choose by their ids, without it")
        candidates, problems = find_candidates(paths, person, show_context)
        return {"ok": not problems, "dry_run": True, "runs": [], "problems": problems, "candidates": candidates}
    if not ids or "" in ids:
        raise ConfigurationError(
            "say whose rows to erase: --doc-id, --user-id, or a file with ids (--doc-ids-from, --user-ids-from); "
            "--person lists rows with a name"
        )
    done, key = list[dict[str, Any]](), load_digest_key()

    def process_run(run: RunFolder) -> None:
        if _is_interrupted(run):
            done.extend([] if _is_empty(run) else [_discard_interrupted_run(run, requested, key, dry_run)])
            return
        with nullcontext() if dry_run else reissue_lock(run):
            # without dry_run it is finished now
            if is_reissue_pending(run):
                raise RunStateError(f"a reissue of {run.root} was interrupted: run again without --dry-run")
            require_regular_files(run)
            done.append(_erase_person(run, requested, key, dry_run))

    problems = process_runs(paths, process_run)
    unmatched = [p for p in requested.compute_pseudonyms(key) if all(p in run["unmatched"] for run in done)]
    return {
        "ok": not problems,
        "dry_run": dry_run,
        "runs": done,
        "problems": problems,
        "unmatched": unmatched if done else [],
        "receipts": [] if dry_run else _write_receipts(done, problems, requested, key),
    }


_RECEIPT_CAUSES = ("examples", "rejected", "discarded", "already")
_RECEIPT_FACTS = (*_RECEIPT_CAUSES, "documents", "unsearched", "release", "exports", "samples")


def _write_receipts(
    done: list[dict[str, Any]], problems: list[dict[str, Any]], person: Person, key: DigestKey
) -> list[str]:
    """Write a receipt (JSON, mode 0600) for each job, or run without a job, that lost rows; return the files.

    A repeated request has a receipt, too: an interrupted one may have none.

    A receipt names no id: ``request`` is a keyed digest of the pseudonyms. ``models_to_retrain`` were trained on it.
    """
    entries: dict[Path, list[dict[str, Any]]] = {}
    for result in (result for result in done if any(result.get(n) for n in _RECEIPT_CAUSES)):
        run = RunFolder(Path(result["run"]))
        facts = {name: result[name] for name in _RECEIPT_FACTS if name in result}
        entry = {"run": run.root.name, **facts, "models_to_retrain": result["models"]}
        entries.setdefault((find_containing_job(run) or run).receipts, []).append(entry)
    now, request = datetime.datetime.now(datetime.UTC), compute_request_digest(person, key)
    body = {"format": "redactory-receipt/1", "what": ERASURE, "time": now.isoformat(timespec="seconds")}
    for folder, runs in entries.items():
        receipt = {**body, "by": person.by, "request": request, "runs": runs, "not_done": problems}
        write_json(make_private_folder(folder) / f"{now:%Y-%m-%dT%H%M%SZ}-{request[:8]}.json", receipt)
    return [str(folder / f"{now:%Y-%m-%dT%H%M%SZ}-{request[:8]}.json") for folder in entries]


def compute_request_digest(person: Person, key: DigestKey, name: str | None = None) -> str:
    """Return a keyed digest of the requested ids and name: equal for equal requests, and useless without the key."""
    return key.make_pseudonym("request", json.dumps([person.compute_pseudonyms(key), name]))


def _is_interrupted(run: RunFolder) -> bool:
    """Whether ``run`` is an unfinished run of a job; ``RunStateError`` if it is unfinished and in no job."""
    if is_finished(run) or is_reissue_pending(run):
        return False
    status = next(iter(run_statuses(read_history(run)).values()), None)
    if status is None:
        raise RunStateError(
            f"{run.root} is unfinished: resume it (redactory curate --resume) and try again, or remove the folder"
        )
    if status.gate_record is not None:
        raise RunStateError(f"{run.root} was finished, but {run.success.name} is missing: restore it from a backup")
    return True


def _is_empty(run: RunFolder) -> bool:
    """Whether the folder of an unfinished run has no file, as after an erasure."""
    return all(path in (run.state, run.lock) for path in list_leaf_paths(run.root))


def _discard_interrupted_run(run: RunFolder, person: Person, key: DigestKey, dry_run: bool) -> dict[str, Any]:
    """Remove the work of an interrupted run: half-finished work cannot be searched for a person.

    Resuming it reads the input again, which must be without the person anyway.
    """
    if not dry_run:
        with file_lock(run.lock, str(run.root)):
            # only the job's finished runs tell where the index is; drafts do not count
            near = [finished_run for finished_run in find_runs(run.root.parent) if is_finished(finished_run)]
            indexes = filter(None, (find_index(read_manifest(finished_run)) for finished_run in near))
            for index in {finished_run.root: finished_run for finished_run in indexes}.values():
                discard_run_drafts(index, run)
            remove_path(run.root)
        # like a run that has just started: it can still be resumed, or rejected
        make_private_folder(run.root)
        make_private_folder(run.state)
    return _make_empty_result(run, unmatched=person.compute_pseudonyms(key), files=["input.path"]) | {"discarded": True}


def _make_empty_result(run: RunFolder, **extra: Any) -> dict[str, Any]:
    """The result for a run without data of the person, plus ``extra``."""
    zeros = dict.fromkeys(("examples", "documents", "rejected", "unsearched", "lone_documents"), 0)
    return {"run": str(run.root), **zeros, "release": None, "already": None, "models": [], **extra}


def _erase_person(run: RunFolder, person: Person, key: DigestKey, dry_run: bool) -> dict[str, Any]:
    manifest = read_manifest(run)
    config = Config.from_manifest(manifest["configuration"])
    # files outside the run may contain the person too; a share (float) is not a file
    files = [n for n in CONFIGURED_FILES if (file := attrgetter(n)(config)) and not isinstance(file, float)]
    before = [r.body for r in read_history(run) if r.type == Event.REISSUED and r.body.get("why") == ERASURE]
    pseudonyms = person.compute_pseudonyms(key)
    repeats = [body for body in before if all(pseudonym in body["persons"] for pseudonym in pseudonyms)]
    done = {"already": repeats[-1]["release"], "models": repeats[-1]["models"]} if repeats else {}
    if not run.data_key.is_file() and (record := find_shred_record(run)) is not None:
        return _make_shredded_run_result(run, manifest, describe_shredding(record), pseudonyms, done) | {"files": files}
    require_run_key(manifest, key)
    rows, lone = find_person_examples(run, person, key)
    rejected = find_rejected_rows(run, person, config.input)
    documents = {row["document"] for row in rows.values()}
    # an id is known if it is in the run, or was before an earlier erasure
    known = Person(person.doc_ids & rejected.ids, person.user_ids & rejected.ids).compute_pseudonyms(key)
    known += [pseudonym for body in before for pseudonym in body["persons"]]
    names = documents | {row["user"] for row in rows.values()} | {pseudonym["pseudonym"] for pseudonym in known}
    result = _make_empty_result(
        run,
        examples=len(rows),
        documents=len(documents),
        rejected=rejected.reasons.total(),
        unsearched=rejected.unsearchable,
        lone_documents=lone,
        unmatched=[pseudonym for pseudonym in pseudonyms if pseudonym["pseudonym"] not in names],
        files=files,
    )
    if not rows and not rejected.rows:
        return result | done
    if "route" in manifest:
        raise RunStateError(
            f"{run.root.name} is public by count: after an erasure, a public text would remain only if "
            "somebody else wrote it, and no noise hides that. Curate the input again without the person, "
            "which draws and records a new selection; then remove this run"
        )
    result |= list_remaining_traces(run, rows)
    if dry_run:
        return result
    prepare_reissue(run)
    job, lost, has_vault = prepare_job(run, manifest, key), dict[int, Row](), bool(list_parts(run.vault))
    if has_vault:
        counts = rerun_stages_without_person(job, run, rows.keys(), rejected)
    else:
        counts, lost = filter_parts_without_person(job, run, rows, rejected)
    removed_rows = [*rows.values(), *lost.values()]
    body = build_manifest_changes(manifest, removed_rows, len(documents), rejected, counts)
    removed = {name: count - body["counts"][name] for name, count in manifest["counts"].items()}
    kept_splits = [row["split"] for row in removed_rows if row["decision"] == row["split"]]
    result["lost"] = len(lost)
    result["moved_up"] = len(kept_splits) - removed["public"] - removed["private"]
    result["unknown_repeats"] = not has_vault and any(config.dedup.get_rules()[side].one_pass for side in kept_splits)
    if find_index(manifest) is not None:
        result["index"] = has_vault
    result["release"] = reissue_run(
        run,
        ERASURE,
        manifest_changes=body,
        change={"removed": removed, "lost": len(lost)},
        event={"persons": pseudonyms, "removed": removed, "models": result["models"], "by": person.by},
        # attack results refer to the old shards
        removed=[run.redaction.root, run.exported, *(run.samples / name for name in result["samples"])],
        index_counts={split: counts[f"index/{split}"] for split in SPLIT_NUMBERS} if result.get("index") else None,
        key=key,
    )
    return result


def _make_shredded_run_result(
    run: RunFolder, manifest: dict[str, Any], when: str, ids: Any, done: dict[str, Any]
) -> dict[str, Any]:
    """Return the result for a shredded run, which cannot be searched.

    ``RunStateError`` if it may still contain the person's text.
    """
    check_not_rolled_back(run)
    rows = manifest["counts"]["public"]
    left = [f"{pluralize(rows, 'row')} of public/"] * bool(rows)
    left += [p.relative_to(run.root).as_posix() for p in (run.samples, run.exported) if p.exists()]
    if left and not done:
        raise RunStateError(
            f"{run.root.name} {when}, so its rows cannot be matched to a person; {join_words(left)} can still be "
            "read: remove the run, also where it was published, and repeat the erasure"
        )
    # the index has keyed digests of the run's text
    index = {} if find_index(manifest) is None else {"index": False}
    models = list_remaining_traces(run, ())["models"]
    return _make_empty_result(run, shredded=True, unmatched=[] if done else ids, models=models, **index) | done


def list_remaining_traces(run: RunFolder, example_ids: Collection[int]) -> dict[str, Any]:
    """List where the person's data may be outside the parts: models, samples, tracebacks, exports.

    Every trainer reads the shards or the vault of its run, so every model was trained on the person's examples.
    Exports are out of reach.
    """
    models = []
    for name in run.list_model_names():
        trainer = str(read_manifest(run.get_model_folder(name))["summary"]["trainer"])
        metrics = list_card_metrics(read_json(run.get_model_folder(name).guarantee))
        headline = next((metric for metric in metrics if metric.figure), metrics[0])
        models.append(
            {
                "model": name,
                "trainer": trainer,
                "guarantee": f"{headline.title}: {headline.figure or headline.sentence}",
            }
        )
    samples = []
    for draw in sorted(path / "draw.json" for path in run.samples.glob("*/")):
        # an interrupted draw may contain anybody
        if not draw.is_file() or any(row["example_id"] in example_ids for row in read_json(draw)["rows"]):
            samples.append(draw.parent.name)
    exports = [
        {key: str(record.body[key]) for key in ("time", "manifest") if key in record.body}
        for record in read_history(run)
        if record.type == Event.EXPORTED
    ]
    return {
        "models": models,
        "unfinished_trainings": _list_unfinished_trainings(run),
        "samples": samples,
        "tracebacks": len(run.list_tracebacks()),
        "exports": exports,
    }


def _list_unfinished_trainings(run: RunFolder) -> list[str]:
    """List the unfinished trainings; they cannot continue after the run is rewritten.

    ``RunStateError`` if one is running: it would train on parts of two releases.
    """
    folders = [path.parent for path in sorted(run.models.glob("*/ledger.jsonl"))]
    names = [folder.name for folder in folders if not is_finished(run.get_model_folder(folder.name))]
    for name in names:
        try:
            RecordLog(run.get_model_folder(name).ledger).close()
        except RunStateError:
            raise RunStateError(f"{run.root.name}/models/{name} is being trained: wait for it, or stop it") from None
    return names


# Purge: remove the original text of a finished run; the shards stay unchanged.


OriginalKind = Literal["vault", "quarantine", "state"]
ORIGINAL_KINDS: tuple[OriginalKind, ...] = get_args(OriginalKind)
_DECISION_EVENTS = (Event.RELEASED, Event.APPROVED, Event.REJECTED)


def purge(place: str | Path, what: Collection[OriginalKind], *, by: str | None = None) -> dict[str, Any]:
    """Delete original text of a run, or of every run of a job, for a person (``by``): {ok, runs, problems}.

    ``runs`` are results of :func:`purge_run`. A run of a job that cannot be purged, also an unfinished one, is a
    problem and makes ``ok`` False; the others are still purged. ``ConfigurationError`` for an unknown kind; for a
    single run also the errors of :func:`purge_run`.
    """
    require_one_line(by)
    unknown = sorted(set(what) - set(ORIGINAL_KINDS))
    if unknown or not what:
        wrong = f", not {shorten_name(unknown[0])}" if unknown else ""
        raise ConfigurationError(f"choose what to purge: {', '.join(ORIGINAL_KINDS)}{wrong}")
    done, problems = [], []
    is_job = JobFolder(Path(place)).exists()
    runs = find_runs(place) if is_job else [RunFolder(Path(place))]
    with lock_folders(JobFolder(Path(place)) if is_job else find_containing_job(runs[0])):
        for run in runs:
            try:
                if is_job and not (is_finished(run) or is_reissue_pending(run)):
                    if _is_empty(run):
                        continue
                    raise RunStateError(
                        "it is unfinished, and its work holds original text: finish it (redactory nightly), or reject "
                        "it (redactory release reject) and remove its folder"
                    )
                done.append(run_with_sealed_traceback(run.state, purge_run, run, what, by=by))
            except ConfigurationError:
                raise
            except RedactoryError as error:
                if not is_job:
                    raise
                problems.append({"run": str(run.root), "problem": str(error), "exit_code": error.exit_code})
    return {"ok": not problems, "runs": done, "problems": problems}


def purge_run(run: RunFolder, kinds: Collection[OriginalKind], *, by: str | None = None) -> dict[str, Any]:
    """Delete original text of a finished run for good: ``{"run", "purged", "release", "bytes", "already"}``.

    ``vault`` and ``quarantine`` lose all parts; ``state`` loses samples to label, sealed tracebacks and Prefect's
    home, but never the journal, the data key or measurements. Root keys and checkpoints of unfinished trainings
    always go. Kinds without anything left are in ``already``; if nothing is left to do, ``release`` is None. The
    caller holds the job's lock. ``RunStateError`` if the run is not finished, or a model is being trained on it.
    """
    if not is_reissue_pending(run):
        # a place without a run must not get a lock or a folder
        read_manifest(run)
    with reissue_lock(run):
        # otherwise a restored folder would become the newest release, with erased persons in it
        check_not_rolled_back(run)
        before = read_manifest(run).get("purged", [])
        # in state/ what can contain or quote original text
        state = (run.samples, run.orchestrator, *run.list_tracebacks(), *run.list_unfinished_training_files())
        content = {
            "vault": [*run.vault.glob("*")],
            "quarantine": [*run.quarantine.glob("*"), *filter(Path.exists, [run.exported])],
            "state": [*filter(Path.exists, state)],
        }
        # state/ fills again with each new sample
        to_purge = [name for name in ORIGINAL_KINDS if name in kinds and (name not in before or content[name])]
        already = [name for name in ORIGINAL_KINDS if name in kinds and name not in to_purge]
        result = {"run": str(run.root), "purged": to_purge, "already": already}
        if not to_purge:
            return {**result, "release": None, "bytes": 0}
        # a running training would find another manifest at its end and be lost
        _list_unfinished_trainings(run)
        prepare_reissue(run)
        removed = [path for name in to_purge for path in content[name]]
        files = (file for path in removed for file in (path.rglob("*") if path.is_dir() else [path]))
        size = sum(file.stat().st_size for file in files if file.is_file())
        release = reissue_run(
            run,
            PURGE,
            manifest_changes={"purged": sorted({*before, *to_purge})},
            change={"purged": to_purge},
            event={"what": to_purge, "bytes": size, "by": by},
            removed=removed,
        )
        return {**result, "release": release, "bytes": size}


def find_expired_originals(
    job: JobFolder, keep: Mapping[OriginalKind, int], now: datetime.datetime, *, by_clock: bool = False
) -> dict[str, tuple[OriginalKind, ...]]:
    """Find what is older than the days in ``keep``, by the release log: {run name: kinds}.

    A run's age starts when it was released, approved or rejected; a held run waits for that. The log must support
    the age (``foundation/records.py``), unless ``by_clock``. Purged kinds, and unfinished or missing runs, are
    never due; a run on which a model is being trained waits.
    """
    records, expired = read_log(job), dict[str, tuple[OriginalKind, ...]]()
    times = [datetime.datetime.fromisoformat(record.body["time"]) for record in records]
    age = [now - time for time in times] if by_clock else estimate_record_ages([*times, now])
    decisions = {r.body["run"]: r for r in records if r.type in (*_DECISION_EVENTS, Event.HELD)}
    for name, record in decisions.items():
        run = job.get_run_folder(name)
        if record.type == Event.HELD or not is_finished(run):
            continue
        # state/ fills again with each new sample
        is_full = run.samples.exists() or run.list_tracebacks()
        purged = {*read_manifest(run).get("purged", ())} - ({"state"} if is_full else set())
        kinds = tuple(
            kind
            for kind in ORIGINAL_KINDS
            if kind in keep and age[record.seq] > datetime.timedelta(keep[kind]) and kind not in purged
        )
        if kinds:
            with suppress(RunStateError):
                _list_unfinished_trainings(run)
                expired[name] = kinds
    return expired


def check_clock_matches_log(job: JobFolder, keep: Mapping[OriginalKind, int], now: datetime.datetime) -> None:
    """Raise ``CheckFailed`` if runs are due by this machine's clock but not by the log's times."""
    by_clock, by_log = find_expired_originals(job, keep, now, by_clock=True), find_expired_originals(job, keep, now)
    if doubtful := sorted(name for name, kinds in by_clock.items() if kinds != by_log.get(name)):
        raise CheckFailed(
            f"{job.root}: by the clock of this machine ({now:%Y-%m-%d}) {', '.join(doubtful[:5])} "
            f"{'is' if len(doubtful) == 1 else 'are'} due to be purged, but the times in the release log do "
            f"not support that clock (more than {MAX_RECORD_GAP.days} days between two records, or a step back): "
            "nothing was purged. Correct the clock; if it is right, purge by hand (redactory purge)"
        )

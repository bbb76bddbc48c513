"""Erasing: a person out of every run that holds them, and original text once it has served.

Both write the run anew by a reissue: staged parts, the manifest's counts less what goes, a record in the log.
Models are not trained anew: what learnt from a person, or knows them otherwise, is listed.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args

from redactory.evaluation.report import figures
from redactory.foundation.errors import (
    CheckFailed,
    ConfigurationError,
    RedactoryError,
    RunStateError,
    listed,
    shorten,
    some,
)
from redactory.foundation.files import leaves, make_private_folder, only_one, read_json, remove
from redactory.foundation.keys import DigestKey, load_digest_key
from redactory.foundation.records import SILENCE, RecordLog, ages
from redactory.pipelines.config import Config
from redactory.pipelines.erase_points import (
    Person,
    body_without,
    curated_without,
    filtered_without,
    points_of,
    rejected_rows,
    require_key,
)
from redactory.pipelines.index import discard_drafts, index_of
from redactory.pipelines.keys import shredded, shredded_when
from redactory.pipelines.output_folder import lock_jobs
from redactory.pipelines.reissue import Change, alone, begin, pending, reissue
from redactory.pipelines.release_log import Event, check_newest, history, read_log, standings
from redactory.pipelines.sealed import sealed
from redactory.redaction import RunFolder, is_finished, parts, read_manifest, require_regular
from redactory.redaction.folder import JobFolder, runs_in

ERASURE, PURGE = "erasure", "purge"
OWN_FILES = ("input.path", "evaluate.test", "evaluate.labelled", "train.public_text", "train.held_out")


def erase(
    places: Iterable[str | Path], *, doc_ids: Iterable[str] = (), user_ids: Iterable[str] = (), dry_run: bool = False
) -> dict[str, Any]:
    """Take documents, and all that users wrote, out of runs.

    Returns {ok, dry_run, runs, problems, unmatched}, the last one the pseudonyms of ids that none of these
    runs has, or ever had.

    ``places`` are run folders, or folders of a job, all of whose runs are gone through.  A run from which
    the person cannot be taken (its key is not the configured one) is a problem, and the others are done all
    the same; ``ok`` is then False.  A run of a job that was cut off loses all that it has done
    (``discarded``); one of no job is a problem.  With ``dry_run`` nothing is written.  Asked again, what was
    interrupted is finished, and what is done is read off the release log.  Models are not trained anew: each
    run lists those that learnt from the person.  ``ConfigurationError`` without an id, or for a place that
    holds no run.
    """
    person = Person(frozenset(doc_ids), frozenset(user_ids))
    if not person.doc_ids | person.user_ids or "" in person.doc_ids | person.user_ids:
        raise ConfigurationError(
            "say whose rows to erase: --doc-id, --user-id, or a file with ids (--doc-ids-from, --user-ids-from)"
        )
    runs = list(dict.fromkeys(run for place in places for run in runs_in(place)))
    done, problems, key = [], [], load_digest_key()
    with lock_jobs(runs):
        for run in runs:
            try:
                if not _was_cut_off(run):
                    done.append(sealed(run.state, _from_run, run, person, key, dry_run))
                elif any(path not in (run.state, run.lock) for path in leaves(run.root)):
                    done.append(sealed(run.state, _discard, run, person, key, dry_run))
            except RedactoryError as error:
                problems.append({"run": str(run.root), "problem": str(error), "exit_code": error.exit_code})
    nowhere = [p for p in person.pseudonyms(key) if all(p in run["unmatched"] for run in done)]
    return {
        "ok": not problems,
        "dry_run": dry_run,
        "runs": done,
        "problems": problems,
        "unmatched": nowhere if done else [],
    }


def _from_run(run: RunFolder, person: Person, key: DigestKey, dry_run: bool) -> dict[str, Any]:
    if not dry_run:
        with alone(run):
            return _taken_out(run, person, key, dry_run)
    if pending(run):
        raise RunStateError(f"a reissue of {run.root} was interrupted: run again without --dry-run")
    require_regular(run)
    return _taken_out(run, person, key, dry_run)


def _was_cut_off(run: RunFolder) -> bool:
    """Whether ``run`` is one of a job that never came to its end; ``RunStateError`` for one of no job."""
    if is_finished(run) or pending(run):
        return False
    standing = next(iter(standings(history(run)).values()), None)
    if standing is None:
        raise RunStateError(
            f"{run.root} is unfinished: resume it (redactory curate --resume) and try again, or remove the folder"
        )
    if standing.ended is not None:
        raise RunStateError(f"{run.root} was finished, but {run.success.name} is missing: restore it from a backup")
    return True


def _discard(run: RunFolder, person: Person, key: DigestKey, dry_run: bool) -> dict[str, Any]:
    """Remove what a run that was cut off has done: half of its work cannot be searched for a person.

    Whoever resumes it makes it anew from the input, which has to be without the person anyway.
    """
    if not dry_run:
        with only_one(run.lock, str(run.root)):
            # where its index lies, only the job's finished runs say; a draft counts for nothing
            near = [one for one in runs_in(run.root.parent) if is_finished(one)]
            found = filter(None, (index_of(read_manifest(one)) for one in near))
            for index in {one.root: one for one in found}.values():
                discard_drafts(index, run)
            remove(run.root)
        # as a run that was begun and has done nothing: it can still be resumed, or rejected
        make_private_folder(run.root)
        make_private_folder(run.state)
    return _result(run, unmatched=person.pseudonyms(key), files=["input.path"]) | {"discarded": True}


def _result(run: RunFolder, **more: Any) -> dict[str, Any]:
    """What is said of a run that holds nothing of a person, and ``more``."""
    none = dict.fromkeys(("points", "documents", "rejected", "unsearched", "lone_documents"), 0)
    return {"run": str(run.root), **none, "release": None, "already": None, "models": [], **more}


def _taken_out(run: RunFolder, person: Person, key: DigestKey, dry_run: bool) -> dict[str, Any]:
    manifest = read_manifest(run)
    config = Config.read_back(manifest["configuration"])
    # files outside of the run, which may hold the person as well; a share is no file
    files = [n for n in OWN_FILES if (file := attrgetter(n)(config)) and not isinstance(file, float)]
    before = [r.body for r in history(run) if r.type == Event.REISSUED and r.body.get("why") == ERASURE]
    asked = person.pseudonyms(key)
    same = [body for body in before if all(one in body["persons"] for one in asked)]
    done = {"already": same[-1]["release"], "models": same[-1]["models"]} if same else {}
    if not run.data_key.is_file() and (record := shredded(run)) is not None:
        return _of_shredded(run, manifest, shredded_when(record), asked, done) | {"files": files}
    require_key(manifest, key)
    points, lone = points_of(run, person, key)
    rejected = rejected_rows(run, person, config.input)
    # an id is known that stands in the run, or stood there before an earlier erasure
    known = [*person.among(rejected.ids).pseudonyms(key), *(p for body in before for p in body["persons"])]
    own = {row[kind] for row in points.values() for kind in ("document", "user")}
    result = _result(
        run,
        points=len(points),
        documents=len({row["document"] for row in points.values()}),
        rejected=rejected.reasons.total(),
        unsearched=rejected.unsearched,
        lone_documents=lone,
        unmatched=[p for p in asked if p not in known and p["pseudonym"] not in own],
        files=files,
    )
    if not points and not rejected.rows:
        return result | done
    _require_not_by_count(run, manifest)
    result |= _beyond(run, points)
    if dry_run:
        return result
    begin(run)
    whole = bool(parts(run.vault))
    rest = (
        curated_without(run, manifest, key, points.keys(), rejected)
        if whole
        else filtered_without(run, manifest, points, rejected)
    )
    body, counted = body_without(manifest, points, rejected, rest)
    result["moved_up"], result["lost"] = sum(counted["moved_up"].values()), len(rest.lost)
    kept = {row["side"] for row in points.values() if row["fate"] == row["side"]}
    result["unknown_repeats"] = not whole and any(config.dedup.rules()[side].one_pass for side in kept)
    if index_of(manifest) is not None:
        result["index"] = whole
    change = Change(
        why=ERASURE,
        body=body,
        noted={**counted, "lost": len(rest.lost)},
        entered={"persons": asked, **counted, "models": result["models"]},
        # what attacks on the shards found was found on shards that are no more, and no training goes on
        forget=(*(run.sample(name).root for name in result["samples"]), run.redaction.root, run.exported, *run.begun()),
        index=rest.index,
    )
    return result | {"release": reissue(run, change, key)}


def _require_not_by_count(run: RunFolder, manifest: dict[str, Any]) -> None:
    if "route" in manifest:
        raise RunStateError(
            f"{run.root.name} is public by count: after an erasure, a public text would remain only if "
            "somebody else wrote it, and no noise hides that. Curate the input again without the person, "
            "which draws and records a new selection; then remove this run"
        )


def _of_shredded(
    run: RunFolder, manifest: dict[str, Any], when: str, asked: Any, done: dict[str, Any]
) -> dict[str, Any]:
    """What is said of a run that nobody can search; ``RunStateError`` where text in it may be theirs."""
    check_newest(run)
    rows = manifest["counts"]["public"]
    left = [f"{some(rows, 'row')} of public/"] * bool(rows)
    left += [p.relative_to(run.root).as_posix() for p in (run.samples, run.exported) if p.exists()]
    if left and not done:
        raise RunStateError(
            f"{run.root.name} {when}, so nobody can tell what in it is theirs; {listed(left)} can still be "
            "read: remove the run, also where it was published, and ask again"
        )
    # the index has keyed digests of what was said in the run
    index = {} if index_of(manifest) is None else {"index": False}
    models = _beyond(run, ())["models"]
    return _result(run, shredded=True, unmatched=[] if done else asked, models=models, **index) | done


def _beyond(run: RunFolder, points: Collection[int]) -> dict[str, Any]:
    """What knows the person outside of the parts.

    Every trainer learns from the shards or the vault of its run, so every model learnt from their points.
    What was exported is out of reach.
    """
    models = []
    for name in run.model_names():
        trainer = str(read_manifest(run.model(name))["summary"]["trainer"])
        shown = figures(read_json(run.model(name).guarantee))
        stated = next((figure for figure in shown if figure.stated), shown[0])
        models.append({"model": name, "trainer": trainer, "guarantee": f"{stated.title}: {stated.text}"})
    samples = []
    for draw in sorted(path / "draw.json" for path in run.samples.glob("*/")):
        # of a draw that was cut off nobody knows whom it drew
        if not draw.is_file() or any(row["point_id"] in points for row in read_json(draw)["rows"]):
            samples.append(draw.parent.name)
    exports = [
        {key: str(record.body[key]) for key in ("time", "manifest") if key in record.body}
        for record in history(run)
        if record.type == Event.EXPORTED
    ]
    return {
        "models": models,
        "unfinished_trainings": _trainings(run),
        "samples": samples,
        "tracebacks": len(run.tracebacks()),
        "exports": exports,
    }


def _trainings(run: RunFolder) -> list[str]:
    """The trainings that were begun and are not finished; they cannot go on once the run was written anew.

    ``RunStateError`` where one is at work: it would learn from half of each release.
    """
    begun = [path.parent for path in sorted(run.models.glob("*/ledger.jsonl"))]
    names = [folder.name for folder in begun if not is_finished(run.model(folder.name))]
    for name in names:
        try:
            RecordLog(run.model(name).ledger).close()
        except RunStateError:
            raise RunStateError(f"{run.root.name}/models/{name} is being trained: wait for it, or stop it") from None
    return names


# Purge: the original text of a finished run, taken away once it has served; the shards stay as they are.


What = Literal["vault", "quarantine", "state"]
ALL: tuple[What, ...] = get_args(What)
_DECIDED = (Event.RELEASED, Event.APPROVED, Event.REJECTED)


def purge(run: str | Path, what: Collection[What], *, by: str | None = None) -> dict[str, Any]:
    """:func:`purge_run` for a person (``by``), alone in the run's job."""
    folder = RunFolder(Path(run))
    with lock_jobs([folder]):
        return purge_run(folder, what, by=by)


def purge_run(run: RunFolder | str | Path, what: Collection[What], *, by: str | None = None) -> dict[str, Any]:
    """Take ``what`` away from a finished run, for good: ``{"run", "purged", "release", "bytes", "already"}``.

    ``vault`` and ``quarantine`` are all their parts; ``state`` is samples to label, sealed tracebacks and
    Prefect's home: never the journal, the data key or what was measured.  Root keys and checkpoints of
    trainings that are not finished go each time.  What is gone already is in ``already``; where nothing is
    left to do, ``release`` is None.  The job's lock is the caller's to hold.
    ``ConfigurationError`` for an unknown name, ``RunStateError`` for a run that is not finished, and for one
    on which a model is being trained.
    """
    unknown = sorted(set(what) - set(ALL))
    if unknown or not what:
        wrong = f", not {shorten(unknown[0])}" if unknown else ""
        raise ConfigurationError(f"choose what to purge: {', '.join(ALL)}{wrong}")
    folder = run if isinstance(run, RunFolder) else RunFolder(Path(run))
    if not pending(folder):
        # a place that holds no run gets no lock and no folder by being asked for
        read_manifest(folder)
    return sealed(folder.state, _purge, folder, [name for name in ALL if name in what], by)


def _purge(run: RunFolder, what: list[What], by: str | None) -> dict[str, Any]:
    with alone(run):
        # else a folder that was put back would become the newest release, with whom an erasure took out
        check_newest(run)
        before = read_manifest(run).get("purged", [])
        begun = run.begun()
        # what lies there besides parts; of state/ what can hold original text, or quote it
        left = {
            "vault": _besides_parts(run.vault),
            "quarantine": [*_besides_parts(run.quarantine), *(p for p in (run.exported,) if p.exists())],
            "state": [p for p in (run.samples, run.orchestrator, *run.tracebacks(), *begun) if p.exists()],
        }
        # state/ fills again: each sample that is drawn is another one
        wanted = [name for name in what if name not in before or left[name]]
        result = {"run": str(run.root), "purged": wanted, "already": [n for n in what if n not in wanted]}
        if not wanted:
            return {**result, "release": None, "bytes": 0}
        # one at work would find another manifest at its end, and be lost
        _trainings(run)
        begin(run)
        gone = [path for name in wanted if name != "state" for path in parts(getattr(run, name))]
        # no training goes on once the run was written anew
        forget = tuple(dict.fromkeys((*(path for name in wanted for path in left[name]), *begun)))
        files = (p for path in (*gone, *forget) for p in (path.rglob("*") if path.is_dir() else [path]))
        size = sum(path.stat().st_size for path in files if path.is_file())
        change = Change(
            why=PURGE,
            body={"purged": sorted({*before, *wanted})},
            noted={"purged": wanted},
            entered={"what": wanted, "bytes": size, **({} if by is None else {"by": by})},
            remove=tuple(gone),
            forget=forget,
        )
        return {**result, "release": reissue(run, change), "bytes": size}


def _besides_parts(folder: Path) -> list[Path]:
    return sorted({*folder.iterdir()} - {*parts(folder)}) if folder.is_dir() else []


def due(
    job: JobFolder, keep: Mapping[What, int], now: datetime.datetime, *, by_clock: bool = False
) -> dict[str, tuple[What, ...]]:
    """What of which run is older than the days of ``keep``, by the release log: {run name: what}.

    A run's age counts from the moment at which it was decided on, released, approved or rejected; one that is
    held waits for that.  Nothing is older than the log can bear out (``foundation/records.py``), unless it is
    taken ``by_clock`` alone.  What was purged before is not due again, nor is anything of a run that is not
    finished, or gone; a run on which a model is being trained waits until it is.
    """
    records, found = read_log(job), dict[str, tuple[What, ...]]()
    times = [datetime.datetime.fromisoformat(record.body["time"]) for record in records]
    age = [now - time for time in times] if by_clock else ages([*times, now])
    judged = {r.body["run"]: r for r in records if r.type in (*_DECIDED, Event.HELD)}
    for name, record in judged.items():
        run = job.run(name)
        if record.type == Event.HELD or not is_finished(run):
            continue
        gone = read_manifest(run).get("purged", ())
        left = tuple(
            what
            for what in ALL
            if what in keep and age[record.seq] > datetime.timedelta(keep[what]) and what not in gone
        )
        if left:
            with suppress(RunStateError):
                _trainings(run)
                found[name] = left
    return found


def check_clock(job: JobFolder, keep: Mapping[What, int], now: datetime.datetime) -> None:
    """``CheckFailed`` where runs are due by this machine's clock, and not by the log's."""
    by_clock, by_log = due(job, keep, now, by_clock=True), due(job, keep, now)
    if doubted := sorted(name for name, what in by_clock.items() if what != by_log.get(name)):
        raise CheckFailed(
            f"{job.root}: by the clock of this machine ({now:%Y-%m-%d}) {', '.join(doubted[:5])} "
            f"{'is' if len(doubted) == 1 else 'are'} due to be purged, but the times in the release log do "
            f"not support that clock (more than {SILENCE.days} days between two records, or a step back): "
            "nothing was purged. Correct the clock; if it is right, purge by hand (redactory purge)"
        )

"""What the index across runs shall forget with a person: texts that nobody else in the run has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from redactory.dedup import DedupSettings
from redactory.evaluation.model_report import figures
from redactory.foundation.errors import ConfigurationError, RedactoryError, RunStateError
from redactory.foundation.files import only_one, read_json
from redactory.foundation.keys import DigestKey, forms_of, load_digest_key
from redactory.foundation.records import RecordLog
from redactory.pipelines.config import Config
from redactory.pipelines.reissue import Change, alone, begin, index_of, pending, reissue
from redactory.pipelines.release_log import Event, history
from redactory.pipelines.sealed import sealed
from redactory.pipelines.stages.dedup import fate_digests
from redactory.pipelines.takedown.parts import (
    SIDES,
    Heirs,
    body_without,
    heirs_of,
    remaining_texts,
    shard_texts,
    stage_parts,
)
from redactory.pipelines.takedown.person import (
    Hers,
    Person,
    Row,
    Told,
    fates_of,
    has_vault,
    hers,
    rejected_rows,
    require_key,
)
from redactory.redaction import Fate, RunFolder, is_finished, read_manifest, require_regular
from redactory.redaction.folder import JobFolder, job_of

DIGESTS = frozenset({"exact", "folded"})
"""Modes whose digests of what a run saw are there one by one; mode ``bloom`` has a filter alone."""


def forgotten(
    run: RunFolder,
    manifest: Mapping[str, Any],
    settings: DedupSettings,
    key: DigestKey,
    points: dict[int, Row],
    heirs: Heirs,
) -> dict[str, Any] | None:
    """``{"digests": {side: hex}, "points": {side: ids}, "whole"}``; None for a run without an index.

    ``whole`` is False where more was to be forgotten than could be: of mode ``bloom``, or because the vault
    that says it was purged.
    """
    if index_of(run, manifest) is None:
        return None
    gone: dict[str, Any] = {"digests": {}, "points": {}, "whole": True}
    for side in SIDES:
        mode, own = settings.mode_of(side), {p: row for p, row in points.items() if row["side"] == side}
        gone["digests"][side], gone["points"][side] = [], []
        if mode == "minhash":
            gone["points"][side] = sorted(point for point, row in own.items() if row["fate"] == side)
        elif mode in DIGESTS:
            digests, whole = _digests(run, settings, key, side, own, heirs, set(points))
            gone["digests"][side] = sorted(digest.hex() for digest in digests)
            gone["whole"] &= whole
        elif mode == "bloom":
            gone["whole"] &= not own
    return gone


def _digests(
    run: RunFolder,
    settings: DedupSettings,
    key: DigestKey,
    side: str,
    own: dict[int, Row],
    heirs: Heirs,
    gone: set[int],
) -> tuple[set[bytes], bool]:
    """The digests of one side that only she had, and whether these are all."""
    inherited = set(heirs.replaces.values())
    lone = {p: row for p, row in own.items() if row["fate"] == side and p not in inherited}
    repeats = [p for p, row in own.items() if row["earlier_run"] is not None]
    if not has_vault(run):
        if settings.scope == "user":
            return set(), not (lone or repeats)
        texts = shard_texts(run, {row["released_id"]: point for point, row in lone.items()})
        told = [Told(Fate(side, text, ()), "") for text in texts.values()]
        return set(_of(key, settings, told)), not repeats
    mine = set(_of(key, settings, [*fates_of(run, [*lone, *repeats]).values()]))
    # what repeats an earlier run stands in this run's entry as well, and others may repeat the same
    stays = [told for _, told in remaining_texts(run, gone, side)] if repeats else []
    return mine - set(_of(key, settings, stays)), True


def _of(key: DigestKey, settings: DedupSettings, told: list[Told]) -> list[bytes]:
    users = [one.owner for one in told] if settings.scope == "user" else None
    return fate_digests(key, settings, range(len(told)), [one.fate for one in told], users)[0]


# Which models learnt from a person, and what else knew her: told, for it cannot be taken back here.


def models_of(run: RunFolder) -> list[dict[str, str]]:
    """``[{"model", "trainer", "guarantee"}]`` of the finished models; the last is one line of the card.

    Every trainer learns from the shards or the vault of its run, so every one learnt from her points.
    """
    return [
        {
            "model": name,
            "trainer": str(read_manifest(run.model(name))["summary"]["trainer"]),
            "guarantee": _line(read_json(run.model(name).guarantee)),
        }
        for name in run.model_names()
    ]


def trainings_of(run: RunFolder) -> list[str]:
    """The trainings that were begun and are not finished; they cannot go on once the run was written anew.

    ``RunStateError`` where one is at work: it would learn from half of each release.
    """
    found = []
    for path in sorted(run.models.glob("*/ledger.jsonl")):
        if is_finished(run.model(path.parent.name)):
            continue
        if _is_written(path):
            raise RunStateError(
                f"{run.root.name}/models/{path.parent.name} is being trained: wait for it, or stop it"
            )
        found.append(path.parent.name)
    return found


def is_training(run: RunFolder) -> bool:
    """Whether somebody trains a model on ``run`` right now."""
    return any(
        _is_written(path)
        for path in run.models.glob("*/ledger.jsonl")
        if not is_finished(run.model(path.parent.name))
    )


def samples_of(run: RunFolder, points: set[int]) -> list[str]:
    """The samples of points to label in which one of ``points`` was drawn; they hold her text in the open."""
    found = []
    for path in sorted(run.samples.glob("*/draw.json")):
        if any(row["point_id"] in points for row in read_json(path)["rows"]):
            found.append(path.parent.name)
    # a draw that was cut off has no record of whom it drew
    found += [p.name for p in _folders(run.samples) if not (p / "draw.json").is_file()]
    return sorted(found)


def exports_of(run: RunFolder) -> list[dict[str, str]]:
    """When what may leave was copied, and the manifest of the copy: these are out of reach."""
    return [
        {key: str(record.body[key]) for key in ("time", "manifest") if key in record.body}
        for record in history(run)
        if record.type == Event.EXPORTED
    ]


def _is_written(ledger: Path) -> bool:
    try:
        RecordLog(ledger).close()
    except RunStateError:
        return True
    return False


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _line(card: dict[str, Any]) -> str:
    shown = figures(card)
    stated = next((figure for figure in shown if figure.stated), shown[0])
    return f"{stated.title}: {stated.text}"


# Takedown: a person out of every run that holds her, each written anew by a reissue.


TAKEDOWN = "takedown"
_TOLD_AGAIN = {"already": "release", "models": "models"}
"""What a second request is told from the log of the first: key of the result, key of the record."""


def takedown(
    places: Iterable[str | Path],
    *,
    doc_ids: Iterable[str] = (),
    user_ids: Iterable[str] = (),
    dry_run: bool = False,
) -> dict[str, Any]:
    """Take documents, and all that users wrote, out of runs.

    Returns {ok, dry_run, runs, problems, unmatched}, the last one the pseudonyms of ids that none of these
    runs has, or ever had.

    ``places`` are run folders, or folders of a job, all of whose runs are gone through.  A run from which
    she cannot be taken (its key is not the configured one, it is not finished) is a problem, and the others
    are done all the same; ``ok`` is then False.  With ``dry_run`` nothing is written.  Asked again, what was
    interrupted is finished, and what is done is told from the release log.  Models are not trained anew:
    each run lists those that learnt from her.  ``ConfigurationError`` without an id, or for a place that
    holds no run.
    """
    person = Person(frozenset(doc_ids), frozenset(user_ids))
    if not person.doc_ids | person.user_ids or "" in person.doc_ids | person.user_ids:
        raise ConfigurationError(
            "say who is to be taken out: --doc-id, --user-id, or a file with ids (--doc-ids-from, "
            "--user-ids-from)"
        )
    runs = runs_in(places)
    done, problems, key = [], [], load_digest_key()
    with ExitStack() as locks:
        for job in dict.fromkeys(job for run in runs if (job := job_of(run)) is not None):
            locks.enter_context(only_one(job.lock, str(job.root)))
        for run in runs:
            try:
                done.append(sealed(run.state, _from_run, run, person, key, dry_run))
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


def runs_in(places: Iterable[str | Path]) -> list[RunFolder]:
    """The runs at ``places``, each once, in order; ``ConfigurationError`` for a place that holds none."""
    found: dict[Path, RunFolder] = {}
    for place in places:
        root = Path(place).resolve()
        runs = [RunFolder(root)] if _is_run(root) else [RunFolder(p) for p in _below(root) if _is_run(p)]
        if not runs and not JobFolder(root).exists():
            raise ConfigurationError(f"{place} is no run, nor the folder of a job's runs; give one of them")
        found.update((run.root, run) for run in runs)
    return list(found.values())


def _is_run(root: Path) -> bool:
    return RunFolder(root).journal.is_file()


def _below(root: Path) -> list[Path]:
    return sorted(p for p in root.iterdir() if p.is_dir() and not p.is_symlink()) if root.is_dir() else []


def _from_run(run: RunFolder, person: Person, key: DigestKey, dry_run: bool) -> dict[str, Any]:
    if not dry_run:
        with alone(run):
            return _taken_out(run, person, key, dry_run)
    if pending(run):
        raise RunStateError(f"{run.root} was being written anew and was interrupted: ask without --dry-run")
    require_regular(run)
    return _taken_out(run, person, key, dry_run)


def _taken_out(run: RunFolder, person: Person, key: DigestKey, dry_run: bool) -> dict[str, Any]:
    manifest = read_manifest(run)
    require_key(manifest, key)
    config = Config.model_validate(manifest["configuration"])
    found = hers(run, person, key)
    rejected = rejected_rows(run, person, config.input)
    told: dict[str, Any] = {
        "run": str(run.root),
        "points": len(found.points),
        "documents": found.documents,
        "rejected": rejected.reasons.total(),
        "unsearched": rejected.unsearched,
        "lone_documents": found.lone,
        "unmatched": _unmatched(run, person, key, found.pseudonyms, rejected.ids),
        "files": _files(config),
        "release": None,
        "already": None,
        "models": [],
    }
    if not found.points and not rejected.rows:
        before = _before(run, person.pseudonyms(key))
        return told if before is None else told | {k: before.body[v] for k, v in _TOLD_AGAIN.items()}
    heirs = heirs_of(run, config.dedup, key, found.points)
    index = forgotten(run, manifest, config.dedup, key, found.points, heirs)
    told |= _beyond(run, found, heirs) | {"index": None if index is None else index["whole"]}
    if dry_run:
        return told
    staging = begin(run, key)
    tally = stage_parts(staging, found.points | heirs.lost, heirs, rejected)
    counted = {"removed": dict(tally.removed), "moved_up": dict(tally.moved_up)}
    change = Change(
        why=TAKEDOWN,
        body=body_without(manifest, tally),
        told={**counted, "lost": len(heirs.lost)},
        entered={"persons": person.pseudonyms(key), **counted, "models": told["models"]},
        # what attacks on the shards found was found on shards that are no more
        forget=(*(run.sample(name).root for name in told["samples"]), run.redaction.root),
        index=index,
    )
    return told | {"release": reissue(staging, change)["release"]}


def _unmatched(
    run: RunFolder, person: Person, key: DigestKey, pseudonyms: set[str], rejected: set[str]
) -> list[dict[str, str]]:
    """The pseudonyms of those ids that stand nowhere in the run, and in none of its earlier takedowns."""
    known = person.among(rejected).pseudonyms(key)
    known += [earlier for record in _takedowns(run) for earlier in record.body["persons"]]
    # a run of an earlier version has a user's id as it was spelled in the input
    spelled = {
        key.pseudonym("user", forms_of(user)[0]): {key.pseudonym("user", form) for form in forms_of(user)}
        for user in person.user_ids
    }
    return [
        p
        for p in person.pseudonyms(key)
        if p not in known and pseudonyms.isdisjoint({p["pseudonym"]} | spelled.get(p["pseudonym"], set()))
    ]


def _files(config: Config) -> list[str]:
    """The keys that name files outside of the run, which may hold her as well."""
    named = {
        "input.path": config.input.path,
        "evaluate.test": config.evaluate.test,
        "evaluate.labelled": config.evaluate.labelled,
        "train.public_text": config.train.public_text,
    }
    return [key for key, value in named.items() if value]


def _beyond(run: RunFolder, found: Hers, heirs: Heirs) -> dict[str, Any]:
    """What becomes of others' points, and what knows her outside of the parts."""
    return {
        "moved_up": len(heirs.texts),
        "lost": len(heirs.lost),
        "unknown_repeats": heirs.unknown,
        "models": models_of(run),
        "unfinished_trainings": trainings_of(run),
        "samples": samples_of(run, set(found.points)),
        "tracebacks": len(run.tracebacks()),
        "exports": exports_of(run),
    }


def _before(run: RunFolder, persons: list[dict[str, str]]) -> Any:
    """The last record that says that all of these were taken out of the run; None without one."""
    found = [r for r in _takedowns(run) if all(person in r.body["persons"] for person in persons)]
    return found[-1] if found else None


def _takedowns(run: RunFolder) -> list[Any]:
    return [r for r in history(run) if r.type == Event.REISSUED and r.body.get("why") == TAKEDOWN]

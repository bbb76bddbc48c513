"""Retry: what lies in a run's quarantine, curated again into a run of its own beside it.

The finished run stays as it is.  What is tried again lies in memory until the new run has it, under the new
run's own encryption; nothing of it is written in between.  In a job the new run is held until somebody
approves it: limits drawn from whole nights say nothing about what failed in one of them.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from redactory.detectors import TextDetector
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import RunStateError
from redactory.foundation.keys import KEY_VARIABLE, DigestKey, load_digest_key
from redactory.foundation.locks import only_one
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.config import Config, InputSettings
from redactory.pipelines.curate import curate
from redactory.pipelines.loading import Given, check, load_config
from redactory.pipelines.maps import StageMap
from redactory.pipelines.preflight import check_keys
from redactory.pipelines.quarantine.corpus import Corpus, corpus_of
from redactory.pipelines.readers import Source
from redactory.pipelines.readers.documents import MISSING_ID
from redactory.pipelines.release import COUNTS
from redactory.pipelines.releases.log import Event, check_released, enter, history, read_log, standings
from redactory.pipelines.sealed import sealed
from redactory.redaction import RunFolder, is_finished, read_manifest
from redactory.redaction.job_folder import JobFolder, job_of

_ID = InputSettings.model_fields["id"].default
_NAME = re.compile(r"(?P<of>.+?)-retry(-(?P<number>\d+))?")


def quarantine_retry(
    run: str | Path,
    config: Given | None = None,
    *,
    workers: int | None = None,
    stage_map: StageMap | None = None,
    detector: TextDetector | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Curate the quarantine of a finished ``run`` again: ``{"run", "of", "entries", "retried", "left"}``.

    ``config`` is today's configuration, of which ``input`` names the columns alone; by default the run's own.
    The new run is ``<run>-retry`` (``-retry-2``, of that one) beside it; ``run`` is None where nothing could
    be tried.  ``left`` says of how many entries nothing was made, and why; they stay where they are.  Asked
    again after a crash it goes on.  ``stage_map`` and ``detector`` are those of :func:`curate`.

    ``RunStateError`` for a run that is held or rejected, was made with another key, or was retried before.
    """
    check_keys()
    folder = RunFolder(Path(run).resolve())
    manifest = read_manifest(folder)
    check_released(folder)
    key = _key_of(folder, manifest)
    job = job_of(folder)
    with _alone(job):
        target = _target(folder, job)
        before = _settings_of(folder, manifest)
        now = _today(before if config is None else load_config(config), target, workers)
        corpus = sealed(folder.state, corpus_of, folder, before.input, now.input, key)
        told = {"entries": corpus.entries, "retried": corpus.retried, "left": dict(corpus.left.most_common())}
        if not corpus.retried:
            return {"run": None, "of": str(folder.root), **told, "state": None}
        _begin(target, job)
        with _in_memory(f"{target.root.name}.jsonl", corpus) as source:
            summary: dict[str, Any] = dict(
                curate(
                    now,
                    resume=True,
                    stage_map=stage_map,
                    detector=detector,
                    sources=[source],
                    progress=progress,
                )
            )
        counts = {name: summary[name] for name in COUNTS}
        state = _enter(folder, target, job, counts, told)
    return {
        "run": str(target.root),
        "of": str(folder.root),
        **told,
        "counts": counts,
        "state": state,
        "report": summary["report"],
    }


def _begin(target: RunFolder, job: JobFolder | None) -> None:
    """Have the log know the new run before it is finished: at no moment is it taken for one of no job."""
    if job is not None and target.root.name not in standings(read_log(job)):
        enter(target, Event.BEGUN, date=None, plan={"slices": [], "waiting": []}, config=None)


def _enter(
    run: RunFolder, target: RunFolder, job: JobFolder | None, counts: dict[str, int], told: dict[str, Any]
) -> str | None:
    """The records of a retry: that the new run is held, then that there is one."""
    state = None
    if job is not None:
        state = "held"
        if standings(read_log(job))[target.root.name].state == "unfinished":
            findings = [{"metric": "retried", "label": run.root.name, "count": told["retried"]}]
            digest = file_sha256(target.manifest)
            enter(target, Event.HELD, manifest=digest, counts=counts, findings=findings)
    enter(run, Event.RETRIED, into=target.root.name, retried=told["retried"], left=sum(told["left"].values()))
    return state


@contextmanager
def _alone(job: JobFolder | None) -> Iterator[None]:
    if job is None:
        yield
        return
    with only_one(job.lock, str(job.root)):
        yield


def _key_of(run: RunFolder, manifest: dict[str, Any]) -> DigestKey | None:
    """The run's own digest key; None where it drew one and forgot it."""
    key = load_digest_key()
    if key.fingerprint == manifest["key"]["fingerprint"]:
        return key
    if manifest["key"]["fresh"]:
        return None
    made = "a key, and none is set" if key.fresh else "another key"
    raise RunStateError(
        f"{run.root.name} was made with {made}: set {KEY_VARIABLE} to it, or its people would be others "
        "in the new run"
    )


def _target(run: RunFolder, job: JobFolder | None) -> RunFolder:
    """Where to: the first free name beside the run, or the one of a retry that was interrupted."""
    into = [record.body["into"] for record in history(run) if record.type == Event.RETRIED]
    states = standings(read_log(job)) if job is not None else {}
    for name in into:
        rejected = name in states and states[name].state == "rejected"
        if is_finished(RunFolder(run.root.parent / name)) and not rejected:
            raise RunStateError(
                f"{run.root.name} was tried again in {name}: what failed once more lies in the quarantine of "
                f"that one (redactory quarantine retry {run.root.parent / name})"
            )
    found = _NAME.fullmatch(run.root.name)
    of, number = (found["of"], int(found["number"] or 1)) if found else (run.root.name, 0)
    while True:
        number += 1
        name = f"{of}-retry" if number == 1 else f"{of}-retry-{number}"
        if name in states and states[name].state == "rejected":
            continue
        place = RunFolder(run.root.parent / name)
        # one that is finished and stands in no record was interrupted at the very end
        if not os.path.lexists(place.root) or not is_finished(place) or _is_ours(place, run, into):
            return place


def _is_ours(place: RunFolder, run: RunFolder, into: list[str]) -> bool:
    of = read_manifest(place)["inputs"]
    return place.root.name not in into and [entry["path"] for entry in of] == [f"{place.root.name}.jsonl"]


def _settings_of(run: RunFolder, manifest: dict[str, Any]) -> Config:
    """The configuration that the run was made by."""
    made = manifest["configuration"]
    if MISSING_ID not in manifest["rejected"]:
        # a manifest names every column: whether a row needs an id follows from whether one was rejected
        made = {**made, "input": {k: v for k, v in made["input"].items() if k != "id" or v != _ID}}
    try:
        return Config.model_validate(made)
    except ValidationError:
        raise RunStateError(
            f"{run.root.name} was made by a version with other settings: curate its input again as a new run"
        ) from None


def _today(config: Config, target: RunFolder, workers: int | None) -> Config:
    """``config`` for a corpus in memory and the folder ``target``."""
    given = config.model_dump(exclude_unset=True)
    # the corpus has its own form; a row without an id keeps being one where none was named
    given["input"] = {**given["input"], "path": (f"{target.root.name}.jsonl",), "format": "jsonl"}
    given |= {"output": target.root, "store": None}
    return check(given if workers is None else {**given, "workers": workers})


@contextmanager
def _in_memory(name: str, corpus: Corpus) -> Iterator[Source]:
    """The corpus as a file that no disk ever holds."""
    import fsspec

    memory: Any = fsspec.filesystem("memory")
    folder = f"/redactory-{secrets.token_hex(8)}"
    memory.pipe_file(f"{folder}/{name}", b"".join(corpus.lines))
    try:
        yield Source(f"memory:/{folder}/{name}", name, "jsonl")
    finally:
        memory.rm(folder, recursive=True)

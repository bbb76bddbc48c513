"""How a night ends: judged, entered in the log, ``latest`` moved; and what is kept in order around it."""

from __future__ import annotations

import datetime
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import RedactoryError
from redactory.pipelines.leaving import what_forbids
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.nightly.gate import judge
from redactory.pipelines.nightly.hooks import call_hooks
from redactory.pipelines.nightly.metrics import write_metrics
from redactory.pipelines.nightly.names import point_latest
from redactory.pipelines.nightly.publishing import publish_released
from redactory.pipelines.purge import due, purge_run
from redactory.pipelines.reissue.reissue import finish_reissue
from redactory.pipelines.releases.log import Event, Standing, enter, latest_run, read_log, standings
from redactory.pipelines.settings.nightly import NightlySettings
from redactory.redaction import RunFolder, read_manifest
from redactory.redaction.job_folder import JobFolder


@dataclass(frozen=True)
class End:
    """A night whose curation is finished."""

    job: JobFolder
    run: RunFolder
    settings: NightlySettings
    counts: dict[str, int]


def end_night(night: End) -> dict[str, Any]:
    """Release the run, or hold it; its state, what was found wanting, and which hooks failed."""
    findings = [found.to_json() for found in judge(night.job, night.run, night.settings.drift)]
    if (why := what_forbids(read_manifest(night.run))) is not None:
        findings.append({"metric": "blind", "why": why})
    event = Event.HELD if findings else Event.RELEASED
    facts: dict[str, Any] = {"manifest": file_sha256(night.run.manifest), "counts": night.counts}
    facts |= {"findings": findings} if findings else {}
    enter(night.run, event, **facts)
    point_latest(night.job, latest_run(read_log(night.job)))
    write_metrics(night.job)
    failed = call_hooks(night.settings.hooks, event, night.job, night.run, facts)
    return {"state": event.value, "findings": findings, "hooks_failed": failed}


def after_failure(job: JobFolder, run: RunFolder, settings: NightlySettings, error: RedactoryError) -> None:
    """Enter that a night failed, and call the hook.  Messages of our own errors hold no text."""
    enter(run, Event.FAILED, error=str(error))
    with suppress(RedactoryError, OSError):
        # the error itself is what is to be told
        write_metrics(job)
    call_hooks(settings.hooks, Event.FAILED, job, run, {"error": str(error)})


def decided(
    job: JobFolder, run: RunFolder, settings: NightlySettings | None, event: Event, facts: dict[str, Any]
) -> list[str]:
    """After a person decided: metrics and hooks; the hooks that failed, None called without ``settings``."""
    write_metrics(job)
    return [] if settings is None else call_hooks(settings.hooks, event, job, run, facts)


def put_in_order(job: JobFolder) -> None:
    """Do what a crash may have left undone: a takedown or a purge amid its work, ``latest``."""
    for name in standings(read_log(job)):
        finish_reissue(job.run(name))
    point_latest(job, latest_run(read_log(job)))


def keep_house(job: JobFolder, settings: NightlySettings) -> dict[str, Any]:
    """Publish what is released, purge what is not to be kept any longer: ``{"published", "purged"}``."""
    published = publish_released(job, settings.publish)
    purged = {}
    for name, what in due(job, settings.keep, datetime.datetime.now(datetime.UTC)).items():
        purged[name] = purge_run(job.run(name), what)["purged"]
    # what was written anew is mirrored again
    published += publish_released(job, settings.publish)
    write_metrics(job)
    return {"published": published, "purged": purged}


def settings_of(config: Given | None, own: Standing) -> NightlySettings | None:
    """The section ``nightly`` of ``config``, or of the file that a night was begun with; None without one."""
    given = config or (own.begun and own.begun.body.get("config"))
    if not given:
        return None
    try:
        return load_config(given).nightly
    except RedactoryError:
        if config is not None:
            raise
        # the file is gone, or is another by now: what is decided about a run does not hang on it
        return None

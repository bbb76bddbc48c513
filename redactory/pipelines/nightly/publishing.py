"""Released runs at a URL: which are not there yet, or not as they are now."""

from __future__ import annotations

from collections.abc import Iterable

from redactory.foundation.canonical import file_sha256
from redactory.foundation.records import Record
from redactory.pipelines.releases.log import Event, enter, read_log, standings
from redactory.pipelines.stores.publish import publish
from redactory.pipelines.stores.store import without_secrets
from redactory.redaction import is_finished
from redactory.redaction.job_folder import JobFolder

_WRITTEN = (Event.RELEASED, Event.HELD, Event.REISSUED)
"""The records that say which manifest a run has."""
_KEY_CHANGED = (Event.ROTATED, Event.SHREDDED)
"""After these the manifest is the same, but a mirror has the data key as it was before."""


def unpublished(records: Iterable[Record], url: str) -> list[str]:
    """The released runs that ``url`` has not, or has as before a takedown, a purge or another key."""
    kept = list(records)
    now = {r.body["run"]: r.body["manifest"] for r in kept if r.type in _WRITTEN}
    there: dict[str, str] = {}
    for record in kept:
        run = record.body["run"]
        if record.type == Event.EXPORTED and record.body.get("published") == _told(place_of(url, run)):
            there[run] = record.body["manifest"]
        elif record.type in _KEY_CHANGED:
            there.pop(run, None)
    released = [run for run, own in standings(kept).items() if own.state == "released"]
    return [run for run in released if there.get(run) != now.get(run)]


def publish_released(job: JobFolder, url: str | None) -> list[str]:
    """Mirror what :func:`unpublished` names; the runs that were.  Raises what ``publish`` raises."""
    done = []
    for name in [] if url is None else unpublished(read_log(job), url):
        run, place = job.run(name), place_of(url, name)
        if place is None or not is_finished(run):
            continue
        publish(run.root, place)
        enter(run, Event.EXPORTED, published=_told(place), manifest=file_sha256(run.manifest))
        done.append(name)
    return done


def _told(place: str | None) -> str | None:
    """As it stands in the log: a URL can have a password in it."""
    return None if place is None else without_secrets(place)


def place_of(url: str | None, run: str) -> str | None:
    """Where a run of that name is mirrored; None where nothing is."""
    return None if url is None else f"{url.rstrip('/')}/{run}"

"""Metrics: what the log and the last finished run say, for Prometheus' text-file collector.

Gauges of the last night, and counts over the whole log; no text, no ids.  The file is written anew after
each night, also after one that failed or found nothing new.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from redactory.foundation.files import PUBLIC_FILE, write_text
from redactory.foundation.records import Record
from redactory.pipelines.release_log import Event, read_log, standings
from redactory.redaction import is_finished, read_manifest
from redactory.redaction.folder import JobFolder

ENDS = (Event.RELEASED, Event.HELD, Event.FAILED)
FATES = ("public", "private", "duplicate", "quarantined")


def write_metrics(job: JobFolder) -> None:
    """Commit ``JOB/_job/metrics.prom``; ``CheckFailed`` where the log's chain is broken."""
    write_text(job.metrics, render(job, datetime.datetime.now(datetime.UTC)), PUBLIC_FILE)


def render(job: JobFolder, now: datetime.datetime) -> str:
    """The text of the file, in Prometheus' text format, as of ``now``."""
    records = read_log(job)
    told = CollectorRegistry(auto_describe=False)
    told.register(_Told(str(job.root.resolve()), [*_of_log(records, now), *_of_run(job, records)]))
    return generate_latest(told).decode()


Told = tuple[str, str, Sequence[tuple[Mapping[str, str], float]]]
"""A metric's name without the prefix, what it is, and its samples; a counter's ends in ``_total``."""


@dataclass(eq=False)
class _Told(Collector):
    """All metrics of the job in ``folder``: one machine may have several jobs."""

    folder: str
    metrics: Sequence[Told]

    def collect(self) -> Iterator[Metric]:
        for name, told, samples in self.metrics:
            kind = "counter" if name.endswith("_total") else "gauge"
            metric = Metric(f"redactory_{name.removesuffix('_total')}", told, kind)
            for labels, value in samples:
                # a folder's name, and a label in YAML, may hold what UTF-8 cannot
                own = {"folder": self.folder, **labels}.items()
                plain = {key: text.encode("utf-8", "backslashreplace").decode() for key, text in own}
                metric.add_sample(f"redactory_{name}", plain, value)
            yield metric


def _of_log(records: Sequence[Record], now: datetime.datetime) -> Iterator[Told]:
    ended = [record for record in records if record.type in ENDS]
    released = [n for n, r in enumerate(records) if r.type in (Event.RELEASED, Event.APPROVED)]
    yield _one("last_check_timestamp_seconds", "When a night last looked for new material.", now.timestamp())
    if ended:
        last = ended[-1]
        yield _one("last_night_timestamp_seconds", "When the last night ended.", _when(last))
        states = [({"state": end.value}, float(last.type == end)) for end in ENDS]
        yield ("last_night_state", "1 for the way in which the last night ended, else 0.", states)
        begun = [r for r in records[: last.seq] if (r.type, r.body["run"]) == (Event.BEGUN, last.body["run"])]
        if begun:
            took = _when(last) - _when(begun[-1])
            yield _one("last_night_duration_seconds", "From the last night's begin to its end.", took)
    if released:
        yield _one(
            "last_release_timestamp_seconds", "When a run was last released.", _when(records[released[-1]])
        )
    since = records[released[-1] + 1 :] if released else records
    count = sum(record.type in (Event.HELD, Event.FAILED) for record in since)
    yield _one("nights_since_release", "Nights that ended without a release since the last one.", count)
    states_now = Counter(one.state for one in standings(records).values())
    yield _one("held_runs", "Runs that wait for somebody to approve or reject them.", states_now["held"])
    ends = Counter(record.type for record in ended)
    total = [({"state": end.value}, float(ends[end.value])) for end in ENDS]
    yield ("nights_total", "Nights that ended, by how they did.", total)


def _of_run(job: JobFolder, records: Sequence[Record]) -> Iterator[Told]:
    """Of the run that was finished last; nothing where there is none, or its folder is gone."""
    finished = [r.body["run"] for r in records if r.type in (Event.RELEASED, Event.HELD)]
    if not finished or not is_finished(job.run(finished[-1])):
        return
    manifest = read_manifest(job.run(finished[-1]))
    counts, earlier = manifest["counts"], manifest["dedup"].get("index")
    repeated = sum(earlier["duplicate_earlier"].values()) if earlier else 0
    yield _one("rows", "Rows that the last finished run read.", counts["rows"])
    yield _one("documents", "Rows of it that became documents.", counts["documents"])
    yield ("points", "Points of it by fate.", _by("fate", {fate: counts[fate] for fate in FATES}))
    yield ("rejected_rows", "Rows of it that were rejected.", _by("reason", manifest["rejected"]))
    yield ("quarantined_points", "Points of it in quarantine.", _by("reason", manifest["quarantined"]))
    within = {"run": counts["duplicate"] - repeated, "earlier": repeated}
    yield ("duplicate_points", "Duplicates of the run itself and of earlier runs.", _by("of", within))
    hits = [
        ({name: hit[name] for name in ("label", "detector", "policy")}, float(hit["count"]))
        for hit in manifest["hits"]
    ]
    yield ("hits", "Hits of the policies, before overlapping ones are merged.", hits)
    yield _one("input_bytes", "Bytes that it read.", sum(entry["bytes"] for entry in manifest["inputs"]))
    yield _one("run_bytes", "Bytes of its files.", sum(e["bytes"] for e in manifest["files"].values()))
    yield _one("curation_duration_seconds", "Time of the curation.", manifest["seconds"])


def _one(name: str, told: str, value: float) -> Told:
    return name, told, [({}, value)]


def _by(label: str, counts: Mapping[str, int]) -> list[tuple[Mapping[str, str], float]]:
    return [({label: name}, float(count)) for name, count in sorted(counts.items())]


def _when(record: Record) -> float:
    return datetime.datetime.fromisoformat(record.body["time"]).timestamp()

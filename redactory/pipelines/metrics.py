"""Metrics: what the log and the last finished run say, for Prometheus' text-file collector.

Gauges of the last scheduled run, and counts over the whole log; no text, no ids.  The file is written anew
after each one, also after one that failed or found nothing new.
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
MEANINGS = {
    "last_check_timestamp_seconds": "When a scheduled run last looked for new material.",
    "last_night_timestamp_seconds": "When the last scheduled run ended.",
    "last_night_state": "1 for the way in which the last scheduled run ended, else 0.",
    "last_night_duration_seconds": "From the begin of the last scheduled run to its end.",
    "last_release_timestamp_seconds": "When a run was last released.",
    "nights_since_release": "Scheduled runs that ended without a release since the last one.",
    "held_runs": "Runs that wait for somebody to approve or reject them.",
    "nights_total": "Scheduled runs that ended, by how they did.",
    "rows": "Rows that the last finished run read.",
    "documents": "Rows of it that became documents.",
    "points": "Points of it by fate.",
    "rejected_rows": "Rows of it that were rejected.",
    "quarantined_points": "Points of it in quarantine.",
    "duplicate_points": "Duplicates of the run itself and of earlier runs.",
    "hits": "Hits of the policies, before overlapping ones are merged.",
    "input_bytes": "Bytes that it read.",
    "run_bytes": "Bytes of its files.",
    "curation_duration_seconds": "Time of the curation.",
}
Samples = float | Sequence[tuple[Mapping[str, str], float]]
"""A value, or one for each of several labels."""


def write_metrics(job: JobFolder) -> None:
    """Commit ``JOB/_job/metrics.prom``; ``CheckFailed`` where the log's chain is broken."""
    write_text(job.metrics, render(job, datetime.datetime.now(datetime.UTC)), PUBLIC_FILE)


def render(job: JobFolder, now: datetime.datetime) -> str:
    """The text of the file, in Prometheus' text format, as of ``now``."""
    records, registry = read_log(job), CollectorRegistry(auto_describe=False)
    values = {**dict(_of_log(records, now)), **dict(_of_run(job, records))}
    registry.register(_Job(str(job.root.resolve()), values))
    return generate_latest(registry).decode()


@dataclass(eq=False)
class _Job(Collector):
    """All metrics of the job in ``folder``: one machine may have several jobs."""

    folder: str
    values: Mapping[str, Samples]

    def collect(self) -> Iterator[Metric]:
        for name, samples in self.values.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            metric = Metric(f"redactory_{name.removesuffix('_total')}", MEANINGS[name], kind)
            for labels, value in samples if isinstance(samples, Sequence) else [({}, samples)]:
                # a folder's name, and a label in YAML, may hold what UTF-8 cannot
                own = {"folder": self.folder, **labels}.items()
                plain = {key: text.encode("utf-8", "backslashreplace").decode() for key, text in own}
                metric.add_sample(f"redactory_{name}", plain, value)
            yield metric


def _of_log(records: Sequence[Record], now: datetime.datetime) -> Iterator[tuple[str, Samples]]:
    ended = [record for record in records if record.type in ENDS]
    released = [n for n, r in enumerate(records) if r.type in (Event.RELEASED, Event.APPROVED)]
    yield "last_check_timestamp_seconds", now.timestamp()
    if ended:
        last = ended[-1]
        yield "last_night_timestamp_seconds", _when(last)
        yield "last_night_state", [({"state": end.value}, float(last.type == end)) for end in ENDS]
        begun = [r for r in records[: last.seq] if (r.type, r.body["run"]) == (Event.BEGUN, last.body["run"])]
        if begun:
            yield "last_night_duration_seconds", _when(last) - _when(begun[-1])
    if released:
        yield "last_release_timestamp_seconds", _when(records[released[-1]])
    since = records[released[-1] + 1 :] if released else records
    yield "nights_since_release", sum(record.type in (Event.HELD, Event.FAILED) for record in since)
    yield "held_runs", sum(one.state == "held" for one in standings(records).values())
    ends = Counter(record.type for record in ended)
    yield "nights_total", [({"state": end.value}, float(ends[end.value])) for end in ENDS]


def _of_run(job: JobFolder, records: Sequence[Record]) -> Iterator[tuple[str, Samples]]:
    """Of the run that was finished last; nothing where there is none, or its folder is gone."""
    finished = [r.body["run"] for r in records if r.type in (Event.RELEASED, Event.HELD)]
    if not finished or not is_finished(job.run(finished[-1])):
        return
    manifest = read_manifest(job.run(finished[-1]))
    counts, index = manifest["counts"], manifest["dedup"].get("index")
    repeated = sum(index["duplicate_earlier"].values()) if index else 0
    names = ("label", "detector", "policy")
    yield "rows", counts["rows"]
    yield "documents", counts["documents"]
    yield "points", _by("fate", {fate: counts[fate] for fate in FATES})
    yield "rejected_rows", _by("reason", manifest["rejected"])
    yield "quarantined_points", _by("reason", manifest["quarantined"])
    yield "duplicate_points", _by("of", {"run": counts["duplicate"] - repeated, "earlier": repeated})
    yield "hits", [({n: hit[n] for n in names}, float(hit["count"])) for hit in manifest["hits"]]
    yield "input_bytes", sum(entry["bytes"] for entry in manifest["inputs"])
    yield "run_bytes", sum(entry["bytes"] for entry in manifest["files"].values())
    yield "curation_duration_seconds", manifest["seconds"]


def _by(label: str, counts: Mapping[str, int]) -> list[tuple[Mapping[str, str], float]]:
    return [({label: name}, float(count)) for name, count in sorted(counts.items())]


def _when(record: Record) -> float:
    return datetime.datetime.fromisoformat(record.body["time"]).timestamp()

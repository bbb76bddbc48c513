"""Metrics: what the log and the last finished run say, for Prometheus' text-file collector.

Gauges of the last night, and counts over the whole log; no text, no ids.  The file is written anew after
each night, also after one that failed or found nothing new.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from redactory.foundation.files import PUBLIC_FILE, write_text
from redactory.foundation.records import Record
from redactory.pipelines.releases.log import Event, read_log, standings
from redactory.redaction import is_finished, read_manifest
from redactory.redaction.job_folder import JobFolder

ENDS = (Event.RELEASED, Event.HELD, Event.FAILED)
FATES = ("public", "private", "duplicate", "quarantined")


@dataclass(frozen=True)
class Metric:
    """One metric: its name without the prefix, what it is, its type, and its samples."""

    name: str
    help: str
    samples: Sequence[tuple[Mapping[str, str], float]]
    type: str = "gauge"


def write_metrics(job: JobFolder) -> None:
    """Commit ``JOB/_job/metrics.prom``; ``CheckFailed`` where the log's chain is broken."""
    write_text(job.metrics, render(job, datetime.datetime.now(datetime.UTC)), PUBLIC_FILE)


def render(job: JobFolder, now: datetime.datetime) -> str:
    """The text of the file, in Prometheus' text format, as of ``now``."""
    records = read_log(job)
    metrics = [*_of_log(records, now), *_of_run(job, records)]
    folder = str(job.root.resolve())
    return "".join(line for metric in metrics for line in _lines(metric, folder))


def _of_log(records: Sequence[Record], now: datetime.datetime) -> Iterator[Metric]:
    ended = [record for record in records if record.type in ENDS]
    released = [n for n, r in enumerate(records) if r.type in (Event.RELEASED, Event.APPROVED)]
    yield _one("last_check_timestamp_seconds", "When a night last looked for new material.", now.timestamp())
    if ended:
        last = ended[-1]
        yield _one("last_night_timestamp_seconds", "When the last night ended.", _when(last))
        states = [({"state": end.value}, float(last.type == end)) for end in ENDS]
        yield Metric("last_night_state", "1 for the way in which the last night ended, else 0.", states)
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
    yield Metric(
        "nights_total",
        "Nights that ended, by how they did.",
        [({"state": end.value}, ends[end.value]) for end in ENDS],
        "counter",
    )


def _of_run(job: JobFolder, records: Sequence[Record]) -> Iterator[Metric]:
    """Of the run that was finished last; nothing where there is none, or its folder is gone."""
    finished = [r.body["run"] for r in records if r.type in (Event.RELEASED, Event.HELD)]
    if not finished or not is_finished(job.run(finished[-1])):
        return
    manifest = read_manifest(job.run(finished[-1]))
    counts, earlier = manifest["counts"], manifest["dedup"].get("index")
    repeated = sum(earlier["duplicate_earlier"].values()) if earlier else 0
    yield _one("rows", "Rows that the last finished run read.", counts["rows"])
    yield _one("documents", "Rows of it that became documents.", counts["documents"])
    yield Metric("points", "Points of it by fate.", _by("fate", {fate: counts[fate] for fate in FATES}))
    yield Metric("rejected_rows", "Rows of it that were rejected.", _by("reason", manifest["rejected"]))
    yield Metric("quarantined_points", "Points of it in quarantine.", _by("reason", manifest["quarantined"]))
    within = {"run": counts["duplicate"] - repeated, "earlier": repeated}
    yield Metric("duplicate_points", "Duplicates of the run itself and of earlier runs.", _by("of", within))
    hits = [
        ({name: hit[name] for name in ("label", "detector", "policy")}, float(hit["count"]))
        for hit in manifest["hits"]
    ]
    yield Metric("hits", "Hits of the policies, before overlapping ones are merged.", hits)
    yield _one("input_bytes", "Bytes that it read.", sum(entry["bytes"] for entry in manifest["inputs"]))
    yield _one("run_bytes", "Bytes of its files.", sum(e["bytes"] for e in manifest["files"].values()))
    yield _one("curation_duration_seconds", "Time of the curation.", manifest["seconds"])


def _one(name: str, told: str, value: float) -> Metric:
    return Metric(name, told, [({}, value)])


def _by(label: str, counts: Mapping[str, int]) -> list[tuple[Mapping[str, str], float]]:
    return [({label: name}, float(count)) for name, count in sorted(counts.items())]


def _when(record: Record) -> float:
    return datetime.datetime.fromisoformat(record.body["time"]).timestamp()


def _lines(metric: Metric, folder: str) -> Iterable[str]:
    name = f"redactory_{metric.name}"
    yield f"# HELP {name} {metric.help}\n# TYPE {name} {metric.type}\n"
    for labels, value in metric.samples:
        # one machine may have several jobs
        told = {"folder": folder, **labels}
        inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in told.items())
        yield f"{name}{{{inside}}} {float(value)!r}\n"


def _escaped(text: str) -> str:
    # a file's name may hold what UTF-8 cannot
    text = text.encode("utf-8", "backslashreplace").decode()
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

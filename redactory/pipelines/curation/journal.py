"""The journal of a run: its identity and its completed parts; and the differences between two identities."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from redactory.foundation.canonical import canonical_json, flatten_keys
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.keys import KEY_VARIABLE
from redactory.foundation.progress import StageReport
from redactory.foundation.records import RecordLog
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.stage_context import StageMap, Task
from redactory.pipelines.readers import Source, find_sources
from redactory.redaction import RunFolder, read_manifest

MAX_LISTED_DIFFERENCES = 8
"""Maximum differences in a message: a changed model would fill a page with its consequences."""
PART, FILES = "part", "files"
IDENTITY, INDEX, SELECTION, STAGE = "run", "index", "selection", "stage"
"""What holds for a whole run: its identity, the earlier runs that it uses of an index, the settings of the selection by
counts, and the report of ingest with the number of partitions."""
REISSUE = "reissue"
"""Precedes the ``FILES`` of a reissued run: its ``release``, and the manifest that it ``supersedes``."""


class RunMismatchError(RunStateError):
    """The run in the folder has another configuration or input than the requested one."""


def describe_difference(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Name the first part, with keys or files, in which two identities of runs differ; None if equal."""
    # the input last: its digests depend on the key
    for part in sorted({**now, **earlier}, key=lambda part: part == "input"):
        old, new = earlier.get(part), now.get(part)
        if old == new:
            continue
        differences: list[str] = []
        if isinstance(old, list) and isinstance(new, list):
            old_items, new_items = ({entry["path"]: entry for entry in entries} for entries in (old, new))
            differences = [f"{path} is missing" for path in old_items if path not in new_items]
            differences += [f"{path} is new" for path in new_items if path not in old_items]
            differences += [
                f"{path} has changed" for path in new_items if path in old_items and old_items[path] != new_items[path]
            ]
            differences = differences or ["the order of the files changed"]
        elif isinstance(old, Mapping) and isinstance(new, Mapping):
            old_items, new_items = flatten_keys(old), flatten_keys(new)
            differences = [key for key in sorted({*old_items, *new_items}) if old_items.get(key) != new_items.get(key)]
        rest = [f"and {len(differences) - MAX_LISTED_DIFFERENCES} more"] * (len(differences) > MAX_LISTED_DIFFERENCES)
        return f"{part} ({', '.join([*differences[:MAX_LISTED_DIFFERENCES], *rest])})" if differences else part
    return None


class RunJournal:
    """The only writer of ``state/journal.jsonl``.

    Written records are not kept in memory, so memory does not grow with the number of parts; the reports of an
    interrupted run are kept until they are used.
    """

    def __init__(self, log: RecordLog) -> None:
        self._log = log
        self._reports: dict[tuple[str, int], StageReport] = {}
        self.constants: dict[str, dict[str, Any]] = {}
        """What this process or the interrupted one decided once for the run (:meth:`record_constant`), by kind."""
        for record in log.records:
            if record.type == PART:
                key = record.body["stage"], record.body["number"]
                self._reports[key] = StageReport.from_json(record.body["report"])
            elif record.type in (IDENTITY, INDEX, SELECTION, STAGE):
                self.constants[record.type] = record.body
        log.records.clear()

    def record_or_check_identity(self, identity: dict[str, Any]) -> None:
        """Write the run's identity, or compare it with the journal's; ``RunStateError`` names the difference."""
        if (recorded := self.constants.get(IDENTITY)) is None:
            self.record_constant(IDENTITY, identity)
            return
        difference = describe_difference(recorded, json.loads(canonical_json(identity)))
        if difference is not None:
            same = f"the same ({KEY_VARIABLE})" if difference == "key" else "the same"
            raise RunMismatchError(
                f"this run was started with another {difference}; resume it with {same}, or start a new run in "
                "another folder"
            )

    def run_stage(self, name: str, task: Task, numbers: Sequence[int], stage_map: StageMap) -> Iterator[StageReport]:
        """Yield the report of each part of a stage, from the journal if it is done, else by running it."""
        missing = [number for number in numbers if (name, number) not in self._reports]
        yield from (self._reports.pop((name, number)) for number in numbers if (name, number) in self._reports)
        for number, report in stage_map(task, missing):
            self.record_part(name, number, report)
            yield report

    def record_part(self, name: str, number: int, report: StageReport) -> None:
        """Record that a part is committed."""
        self._append_record(PART, {"stage": name, "number": number, "report": report.to_json()})

    def record_constant(self, kind: str, body: dict[str, Any]) -> None:
        """Record, once and before it is used, what holds for the whole run."""
        self._append_record(kind, body)
        self.constants[kind] = body

    def record_file_digests(self, digests: dict[str, str]) -> None:
        """Record the sha256 of every data file, of ledger and shards, in one record of the chain."""
        last = self._log.last_record
        if last is None or (last.type, last.body) != (FILES, digests):
            self._append_record(FILES, digests)

    def _append_record(self, kind: str, body: dict[str, Any]) -> None:
        self._log.append(kind, body)
        self._log.records.clear()


def check_same_run(run: RunFolder, config: Config, sources: list[Source] | None = None) -> None:
    """Raise ``RunStateError`` if the finished ``run`` has another configuration or input.

    Files (``sources``, or those of ``input.path``) are compared by name and size; missing ones are no longer needed.
    """
    manifest, recorded_identity, current_inputs = read_manifest(run), dict[str, Any](), list[dict[str, Any]]()
    # settings of another version count as another configuration
    with suppress(RunStateError):
        recorded_identity = Config.from_manifest(manifest["configuration"]).select_curation_settings()
    if sources is None:
        with suppress(ConfigurationError):
            sources = find_sources(config.input.path, config.input.format)
    for source in sources or ():
        with suppress(FileNotFoundError):
            current_inputs.append({"path": source.name, "bytes": source.size()})
    names = {entry["path"] for entry in current_inputs}
    recorded_inputs = [{k: e[k] for k in ("path", "bytes")} for e in manifest["inputs"] if e["path"] in names]
    difference = describe_difference(
        {"configuration": recorded_identity, "input": recorded_inputs},
        {"configuration": config.select_curation_settings(), "input": current_inputs},
    )
    if difference is not None:
        raise RunMismatchError(
            f"{run.root} holds a finished run with another {difference}: give another output folder, or repeat "
            "the original settings"
        )

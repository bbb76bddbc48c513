"""The journal of a run: what it is a run of, and which parts are done."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from redactory.foundation.canonical import canonical_json
from redactory.foundation.errors import RunStateError
from redactory.foundation.records import RecordLog
from redactory.foundation.reports import StageReport
from redactory.pipelines.differences import difference
from redactory.pipelines.maps import StageMap, Task

HEAD, PART, STAGE, FILES, INDEX = "run", "part", "stage", "files", "index"


class Journal:
    """The one writer of ``state/journal.jsonl``."""

    def __init__(self, log: RecordLog) -> None:
        self._log = log
        self._done: dict[tuple[str, int], StageReport] = {}
        self._complete: dict[str, int] = {}
        self.pinned: dict[str, Any] | None = None
        """What :meth:`pin` was given, by this process or by the one that was interrupted."""
        for record in log.records:
            if record.type == PART:
                key = record.body["stage"], record.body["number"]
                self._done[key] = StageReport.from_json(record.body["report"])
            elif record.type == STAGE:
                self._complete[record.body["stage"]] = record.body["parts"]
            elif record.type == INDEX:
                self.pinned = record.body

    def begin(self, identity: dict[str, Any]) -> None:
        """Write what this is a run of, or check that the journal is of the same.

        ``RunStateError`` names what differs: the keys of the configuration, or the files of the input.
        """
        if not self._log.records:
            self._log.append(HEAD, identity)
            return
        differs = difference(self._log.records[0].body, json.loads(canonical_json(identity)))
        if differs is not None:
            raise RunStateError(
                f"this run was begun with another {differs}; resume it with the same, "
                "or start a new run in another folder"
            )

    def stage(
        self, name: str, task: Task, numbers: Sequence[int], stage_map: StageMap
    ) -> Iterator[StageReport]:
        """The report of each part of a stage: from the journal where it is done, else from running it."""
        missing = [number for number in numbers if (name, number) not in self._done]
        yield from (self._done[name, number] for number in numbers if (name, number) in self._done)
        for number, report in stage_map(task, missing):
            self.record(name, number, report)
            yield report

    def record(self, name: str, number: int, report: StageReport) -> None:
        """Note that a part is committed."""
        self._done[name, number] = report
        self._log.append(PART, {"stage": name, "number": number, "report": report.to_json()})

    def complete(self, name: str, parts: int) -> None:
        """Note that a stage whose parts are not known beforehand has come to its end, and how many it has.

        An attempt before this one may have left more of them, made of an input that had changed.
        """
        self._complete[name] = parts
        self._log.append(STAGE, {"stage": name, "parts": parts})

    def pin(self, body: dict[str, Any]) -> None:
        """Write down, once, which earlier runs of an index this run goes by."""
        self._log.append(INDEX, body)
        self.pinned = body

    @property
    def begun(self) -> bool:
        """Whether the journal says already what it is a run of."""
        return bool(self._log.records)

    def bind(self, digests: dict[str, str]) -> None:
        """Write the sha256 of every data file, ledger and shards in one record of the chain."""
        last = self._log.records[-1]
        if (last.type, last.body) != (FILES, digests):
            self._log.append(FILES, digests)

    def reports(self, name: str) -> list[StageReport] | None:
        """The reports of a completed stage, else None."""
        if name not in self._complete:
            return None
        return [self._done[name, number] for number in range(self._complete[name])]

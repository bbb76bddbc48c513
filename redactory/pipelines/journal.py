"""The journal of a run: what it is a run of, and which parts are done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from redactory.foundation.errors import RunStateError
from redactory.foundation.records import RecordLog
from redactory.foundation.reports import StageReport
from redactory.pipelines.maps import StageMap, Task

HEAD, PART, STAGE = "run", "part", "stage"


class Journal:
    """The one writer of ``state/journal.jsonl``; holding it open is holding the run's lock."""

    def __init__(self, log: RecordLog) -> None:
        self._log = log
        self._done: dict[tuple[str, int], StageReport] = {}
        self._complete: set[str] = set()
        for record in log.records:
            if record.type == PART:
                key = record.body["stage"], record.body["number"]
                self._done[key] = StageReport.from_json(record.body["report"])
            elif record.type == STAGE:
                self._complete.add(record.body["stage"])

    def begin(self, identity: dict[str, Any]) -> None:
        """Write what this is a run of, or check that the journal is of the same.

        ``RunStateError`` names the first difference.
        """
        if not self._log.records:
            self._log.append(HEAD, identity)
            return
        earlier = self._log.records[0].body
        for key in sorted({*earlier, *identity}):
            if earlier.get(key) != identity.get(key):
                raise RunStateError(
                    f"this run was begun with another {key.replace('_', ' ')}; resume it with the same one, "
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

    def complete(self, name: str) -> None:
        """Note that a stage whose parts are not known beforehand has come to its end."""
        self._complete.add(name)
        self._log.append(STAGE, {"stage": name})

    def reports(self, name: str) -> list[StageReport] | None:
        """The reports of a completed stage, else None."""
        if name not in self._complete:
            return None
        return [report for (stage, _), report in sorted(self._done.items()) if stage == name]

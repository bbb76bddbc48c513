"""The journal of a run: what it is a run of, and which parts are done; and how two runs differ in that."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from redactory.foundation.canonical import canonical_json, flat
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.keys import KEY_VARIABLE
from redactory.foundation.progress import StageReport
from redactory.foundation.records import RecordLog
from redactory.pipelines.config import Config
from redactory.pipelines.readers import Source, find_sources
from redactory.pipelines.work import StageMap, Task
from redactory.redaction import RunFolder, read_manifest

NAMED = 8
"""Differences that a message lists; a changed model would fill a page with what follows from it."""
HEAD, PART, STAGE, FILES, INDEX, SELECTION = "run", "part", "stage", "files", "index", "selection"
REISSUE = "reissue"
"""Before the ``FILES`` of a run written anew: its ``release``, and the manifest that it ``supersedes``."""


class AnotherRun(RunStateError):
    """What lies in the run folder was begun, or made, of something else than what is asked for now."""


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first part in which two identities (``Journal.begin``) differ, and what differs in it; or None.

    By the names of keys and files, without values.
    """
    # the input last: its digests follow from the key
    for part in sorted({**now, **before}, key=lambda part: part == "input"):
        old, new = before.get(part), now.get(part)
        if old == new:
            continue
        found: list[str] = []
        if isinstance(old, list) and isinstance(new, list):
            was, is_ = ({entry["path"]: entry for entry in entries} for entries in (old, new))
            found = [f"{path} is missing" for path in was if path not in is_]
            found += [f"{path} is new" for path in is_ if path not in was]
            found += [f"{path} has changed" for path in is_ if path in was and was[path] != is_[path]]
            found = found or ["the order of the files changed"]
        elif isinstance(old, Mapping) and isinstance(new, Mapping):
            was, is_ = flat(old), flat(new)
            found = [key for key in sorted({*was, *is_}) if was.get(key) != is_.get(key)]
        more = [f"and {len(found) - NAMED} more"] if len(found) > NAMED else []
        return f"{part} ({', '.join([*found[:NAMED], *more])})" if found else part
    return None


class Journal:
    """The one writer of ``state/journal.jsonl``.

    What it writes it does not hold, so that a run of any number of parts takes the same memory; only what an
    interrupted run left is held until it is asked for.
    """

    def __init__(self, log: RecordLog) -> None:
        self._log = log
        self._done: dict[tuple[str, int], StageReport] = {}
        self._complete: dict[str, int] = {}
        self.pinned: dict[str, Any] | None = None
        """What :meth:`pin` was given, by this process or by the one that was interrupted."""
        self.selected: dict[str, Any] | None = None
        """The same of :meth:`select`."""
        self._head = log.records[0].body if log.records else None
        self._last = log.records[-1] if log.records else None
        for record in log.records:
            if record.type == PART:
                key = record.body["stage"], record.body["number"]
                self._done[key] = StageReport.from_json(record.body["report"])
            elif record.type == STAGE:
                self._complete[record.body["stage"]] = record.body["parts"]
            elif record.type == INDEX:
                self.pinned = record.body
            elif record.type == SELECTION:
                self.selected = record.body
        log.forget()

    @property
    def begun(self) -> bool:
        """Whether the journal says already what it is a run of."""
        return self._head is not None

    def begin(self, identity: dict[str, Any]) -> None:
        """Write what this is a run of, or check that the journal is of the same.

        ``RunStateError`` names what differs: the keys of the configuration, or the files of the input.
        """
        if self._head is None:
            self._head = identity
            self._append(HEAD, identity)
            return
        differs = difference(self._head, json.loads(canonical_json(identity)))
        if differs is not None:
            same = f"the same ({KEY_VARIABLE})" if differs == "key" else "the same"
            raise AnotherRun(
                f"this run was started with another {differs}; resume it with {same}, or start a new run in "
                "another folder"
            )

    def stage(self, name: str, task: Task, numbers: Sequence[int], stage_map: StageMap) -> Iterator[StageReport]:
        """The report of each part of a stage: from the journal where it is done, else from running it."""
        missing = [number for number in numbers if (name, number) not in self._done]
        yield from (self._done.pop((name, number)) for number in numbers if (name, number) in self._done)
        for number, report in stage_map(task, missing):
            self.record(name, number, report)
            yield report

    def record(self, name: str, number: int, report: StageReport) -> None:
        """Note that a part is committed."""
        self._append(PART, {"stage": name, "number": number, "report": report.to_json()})

    def complete(self, name: str, parts: int) -> None:
        """Note that a stage whose parts are not known beforehand has come to its end, and how many it has.

        An attempt before this one may have left more of them, made of an input that had changed.
        """
        self._complete[name] = parts
        self._append(STAGE, {"stage": name, "parts": parts})

    def parts(self, name: str) -> int | None:
        """How many parts a stage has that :meth:`complete` noted, else None."""
        return self._complete.get(name)

    def reports(self, name: str) -> Iterator[StageReport]:
        """The reports, in order and once, of a stage that an interrupted run had completed."""
        return (self._done.pop((name, number)) for number in range(self._complete[name]))

    def pin(self, body: dict[str, Any]) -> None:
        """Write down, once, which earlier runs of an index this run goes by."""
        self._append(INDEX, body)
        self.pinned = body

    def select(self, body: dict[str, Any]) -> None:
        """Write down, once and before the first count, by what constants counts decide what is public."""
        self._append(SELECTION, body)
        self.selected = body

    def bind(self, digests: dict[str, str]) -> None:
        """Write the sha256 of every data file, ledger and shards in one record of the chain."""
        if self._last is None or (self._last.type, self._last.body) != (FILES, digests):
            self._append(FILES, digests)

    def _append(self, kind: str, body: dict[str, Any]) -> None:
        self._last = self._log.append(kind, body)
        self._log.forget()


def check_made_of(run: RunFolder, config: Config, sources: list[Source] | None = None) -> None:
    """``RunStateError`` where the finished ``run`` was made by another configuration, or of other files.

    Files (``sources``, or what is found at ``input.path``) are compared by name and size; one that is gone
    by now does not matter, for a finished run needs its input no more.
    """
    manifest, made, now = read_manifest(run), dict[str, Any](), list[dict[str, Any]]()
    # by a version that had other settings, it is of another configuration
    with suppress(RunStateError):
        made = Config.read_back(manifest["configuration"]).curation()
    if sources is None:
        with suppress(ConfigurationError):
            sources = find_sources(config.input.path, config.input.format)
    for source in sources or ():
        with suppress(FileNotFoundError):
            now.append({"path": source.name, "bytes": source.size()})
    names = {entry["path"] for entry in now}
    before = [{k: e[k] for k in ("path", "bytes")} for e in manifest["inputs"] if e["path"] in names]
    differs = difference({"configuration": made, "input": before}, {"configuration": config.curation(), "input": now})
    if differs is not None:
        raise AnotherRun(
            f"{run.root} holds a finished run with another {differs}: give another output folder, or repeat "
            "the original settings"
        )

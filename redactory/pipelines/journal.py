"""How two runs differ in what their shards follow from: by the names of keys and files, without values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from redactory.foundation.canonical import canonical_json
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.keys import KEY_VARIABLE
from redactory.foundation.progress import StageReport
from redactory.foundation.records import RecordLog
from redactory.pipelines.config import Config
from redactory.pipelines.maps import StageMap, Task
from redactory.pipelines.readers import InputSettings, Source, find_sources
from redactory.redaction import RunFolder, read_manifest

NAMED = 8
"""Differences that a message lists; a changed model would fill a page with what follows from it."""


class AnotherRun(RunStateError):
    """What lies in the run folder was begun, or made, of something else than what is asked for now."""


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first part in which two identities (``Journal.begin``) differ, and what differs in it; or None."""
    # the input last: its digests follow from the key
    for part in sorted({**now, **before}, key=lambda part: part == "input"):
        old, new = before.get(part), now.get(part)
        if old == new:
            continue
        found = list(_files(old, new) if isinstance(old, list) and isinstance(new, list) else _keys(old, new))
        more = [f"and {len(found) - NAMED} more"] if len(found) > NAMED else []
        return f"{part} ({', '.join([*found[:NAMED], *more])})" if found else part
    return None


def _keys(old: Any, new: Any, key: str = "") -> Iterator[str]:
    """The paths of the settings that differ."""
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        if key and old != new:
            yield key
        return
    for name in sorted({*old, *new}):
        yield from _keys(old.get(name), new.get(name), f"{key}.{name}" if key else name)


def _files(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> Iterator[str]:
    """Which files of the input differ, and how."""
    before, now = ({entry["path"]: entry for entry in entries} for entries in (old, new))
    yield from (f"{path} is missing" for path in before if path not in now)
    yield from (f"{path} is new" for path in now if path not in before)
    yield from (f"{path} has changed" for path in now if path in before and before[path] != now[path])
    if before == now:
        yield "the files come in another order"


# The journal of a run: what it is a run of, and which parts are done.


HEAD, PART, STAGE, FILES, INDEX = "run", "part", "stage", "files", "index"
REISSUE = "reissue"
"""Before the ``FILES`` of a run written anew: its ``release``, and the manifest that it ``supersedes``."""


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
        log.forget()

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
                f"this run was begun with another {differs}; resume it with {same}, "
                "or start a new run in another folder"
            )

    def stage(
        self, name: str, task: Task, numbers: Sequence[int], stage_map: StageMap
    ) -> Iterator[StageReport]:
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

    def pin(self, body: dict[str, Any]) -> None:
        """Write down, once, which earlier runs of an index this run goes by."""
        self._append(INDEX, body)
        self.pinned = body

    @property
    def begun(self) -> bool:
        """Whether the journal says already what it is a run of."""
        return self._head is not None

    def bind(self, digests: dict[str, str]) -> None:
        """Write the sha256 of every data file, ledger and shards in one record of the chain."""
        if self._last is None or (self._last.type, self._last.body) != (FILES, digests):
            self._append(FILES, digests)

    def parts(self, name: str) -> int | None:
        """How many parts a stage that :meth:`complete` was told of has, else None."""
        return self._complete.get(name)

    def reports(self, name: str) -> Iterator[StageReport]:
        """The reports, in order and once, of a stage that an interrupted run had completed."""
        return (self._done.pop((name, number)) for number in range(self._complete[name]))

    def _append(self, kind: str, body: dict[str, Any]) -> None:
        self._last = self._log.append(kind, body)
        self._log.forget()


# A finished run that is asked for again: it stands for what it was made of, and for nothing else.


def check_made_of(run: RunFolder, config: Config, sources: list[Source] | None = None) -> None:
    """``RunStateError`` where the finished ``run`` was made by another configuration, or of other files.

    Files (``sources``, or what is found at ``input.path``) are compared by name and size; one that is gone
    by now does not matter.
    """
    manifest = read_manifest(run)
    now = _sizes(_found(config.input) if sources is None else sources)
    names = {entry["path"] for entry in now}
    before = [{k: e[k] for k in ("path", "bytes")} for e in manifest["inputs"] if e["path"] in names]
    differs = difference(
        {"configuration": _curation(manifest), "input": before},
        {"configuration": config.curation(), "input": now},
    )
    if differs is not None:
        raise AnotherRun(
            f"{run.root} holds a finished run of another {differs}: give another output folder, "
            "or ask for it as it was made"
        )


def _curation(manifest: dict[str, Any]) -> dict[str, Any]:
    try:
        return Config.read_back(manifest["configuration"]).curation()
    except ValidationError:
        # made by a version that had other settings
        return {}


def _found(settings: InputSettings) -> list[Source]:
    try:
        return find_sources(settings.path, settings.format)
    except ConfigurationError:
        # a finished run needs its input no more
        return []


def _sizes(sources: list[Source]) -> list[dict[str, Any]]:
    sizes = []
    for source in sources:
        with suppress(FileNotFoundError):
            sizes.append({"path": source.name, "bytes": source.size()})
    return sizes

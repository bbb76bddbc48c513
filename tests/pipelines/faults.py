"""Runs in processes of their own that are killed, or whose disk fails, at a named moment.

The faults are put in at the operating system's calls, below ``foundation.files.commit`` and the journal;
the product knows nothing of them.  A moment is the first commit of a file of that name, with ``#`` for its
number, or the first journal record of that kind.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import re
import resource
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from types import ModuleType
from typing import Any

from redactory.foundation.errors import RedactoryError
from redactory.foundation.files import TEMPORARY_PREFIX
from redactory.pipelines.curation.curate import curate
from redactory.redaction import RunFolder
from tests.pipelines.support import ALLOW_UNCOVERED, NO_ENGINES, DigitDetector, read_data_bytes, write_rows

CONFIG: dict[str, Any] = {
    "segment": {"mode": "line"},
    "partition": {"documents": 9},
    "detect": NO_ENGINES,
    "release": ALLOW_UNCOVERED,
}
KILLED, REFUSED = -signal.SIGKILL, 3
FEW = 2
"""Hash ranges."""
KINDS = ("torn", "before", "after", "full", "denied")
"""Killed amid a write, before its rename, after it; a disk that fills up; a folder closed to writing."""
_ERRORS = {"full": errno.ENOSPC, "denied": errno.EACCES}
_TEMPORARY = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}\d+-")
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(
    [__name__, "redactory.evaluation.report", "pyarrow.parquet", "pandas", "datasketch", "fsspec.implementations.local"]
)


@dataclass(frozen=True)
class Fault:
    """One of ``KINDS`` at a moment; of the kind ``none``, ``moment`` is a file that is told of each."""

    kind: str
    moment: str


def rows_file(path: Path) -> Path:
    """25 rows: repeated texts, texts that a detector fails on, an id twice, bad rows."""
    texts = ["hello there\nmy number is {n}", "call {n} now\nhello there", "meet Anna {n}\nbye", "broken {n}"]
    rows = [
        {"id": f"d{i}", "user_id": f"u{i % 3}", "text": texts[i % 4].format(n=1000 + i), "lang": "ab"[i % 2]}
        for i in range(22)
    ]
    write_rows(path, [*rows, {"id": "d1", "text": "again"}])
    with path.open("ab") as file:
        file.write(b'{"text": 1}\nnot json\n')
    return path


def asked_of(rows: Path) -> dict[str, Any]:
    """The configuration that :func:`start` curates ``rows`` by."""
    if not (rows.is_file() and b'"lang"' in rows.read_bytes()):
        return {**CONFIG, "input": str(rows)}
    return {**CONFIG, "input": {"path": str(rows), "metadata_columns": ["lang"], "emit_document_order": True}}


def start(rows: Path, run: Path, fault: Fault | None = None, **settings: Any) -> Any:
    """A process, forked from a clean one, that curates ``rows`` into ``run`` with ``--resume``.

    ``settings`` go to ``curate``, but ``largest_file``: the bytes of a file that the disk takes.
    """
    run.parent.mkdir(parents=True, exist_ok=True)
    process = _FORKED.Process(target=_curate, args=(rows, run, fault, settings))
    process.start()
    return process


def outcome(process: Any) -> int:
    """The exit code of a process that :func:`start` gave; negative for a signal."""
    process.join()
    code = int(process.exitcode)
    process.close()
    return code


def curated(rows: Path, run: Path, fault: Fault | None = None, **settings: Any) -> int:
    """:func:`start` and :func:`outcome`."""
    return outcome(start(rows, run, fault, **settings))


def said(run: Path) -> str:
    """With what error the last process that did not finish ``run`` ended."""
    return (run.parent / "error").read_text(encoding="utf-8")


def moments(rows: Path, run: Path) -> list[str]:
    """Every moment of an undisturbed run, in order."""
    seen = run.parent / "moments"
    assert curated(rows, run, Fault("none", str(seen))) == 0
    return list(dict.fromkeys(seen.read_text(encoding="utf-8").splitlines()))


def state_of(run: Path) -> dict[str, Any]:
    """What must be equal of two runs: the data files' bytes, every count, the names of all files."""
    assert (run / "_SUCCESS").is_file()
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    kept = ("counts", "rejected", "quarantined", "reasons", "spans", "masks", "inputs", "dedup", "files")
    return {
        "data": read_data_bytes(run),
        "names": sorted(p.relative_to(run).as_posix() for p in run.rglob("*") if "traceback" not in p.name),
        **{key: manifest[key] for key in kept},
        "stages": [(stage["stage"], stage["counts"]) for stage in manifest["stages"]],
    }


def survives(rows: Path, run: Path, faults: Iterable[Fault], undisturbed: dict[str, Any]) -> int:
    """Fail ``run`` once at each of the faults, resuming it each time; then finish it, and compare.

    How often it failed.  In between, no part is ever seen that is not whole, and no error quotes a text.
    """
    failures = 0
    for fault in faults:
        code = curated(rows, run, fault)
        if fault.kind in _ERRORS:
            assert code == REFUSED, fault
            assert os.strerror(_ERRORS[fault.kind]) in said(run), (fault, said(run))
            assert "number" not in said(run)
        else:
            assert code == KILLED, fault
        for name, content in read_data_bytes(run).items():
            assert content == undisturbed["data"][name], (fault, name)
        failures += 1
    assert curated(rows, run) == 0
    assert state_of(run) == undisturbed
    return failures


def _curate(rows: Path, run: Path, fault: Fault | None, settings: dict[str, Any]) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    # the tracker of workers' semaphores is the fork server's: it would tell of those of a killed run
    vars(resource_tracker._resource_tracker).update(_fd=None, _pid=None)  # type: ignore[attr-defined]
    detector = settings.pop("detector", None) or FewRanges()
    few_ranges()
    Faults(fault, run).install()
    config = {**asked_of(rows), **settings.pop("config", {})}
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (settings.pop("largest_file", unlimited[0]), unlimited[1]))
    try:
        curate(config, output=run, detector=detector, **{"resume": True, **settings})
    except RedactoryError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        (run.parent / "error").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        os._exit(REFUSED)


class FewRanges(DigitDetector):
    """Brings :func:`few_ranges` into each worker that it is sent to."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        few_ranges()
        self.__dict__.update(state)


def few_ranges() -> None:
    """Hash ranges of a plan are files and take time; how many there are is not the point here."""
    for module, constant in range_constants():
        setattr(module, constant, FEW)


def range_constants() -> Iterator[tuple[ModuleType, str]]:
    """Where the numbers of hash ranges stand, in all that is imported by now."""
    for name, module in list(sys.modules.items()):
        for constant in ("MIN_RANGES", "NEAR_RANGES"):
            if name.startswith("redactory.") and hasattr(module, constant):
                yield module, constant


class Faults:
    """The operating system's calls with one fault in them; syncing, which takes time, is left out."""

    def __init__(self, fault: Fault | None, run: Path) -> None:
        self._fault = fault or Fault("", "")
        self._run = run
        self._journal = RunFolder(run).journal
        self._replace, self._write = os.replace, os.write

    def install(self) -> None:
        """From now on, in this process."""
        os.fsync, os.replace, os.write = self.sync, self.replace, self.write  # type: ignore[assignment]

    def sync(self, descriptor: int) -> None:
        """``os.fsync``: where half of the data has reached the disk."""
        path = _path_of(descriptor)
        if path.is_file() and self._is(_moment(path, self._run), "torn", "full"):
            os.truncate(path, path.stat().st_size // 2)
            self._strike(path)

    def replace(self, source: Any, target: Any, **more: Any) -> None:
        """``os.replace``: the commit itself."""
        moment = self._note(_moment(Path(target), self._run))
        if self._is(moment, "before", "denied"):
            self._strike(Path(target))
        self._replace(source, target, **more)
        if self._is(moment, "after"):
            self._strike(Path(target))

    def write(self, descriptor: int, data: Any) -> int:
        """``os.write``, by which the journal grows; a disk that fills up takes half, then nothing."""
        if descriptor <= 2 or _path_of(descriptor) != self._journal:
            return self._write(descriptor, data)
        moment = self._note(_journal_moment(bytes(data)))
        if moment is None and self._fault.kind == "full":
            self._strike(self._journal)
        if self._is(moment, "before", "denied"):
            self._strike(self._journal)
        if self._is(moment, "torn", "full"):
            written = self._write(descriptor, data[: len(data) // 2])
            if self._fault.kind == "torn":
                self._strike(self._journal)
            return written
        written = self._write(descriptor, data)
        if self._is(moment, "after"):
            self._strike(self._journal)
        return written

    def _is(self, moment: str | None, *kinds: str) -> bool:
        return self._fault.kind in kinds and self._fault.moment == moment

    def _note(self, moment: str | None) -> str | None:
        if self._fault.kind == "none" and moment is not None:
            with Path(self._fault.moment).open("a", encoding="utf-8") as file:
                file.write(f"{moment}\n")
        return moment

    def _strike(self, path: Path) -> None:
        number = _ERRORS.get(self._fault.kind)
        if number is not None:
            raise OSError(number, os.strerror(number), str(path))
        os.kill(os.getpid(), signal.SIGKILL)


def _moment(path: Path, run: Path) -> str | None:
    final = path.with_name(_TEMPORARY.sub("", path.name))
    index = run.parent / "index"
    if path.is_relative_to(index):
        return re.sub(r"\d{2,}", "#", re.sub(r"[0-9a-f]{16}", "*", final.relative_to(run.parent).as_posix()))
    return re.sub(r"\d+", "#", final.relative_to(run).as_posix()) if path.is_relative_to(run) else None


def _journal_moment(line: bytes) -> str | None:
    """The record's kind; None for what is no whole record."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return f"journal {record['type']} {record['body'].get('stage', '')}".rstrip()


def _path_of(descriptor: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))

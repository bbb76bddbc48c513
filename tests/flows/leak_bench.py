"""A bench for leak tests: folders for everything that a process writes, commands, and the search."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.child_processes import end_with_parent
from tests.flows.leak_corpus import DETECTED_CHARS, ROW_BYTES, Secret
from tests.flows.leak_search import Search

ROOT = Path(__file__).parents[2]
SITE = Path(__file__).with_name("leak_site")
PROCESS = [sys.executable, "-m", "tests.flows.leak_process"]
ELSEWHERE = ("/dev/", "/proc/")
"""Where a process may open files for writing besides its bench: devices and the kernel's own."""
TRAIN = {
    "trainer": "crt",
    "epochs": 1,
    "sampling_rate": 0.25,
    "noise_multiplier": 1.0,
    "model": {"embedding_size": 8, "hidden_size": 8},
    "min_public_steps": 2,
    "threads": 1,
}
DIGEST_KEY = "a digest key of the leak tests"
ENCRYPTION_KEY = "an encryption key of the leak tests, of more than 32 bytes"
KEYS = (DIGEST_KEY, ENCRYPTION_KEY)
"""These are written nowhere, not even where text may be."""
ORIGINAL = ("vault", "quarantine")
SEALED = ("traceback-", "work", "samples")
"""What may hold original text in a run folder, and in its ``state``."""
GROUPS = ("evaluate", "fit", "keys", "label", "ldp", "quarantine", "release")
LISTED = {"tagger": None, "patterns": None, "lists": {"deny": [{"file": "words.txt"}]}, "max_chars": DETECTED_CHARS}
"""Detection by a list of all that is planted, where nothing hangs on the engines: a tenth of the time."""


@dataclass(frozen=True)
class Step:
    """One command: its arguments, what fails in it, and the exit codes that it may end with."""

    name: str
    arguments: tuple[str, ...]
    fails: str | None = None
    codes: tuple[int, ...] = (0,)
    shows_text: bool = False

    @property
    def command(self) -> str:
        """What stands before the arguments: ``curate``, or ``evaluate recall``."""
        return " ".join(self.arguments[: 2 if self.arguments[0] in GROUPS else 1])


@dataclass
class Bench:
    """Everything below ``root``; ``secrets`` are what is searched for.

    With ``encrypted`` the runs are, and nothing but samples that people label may hold original text.
    """

    root: Path
    secrets: list[Secret] = field(default_factory=list)
    encrypted: bool = False
    commands: set[str] = field(default_factory=set)
    carried_out: int = 0
    searched: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for name in ("input", "work", "home", "tmp", "logs"):
            (self.root / name).mkdir(parents=True)

    def folder(self, name: str) -> Path:
        """One of the folders of the bench."""
        return self.root / name

    def configure(self, name: str, **more: Any) -> Path:
        """A configuration of the planted corpus."""
        settings = {
            "input": {"path": "corpus.jsonl", "max_row_bytes": ROW_BYTES},
            "segment": {"mode": "turn"},
            "partition": {"documents": 40},
            "detect": {"max_chars": DETECTED_CHARS},
            "release": {"allow_uncovered_kinds": ["EVERYTHING"]},
            "redact": {"columns": {"id": "IDENTIFIER", "user_id": "EMAIL_ADDRESS"}},
            "train": TRAIN,
            "evaluate": {"test": "held-out.jsonl", "labelled": "labelled.jsonl", "labelled_secrets": 40},
            **more,
        }
        path = self.folder("input") / f"{name}.yaml"
        path.write_text(json.dumps(settings))
        return path

    def environment(self, **more: str) -> dict[str, str]:
        """Nothing of this process's settings but its path; home and temporary files in the bench."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "REDACTORY_", "XDG_"))}
        places = {
            "HOME": str(self.folder("home")),
            "TMPDIR": str(self.folder("tmp")),
            "PYTHONPATH": os.pathsep.join([str(SITE), str(ROOT), *filter(None, [kept.get("PYTHONPATH")])]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LEAK_CORPUS": str(self.folder("input") / "corpus.jsonl"),
            "LEAK_OPENED": str(self.root / "opened"),
            "REDACTORY_KEY": DIGEST_KEY,
            "PREFECT_LOGGING_LEVEL": "DEBUG",
            "PREFECT_LOGGING_LOGGERS_PREFECT_FLOW_RUNS_LEVEL": "DEBUG",
            "PREFECT_LOGGING_LOGGERS_PREFECT_TASK_RUNS_LEVEL": "DEBUG",
            "PREFECT_LOGGING_TO_API_ENABLED": "true",
        }
        keys = {"REDACTORY_ENCRYPTION_KEY": ENCRYPTION_KEY} if self.encrypted else {}
        return {**kept, **places, **keys, **more}

    def carry_out(self, name: str, steps: Sequence[Step], **environment: str) -> None:
        """Carry the steps out in one process; fails where one does not end as expected."""
        ended, logs = self._process(name, steps, environment)
        assert ended == 0, (logs / "all.err").read_text(errors="replace")[-3000:]
        codes: dict[str, int] = json.loads((logs / "codes.json").read_text())
        for step in steps:
            assert codes[step.name] in step.codes, f"{step.name}: {codes[step.name]}\n{self._end(logs, step)}"
            if step.shows_text:
                # it is there to show a text to whoever asks
                (logs / f"{step.name}.out").unlink()

    def crash(self, name: str, step: Step, **environment: str) -> int:
        """Carry out a step that ends its process; how it ended."""
        return self._process(name, [step], environment)[0]

    def _process(self, name: str, steps: Sequence[Step], environment: dict[str, str]) -> tuple[int, Path]:
        plan = self.folder("input") / f"{name}.steps.json"
        plan.write_text(json.dumps([[s.name, list(s.arguments), s.fails] for s in steps]))
        logs = self.folder("logs") / name
        logs.mkdir()
        self.commands.update(step.command for step in steps)
        self.carried_out += len(steps)
        # what commands are given on standard input: rows with secrets, in UTF-8
        labelled = self.folder("input") / "labelled.jsonl"
        labelled.touch()
        options = {"env": self.environment(**environment), "cwd": self.folder("work"), "start_new_session": True}
        with (
            (logs / "all.out").open("wb") as out,
            (logs / "all.err").open("wb") as err,
            labelled.open() as text,
            subprocess.Popen(
                [*PROCESS, str(plan), str(logs)], stdin=text, stdout=out, stderr=err, **options
            ) as process,
            end_with_parent(group=process.pid),
        ):
            return process.wait(), logs

    def _end(self, logs: Path, step: Step) -> str:
        return "\n".join((logs / f"{step.name}.{end}").read_text(errors="replace")[-2000:] for end in ("out", "err"))

    def leaks(self) -> list[str]:
        """Each place that holds a secret and must not: path, kind and form, never the value."""
        kinds = {part: secret.kind for secret in self.secrets for part in secret.parts}
        keys = dict.fromkeys(KEYS, "key")
        search = Search([*kinds, *keys])
        runs, told = self.runs(), Counter[tuple[str, str, str]]()
        for path, hits in search.below(self.root).items():
            name, allowed = path.relative_to(self.root).as_posix(), self._may_hold_text(path, runs)
            told.update((name, kinds[v], form) for v, form in hits if v in kinds and not allowed)
            told.update((name, keys[v], form) for v, form in hits if v in keys)
            self.searched["allowed hits"] += sum(v in kinds for v, _ in hits) if allowed else 0
        self.searched.update(search.seen)
        return [f"{path}: {kind} in {form} ({count})" for (path, kind, form), count in sorted(told.items())]

    def _may_hold_text(self, path: Path, runs: Sequence[Path]) -> bool:
        """The input, and what keeps original text; not ``private/``: all that is planted is masked."""
        if self.folder("input") in path.parents:
            return True
        inside = [path.relative_to(run).parts for run in runs if run in path.parents]
        if not inside:
            return False
        first, second, *_ = *inside[0], ""
        if self.encrypted:
            return (first, second) == ("state", "samples")
        return first in ORIGINAL or (first == "state" and second.startswith(SEALED))

    def runs(self) -> list[Path]:
        """Every run folder of the bench."""
        return [path.parent for path in self.root.rglob("state") if path.is_dir()]

    def open_to_others(self) -> list[str]:
        """Private files with original text that somebody else than their owner could open."""
        return [
            path.relative_to(self.root).as_posix()
            for run in self.runs()
            for path in run.rglob("*")
            if path.is_file() and "public" not in path.relative_to(run).parts[:1]
            if run.stat().st_mode & 0o077 and path.stat().st_mode & 0o077
        ]

    def written_elsewhere(self) -> list[str]:
        """Files that a process opened for writing outside of the bench, where no search would find them."""
        paths = {line for line in (self.root / "opened").read_text(errors="replace").splitlines() if line}
        outside = {path for path in paths if path.startswith("/") and not path.startswith(str(self.root))}
        return sorted(path for path in outside if not path.startswith(ELSEWHERE))

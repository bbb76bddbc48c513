"""Break a copy of the package in one place at a time, and report which tests see it.

``python -m tests.mutants`` applies the named mutants of ``table.yaml``, ``--random 60`` draws others.
The results go to stderr as they come, and to stdout as JSON.  The exit status is 1 where one is not seen.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutants.operators import draw_changes
from tests.mutants.table import ROOT, Mutant, load_mutants, related_tests

_LEFT_OUT = (".*cache", ".git", ".venv", ".hypothesis", "__pycache__", "build", "dist", "site", "*.egg-info")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/[^\s\[]+)", re.MULTILINE)


class Checkout:
    """A copy of the working tree in ``folder``, in which files are changed and tests are run."""

    def __init__(self, folder: str) -> None:
        left_out = shutil.ignore_patterns(*_LEFT_OUT)
        self.root = shutil.copytree(ROOT, Path(folder) / "checkout", symlinks=True, ignore=left_out)

    @contextmanager
    def changed(self, file: str, text: str) -> Iterator[None]:
        """``file`` with another ``text``, and as it was afterwards."""
        path = self.root / file
        before = path.read_text(encoding="utf-8")
        try:
            self._write(path, text)
            yield
        finally:
            self._write(path, before)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        # two texts of one length in one second would share their bytecode
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()

    def run_tests(self, tests: Sequence[str], seconds: float | None) -> tuple[str, str]:
        """``seen`` and the first test that fails, ``not seen``, ``timeout`` or ``error``."""
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "--tb=no", "-rfE", *tests],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except BaseException as error:
            # with the processes that its tests have begun
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                return "timeout", "no test failed in time"
            raise
        if process.returncode == 0:
            return "not seen", ""
        if failed := _FAILED.findall(output):
            return "seen", failed[0]
        if process.returncode in (2, 4):
            # the package or the first test file cannot even be imported
            return "seen", tests[0]
        return "error", output.strip().splitlines()[-1][:200]


@dataclass(frozen=True)
class Trial:
    """One mutant to try: the ``text`` that its ``file`` gets, in words the ``change``, and its ``tests``."""

    name: str
    file: str
    text: str
    change: str
    tests: Sequence[str]


def named_trials(mutants: Sequence[Mutant], tier: str) -> Iterator[Trial]:
    """The named ``mutants``, with the tests of the table or, in tier all, every related one."""
    for mutant in mutants:
        text = mutant.applied((ROOT / mutant.file).read_text(encoding="utf-8"))
        more = related_tests(mutant.file) if tier == "all" else []
        tests = list(dict.fromkeys([*mutant.tests, *more]))
        yield Trial(mutant.name, mutant.file, text, f"{mutant.old.strip()} -> {mutant.new.strip()}", tests)


def random_trials(count: int, seed: int) -> Iterator[Trial]:
    """``count`` random changes, with the tests that are related to their files."""
    for number, change in enumerate(draw_changes(ROOT, count, seed), 1):
        text = change.applied((ROOT / change.file).read_text(encoding="utf-8"))
        words = f"line {change.line}, {change.operator}: {change.old} -> {change.new}"
        yield Trial(f"{seed}/{number}", change.file, text, words, related_tests(change.file))


def failing_anyway(checkout: Checkout, tests: set[str]) -> set[str]:
    """Those of ``tests`` that fail without a mutant: what they saw says nothing."""
    failing: set[str] = set()
    while passing := sorted(tests - failing):
        verdict, by = checkout.run_tests(passing, None)
        if verdict == "not seen":
            break
        failing |= {by} if by in tests else tests
    return failing


def main() -> int:
    """Read the command line, apply the mutants and print what was seen."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="this named mutant (repeatable)")
    parser.add_argument("--tier", choices=("fast", "all"), default="fast", help="the table's tests, or more")
    parser.add_argument("--random", type=int, metavar="N", help="N random mutants, not the named ones")
    parser.add_argument("--seed", type=int, default=0, help="what the random mutants are drawn by")
    parser.add_argument("--seconds", type=float, default=90.0, help="the time limit of one mutant's tests")
    options = parser.parse_args()
    mutants = {mutant.name: mutant for mutant in load_mutants()}
    names = options.only or list(mutants)
    if unknown := set(names) - mutants.keys():
        parser.error(f"no mutant is named {', '.join(sorted(unknown))}")
    results = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="redactory-mutants-", ignore_cleanup_errors=True) as folder:
        checkout = Checkout(folder)
        trials = (
            named_trials([mutants[name] for name in names], options.tier)
            if options.random is None
            else random_trials(options.random, options.seed)
        )
        for trial in trials:
            begun = time.monotonic()
            with checkout.changed(trial.file, trial.text):
                verdict, by = checkout.run_tests(trial.tests, options.seconds)
            spent = round(time.monotonic() - begun, 1)
            told = {"name": trial.name, "file": trial.file, "change": trial.change}
            results.append({**told, "verdict": verdict, "by": by, "seconds": spent})
            print(f"{verdict:9} {spent:5.1f} s  {trial.name}  {trial.file}", file=sys.stderr)
            print(f"{'':19}{by if verdict == 'seen' else trial.change}", file=sys.stderr, flush=True)
        failing = failing_anyway(checkout, {one["by"] for one in results if one["verdict"] == "seen"})
    for result in results:
        if result["by"] in failing:
            result["verdict"] = "error"
            print(f"{result['name']}: {result['by']} fails without it too", file=sys.stderr)
    print(json.dumps(results, indent=1, ensure_ascii=False))
    seen = sum(result["verdict"] == "seen" for result in results)
    print(f"{seen} of {len(results)} mutants were seen", file=sys.stderr)
    return 0 if seen == len(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Coverage-guided fuzzing with atheris: so many executions of a target, then the figures."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import atheris

SEED = 20260401
_PLACE = tempfile.TemporaryDirectory(prefix="redactory-fuzz-")
FOLDER = Path(_PLACE.name)
"""For files that a target needs; gone after the last execution."""


def fuzz(target: Callable[[bytes], None], seeds: Iterable[bytes], executions: int, longest: int) -> None:
    """Run ``target`` on mutations, at most ``longest`` bytes, of ``seeds``; the process ends with it.

    The command's first argument, a number, replaces ``executions``.

    Exit code 0 after so many executions; not 0 where the target raised, took half a minute or 2 GiB, or
    ended the process.  The input that did it is then left in the system's folder for temporary files.
    """
    executions = int(sys.argv[1]) if len(sys.argv) > 1 else executions
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number:03}").write_bytes(seed)
    begun, done = time.monotonic(), 0

    def counted(data: bytes) -> None:
        nonlocal done
        target(data)
        done += 1
        if done == executions:
            # the fuzzer ends the process, and nothing runs after it
            _PLACE.cleanup()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"\n{done} executions in {time.monotonic() - begun:.0f} s, at most {peak:.0f} MiB", flush=True
            )

    options = {
        "runs": executions,
        "seed": SEED,
        "max_len": longest,
        "timeout": 30,
        "rss_limit_mb": 2048,
        "verbosity": 0,
        "reload": 0,  # the corpus is gone when the last execution has ended
        "artifact_prefix": f"{tempfile.gettempdir()}/redactory-fuzz-",
    }
    arguments = [f"-{name}={value}" for name, value in options.items()]
    atheris.Setup([sys.argv[0], *arguments, str(corpus)], counted)
    atheris.Fuzz()

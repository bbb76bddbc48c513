"""What deduplication costs beside detection, and what a Bloom filter in front of an exact plan saves.

``cost``: whole curations in every mode over the same texts; engines run in the first one only, and what they
found is handed to the others.  ``filter``: an exact plan with and without a filter in front, and mode
``bloom`` over the same digests.  Prints JSON.

    python benchmarks/dedup_cost.py
    python benchmarks/dedup_cost.py --rows 1000 --digests 3000000
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from varied_text import write_varied

from redactory.dedup import find_repeats_in_range, write_digests
from redactory.dedup.plan import BloomPass
from redactory.detectors import Detection, TextDetector
from redactory.foundation.progress import StageReport
from redactory.pipelines.curation.stage_context import StageMap, Task, run_timed_task

RANGES = 16
DEDUP_STAGES = ("dedup", "dedup in one pass", "sign", "compare", "group", "choose")
MODES: dict[str, dict[str, Any]] = {
    "exact": {"report_cross_split": False},
    "exact, across the split": {},
    "folded": {"mode": "folded", "report_cross_split": False},
    "bloom": {"mode": "bloom", "report_cross_split": False},
    "minhash": {"mode": "minhash", "report_cross_split": False},
    "minhash, across the split": {"mode": "minhash"},
}


def main() -> None:
    """Run both parts and print one JSON object."""
    parser = argparse.ArgumentParser(description="deduplication: its cost beside detection")
    parser.add_argument("--rows", type=int, default=4_000, help="rows of the whole curations")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--digests", type=int, default=1_000_000, help="digests of the exact plan")
    arguments = parser.parse_args()
    result = {
        "benchmark": "dedup_cost",
        "cost": cost(arguments.rows, arguments.rounds),
        "passes": passes(arguments.digests),
    }
    print(json.dumps(result, indent=2))


def passes(count: int) -> dict[str, Any]:
    """An exact plan over ``count`` digests, nine of ten of them unique, and one pass in fixed memory."""
    content = np.random.default_rng(5).bytes(16 * (count - count // 10))
    digests = [content[i : i + 16] for i in range(0, len(content), 16)]
    digests += digests[: count - len(digests)]
    with tempfile.TemporaryDirectory() as name:
        path, out = Path(name) / "digests", Path(name) / "out"
        write_digests(path, digests, np.arange(count))
        seconds: dict[str, float] = {}
        start = time.perf_counter()
        for number in range(RANGES):
            find_repeats_in_range([path], number, out, RANGES)
        seconds["plan"] = time.perf_counter() - start
    one_pass = BloomPass(count, 1e-4)
    start = time.perf_counter()
    one_pass.mark_repeats(int.from_bytes(digest, "big", signed=True) for digest in digests)
    seconds["one_pass"] = time.perf_counter() - start
    return {
        "digests": count,
        "table_megabytes": round(count * 24 / 1e6, 1),
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "one_pass_lost": f"{one_pass.tracked_lost} of {one_pass.tracked_new} new texts, error rate 1e-4",
    }


class Remembering:
    """The real engines once, and what they found ever after."""

    def __init__(self, detector: TextDetector) -> None:
        self._detector, self._known = detector, dict[str, Detection]()

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        """One detection a text."""
        given = list(texts)
        new = [text for text in given if text not in self._known]
        self._known.update(zip(new, self._detector.detect(new), strict=True))
        return (self._known[text] for text in given)


def cost(rows: int, rounds: int) -> dict[str, Any]:
    """Deduplication in every mode over detection, in whole curations on one core.

    Processor time, which a busy machine does not change; wall time, with its waiting for the disk, beside it.
    """
    import redactory
    from redactory.detectors import Detector, DetectSettings

    detector = Remembering(Detector(DetectSettings()))
    list(detector.detect(["warm up, please"]))
    with tempfile.TemporaryDirectory() as folder:
        write_varied(Path(folder) / "corpus.jsonl", rows, 1)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in MODES}
        detection: tuple[float, float] | None = None
        for number in range(rounds):
            for name, dedup in MODES.items():
                processor: list[float] = []
                config = {"input": str(Path(folder) / "corpus.jsonl"), "dedup": dedup}
                run = Path(folder) / f"{name} {number}"
                redactory.curate(config, output=run, detector=detector, stage_map=_timed(processor))
                manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
                # the first stage, which reads the input, does not go through the map
                names = [(stage["stage"], stage["seconds"]) for stage in manifest["stages"][1:]]
                stages = {n: (p, wall) for p, (n, wall) in zip(processor, names, strict=True)}
                detection = detection or stages["detect"]
                own = [stages[stage] for stage in DEDUP_STAGES if stage in stages]
                taken[name].append((sum(p for p, _ in own), sum(wall for _, wall in own)))
    assert detection is not None
    medians = {n: [statistics.median(column) for column in zip(*t, strict=True)] for n, t in taken.items()}
    return {
        "examples": manifest["counts"]["examples"],
        "detection_seconds": {"processor": round(detection[0], 2), "wall": round(detection[1], 2)},
        "dedup_over_detection": {n: round(both[0] / detection[0], 4) for n, both in medians.items()},
        "dedup_seconds": {
            n: {"processor": round(both[0], 3), "wall": round(both[1], 3)} for n, both in medians.items()
        },
    }


def _timed(seconds: list[float]) -> StageMap:
    """A map in this process that adds the processor seconds of each stage."""

    def spread(task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, StageReport]]:
        start = time.process_time()
        for number in numbers:
            yield number, run_timed_task(task, number)
        seconds.append(time.process_time() - start)

    return spread


if __name__ == "__main__":
    main()

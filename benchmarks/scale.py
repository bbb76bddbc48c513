"""Points per second, peak memory and disk of a curation against the number of points.

Detection is replaced by recorded spans: what is measured is reading, cutting, masking, deduplication and
writing.  Each curation runs in a process of its own, beside which its memory and disk are sampled; its run
folder is removed after it was measured, and its row is put into a JSON file, so that a long series can be
gone on with.  ``detection`` adds what the default engines take for simulated dialogues.  Prints JSON.

    python benchmarks/scale.py --points 1000000 4000000 16000000
    python benchmarks/scale.py --points 1000000 --dedup minhash --workers 2
    python benchmarks/scale.py detection
    python benchmarks/scale.py draw --out docs/results/scale.json
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scale_corpus import RecordedSpans, write_corpus

DEDUPS: dict[str, dict[str, Any]] = {
    "exact": {"dedup": {"mode": "exact", "report_cross_split": False}},
    "exact, across": {"dedup": {"mode": "exact", "report_cross_split": True}},
    "minhash": {"dedup": {"mode": "minhash", "report_cross_split": False}},
    "exact, public by count": {
        "dedup": {"mode": "exact", "report_cross_split": False},
        "route": {"strategy": "count", "epsilon": 1.0, "delta": 1e-6, "texts_per_user": 4},
    },
}
"""What is curated; with counts, every dialogue is a user's own."""
_EVERY = 1.0
"""Seconds between two samples of memory; of disk, ten times as long."""


def main() -> None:
    """Run what was asked for and is not in the file yet, draw it, or, as a child, curate once."""
    arguments = _arguments()
    if arguments.child:
        print(json.dumps(_curate(*arguments.child)))
    elif arguments.action == "draw":
        from scale_plots import draw

        print(json.dumps(draw(arguments.out), indent=2))
    elif arguments.action == "detection":
        print(json.dumps(_detection(arguments.out, arguments.folder), indent=2))
    else:
        print(json.dumps(_run(arguments), indent=2))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("action", nargs="?", default="run", choices=("run", "detection", "draw"))
    parser.add_argument("--points", type=int, nargs="+", default=[100_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1])
    parser.add_argument("--dedup", nargs="+", default=["exact"], choices=tuple(DEDUPS))
    parser.add_argument("--folder", type=Path, default=Path("scale"), help="corpora and runs; needs room")
    parser.add_argument("--out", type=Path, default=Path("scale.json"), help="rows are added to this file")
    parser.add_argument("--again", action="store_true", help="measure also what the file has already")
    parser.add_argument("--child", nargs=2, metavar=("CONFIG", "RUN"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    kept = _kept(arguments.out)
    rows = kept["rows"]
    for points in arguments.points:
        corpus = arguments.folder / f"corpus-{points}"
        for dedup in arguments.dedup:
            for workers in arguments.workers:
                known = {"points_asked": points, "dedup": dedup, "workers": workers}
                same = [row for row in rows if known.items() <= row.items()]
                if same and not arguments.again:
                    continue
                rows = [row for row in rows if row not in same]
                rows.append(known | _measure(corpus, points, dedup, workers))
                rows.sort(key=lambda row: (row["dedup"], row["workers"], row["points_asked"]))
                arguments.out.write_text(json.dumps({**kept, "rows": rows}, indent=1) + "\n")
        shutil.rmtree(corpus, ignore_errors=True)
    return list(rows)


def _kept(out: Path) -> dict[str, Any]:
    kept: dict[str, Any] = {"benchmark": "scale", "rows": []}
    return json.loads(out.read_text()) if out.is_file() else kept


def _detection(out: Path, folder: Path, dialogues: int = 3_000) -> dict[str, Any]:
    """Processor time of the default engines for each distinct turn of simulated support dialogues."""
    import redactory

    folder.mkdir(parents=True, exist_ok=True)
    corpus, run = folder / "simulated.jsonl", folder / "run-detection"
    redactory.simulate(corpus, dialogues, 1)
    shutil.rmtree(run, ignore_errors=True)
    cpu_of = defaultdict[str, float](float)
    config = {"input": str(corpus), "segment": {"mode": "turn"}, "dedup": {"report_cross_split": False}}
    redactory.curate(config, output=run, stage_map=functools.partial(_serial, cpu_of))
    manifest = json.loads((run / "manifest.json").read_text())
    texts = next(s["counts"]["texts"] for s in manifest["stages"] if s["stage"] == "detect")
    shutil.rmtree(run)
    detection = {
        "examples": manifest["counts"]["examples"],
        "distinct_texts": texts,
        "cpu_seconds": round(cpu_of["detect_texts"], 1),
        "texts_per_cpu_second": round(texts / cpu_of["detect_texts"]),
    }
    out.write_text(json.dumps({**_kept(out), "detection": detection}, indent=1) + "\n")
    return detection


def _measure(corpus: Path, points: int, dedup: str, workers: int) -> dict[str, Any]:
    """One curation in a process of its own, from a corpus that is made where it does not lie there."""
    done = corpus / "_done"
    if not done.is_file():
        write_corpus(corpus, points)
        done.touch()
    run = corpus.with_name(f"run-{points}-{workers}")
    shutil.rmtree(run, ignore_errors=True)
    config = {
        "input": str(corpus),
        "segment": {"mode": "turn"},
        # no engine runs; the default ones would only be loaded
        "detect": {"tagger": None, "patterns": None, "spacy": {"model": "blank:en"}},
        **DEDUPS[dedup],
        "workers": workers,
    }
    child = subprocess.Popen(
        [sys.executable, __file__, "--child", json.dumps(config), str(run)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    sampled = _sample(child, run)
    output, _ = child.communicate()
    if child.returncode:
        raise SystemExit(f"{points} points: the curation ended with {child.returncode}")
    row = {
        "corpus_bytes": sum(path.stat().st_size for path in corpus.glob("*.jsonl")),
        **json.loads(output.splitlines()[-1]),
        **sampled,
        "load": [round(load, 1) for load in os.getloadavg()],
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
    }
    shutil.rmtree(run)
    return row


def _sample(child: subprocess.Popen[str], run: Path) -> dict[str, Any]:
    """The peaks of resident memory (all processes together) and of disk while ``child`` is at work."""
    import psutil

    process = psutil.Process(child.pid)
    peaks = {"peak_all_mb": 0.0, "peak_parent_mb": 0.0, "peak_run_bytes": 0, "peak_work_bytes": 0}
    ticks = 0
    while child.poll() is None:
        if ticks % 10 == 0:
            work = _bytes_below(run / "state" / "work")
            peaks["peak_work_bytes"] = max(peaks["peak_work_bytes"], work)
            peaks["peak_run_bytes"] = max(peaks["peak_run_bytes"], _bytes_below(run))
        try:
            own = process.memory_info().rss / 2**20
            others = sum(p.memory_info().rss for p in process.children(recursive=True)) / 2**20
        except psutil.Error:
            own = others = 0.0
        peaks["peak_parent_mb"] = max(peaks["peak_parent_mb"], round(own, 1))
        peaks["peak_all_mb"] = max(peaks["peak_all_mb"], round(own + others, 1))
        ticks += 1
        time.sleep(_EVERY)
    return peaks


def _bytes_below(folder: Path) -> int:
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _curate(config: str, output: str) -> dict[str, Any]:
    import redactory

    settings, cpu_of = json.loads(config), defaultdict[str, float](float)
    # beside the time on the wall, which other work on the machine lengthens
    stage_map = functools.partial(_serial, cpu_of) if settings["workers"] == 1 else None
    start = time.perf_counter()
    result = redactory.curate(settings, output=output, detector=RecordedSpans(), stage_map=stage_map)
    seconds = time.perf_counter() - start
    run = Path(output)
    manifest = json.loads((run / "manifest.json").read_text())
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime
    stages = manifest["stages"]
    return {
        **{name: result[name] for name in ("documents", "examples", "public", "private", "duplicate")},
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "points_per_second": round(result["examples"] / seconds),
        "points_per_cpu_second": round(result["examples"] / cpu),
        "stages": {s["stage"]: {"seconds": s["seconds"], "peak_mb": s["peak_mb"]} for s in stages},
        "cpu_by_stage": {name: round(value, 2) for name, value in cpu_of.items()},
        "peak_process_mb": round(max(own.ru_maxrss, others.ru_maxrss) / 1024, 1),
        "run_bytes": {folder.name: _bytes_below(folder) for folder in sorted(run.iterdir()) if folder.is_dir()}
        | {"files": sum(path.stat().st_size for path in run.iterdir() if path.is_file())},
        "partitions": len(list((run / "public").glob("part-*"))),
    }


def _serial(cpu_of: dict[str, float], task: Any, numbers: Sequence[int]) -> Iterator[tuple[int, Any]]:
    from redactory.pipelines.curation.stage_context import get_task_name, run_timed_task

    for number in numbers:
        begun = time.process_time()
        report = run_timed_task(task, number)
        cpu_of[get_task_name(task)] += time.process_time() - begun
        yield number, report


if __name__ == "__main__":
    main()

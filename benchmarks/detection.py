"""Detection on labelled files: what each engine, both policies and Presidio's defaults find, and how fast.

Every text is read once; engines, policies and the curve of public share against miss rate are all made of
these readings.  Presidio's defaults (``AnalyzerEngine`` over the same spaCy package, all of its default
recognizers, through ``BatchAnalyzerEngine``) read the same texts in turn, chunk by chunk, on one thread; its
every result counts as a mark.  Rows with a ``template_id`` are reported apart for two halves of the
templates, drawn by a fixed hash.  Prints JSON; a few lines a file go to standard error.

    python benchmarks/detection.py                          # simulated support dialogues
    python benchmarks/detection.py --data FOLDER --data FILE.jsonl:turn
    python benchmarks/detection.py --data FOLDER --limit 200 --config redactory.yaml
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from detection_contest import Contest, Recorded

from redactory.detectors import Detection, DetectSettings, Reading, policy_hashes
from redactory.evaluation.detection import (
    Counts,
    LabelledPoint,
    count_matches,
    figures,
    labelled_spans,
    measure_detection,
    public_share,
)
from redactory.evaluation.labelled import labelled_points, labelled_rows
from redactory.evaluation.recall import TEMPLATE
from redactory.evaluation.statistics import proportion
from redactory.foundation.progress import silent
from redactory.pipelines.config import SegmentSettings
from redactory.pipelines.loading import load_config
from redactory.pipelines.segment import segmenter
from redactory.redaction import PUBLIC, route

PLAIN_CONFIDENCE = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9995, 0.9999)
SURE = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9995, 0.9999, 1.0)
HALVES = ("development templates", "held-out templates")

Marks = Callable[[str], Iterable[tuple[int, int]]]


def main() -> None:
    """Measure every file; one JSON object on standard output."""
    arguments = _arguments()
    settings = load_config(arguments.config).detect if arguments.config else DetectSettings()
    contest = Contest(settings)
    with tempfile.TemporaryDirectory() as folder:
        data = arguments.data or [_simulated(Path(folder))]
        files = [
            result
            for given in data
            for path, mode in _files(given)
            for result in _measured(contest, path, mode, arguments.limit)
        ]
    result = {
        "benchmark": "detection",
        "limit": arguments.limit,
        "policies": policy_hashes(settings),
        "versions": {name: version(name) for name in ("redactory", "spacy", "presidio-analyzer")},
        "files": files,
        "speed": contest.speed(),
    }
    print(json.dumps(result, indent=1, allow_nan=False))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--data",
        action="append",
        help="a JSONL file in the span schema, or a folder of them; a suffix :sentence (the default), :turn, "
        ":line or :document says how texts are cut into points. Simulated dialogues if absent",
    )
    parser.add_argument("--limit", type=int, help="rows of each file")
    parser.add_argument("--config", help="the configuration to measure; the default detection without one")
    return parser.parse_args()


def _simulated(folder: Path) -> str:
    import redactory

    redactory.simulate(folder / "simulated.jsonl", 300, 1)
    return f"{folder / 'simulated.jsonl'}:turn"


def _files(given: str) -> Iterator[tuple[Path, str]]:
    path, _, mode = given.partition(":")
    found = sorted(Path(path).rglob("*.jsonl")) if Path(path).is_dir() else [Path(path)]
    return ((file, mode or "sentence") for file in found)


def _measured(contest: Contest, path: Path, mode: str, limit: int | None) -> Iterator[dict[str, Any]]:
    """One result a file, or one for each half of its templates."""
    cut = segmenter(SegmentSettings.model_validate({"mode": mode}))
    rows = [row for number, row in enumerate(labelled_rows(path)) if limit is None or number < limit]
    groups = {"": rows}
    if rows and all(row.get(TEMPLATE) is not None for row in rows):
        groups = {half: [row for row in rows if _half(row[TEMPLATE]) == half] for half in HALVES}
    for name, group in groups.items():
        points = [
            LabelledPoint(number, text, spans)
            for number, row in enumerate(group)
            for text, spans in labelled_points(row, cut)
        ]
        if not points:
            continue
        contest.read(point.text for point in points)
        about = {"data": f"{path.parent.name}/{path.name}", "part": name or None, "segment": mode}
        result = {**about, "rows": len(group), **_of(contest, points)}
        _tell(result)
        yield result


def _half(template: Any) -> str:
    return HALVES[hashlib.sha256(f"template {template}".encode()).digest()[0] % 2]


def _of(contest: Contest, points: list[LabelledPoint]) -> dict[str, Any]:
    recorded = contest.recorded
    result = measure_detection(recorded, points, progress=silent)
    # both speeds are measured in turn, for all files together
    del result["texts_per_second"]
    strict = {p.text: d.strict for p, d in zip(points, _detections(recorded, points), strict=True)}
    names = sorted({span.detector for spans in strict.values() for span in spans})
    engines = {
        name: _scored(points, lambda t, n=name: [(s.start, s.end) for s in strict[t] if s.detector == n])  # type: ignore[misc]
        for name in names
    }
    return {
        **result,
        "engines": engines,
        "presidio_defaults": _scored(points, contest.presidio.marks.__getitem__),
        "clean_points_made_private_by": _reasons(recorded, points),
        "curve": _curve(recorded, points),
    }


def _detections(recorded: Recorded, points: Iterable[LabelledPoint]) -> Iterator[Detection]:
    return recorded.detect([point.text for point in points])


def _scored(points: Iterable[LabelledPoint], marks: Marks) -> dict[str, Any]:
    rows: dict[int, Counts] = {}
    for point in points:
        counts = count_matches(point.text, labelled_spans(point.spans), marks(point.text))
        rows.setdefault(point.row, Counter()).update(counts)
    return figures(list(rows.values()))


def _reasons(recorded: Recorded, points: Sequence[LabelledPoint]) -> dict[str, dict[str, int]]:
    """Of the points without a secret: how many each reason makes private, and how many it does alone."""
    clean = [point for point in points if not point.spans]
    every: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    for point, detection in zip(clean, _detections(recorded, clean), strict=True):
        reasons = route(point.text, detection).reasons
        every.update(reasons)
        alone.update(reasons if len(reasons) == 1 else ())
    return {reason: {"points": n, "alone": alone[reason]} for reason, n in every.most_common()}


def _curve(recorded: Recorded, points: Sequence[LabelledPoint]) -> list[dict[str, Any]]:
    """Public share against miss rate over ``plain_confidence`` and ``sure``: the settings that none beats.

    A text with ``<MASK>`` is private whatever the policies say, so a secret is missed by both exactly when
    its point goes public as it is: no masked text needs to be read.
    """
    detector = recorded.detector
    secrets = Counter({p.text: 0 for p in points})
    secrets.update(p.text for p in points for _ in p.spans)
    open_texts = [t for t in secrets if not next(detector.strict.marks(t, recorded.readings[t]), None)]
    found = []
    for plain in PLAIN_CONFIDENCE:
        for sure in SURE:
            changed = detector.conservative.settings.model_copy(
                update={"plain_confidence": plain, "sure": sure}
            )
            policy = dataclasses.replace(detector.conservative, settings=changed)
            public = {t for t in open_texts if _is_public(t, recorded.readings[t], policy)}
            misses = sum(secrets[text] for text in public)
            found.append({"plain_confidence": plain, "sure": sure, "misses": misses, "public": public})
    return [_point_of(entry, points, secrets.total()) for entry in _front(found, points)]


def _is_public(text: str, reading: Reading, policy: Any) -> bool:
    if reading.failure:
        return False
    first = next(policy.marks(text, reading), None)
    return route(text, Detection((), (first,) if first else ())).side == PUBLIC


def _front(found: list[dict[str, Any]], points: Sequence[LabelledPoint]) -> Iterator[dict[str, Any]]:
    """Those that keep more clean points public than every one with as few misses; fewest misses first.

    Of settings that do alike on these texts, the most careful.
    """
    clean = Counter(point.text for point in points if not point.spans)
    for entry in found:
        entry["clean"] = sum(clean[text] for text in entry["public"])
    best = -1
    for entry in sorted(found, key=lambda e: (e["misses"], -e["clean"], -e["plain_confidence"], -e["sure"])):
        if entry["clean"] > best:
            best = entry["clean"]
            yield entry


def _point_of(entry: dict[str, Any], points: Sequence[LabelledPoint], secrets: int) -> dict[str, Any]:
    return {
        "plain_confidence": entry["plain_confidence"],
        "sure": entry["sure"],
        "miss_rate": {**proportion(entry["misses"], secrets), "misses": entry["misses"], "n": secrets},
        "public_share": public_share(points, entry["public"].__contains__),
    }


def _tell(result: dict[str, Any]) -> None:
    def value(figure: dict[str, Any]) -> str:
        return "  -  " if figure["value"] is None else f"{figure['value']:.4f}"

    lines = [f"{result['data']} {result['part'] or ''}: {result['points']} points by {result['segment']}"]
    scored = {**result["engines"], "π": result["strict"], "π ∪ π_c": result["conservative"]}
    for name, own in {**scored, "Presidio's defaults": result["presidio_defaults"]}.items():
        figures_of = ("cover_recall", "char_precision", "char_recall", "f2")
        lines.append(f"  {name:<20} " + "  ".join(f"{f} {value(own[f])}" for f in figures_of))
    by_label = result["strict"]["by_label"].items()
    lines.append(
        "  covered by π: " + ", ".join(f"{k} {value(v['cover_recall'])} ({v['n']})" for k, v in by_label)
    )
    missed, public = result["miss_rate"], result["public_share"]
    lines.append(
        f"  missed by both {missed['misses']} of {missed['n']}; public {value(public)}, of clean points "
        f"{value(public['of_clean'])}; γ {value(result['gamma'])}"
    )
    reasons = list(result["clean_points_made_private_by"].items())[:10]
    lines.append(
        "  clean but private: " + ", ".join(f"{k} {v['points']} ({v['alone']} alone)" for k, v in reasons)
    )
    print("\n".join(lines), file=sys.stderr, flush=True)


if __name__ == "__main__":
    if os.environ.get("OMP_NUM_THREADS") != "1":
        # libraries count their threads when they are first imported
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OMP_NUM_THREADS": "1"})
    main()

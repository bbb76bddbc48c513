"""Why clean points are private, and what other thresholds would give, on labelled files.

Every text is read once; the reasons and the curve of public share against miss rate are made of these
readings.  What policies, engines and rivals find is ``redactory evaluate detection --against``.  Rows with a
``template_id`` are reported apart for two halves of the templates, drawn by a fixed hash.  Prints JSON; a few
lines a file go to standard error.

    python benchmarks/detection.py                          # simulated support dialogues
    python benchmarks/detection.py --data FOLDER --data FILE.jsonl:turn
    python benchmarks/detection.py --data FOLDER --limit 200 --config redactory.yaml
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from redactory.detectors import Detection, Detector, DetectSettings, EngineOutput, compute_policy_hashes
from redactory.evaluation.detection import LabelledExample, measure_public_share
from redactory.evaluation.labelled import read_labelled_rows, split_labelled_row
from redactory.evaluation.recall import TEMPLATE_KEY
from redactory.evaluation.statistics import estimate_proportion
from redactory.pipelines.curation.config import SegmentSettings
from redactory.pipelines.curation.loading import load_config
from redactory.pipelines.curation.segment import make_segmenter
from redactory.redaction import PUBLIC, route_example

PLAIN_CONFIDENCE = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9995, 0.9999)
HALVES = ("development templates", "held-out templates")
CHUNK = 128


class Recorded:
    """The detector, each distinct text read once and its reading kept."""

    def __init__(self, settings: DetectSettings) -> None:
        self.detector = Detector(settings)
        self.readings: dict[str, EngineOutput] = {}

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        """One detection a text."""
        texts = list(texts)
        new = [text for text in dict.fromkeys(texts) if text not in self.readings]
        for start in range(0, len(new), CHUNK):
            chunk = new[start : start + CHUNK]
            self.readings.update(zip(chunk, self.detector.run_engines(chunk), strict=True))
        return (self.detector.apply_policies(text, self.readings[text]) for text in texts)


def main() -> None:
    """Measure every file; one JSON object on standard output."""
    arguments = _arguments()
    settings = load_config(arguments.config).detect if arguments.config else DetectSettings()
    recorded = Recorded(settings)
    with tempfile.TemporaryDirectory() as folder:
        data = arguments.data or [_simulated(Path(folder))]
        files = [
            result
            for given in data
            for path, mode in _files(given)
            for result in _measured(recorded, path, mode, arguments.limit)
        ]
    result = {
        "benchmark": "detection",
        "limit": arguments.limit,
        "policies": compute_policy_hashes(settings),
        "versions": {name: version(name) for name in ("redactory", "spacy")},
        "files": files,
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


def _measured(recorded: Recorded, path: Path, mode: str, limit: int | None) -> Iterator[dict[str, Any]]:
    """One result a file, or one for each half of its templates."""
    cut = make_segmenter(SegmentSettings.model_validate({"mode": mode}))
    rows = [row for number, row in enumerate(read_labelled_rows(path)) if limit is None or number < limit]
    groups = {"": rows}
    if rows and all(row.get(TEMPLATE_KEY) is not None for row in rows):
        groups = {half: [row for row in rows if _half(row[TEMPLATE_KEY]) == half] for half in HALVES}
    for name, group in groups.items():
        points = [
            LabelledExample(number, text, spans)
            for number, row in enumerate(group)
            for text, spans in split_labelled_row(row, cut)
        ]
        if not points:
            continue
        about = {"data": f"{path.parent.name}/{path.name}", "part": name or None, "segment": mode}
        result = {**about, "rows": len(group), **_of(recorded, points)}
        _tell(result)
        yield result


def _half(template: Any) -> str:
    return HALVES[hashlib.sha256(f"template {template}".encode()).digest()[0] % 2]


def _of(recorded: Recorded, points: list[LabelledExample]) -> dict[str, Any]:
    detections = recorded.detect(point.text for point in points)
    public = {p.text for p, d in zip(points, detections, strict=True) if route_example(p.text, d).split == PUBLIC}
    return {
        "examples": len(points),
        "public_share": measure_public_share(points, public.__contains__),
        "clean_points_made_private_by": _reasons(recorded, points),
        "curve": _curve(recorded, points),
    }


def _reasons(recorded: Recorded, points: Sequence[LabelledExample]) -> dict[str, dict[str, int]]:
    """Of the points without a secret: how many each reason makes private, and how many it does alone."""
    clean = [point for point in points if not point.spans]
    every: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    for point, detection in zip(clean, recorded.detect(point.text for point in clean), strict=True):
        reasons = route_example(point.text, detection).reasons
        every.update(reasons)
        alone.update(reasons if len(reasons) == 1 else ())
    return {reason: {"examples": n, "alone": alone[reason]} for reason, n in every.most_common()}


def _curve(recorded: Recorded, points: Sequence[LabelledExample]) -> list[dict[str, Any]]:
    """Public share against miss rate over ``min_non_entity_probability``: the settings that none beats.

    A text with ``<MASK>`` is private whatever the policies say, so a secret is missed by both exactly when
    its point goes public as it is: no masked text needs to be read.
    """
    detector = recorded.detector
    secrets = Counter({p.text: 0 for p in points})
    secrets.update(p.text for p in points for _ in p.spans)
    open_texts = [t for t in secrets if not next(detector.strict.select_spans(t, recorded.readings[t]), None)]
    found = []
    for plain in PLAIN_CONFIDENCE:
        changed = detector.conservative.settings.model_copy(update={"min_non_entity_probability": plain})
        policy = dataclasses.replace(detector.conservative, settings=changed)
        public = {t for t in open_texts if _is_public(t, recorded.readings[t], policy)}
        misses = sum(secrets[text] for text in public)
        found.append({"min_non_entity_probability": plain, "misses": misses, "public": public})
    return [_point_of(entry, points, secrets.total()) for entry in _front(found, points)]


def _is_public(text: str, reading: EngineOutput, policy: Any) -> bool:
    if reading.failure:
        return False
    first = next(policy.select_spans(text, reading), None)
    return route_example(text, Detection((), (first,) if first else ())).split == PUBLIC


def _front(found: list[dict[str, Any]], points: Sequence[LabelledExample]) -> Iterator[dict[str, Any]]:
    """Those that keep more clean points public than every one with as few misses; fewest misses first.

    Of settings that do alike on these texts, the most careful.
    """
    clean = Counter(point.text for point in points if not point.spans)
    for entry in found:
        entry["clean"] = sum(clean[text] for text in entry["public"])
    best = -1
    for entry in sorted(found, key=lambda e: (e["misses"], -e["clean"], -e["min_non_entity_probability"])):
        if entry["clean"] > best:
            best = entry["clean"]
            yield entry


def _point_of(entry: dict[str, Any], points: Sequence[LabelledExample], secrets: int) -> dict[str, Any]:
    return {
        "min_non_entity_probability": entry["min_non_entity_probability"],
        "miss_rate": {**estimate_proportion(entry["misses"], secrets), "misses": entry["misses"], "n": secrets},
        "public_share": measure_public_share(points, entry["public"].__contains__),
    }


def _tell(result: dict[str, Any]) -> None:
    clean = result["public_share"]["of_clean"]
    reasons = list(result["clean_points_made_private_by"].items())[:10]
    print(
        f"{result['data']} {result['part'] or ''}: {clean['public']} of {clean['examples']} clean points by "
        f"{result['segment']} are public; private are "
        + ", ".join(f"{name} {own['examples']} ({own['alone']} alone)" for name, own in reasons),
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    main()

"""What the policies find and miss in labelled text, and what the shards give away by themselves."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from redactory.detectors import Detector, DetectSettings, TextDetector, policy_hashes
from redactory.detectors.alone import ENGINES, NAMED, Alone, only, rivals
from redactory.detectors.rules import words_if_any
from redactory.detectors.settings import PatternSettings, kinds_of, public_of, refuse_fitted_rows
from redactory.evaluation.detection import INTERVALS, LabelledPoint, measure_beside, measure_detection
from redactory.evaluation.labelled import labelled_points, labelled_rows
from redactory.evaluation.linkage import LONGEST_PHRASE, RARE, Shown, linkage, residual_identifiers
from redactory.evaluation.recall import measure_misses, secrets_left
from redactory.evaluation.report import write_report
from redactory.foundation.canonical import file_sha256, version_of
from redactory.foundation.errors import CheckFailed, ConfigurationError, InputError, some
from redactory.foundation.keys import load_digest_key
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.pipelines.config import SegmentSettings
from redactory.pipelines.label import fitted_policy, keep_recall, kept_recall
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.models import seal_result
from redactory.pipelines.policy import detect_fates
from redactory.pipelines.sealed import sealed
from redactory.pipelines.segment import segmenter
from redactory.redaction import RunFolder, parts, read_manifest
from redactory.redaction.shards import read_values


def evaluate_detect(
    labelled: str | Path,
    config: Given | None = None,
    *,
    detector: TextDetector | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Recall, precision, misses and public share on the labelled rows of a file.

    Texts are segmented and read as ``config`` says, or by the defaults. ``detector`` stands in for the
    engines. Returns :func:`~redactory.evaluation.detection.measure_detection` with {labelled, rows, spans,
    spans_outside_points, segment, policies: {name: hash}, public_labels}; spans with a public label are no
    secrets. ``ConfigurationError`` where the policies were fitted on any of these rows
    (``docs/guarantees.md``, "Coverage failure").
    """
    segment, detect = _settings(labelled, config)
    points, about = _labelled(Path(labelled), segment, detect)
    return about | measure_detection(detector or Detector(detect), points, progress)


def evaluate_against(
    labelled: str | Path, against: Iterable[str], config: Given | None = None, *, progress: Progress = silent
) -> dict[str, Any]:
    """The policies and other engines side by side, on the labelled rows of a file.

    ``against`` names the engines: ``presidio``, ``spacy``, both also with ``:PIPELINE``; ``stanza:FOLDER``,
    ``transformers:FOLDER``, or an engine of another package, ``NAME`` or ``NAME:FOLDER``. Texts are segmented
    as ``config`` says, and engines read its ``detect.language``. Returns {labelled, rows, spans,
    spans_outside_points, segment, policies, public_labels, language, points, distinct_points, secrets, table:
    the rows of :func:`~redactory.evaluation.detection.measure_beside`, engines: {name: what it is}, version,
    interval}. Before a text is read ``ConfigurationError`` for an engine that is unknown, not here or given
    twice, ``InputError`` where nothing is labelled.
    """
    segment, detect = _settings(labelled, config)
    beside = rivals(against, detect.language)
    points, about = _labelled(Path(labelled), segment, detect)
    secrets = sum(len(point.spans) for point in points)
    if not secrets:
        raise InputError(
            f"{Path(labelled).name}: no secret is labelled in {some(about['rows'], 'row')}, so nothing can "
            "be measured; label each secret as a span"
        )
    loaded = {one.name: Alone(one, detect.public_labels) for one in beside}
    return {
        **about,
        "language": detect.language,
        "points": len(points),
        "distinct_points": len({point.text for point in points}),
        "secrets": secrets,
        "table": measure_beside(Detector(detect), loaded, points, progress),
        "engines": {one.name: one.identity for one in beside},
        "version": version_of("redactory"),
        "interval": INTERVALS,
    }


def _settings(labelled: str | Path, config: Given | None) -> tuple[SegmentSettings, DetectSettings]:
    if config is None:
        return SegmentSettings(), DetectSettings()
    # the labelled file is what is read: a file with a detect section alone will do
    given = load_config(config, input={"path": str(labelled)})
    return given.segment, given.detect


def _labelled(
    path: Path, segment: SegmentSettings, detect: DetectSettings
) -> tuple[list[LabelledPoint], dict[str, Any]]:
    """The points of the rows of a file, and what a result says of rows and policies."""
    rows, cut = list(labelled_rows(path, detect.public_labels)), segmenter(segment)
    refuse_fitted_rows([row["text"] for row in rows], detect.conservative.fitted, load_digest_key())
    points = [
        LabelledPoint(number, text, spans, public)
        for number, row in enumerate(rows)
        for (text, spans), (_, public) in zip(
            labelled_points(row, cut), labelled_points({**row, "spans": row.get("public", ())}, cut), strict=True
        )
    ]
    count = sum(len(row["spans"]) for row in rows)
    placed = {(point.row, span["number"]) for point in points for span in point.spans}
    return points, {
        "labelled": str(path),
        "rows": len(rows),
        "spans": count,
        "spans_outside_points": count - len(placed),
        "segment": segment.mode,
        "policies": policy_hashes(detect),
        "public_labels": list(detect.public_labels),
    }


def evaluate_recall(config: Given, *, output: str | Path | None = None, progress: Progress = silent) -> dict[str, Any]:
    """What the policies miss of labelled secrets, and which of them the shards still hold.

    The misses are sealed in the run's private state, where the guarantee takes them from: they must be
    measured on secrets of this corpus that no policy was tuned on.  Whoever gives the labels vouches for
    that; what is checked is that no row is one that ``fit_policy`` fitted this run's policy on.  What has a
    public label of the run is no secret, so it is neither drawn nor missed.  ``date`` is
    the day of the measurement, or of the first one that gave the same.
    """
    settings = load_config(config, output=output)
    run = RunFolder(Path(settings.output))
    manifest = read_manifest(run)
    if settings.evaluate.labelled is None:
        raise ConfigurationError("evaluate.labelled: set it to a file of labelled rows")
    labelled, public = Path(settings.evaluate.labelled), public_of(manifest)

    def measure() -> dict[str, Any]:
        texts = (row["text"] for row in labelled_rows(labelled))
        refuse_fitted_rows(texts, fitted_policy(manifest), load_digest_key())
        cut = segmenter(settings.segment)
        secrets = [
            (text, [span])
            for row in labelled_rows(labelled, public)
            for text, spans in labelled_points(row, cut)
            for span in spans
        ]
        # a uniform sample of the secrets themselves: rows hold different numbers of them
        order = RandomStream.from_seed(len(secrets)).permutation("labelled sample", 0, len(secrets))
        sample = [secrets[i] for i in sorted(order[: settings.evaluate.labelled_secrets].tolist())]
        points, spans = [text for text, _ in sample], [own for _, own in sample]
        result = {
            "run": str(run.root),
            "secrets": len(secrets),
            "public_labels": list(public),
            "misses": measure_misses(detect_fates(manifest), points, spans, progress=progress),
            "left": secrets_left(run, labelled_rows(labelled, public)),
        }
        result["date"] = known_since(run, result)
        keep_recall(run, result)
        return result

    return sealed(run.state, measure)


def known_since(run: RunFolder, result: dict[str, Any]) -> str:
    """The day from which ``result`` is known: a training that goes on after midnight goes by the same."""
    try:
        earlier = kept_recall(run) or {}
    except CheckFailed:
        earlier = {}
    date = earlier.pop("date", None)
    return date if date and earlier == result else datetime.datetime.now(datetime.UTC).date().isoformat()


# What can be learnt from the shards alone.


TEACHER = (
    "the run's tagger was trained on labels of spaCy's small English pipeline, so misses of both stay "
    "unseen here; for an independent check use another engine (stanza:FOLDER, transformers:FOLDER)"
)


def evaluate_redaction(
    run: str | Path, engine: str | None = None, sample: int = 5_000, rare: int = RARE, progress: Progress = silent
) -> dict[str, Any]:
    """What can be learnt from the shards of a finished run alone: three attacks, none needs a model.

    ``linkage``: private points tied to public ones by rare phrases, by document and by user. ``residual``:
    what ``engine``, one that did not mask (spacy, patterns, tagger, or with its model spacy:PIPELINE,
    stanza:FOLDER, transformers:FOLDER), still finds on ``sample`` points of each side. ``across``: public
    points that nearly duplicate a private one. What cannot be measured is null, with its reason under
    ``reasons``. Sealed in the run's private state; ids, counts and labels, no text.
    """
    folder = RunFolder(Path(run))
    detect = DetectSettings.read_back(read_manifest(folder)["configuration"]["detect"])
    public = kinds_of(detect.public_labels)
    chosen, no_engine = independent_engine(detect, engine)

    def measure() -> dict[str, Any]:
        texts = {side: list(read_values(getattr(folder, side), "point_id", "text")) for side in ("public", "private")}
        authors, several = _authors(folder)
        linked: dict[str, Any] = dict.fromkeys(authors)
        for unit in authors if several else ["document"]:
            shown = {
                side: [Shown(i, text, frozenset(authors[unit].get(i, ()))) for i, text in own]
                for side, own in texts.items()
            }
            linked[unit] = linkage(shown["public"], shown["private"], rare, LONGEST_PHRASE, progress=progress)
        residual = None
        if chosen is not None:
            reader, words = Detector(only(chosen, detect.language)), words_if_any(detect.language)
            taught = detect.tagger is not None and chosen == "spacy"
            # a model's place is no part of the result
            residual = {"engine": chosen.partition(":")[0], "note": TEACHER if taught else None} | {
                side: residual_identifiers(reader.read, points, sample, 0, progress, words, public)
                for side, points in texts.items()
            }
        across = _across(folder)
        missing = {
            "linkage.user": None if several else "no user wrote more than one document: same as by document",
            "residual": no_engine or None,
            "across": "the run was curated without dedup.report_cross_split: nothing was compared across the split"
            if across is None
            else None,
        }
        result = {"run": str(folder.root), "linkage": linked, "residual": residual, "across": across}
        result["reasons"] = {name: reason for name, reason in missing.items() if reason}
        body = {"format": "redactory-evaluation/1", "parent": file_sha256(folder.manifest)}
        seal_result(folder.redaction, result, body)
        write_report(folder)
        return result

    return sealed(folder.state, measure)


def independent_engine(detect: DetectSettings, wanted: str | None = None) -> tuple[str | None, str]:
    """The name of an engine that ``detect`` does not use, or None and why there is none.

    ``ConfigurationError`` where ``wanted`` is unknown, or one of those that masked.
    """
    if detect.presidio is not None and detect.patterns is None:
        # most of the patterns are its recognizers
        detect = detect.model_copy(update={"patterns": PatternSettings()})
    # not spaCy: the tagger that is shipped learnt from it, and most of what it sees beyond is none
    free = [one for one in ENGINES if getattr(detect, one) is None]
    if wanted is None:
        masked = f"the run masked with {' and '.join(ENGINES)}; choose another engine to check it: {NAMED}"
        return (free[0], "") if free else (None, masked)
    try:
        only(wanted, detect.language)
    except ConfigurationError as error:
        raise ConfigurationError(f"engine: {error}") from None
    name = wanted.partition(":")[0]
    if name in detect.engines or getattr(detect, name, None) is not None:
        raise ConfigurationError(
            f"engine: {name} masked this run, so its check is not independent; use "
            f"{' or '.join(free) or 'an engine that the run does not use'}"
        )
    return wanted, ""


def _authors(run: RunFolder) -> tuple[dict[str, dict[str, set[str]]], bool]:
    """Keyed documents and users of every released point, those of its duplicates included.

    And whether any user wrote more than one document.
    """
    columns = ("point_id", "released_id", "dup_of", "document", "user")
    points = list(read_values(run.points, *columns))
    released = {point: own for point, own, *_ in points if own is not None}
    found: dict[str, dict[str, set[str]]] = {"document": defaultdict(set), "user": defaultdict(set)}
    for point, _, first, document, user in points:
        own = released.get(point if first is None else first)
        for unit, name in (("document", document), ("user", user)):
            if own is not None and name is not None:
                found[unit][own].add(name)
    pairs = {(document, user) for *_, document, user in points}
    return found, len(pairs) > len({user for _, user in pairs})


def _across(run: RunFolder) -> dict[str, Any] | None:
    """How many public points nearly duplicate a private one, and how near they are."""
    if not parts(run.across):
        return None
    near = list(read_values(run.across, "released_id", "similarity"))
    public = Counter(released for released, _ in near)
    return {
        "pairs": len(near),
        "public_points": len(public),
        "highest_similarity": max((float(value) for _, value in near), default=None),
        "listed": sorted(public)[:100],
    }

"""Evaluate redaction: what the shards give away by themselves, before any model is trained on them."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from redactory.detectors import Detector, DetectSettings
from redactory.detectors.rules import words_if_any
from redactory.evaluation.linkage import LONGEST_PHRASE, RARE, Reader, Shown, linkage, residual_identifiers
from redactory.evaluation.plots import pictures, redaction_plot
from redactory.evaluation.report import write_report
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import make_private_folder, write_json, write_text
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.sealed import sealed
from redactory.redaction import RunFolder, parts, read_batches, read_manifest, seal

ENGINES = ("patterns", "tagger")
"""The engines that are tried in turn as the independent one, where none is named.

Not spaCy: the tagger that is shipped learnt from it, and most of what it sees beyond is none.
"""
WITH_MODEL = {"spacy": "model", "stanza": "folder", "transformers": "folder"}
"""The engines that a model can be named for, and the setting that names it."""
_NAMED = "spacy:NAME, stanza:FOLDER or transformers:FOLDER"
TEACHER = (
    "the run's own tagger was trained on labels of spaCy's small English pipeline: what both overlook is not "
    "seen here; name another engine (stanza:FOLDER, transformers:FOLDER) for a look that is independent"
)


def evaluate_redaction(
    run: str | Path,
    engine: str | None = None,
    sample: int = 5_000,
    rare: int = RARE,
    progress: Progress = silent,
) -> dict[str, Any]:
    """What can be told from the shards of a finished run alone: three attacks, none needs a model.

    ``linkage``: private points tied to public ones by rare phrases, by document and, where users wrote
    several, by user.  ``residual``: what an engine that had no part in masking still finds on each side, on
    a sample of ``sample`` points a side; ``engine`` names it (spacy, patterns, tagger, or with its model
    spacy:NAME, stanza:FOLDER, transformers:FOLDER), else patterns or tagger is taken, where the run did not
    use it.
    ``across``: public points that nearly duplicate a private one, as ``dedup.across`` listed them.

    Whatever cannot be measured is null, with its reason under ``reasons``.  The result is sealed in the
    run's private state, with a picture of it (``redaction.svg``, where the extra ``plots`` is installed);
    both carry ids, counts and labels, no text.
    """
    folder = RunFolder(Path(run))
    manifest = read_manifest(folder)
    chosen, reason = independent_engine(
        DetectSettings.model_validate(manifest["configuration"]["detect"]), engine
    )
    return sealed(folder.state, _measured, folder, manifest, chosen, reason, sample, rare, progress)


def independent_engine(detect: DetectSettings, wanted: str | None = None) -> tuple[str | None, str]:
    """The name of an engine that ``detect`` does not use, or None and why there is none.

    ``ConfigurationError`` where ``wanted`` is unknown, or one of those that masked.
    """
    name, _, model = (wanted or "").partition(":")
    if wanted is not None and (name not in {*ENGINES, *WITH_MODEL} or (model and name not in WITH_MODEL)):
        raise ConfigurationError(f"engine: one of {', '.join(ENGINES)}, {_NAMED}")
    if name in ("stanza", "transformers") and not model:
        raise ConfigurationError(f"engine: {name} needs its model, as {name}:FOLDER")
    free = [one for one in ENGINES if getattr(detect, one) is None]
    if wanted is not None and getattr(detect, name) is not None:
        raise ConfigurationError(
            f"engine: {name} is one of the engines that masked this run, so its look is not independent; "
            f"take {' or '.join(free) or 'an engine that the run does not use'}"
        )
    if wanted is None and not free:
        return (
            None,
            f"the run masked with {' and '.join(ENGINES)}; name another engine to look at it: {_NAMED}",
        )
    return wanted or free[0], ""


def _measured(
    run: RunFolder,
    manifest: dict[str, Any],
    engine: str | None,
    no_engine: str,
    sample: int,
    rare: int,
    progress: Progress,
) -> dict[str, Any]:
    texts = {side: _released(getattr(run, side)) for side in ("public", "private")}
    authors, several = _authors(run)
    reasons: dict[str, str] = {}
    linked: dict[str, Any] = {}
    for unit in ("document", "user"):
        linked[unit] = None
        if unit == "user" and not several:
            reasons["linkage.user"] = "no user wrote more than one document: as by document"
            continue
        shown = {
            side: [Shown(i, t, frozenset(authors[unit].get(i, ()))) for i, t in own]
            for side, own in texts.items()
        }
        linked[unit] = linkage(shown["public"], shown["private"], rare, LONGEST_PHRASE, progress=progress)
    residual = None
    if engine is None:
        reasons["residual"] = no_engine
    else:
        read = _reader(engine, manifest)
        words = words_if_any(manifest["configuration"]["detect"]["language"])
        # a folder's place is nobody's business
        residual = {"engine": engine.partition(":")[0], "note": _learnt_from(engine, manifest)} | {
            side: residual_identifiers(read, own, sample, progress=progress, words=words)
            for side, own in texts.items()
        }
    across = _across(run)
    if across is None:
        reasons["across"] = "the run was curated without dedup.across: nothing was compared across the split"
    result = {"run": str(run.root), "linkage": linked, "residual": residual, "across": across}
    result["reasons"] = reasons
    _keep(run, result)
    return result


def _released(folder: Path) -> list[tuple[str, str]]:
    return [
        pair
        for batch in read_batches(folder, ["point_id", "text"])
        for pair in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]


def _authors(run: RunFolder) -> tuple[dict[str, dict[str, set[str]]], bool]:
    """Keyed documents and users of every released point, those of its duplicates included.

    And whether any user wrote more than one document.
    """
    found: dict[str, dict[str, set[str]]] = {"document": defaultdict(set), "user": defaultdict(set)}
    released: dict[int, str] = {}
    later: list[tuple[int, str | None, str | None]] = []
    columns = ["point_id", "released_id", "dup_of", "document", "user"]
    for batch in read_batches(run.points, columns):
        for point, own, first, document, user in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            if own is not None:
                released[point] = own
            later.append((point if first is None else first, document, user))
    for point, document, user in later:
        if point in released:
            for unit, name in (("document", document), ("user", user)):
                if name is not None:
                    found[unit][released[point]].add(name)
    pairs = {(document, user) for _, document, user in later}
    return found, len(pairs) > len({user for _, user in pairs})


def _reader(engine: str, manifest: dict[str, Any]) -> Reader:
    off = dict.fromkeys(("tagger", "spacy", "patterns", "stanza", "transformers", "lists"))
    language = manifest["configuration"]["detect"]["language"]
    name, _, model = engine.partition(":")
    own = {WITH_MODEL[name]: model} if model else {}
    return Detector(DetectSettings.model_validate({**off, name: own, "language": language})).read


def _learnt_from(engine: str, manifest: dict[str, Any]) -> str | None:
    """What makes of another engine no independent one."""
    tagged = manifest["configuration"]["detect"].get("tagger") is not None
    return TEACHER if tagged and engine == "spacy" else None


def _across(run: RunFolder) -> dict[str, Any] | None:
    """How many public points nearly duplicate a private one, and how near they are."""
    if not parts(run.across):
        return None
    found: list[float] = []
    public: Counter[str] = Counter()
    for batch in read_batches(run.across, ["released_id", "similarity"]):
        ids, values = (column.to_pylist() for column in batch.columns)
        public.update(ids)
        found += values
    near = np.asarray(found)
    return {
        "pairs": len(found),
        "public_points": len(public),
        "highest_similarity": float(near.max()) if found else None,
        "listed": sorted(public)[:100],
    }


def _keep(run: RunFolder, result: dict[str, Any]) -> None:
    kept = run.redaction
    make_private_folder(kept.root)
    kept.success.unlink(missing_ok=True)
    files = [kept.root / "result.json"]
    write_json(files[0], result)
    for old in kept.root.glob("*.svg"):
        old.unlink()
    for name, svg in pictures("redaction.svg", redaction_plot, result).items():
        files.append(kept.root / name)
        write_text(files[-1], svg)
    seal(kept, {"format": "redactory-evaluation/1", "parent": file_sha256(run.manifest)}, files)
    write_report(run)

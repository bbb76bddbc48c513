"""Fit: labelled rows in, a calibrated token tagger with its card out."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from redactory.detectors.classifier.engine import TransformersEngine
from redactory.detectors.classifier.fitting import (
    BASE_DECIDES,
    ClassifierSettings,
    calibrate_classifier,
    train_classifier,
)
from redactory.detectors.engine import Engine
from redactory.detectors.settings import FitSettings, TaggerSettings, TransformersSettings
from redactory.detectors.spacy_model import versions
from redactory.detectors.tagger import LabelledText, Reliability, TaggerEngine, calibrate, train_tagger
from redactory.evaluation.labelled import labelled_rows
from redactory.evaluation.plots import pictures, reliability_plot
from redactory.foundation.canonical import file_blocks, folder_sha256
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import PUBLIC_FILE, TEMPORARY_PREFIX, write_json, write_text
from redactory.foundation.keys import load_digest_key
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.loading import settings_of

LEAST_ROWS = 20


@dataclass(frozen=True)
class _Fitted:
    """What training leaves: how it is written and read, and what the folder says of it."""

    save: Callable[[Path], None]
    engine: Callable[[Path], Engine]
    reliability: Reliability
    settings: dict[str, Any]
    versions: dict[str, str]
    card: str


def fit(
    labelled: Sequence[str | Path],
    out: str | Path,
    settings: FitSettings | Mapping[str, Any] | None = None,
    progress: Progress = silent,
    base: str | Path | None = None,
) -> dict[str, Any]:
    """Train a tagger on JSONL files in the span schema and write it, with its card, to the folder ``out``.

    A share of the distinct texts, chosen by their digest, is kept out of training: the temperature is
    fitted, and its reliability told, on one half of it; the figures of the card are measured on the other.
    CRT, appendix A.4, takes a threshold on an NER model's scores: it means something on calibrated ones only.
    ``detect.tagger.models`` takes the folder.  ``ConfigurationError`` where ``out`` is there already.

    With ``base``, the folder of a Hugging Face model, that model is trained further with a new last layer,
    by the settings of ``ClassifierSettings``; ``detect.transformers.folder`` takes what is written.
    """
    chosen = settings_of(FitSettings if base is None else ClassifierSettings, settings)
    folder = Path(out)
    if folder.exists():
        raise ConfigurationError(f"{folder} is there already: name another folder, or remove it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # an unkeyed digest in what is handed on would let anybody try out guesses of a small file
    files, key = [Path(path) for path in labelled], load_digest_key()
    rows = {text.text: text for path in files for text in _texts(path)}
    training, fitted_on, tested_on = _parts(list(rows.values()), chosen)
    if base is None:
        fitted = _tagger(folder.name, training, fitted_on, chosen, progress)
    else:
        fitted = _classifier(folder.name, Path(base), training, fitted_on, chosen, progress)
    part = folder.with_name(f"{TEMPORARY_PREFIX}{folder.name}")
    shutil.rmtree(part, ignore_errors=True)
    try:
        fitted.save(part)
        result = {
            "rows": len(training),
            "held_out_rows": len(fitted_on) + len(tested_on),
            "labels": dict(sorted(Counter(s[2] for row in training for s in row.spans).items())),
            "reliability": asdict(fitted.reliability),
            "held_out": _scores(fitted.engine(part), tested_on),
            "settings": fitted.settings,
            "files": [{"name": path.name, "digest": key.file_digest(file_blocks(path))} for path in files],
            "versions": fitted.versions,
        }
        write_json(part / "fit.json", result, PUBLIC_FILE)
        shown = (fitted.reliability.bins, fitted.reliability.error)
        drawn = pictures("reliability.svg", reliability_plot, *shown)
        picture = "![reliability](reliability.svg)\n\n" if drawn else ""
        card = _card(folder.name, fitted.card, result, picture)
        for name, text in {**drawn, "README.md": card}.items():
            write_text(part / name, text, PUBLIC_FILE)
        part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return {"tagger": str(folder), **result}


def _tagger(
    name: str,
    training: list[LabelledText],
    fitted_on: list[LabelledText],
    settings: FitSettings,
    progress: Progress,
) -> _Fitted:
    nlp = train_tagger(training, settings, progress)
    return _Fitted(
        save=nlp.to_disk,
        engine=lambda folder: TaggerEngine(TaggerSettings(models=(str(folder),)), "en"),
        reliability=calibrate(nlp, fitted_on),
        settings=settings.model_dump(mode="json"),
        versions=versions("redactory", "spacy", "thinc", "numpy"),
        card="A convolutional token classifier that Redactory trained; "
        f"`detect.tagger.models: [{name}]` uses it.",
    )


def _classifier(
    name: str,
    base: Path,
    training: list[LabelledText],
    fitted_on: list[LabelledText],
    settings: FitSettings,
    progress: Progress,
) -> _Fitted:
    classifier = train_classifier(base, training, settings, progress)
    origin = {"folder": base.resolve().name, "sha256": folder_sha256(base)}
    used = TransformersSettings(folder=name)
    keys = ", ".join(f"{key}: {value}" for key, value in used.model_dump(exclude_defaults=True).items())
    return _Fitted(
        save=classifier.to_disk,
        engine=lambda folder: TransformersEngine(used.model_copy(update={"folder": str(folder)}), "en"),
        reliability=calibrate_classifier(classifier, fitted_on),
        settings={**settings.model_dump(mode="json", exclude=set(BASE_DECIDES)), "base": origin},
        versions=versions("redactory", "transformers", "tokenizers", "torch", "numpy"),
        card=f"A transformer that Redactory trained further; `detect.transformers: {{{keys}}}` uses it.\n"
        f"It was made from `{origin['folder']}`, sha256 `{origin['sha256']}`, with a new last layer; what\n"
        "that model was licensed for, and what it was trained on, holds for this one too.",
    )


def _texts(path: Path) -> list[LabelledText]:
    return [
        LabelledText(row["text"], tuple((s["start"], s["end"], s["label"]) for s in row["spans"]))
        for row in labelled_rows(path)
        if row["text"].strip()
    ]


def _parts(
    rows: list[LabelledText], settings: FitSettings
) -> tuple[list[LabelledText], list[LabelledText], list[LabelledText]]:
    """Rows to train on, to calibrate on, and to test on: by each text's digest, whatever its place."""
    if len(rows) < LEAST_ROWS:
        raise InputError(
            f"a tagger needs at least {LEAST_ROWS} distinct labelled texts, {len(rows)} are given: label more"
        )

    def place(row: LabelledText) -> tuple[str, LabelledText]:
        return hashlib.sha256(f"{settings.seed}\0{row.text}".encode()).hexdigest(), row

    ordered = [row for _, row in sorted(map(place, rows))]
    kept = max(2, round(settings.held_out * len(rows)))
    if not any(row.spans for row in ordered[kept:]):
        raise InputError("no row that is left for training has a labelled span: there is nothing to learn")
    return ordered[kept:], ordered[: kept // 2], ordered[kept // 2 : kept]


def _scores(engine: Engine, rows: Sequence[LabelledText]) -> dict[str, Any]:
    """Labelled spans covered whole, and how much of the marks is labelled, by characters, at score 0.5."""
    spans: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    marked = right = 0
    for row in rows:
        (reading,) = engine.read([row.text])
        solid = {i for i, sign in enumerate(row.text) if not sign.isspace()}
        covered = solid & {i for s in reading.spans if s.score >= 0.5 for i in range(s.start, s.end)}
        true = solid & {i for start, end, _ in row.spans for i in range(start, end)}
        marked, right = marked + len(covered), right + len(covered & true)
        for start, end, label in row.spans:
            spans[label] += 1
            whole[label] += solid & set(range(start, end)) <= covered
    return {
        "rows": len(rows),
        "spans": spans.total(),
        "cover_recall": round(whole.total() / spans.total(), 4) if spans else None,
        "char_precision": round(right / marked, 4) if marked else None,
        "by_label": {label: round(whole[label] / spans[label], 4) for label in sorted(spans)},
    }


def _card(name: str, about: str, result: Mapping[str, Any], picture: str) -> str:
    held_out, reliability = result["held_out"], result["reliability"]
    labels = "\n".join(
        f"| {label} | {count} | {held_out['by_label'].get(label, '–')} |"
        for label, count in result["labels"].items()
    )
    files = "\n".join(f"- `{file['name']}`, keyed digest `{file['digest']}`" for file in result["files"])
    return f"""# Token tagger {name}

{about}

- Trained on {result["rows"]} distinct texts; {result["held_out_rows"]} more were held out, half of them to
  calibrate on, half for the figures below. They are of the same source as the training rows: on other text
  it is worse. Measure it there with `redactory evaluate detection`.
- Held out, at score 0.5: {held_out["cover_recall"]} of the labelled spans are covered whole; of the
  characters marked, {held_out["char_precision"]} are labelled.
- Calibration: temperature {reliability["temperature"]}; the expected calibration error of P(plain) fell from
  {reliability["error_before"]} to {reliability["error"]} on {reliability["tokens"]} tokens.

{picture}| label | spans trained on | covered whole, held out |
|---|---|---|
{labels}

The rows:

{files}

If they are private, so is this folder: its weights are a function of them, without noise. A tagger trained
on the corpus that is then curated with it is a side channel of that corpus's guarantee.
"""

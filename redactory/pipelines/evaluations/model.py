"""A finished model as an evaluation needs it: opened, its held-out text read, its results kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from redactory.evaluation.report import write_report
from redactory.foundation.canonical import file_sha256
from redactory.foundation.files import make_private_folder, write_json, write_text
from redactory.pipelines.config import InputSettings, SegmentSettings
from redactory.pipelines.models import named_model, require_training_packages
from redactory.pipelines.readers import Document, find_sources, read_documents
from redactory.pipelines.segment import segmenter
from redactory.redaction import RunFolder, read_manifest, seal

OF_SHARDS = ("crt", "crt-drop", "redact-only")
"""The trainers that learn from the shards; the others learn from the vault."""


def open_model(run: str | Path, model: str | None) -> tuple[RunFolder, str, dict[str, Any]]:
    """A finished run, the name of one of its finished models, and the run's manifest."""
    folder = RunFolder(Path(run))
    manifest = read_manifest(folder)
    name = named_model(folder, model)
    require_training_packages()
    return folder, name, manifest


def trained_on(run: RunFolder, model: str) -> tuple[Path, ...]:
    """The data folders that a finished model learnt from: the shards, or the vault."""
    trainer = read_manifest(run.model(model))["summary"]["trainer"]
    return (run.public, run.private) if trainer in OF_SHARDS else (run.vault,)


def held_out(
    manifest: dict[str, Any], paths: tuple[str, ...], optional: tuple[str, ...]
) -> Iterator[tuple[str, str | None]]:
    """The text and the class of every point of a held-out corpus, cut as the run's own is.

    A manifest names every column, and one that is named must be there; of ``optional`` none is read.
    """
    configured = manifest["configuration"]
    columns = {key: value for key, value in configured["input"].items() if key not in optional}
    settings = InputSettings.model_validate({**columns, "path": paths})
    cut = segmenter(SegmentSettings.model_validate(configured["segment"]))
    for source in find_sources(paths, settings.format, key="evaluate.test"):
        for entry in read_documents(source, settings):
            if isinstance(entry, Document):
                yield from ((segment.text, entry.label) for segment in cut(entry.text))


def keep_result(
    run: RunFolder,
    model: str,
    evaluation: str,
    measure: Callable[[], dict[str, Any]],
    draw: Callable[[dict[str, Any]], dict[str, str]] | None = None,
) -> dict[str, Any]:
    """Measure, seal the result in the model's folder, and render the report again.

    ``draw`` makes figures of the result (file name: SVG text), which are sealed beside it.
    """
    result = measure()
    figures = draw(result) if draw else {}
    folder = run.model(model).result(evaluation)
    make_private_folder(folder.root)
    folder.success.unlink(missing_ok=True)
    out = folder.root / "result.json"
    write_json(out, result)
    for old in folder.root.glob("*.svg"):
        old.unlink()
    for name, svg in figures.items():
        write_text(folder.root / name, svg)
    files = [out, *(folder.root / name for name in figures)]
    parent = file_sha256(run.model(model).manifest)
    seal(folder, {"format": "redactory-evaluation/1", "evaluation": evaluation, "parent": parent}, files)
    write_report(run)
    return result

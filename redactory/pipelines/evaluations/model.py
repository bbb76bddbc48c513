"""A finished model as an evaluation needs it: opened, its held-out text read, its results kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from redactory.evaluation.plots import exposure_plot, pictures
from redactory.evaluation.report import write_report
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import make_private_folder, read_json, write_json, write_text
from redactory.foundation.progress import Progress, silent, waiting
from redactory.pipelines.config import SegmentSettings
from redactory.pipelines.fates import detect_fates
from redactory.pipelines.models import named_model, require_training_packages
from redactory.pipelines.readers import Document, InputSettings, find_sources, read_documents
from redactory.pipelines.sealed import sealed
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


# Evaluate perplexity: a trained model on held-out text, as it is and masked.


def evaluate_perplexity(
    run: str | Path, model: str | None = None, test: Sequence[str] = (), progress: Progress = silent
) -> dict[str, Any]:
    """Perplexity of a model on held-out text, as it is and masked by π.

    ``test`` is in the columns and segments of the run's configuration; its ``evaluate.test`` by default.
    """
    folder, name, manifest = open_model(run, model)
    paths = tuple(test) or tuple(manifest["configuration"]["evaluate"]["test"])
    if not paths:
        raise ConfigurationError("evaluate.test: name a held-out corpus there, or with --test")

    def measure() -> dict[str, Any]:
        from redactory.evaluation.utility import perplexity
        from redactory.training import load_model

        texts = [text for text, _ in held_out(manifest, paths, optional=("id", "user", "label"))]
        with waiting(progress, "mask by the policies"):
            masked = [text for _, text in detect_fates(manifest)(texts)]
        trained = load_model(folder.model(name))
        return {
            "run": str(folder.root),
            "model": name,
            "as_is": perplexity(trained, texts, progress),
            "masked": perplexity(trained, masked, progress),
        }

    return sealed(folder.state, keep_result, folder, name, "perplexity", measure)


# Evaluate accuracy: how often a trained classifier is wrong on held-out text.


CLASSIFY, NEXT_WORD = "classify", "next-word"


def evaluate_accuracy(
    run: str | Path, model: str | None = None, test: Sequence[str] = (), progress: Progress = silent
) -> dict[str, Any]:
    """The test error rate of a classifier, by class, on held-out text with known classes.

    ``test`` is in the columns and segments of the run's configuration, its ``input.label`` included; the
    run's ``evaluate.test`` by default.  Each point has its row's class, as in training.  The result is that
    of :func:`redactory.evaluation.utility.accuracy` with {run, model}.
    """
    folder, name, manifest = open_model(run, model)
    if task_of(read_manifest(folder.model(name))) != CLASSIFY:
        raise ConfigurationError(
            f"train.task: {name} predicts words; measure it with 'redactory evaluate perplexity'"
        )
    paths = tuple(test) or tuple(manifest["configuration"]["evaluate"]["test"])
    if not paths:
        raise ConfigurationError("evaluate.test: name a held-out corpus there, or with --test")

    def measure() -> dict[str, Any]:
        from redactory.evaluation.utility import accuracy
        from redactory.training.model import load_classifier

        points = list(held_out(manifest, paths, optional=("id", "user")))
        texts, classes = [text for text, _ in points], [label for _, label in points]
        trained = load_classifier(folder.model(name))
        return {"run": str(folder.root), "model": name, **accuracy(trained, texts, classes, progress)}

    return sealed(folder.state, keep_result, folder, name, "accuracy", measure)


def task_of(manifest: dict[str, Any]) -> str:
    """What the model of this manifest was trained to do."""
    return str(manifest["settings"].get("task", NEXT_WORD))


# Evaluate canary: how much likelier a trained model finds planted secrets than others like them.


def evaluate_canary(
    run: str | Path,
    model: str | None = None,
    canaries: str | Path | None = None,
    progress: Progress = silent,
    samples: int = 20_000,
    seed: int = 0,
) -> dict[str, Any]:
    """Exposure of the canaries of a simulated corpus, and the copies that curation left of each.

    Exact up to a million candidates; of more, ``samples`` are drawn by ``seed``.
    """
    folder, name, manifest = open_model(run, model)
    path = canaries or manifest["configuration"]["evaluate"]["canaries"]
    if path is None:
        raise ConfigurationError("evaluate.canaries: name a FILE.canaries.json there, or with --canaries")
    planted = _read_canaries(Path(path))

    def measure() -> dict[str, Any]:
        from redactory.evaluation.canary import canary_copies_left, canary_exposure
        from redactory.training import load_model

        trained = load_model(folder.model(name))
        left = canary_copies_left(trained_on(folder, name), planted)
        # what stands in a shard was not masked, whoever learns from the shards
        missed = [n > 0 for n in canary_copies_left((folder.public, folder.private), planted)]
        found = canary_exposure(trained, planted, left, progress, samples, seed, missed)
        return {"run": str(folder.root), "model": name, **found}

    def drawn(result: dict[str, Any]) -> dict[str, str]:
        return pictures("exposure.svg", exposure_plot, result)

    return sealed(folder.state, keep_result, folder, name, "canary", measure, drawn)


def _read_canaries(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = read_json(path)
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else "this is not JSON"
        raise InputError(
            f"{path} cannot be read as canaries: {problem}; name the .canaries.json that redactory "
            "simulate wrote"
        ) from None
    return value

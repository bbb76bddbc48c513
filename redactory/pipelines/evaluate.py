"""Evaluate: a trained model on held-out text and on canaries; the policies on labelled text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from redactory.detectors import Detector, DetectSettings, policies_of, policy_record
from redactory.detectors.fitted import refuse_fitted_rows
from redactory.evaluation.leaks import secrets_left
from redactory.evaluation.recall import measure_misses
from redactory.evaluation.report import write_report
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import make_private_folder, read_json, write_json, write_text
from redactory.foundation.keys import load_digest_key
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.pipelines.config import Config, InputSettings, SegmentSettings
from redactory.pipelines.labelled import labelled_points, labelled_rows
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.readers import Document, find_sources, read_documents
from redactory.pipelines.sealed import sealed
from redactory.pipelines.segment import segmenter
from redactory.pipelines.train import named_model, require_training_packages
from redactory.redaction import RunFolder, read_manifest, route, seal

OF_SHARDS = ("crt", "crt-drop", "redact-only")
"""The trainers that learn from the shards; the others learn from the vault."""


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
        from redactory.evaluation.perplexity import perplexity
        from redactory.training import load_model

        texts = [text for text, _ in held_out(manifest, paths, optional=("id", "user", "label"))]
        masked = [text for _, text in detect_fates(manifest)(texts)]
        trained = load_model(folder.model(name))
        return {
            "run": str(folder.root),
            "model": name,
            "as_is": perplexity(trained, texts, progress),
            "masked": perplexity(trained, masked, progress),
        }

    return sealed(folder.state, keep_result, folder, name, "perplexity", measure)


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
        from redactory.evaluation.exposure_plot import exposure_plot

        return {"exposure.svg": exposure_plot(result)}

    return sealed(folder.state, keep_result, folder, name, "canary", measure, drawn)


def evaluate_recall(
    config: Given, *, output: str | Path | None = None, progress: Progress = silent
) -> dict[str, Any]:
    """What the policies miss of labelled secrets, and which of them the shards still hold.

    The misses go into the run's private state, where the guarantee takes them from: they must be
    measured on secrets of this corpus that no policy was fitted on.
    """
    settings = load_config(config, output=output)
    run = RunFolder(Path(settings.output))
    manifest = read_manifest(run)
    if settings.evaluate.labelled is None:
        raise ConfigurationError("evaluate.labelled: name a JSONL file with true spans there")
    return sealed(run.state, _recall, run, settings, manifest, Path(settings.evaluate.labelled), progress)


def _recall(
    run: RunFolder, config: Config, manifest: dict[str, Any], labelled: Path, progress: Progress
) -> dict[str, Any]:
    fitted = DetectSettings.model_validate(manifest["configuration"]["detect"]).conservative.fitted
    refuse_fitted_rows((row["text"] for row in labelled_rows(labelled)), fitted, load_digest_key())
    cut = segmenter(config.segment)
    secrets = [
        (text, span)
        for row in labelled_rows(labelled)
        for text, spans in labelled_points(row, cut)
        for span in spans
    ]
    # a uniform sample of the secrets themselves: rows hold different numbers of them
    order = RandomStream.from_seed(len(secrets)).permutation("labelled sample", 0, len(secrets))
    sample = [secrets[i] for i in sorted(order[: config.evaluate.labelled_secrets].tolist())]
    texts, spans = [text for text, _ in sample], [[span] for _, span in sample]
    result = {
        "run": str(run.root),
        "secrets": len(secrets),
        "misses": measure_misses(detect_fates(manifest), texts, spans, progress=progress),
        "left": secrets_left(run, labelled_rows(labelled)),
    }
    write_json(run.recall, result)
    write_report(run)
    return result


def detect_fates(manifest: dict[str, Any]) -> Callable[[Sequence[str]], list[tuple[str, str]]]:
    """F of a finished run: texts of points to (side, masked text) of each.

    ``ConfigurationError`` where it is another function by now: what that one misses says nothing of the run.
    """
    settings = DetectSettings.model_validate(manifest["configuration"]["detect"])
    for policy in policies_of(settings):
        if policy_record(settings, policy)["hash"] != manifest["policies"][policy.name]["hash"]:
            raise ConfigurationError(
                f"the {policy.name} policy is not that of the run any more: a model, a list or a package has "
                "changed since; bring it back, or curate again"
            )
    detector = Detector(settings)

    def fates(texts: Sequence[str]) -> list[tuple[str, str]]:
        routed = (route(t, d) for t, d in zip(texts, detector.detect(texts), strict=True))
        return [("quarantined" if f.failure else f.side, f.text) for f in routed]

    return fates


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
    for name, svg in figures.items():
        write_text(folder.root / name, svg)
    files = [out, *(folder.root / name for name in figures)]
    parent = file_sha256(run.model(model).manifest)
    seal(folder, {"format": "redactory-evaluation/1", "parent": parent}, files)
    write_report(run)
    return result


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

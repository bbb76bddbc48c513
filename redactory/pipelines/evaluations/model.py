"""What a trained model knows: of held-out text, of planted canaries; and how any evaluation is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redactory.evaluation.plots import exposure_plot, pictures
from redactory.evaluation.report import write_report
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import read_json
from redactory.foundation.progress import Progress, silent, waiting
from redactory.pipelines.config import SegmentSettings
from redactory.pipelines.fates import detect_fates
from redactory.pipelines.models import named_model, require_training_packages, seal_result
from redactory.pipelines.readers import Document, InputSettings, find_sources, read_documents
from redactory.pipelines.sealed import sealed
from redactory.pipelines.segment import segmenter
from redactory.redaction import RunFolder, read_manifest
from redactory.training.settings import TRAINERS

if TYPE_CHECKING:
    from redactory.training import LanguageModel

CLASSIFY, NEXT_WORD = "classify", "next-word"
Result = dict[str, Any]


@dataclass(frozen=True)
class Evaluated:
    """A finished model that is evaluated: its run, its name, the run's manifest."""

    run: RunFolder
    name: str
    manifest: Result

    @classmethod
    def open(cls, run: str | Path, model: str | None) -> Evaluated:
        """One of the finished models of a finished run: ``model``, or the one that is configured."""
        folder = RunFolder(Path(run))
        manifest = read_manifest(folder)
        name = named_model(folder, model)
        require_training_packages()
        return cls(folder, name, manifest)

    def load(self) -> LanguageModel:
        """The language model itself."""
        from redactory.training import load_model

        return load_model(self.run.model(self.name))

    def configured(self, key: str, given: Any, option: str, what: str) -> Any:
        """``given``, or what the run's configuration names under ``evaluate``."""
        found = given or self.manifest["configuration"]["evaluate"][key]
        if not found:
            raise ConfigurationError(f"evaluate.{key}: name {what} there, or with {option}")
        return found

    def learnt_from(self) -> tuple[Path, ...]:
        """The data folders that it learnt from: the shards, or the vault."""
        trainer = TRAINERS[read_manifest(self.run.model(self.name))["summary"]["trainer"]]
        return tuple(getattr(self.run, name) for name in trainer.folders)

    def held_out(self, paths: Sequence[str], *optional: str) -> Iterator[tuple[str, str | None]]:
        """The text and the class of every point of a held-out corpus, cut as the run's own is.

        A manifest names every column, and one that is named must be there; of ``optional`` none is read.
        """
        configured = self.manifest["configuration"]
        columns = {key: value for key, value in configured["input"].items() if key not in optional}
        settings = InputSettings.read_back({**columns, "path": tuple(paths)})
        cut = segmenter(SegmentSettings.read_back(configured["segment"]))
        for source in find_sources(settings.path, settings.format, key="evaluate.test"):
            for entry in read_documents(source, settings):
                if isinstance(entry, Document):
                    yield from ((segment.text, entry.label) for segment in cut(entry.text))

    def keep(
        self,
        evaluation: str,
        measure: Callable[[], Mapping[str, Any]],
        draw: Callable[[Result], dict[str, str]] | None = None,
    ) -> Result:
        """Measure and keep the result in the model's folder; an error that quotes text is sealed."""
        return sealed(self.run.state, keep_result, self.run, self.name, evaluation, measure, draw)


def keep_result(
    run: RunFolder,
    model: str,
    evaluation: str,
    measure: Callable[[], Mapping[str, Any]],
    draw: Callable[[Result], dict[str, str]] | None = None,
) -> Result:
    """Measure, seal the result in the model's folder, and render the report again.

    ``draw`` makes figures of the result (file name: SVG text), which are sealed beside it.
    """
    result = {"run": str(run.root), "model": model, **measure()}
    parent = file_sha256(run.model(model).manifest)
    body = {"format": "redactory-evaluation/1", "evaluation": evaluation, "parent": parent}
    seal_result(run.model(model).result(evaluation), result, body, draw(result) if draw else {})
    write_report(run)
    return result


def task_of(manifest: Mapping[str, Any]) -> str:
    """What the model of this manifest was trained to do."""
    return str(manifest["settings"].get("task", NEXT_WORD))


def evaluate_perplexity(
    run: str | Path, model: str | None = None, test: Sequence[str] = (), progress: Progress = silent
) -> Result:
    """Perplexity of a model on held-out text, as it is and masked by π.

    ``test`` is in the columns and segments of the run's configuration; its ``evaluate.test`` by default.
    """
    own = Evaluated.open(run, model)
    paths = own.configured("test", test, "--test", "a held-out corpus")

    def measure() -> Result:
        from redactory.evaluation.utility import perplexity

        texts = [text for text, _ in own.held_out(paths, "id", "user", "label")]
        with waiting(progress, "mask by the policies"):
            masked = [text for _, text in detect_fates(own.manifest)(texts)]
        trained = own.load()
        return {
            "as_is": perplexity(trained, texts, progress),
            "masked": perplexity(trained, masked, progress),
        }

    return own.keep("perplexity", measure)


def evaluate_accuracy(
    run: str | Path, model: str | None = None, test: Sequence[str] = (), progress: Progress = silent
) -> Result:
    """The test error rate of a classifier, by class, on held-out text with known classes.

    ``test`` is in the columns and segments of the run's configuration, its ``input.label`` included; the
    run's ``evaluate.test`` by default.  Each point has its row's class, as in training.  The result is that
    of :func:`redactory.evaluation.utility.accuracy` with {run, model}.
    """
    own = Evaluated.open(run, model)
    if task_of(read_manifest(own.run.model(own.name))) != CLASSIFY:
        raise ConfigurationError(
            f"train.task: {own.name} predicts words; measure its perplexity (redactory evaluate model)"
        )
    paths = own.configured("test", test, "--test", "a held-out corpus")

    def measure() -> Result:
        from redactory.evaluation.utility import accuracy
        from redactory.training.model import load_classifier

        points = list(own.held_out(paths, "id", "user"))
        trained = load_classifier(own.run.model(own.name))
        return accuracy(trained, [text for text, _ in points], [label for _, label in points], progress)

    return own.keep("accuracy", measure)


def evaluate_canary(
    run: str | Path,
    model: str | None = None,
    canaries: str | Path | None = None,
    progress: Progress = silent,
    samples: int = 20_000,
    seed: int = 0,
) -> Result:
    """Exposure of the canaries of a simulated corpus, and the copies that curation left of each.

    Exact up to a million candidates; of more, ``samples`` are drawn by ``seed``.
    """
    own = Evaluated.open(run, model)
    planted = _read_canaries(Path(own.configured("canaries", canaries, "--canaries", "a FILE.canaries.json")))

    def measure() -> Result:
        from redactory.evaluation.canary import canary_copies_left, canary_exposure

        trained = own.load()
        left = canary_copies_left(own.learnt_from(), planted)
        # what stands in a shard was not masked, whoever learns from the shards
        missed = [n > 0 for n in canary_copies_left((own.run.public, own.run.private), planted)]
        return canary_exposure(trained, planted, left, progress, samples, seed, missed)

    return own.keep("canary", measure, lambda result: pictures("exposure.svg", exposure_plot, result))


def _read_canaries(path: Path) -> Result:
    try:
        value: Result = read_json(path)
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else "this is not JSON"
        raise InputError(
            f"{path} cannot be read as canaries: {problem}; name the .canaries.json that redactory "
            "simulate wrote"
        ) from None
    return value

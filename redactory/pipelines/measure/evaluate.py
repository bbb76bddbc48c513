"""Evaluate a trained model on held-out text and canaries, and evaluate the text that it wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import numpy as np

from redactory import training
from redactory.evaluation import plots
from redactory.evaluation.canary import count_canary_copies, measure_canary_exposure
from redactory.evaluation.report import write_report
from redactory.evaluation.synthetic import ClassedText, embed_texts, measure_leakage, measure_text_quality
from redactory.evaluation.utility import measure_accuracy, measure_perplexity
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import read_json
from redactory.foundation.progress import Progress, ignore_progress, report_start_and_end
from redactory.foundation.stream import RandomStream
from redactory.pipelines.curation import segment
from redactory.pipelines.curation.config import SegmentSettings
from redactory.pipelines.curation.error_sealing import run_with_sealed_traceback
from redactory.pipelines.curation.models import require_training_packages, resolve_model_name, seal_result
from redactory.pipelines.curation.policy import make_run_router
from redactory.pipelines.readers import Document, InputSettings, find_sources
from redactory.pipelines.readers.documents import RowCounts
from redactory.redaction import RunFolder, count_part_rows, list_parts, read_manifest
from redactory.redaction.folder import SyntheticFolder
from redactory.redaction.shards import CLASS, ROLE, read_batches, read_values
from redactory.training.chat import ChatCodec, join_turns
from redactory.training.settings import TRAINERS
from redactory.training.trainers import Trainer

CLASSIFY = "classify"
MAX_COMPARED = 2_000
Result = dict[str, Any]
ComparedText = tuple[str, str | None, bool]


@dataclass(frozen=True)
class ModelEvaluation:
    """A finished model under evaluation: its run, its name, and the manifests of both."""

    run: RunFolder
    name: str
    run_manifest: Result
    model_manifest: Result

    @classmethod
    def open(cls, run: str | Path, model: str | None, chats: bool = False) -> ModelEvaluation:
        """Open ``model`` or the configured one; ``ConfigurationError`` for a chat model unless ``chats`` is set."""
        folder = RunFolder(Path(run))
        curated, name = read_manifest(folder), resolve_model_name(folder, model)
        require_training_packages()
        trained = read_manifest(folder.get_model_folder(name))
        if trained["settings"].get("chat") and not chats:
            raise ConfigurationError(
                f"evaluate: {name} was trained on conversations (train.chat), but this would prompt it with "
                "single examples; use evaluate model"
            )
        return cls(folder, name, curated, trained)

    @property
    def task(self) -> str:
        """The task of the model."""
        return str(self.model_manifest["settings"]["task"])

    @property
    def segmenter(self) -> segment.SegmentFunction:
        """The run's segmenter."""
        return segment.make_segmenter(SegmentSettings.from_manifest(self.run_manifest["configuration"]["segment"]))

    def load_language_model(self) -> training.LanguageModel:
        """Load the language model."""
        return training.load_model(self.run.get_model_folder(self.name))

    def load_classifier(self) -> training.model.TextClassifier:
        """Load the classifier."""
        return training.model.load_classifier(self.run.get_model_folder(self.name))

    def require_setting(self, key: str, value: Any, hint: str) -> Any:
        """Return ``value``, or else the setting ``key`` of ``evaluate`` in the run's configuration."""
        setting = value or self.run_manifest["configuration"]["evaluate"][key]
        if not setting:
            raise ConfigurationError(f"evaluate.{key}: name {hint}")
        return setting

    def list_training_folders(self) -> tuple[Path, ...]:
        """Return the data folders that the model was trained on: the shards, or the vault."""
        trainer: Trainer = TRAINERS[self.model_manifest["summary"]["trainer"]]
        return trainer.list_data_folders(self.run)

    def read_held_out_examples(self, paths: Sequence[str]) -> Iterator[tuple[str, str | None, str | None]]:
        """Yield text, class and role of every example of a held-out corpus, segmented like the run.

        Every column that the run's manifest names must exist, except those of ids and users, and that of the class
        unless the model was trained with it; these are not read.
        """
        for entry, examples in self._read_documents(paths):
            for example in examples:
                yield example.text, entry.label, example.speaker if segment.is_known_role(example.speaker) else None

    def read_conversations(self, paths: Sequence[str]) -> tuple[list[str], list[str]]:
        """Read conversations or turns (examples joined by a space, as in training), original and masked."""
        documents = [
            [(turn, example.text) for turn, example in zip(segment.iterate_turns(examples), examples, strict=True)]
            for _, examples in self._read_documents(paths)
        ]
        if self.model_manifest["settings"]["chat"]["example"] == "turn":
            documents = [[example] for examples in documents for example in examples]
        texts = [text for examples in documents for _, text in examples]
        masked = iter([text for _, text in make_run_router(self.run_manifest)(texts)])
        masked_documents = [[(turn, next(masked)) for turn, _ in examples] for examples in documents]
        return [*map(_join_conversation_turns, documents)], [*map(_join_conversation_turns, masked_documents)]

    def _read_documents(self, paths: Sequence[str]) -> Iterator[tuple[Document, list[segment.Segment]]]:
        input_settings = self.run_manifest["configuration"]["input"].items()
        excluded = {"metadata_columns", "allow_personal_columns", "emit_document_order", "id", "user"}
        if self.task != CLASSIFY and self.model_manifest["settings"].get("prefix") != CLASS:
            excluded.add("label")
        columns = {key: value for key, value in input_settings if key not in excluded}
        settings = InputSettings.from_manifest({**columns, "path": tuple(paths)})
        cut = segment.make_multi_text_segmenter(self.segmenter) if settings.has_multiple_texts else self.segmenter
        counts = RowCounts(settings)
        for source in find_sources(settings.path, settings.format, key="evaluate.test"):
            for entry in counts.read_and_count(source):
                if isinstance(entry, Document):
                    yield entry, cut(entry.text)
        # never measure a model on part of a file
        if counts.damaged_files:
            raise counts.damaged_files[0]
        counts.check_totals()

    def sample_compared_texts(
        self, held_out: Sequence[tuple[str, str | None, str | None]], seed: int, progress: Progress
    ) -> tuple[list[ComparedText], list[ComparedText]]:
        """Draw held-out texts and originals in the same way, at most :data:`MAX_COMPARED` of each.

        Returns (text, class or role, is private). Texts are masked if the trainer uses the policies. The model may
        reveal public texts.
        """
        by_class = self.model_manifest["settings"].get("prefix") == CLASS
        order = RandomStream.from_seed(seed).permutation("held out", 0, len(held_out))[:MAX_COMPARED]
        held_out_sample = [(held_out[i][0], held_out[i][1 if by_class else 2]) for i in order.tolist()]
        total = sum(map(count_part_rows, list_parts(self.run.vault)))
        positions = np.sort(RandomStream.from_seed(seed).permutation("learnt", 0, total)[:MAX_COMPARED])
        training_sample, batch_start = list[ClassedText](), 0
        for batch in read_batches(self.run.vault):
            offsets = positions[(positions >= batch_start) & (positions < batch_start + len(batch))] - batch_start
            for row in batch.take(offsets).to_pylist():
                role = row["speaker"] if segment.is_known_role(row["speaker"]) else None
                training_sample.append((row["text"], row.get(CLASS) if by_class else role))
            batch_start += len(batch)
        if not TRAINERS[self.model_manifest["summary"]["trainer"]].uses_policy:
            return [(*row, True) for row in held_out_sample], [(*row, True) for row in training_sample]
        route_texts = make_run_router(self.run_manifest)

        def mask_rows(rows: Sequence[ClassedText]) -> list[ComparedText]:
            pairs = zip(rows, route_texts([text for text, _ in rows]), strict=True)
            return [(text, label, split == "private") for (_, label), (split, text) in pairs]

        with report_start_and_end(progress, "mask by the policies"):
            return mask_rows(held_out_sample), mask_rows(training_sample)

    def measure_and_seal(
        self,
        evaluation: str,
        measure: Callable[[], Mapping[str, Any]],
        picture: str = "",
        plot: Callable[..., str] | None = None,
    ) -> Result:
        """Measure, seal the result, its plot and any error in the model's folder, and render the report again."""

        def run_measurement() -> Result:
            result = {"run": str(self.run.root), "model": self.name, **measure()}
            model = self.run.get_model_folder(self.name)
            parent = file_sha256(model.manifest)
            body = {"format": "redactory-evaluation/1", "evaluation": evaluation, "parent": parent}
            images = plots.render_plot(picture, plot, result) if plot else {}
            seal_result(model.get_result_folder(evaluation), result, body, images)
            write_report(self.run)
            return result

        return run_with_sealed_traceback(self.run.state, run_measurement)


def read_trainer_texts(run: RunFolder, folders: Iterable[Path]) -> Iterator[ClassedText]:
    """Yield (text, class) of every example as a trainer of these ``folders`` sees it; its epsilons refer to these.

    For ``crt`` texts are masked: a secret that π caught changes no count, as it changes no step. In counts of originals
    it would, and no miss rate could amplify the stated epsilon.
    """
    for folder in folders:
        texts, classes = training.data.read_texts(run, folder), training.data.read_classes(run, folder)
        yield from zip(texts, classes, strict=True)


def _join_conversation_turns(examples: Sequence[tuple[tuple[int, str | None], str]]) -> str:
    by_turn = groupby(examples, itemgetter(0))
    return join_turns((role, " ".join(text for _, text in turn_examples)) for (_, role), turn_examples in by_turn)


def read_texts(folder: Path) -> Iterator[str]:
    """Yield the texts of a data folder of a run in order, one row group at a time."""
    return (text for (text,) in read_values(folder, "text"))


def evaluate_model(
    run: str | Path, model: str | None = None, test: Sequence[str] = (), progress: Progress = ignore_progress
) -> Result:
    """Measure perplexity on held-out text, original and masked by π, or the test error rate of a classifier.

    ``test`` (default: the run's ``evaluate.test``) has the columns and segments of the run's configuration. Returns
    {as_is, masked} of :func:`redactory.evaluation.utility.measure_perplexity`, and whether the model ``learnt_masked``
    text only, so that ``as_is`` is no fair measure; for a classifier
    :func:`redactory.evaluation.utility.measure_accuracy`, where each example has the class of its row. Texts of a chat
    model are conversations, or turns if it was trained on these; only the tokens that it was trained to write count.
    """
    evaluation = ModelEvaluation.open(run, model, chats=True)
    paths = evaluation.require_setting("test", test, "a held-out corpus there, or with --test")

    def measure_language_model() -> Result:
        settings = evaluation.model_manifest["settings"]
        chat, prefix, codec = settings.get("chat"), settings.get("prefix"), None
        held_out = [] if chat else list(evaluation.read_held_out_examples(paths))
        with report_start_and_end(progress, "mask by the policies"):
            if chat:
                texts, masked = evaluation.read_conversations(paths)
            else:
                texts = [text for text, _, _ in held_out]
                masked = [text for _, text in make_run_router(evaluation.run_manifest)(texts)]
        if prefix:
            roles = [label if prefix == CLASS else role for _, label, role in held_out]
            texts, masked = (list(map(training.data.add_role_prefix, group, roles)) for group in (texts, masked))
        trained, trainer = evaluation.load_language_model(), TRAINERS[settings["trainer"]]
        if chat:
            codec = replace(cast(ChatCodec, trained.tokenizer), loss_scope=chat["loss_on"])
        return {
            "as_is": measure_perplexity(trained, texts, progress, codec),
            "masked": measure_perplexity(trained, masked, progress, codec),
            "learnt_masked": "vault" not in (trainer.noised_folder, *trainer.noise_free_folders),
        }

    def measure_classifier() -> Result:
        examples = list(evaluation.read_held_out_examples(paths))
        texts, labels = [text for text, _, _ in examples], [label for _, label, _ in examples]
        return measure_accuracy(evaluation.load_classifier(), texts, labels, progress)

    if evaluation.task == CLASSIFY:
        return evaluation.measure_and_seal("accuracy", measure_classifier)
    return evaluation.measure_and_seal("perplexity", measure_language_model)


def evaluate_canary(
    run: str | Path,
    model: str | None = None,
    canaries: str | Path | None = None,
    progress: Progress = ignore_progress,
    samples: int = 20_000,
    seed: int = 0,
) -> Result:
    """Measure the exposure of the canaries of a simulated corpus, and count the copies that curation left of each.

    Exact up to a million candidates; otherwise ``samples`` candidates are drawn by ``seed``.
    """
    evaluation = ModelEvaluation.open(run, model)
    path = Path(evaluation.require_setting("canaries", canaries, "a FILE.canaries.json there, or with --canaries"))
    try:
        planted: Result = read_json(path)
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else "this is not JSON"
        raise InputError(f"{path} cannot be read as canaries: {problem}; give the file of redactory simulate") from None

    def measure_exposure() -> Result:
        copy_counts = count_canary_copies(evaluation.list_training_folders(), planted)
        # a canary in a shard was not masked, even if the trainer reads other folders
        is_missed = [n > 0 for n in count_canary_copies((evaluation.run.public, evaluation.run.private), planted)]
        model = evaluation.load_language_model()
        return measure_canary_exposure(model, planted, copy_counts, progress, samples, seed, is_missed)

    return evaluation.measure_and_seal("canary", measure_exposure, "exposure.svg", plots.plot_exposure)


# Synthetic text: its quality, and what it leaks.


def evaluate_synthetic(
    run: str | Path,
    corpus: str | Path,
    model: str | None = None,
    *,
    test: Sequence[str] = (),
    canaries: str | Path | None = None,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> Result:
    """Compare the corpus of ``synthesize`` in the folder ``corpus`` with held-out text; export requires this.

    ``test`` and ``canaries`` default to the run's ``evaluate.test`` and ``evaluate.canaries``; without canaries none
    are searched. If the trainer uses the policies, texts are compared masked, and only private ones for leakage.
    Returns {corpus, rows} and the results of :func:`redactory.evaluation.synthetic.measure_text_quality` and
    :func:`~redactory.evaluation.synthetic.measure_leakage`.
    """
    evaluation, folder = ModelEvaluation.open(run, model), SyntheticFolder(Path(corpus))
    corpus_manifest, trained = read_manifest(folder), evaluation.run.get_model_folder(evaluation.name).manifest
    if corpus_manifest.get("model_manifest") != file_sha256(trained):
        raise ConfigurationError(
            f"{folder.root} was not written by {evaluation.name} of {evaluation.run.root}: give --model"
        )
    paths = evaluation.require_setting("test", test, "a held-out corpus there, or with --test")
    canary_file = canaries or evaluation.run_manifest["configuration"]["evaluate"].get("canaries")

    def measure_corpus() -> Result:
        held_out = list(evaluation.read_held_out_examples(paths))
        written = [
            (row["text"], row.get(CLASS, row.get(ROLE)))
            for batch in read_batches(folder.public)
            for row in batch.to_pylist()
        ]
        samples = evaluation.sample_compared_texts(held_out, seed, progress)
        held_out_rows, training_rows = ([(text, label) for text, label, _ in group] for group in samples)
        non_member_texts, member_texts = ([text for text, _, is_private in group if is_private] for group in samples)
        synthetic_texts = [text for text, _ in written]
        language = evaluation.run_manifest["configuration"]["detect"]["language"]
        planted_canaries = None if canary_file is None else read_json(Path(canary_file))
        features = partial(embed_texts, language=language)
        with report_start_and_end(progress, "compare what was written"):
            return {
                "corpus": file_sha256(folder.manifest),
                "rows": len(written),
                "epsilon": read_json(folder.guarantee)["epsilon"],
                **measure_text_quality(
                    written, training_rows, held_out_rows, corpus_manifest.get("labels", ()), features, seed
                ),
                **measure_leakage(synthetic_texts, member_texts, non_member_texts, planted_canaries, seed=seed),
            }

    return evaluation.measure_and_seal("synthetic", measure_corpus)

"""Evaluate a trained model on held-out text, canaries and secrets, and evaluate the text that it wrote."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from redactory.evaluation import plots
from redactory.evaluation.labelled import read_labelled_rows, split_labelled_row
from redactory.evaluation.linkage import ValueSearch
from redactory.evaluation.membership import SecretSentence, draw_member_texts, find_most_common_label
from redactory.evaluation.report import write_report
from redactory.evaluation.utility import measure_accuracy, measure_perplexity
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import read_json
from redactory.foundation.progress import Progress, ignore_progress, report_start_and_end
from redactory.foundation.stream import RandomStream
from redactory.pipelines.curation.config import SegmentSettings
from redactory.pipelines.curation.error_sealing import run_with_sealed_traceback
from redactory.pipelines.curation.models import require_training_packages, resolve_model_name, seal_result
from redactory.pipelines.curation.policy import make_run_router
from redactory.pipelines.curation.segment import (
    Segment,
    SegmentFunction,
    is_known_role,
    iterate_turns,
    make_multi_text_segmenter,
    make_segmenter,
)
from redactory.pipelines.readers import Document, InputSettings, find_sources
from redactory.pipelines.readers.documents import RowCounts
from redactory.redaction import RunFolder, count_part_rows, list_parts, read_manifest
from redactory.redaction.folder import SyntheticFolder
from redactory.redaction.shards import CLASS, ROLE, read_batches, read_column, read_values
from redactory.training.settings import TRAINERS

if TYPE_CHECKING:
    from redactory.training import LanguageModel
    from redactory.training.chat import ChatCodec
    from redactory.training.model import TextClassifier

CLASSIFY = "classify"
PROMPT_WORDS, MAX_PROMPTS, MAX_COMPARED = 4, 1_000, 2_000
Result = dict[str, Any]
TextWithLabel = tuple[str, str | None]
"""A text with its class or role."""
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
    def segmenter(self) -> SegmentFunction:
        """The run's segmenter."""
        return make_segmenter(SegmentSettings.from_manifest(self.run_manifest["configuration"]["segment"]))

    def load_language_model(self) -> LanguageModel:
        """Load the language model."""
        from redactory.training import load_model

        return load_model(self.run.get_model_folder(self.name))

    def load_classifier(self) -> TextClassifier:
        """Load the classifier."""
        from redactory.training.model import load_classifier

        return load_classifier(self.run.get_model_folder(self.name))

    def require_setting(self, key: str, value: Any, hint: str) -> Any:
        """Return ``value``, or else the setting ``key`` of ``evaluate`` in the run's configuration."""
        setting = value or self.run_manifest["configuration"]["evaluate"][key]
        if not setting:
            raise ConfigurationError(f"evaluate.{key}: name {hint}")
        return setting

    def list_training_folders(self) -> tuple[Path, ...]:
        """Return the data folders that the model was trained on: the shards, or the vault."""
        trainer = TRAINERS[self.model_manifest["summary"]["trainer"]]
        return tuple(getattr(self.run, name) for name in trainer.folder_names)

    def read_training_rows(self) -> Iterator[TextWithLabel]:
        """Yield the texts that a classifier was trained on, with their classes."""
        from redactory.training.data import read_classes
        from redactory.training.data import read_texts as read_training_texts

        for folder in self.list_training_folders():
            yield from zip(read_training_texts(self.run, folder), read_classes(self.run, folder), strict=True)

    def read_original_texts(self) -> Iterator[str]:
        """Yield the texts of the run's vault."""
        return read_texts(self.run.vault)

    def read_held_out_examples(
        self, paths: Sequence[str], *optional: str
    ) -> Iterator[tuple[str, str | None, str | None]]:
        """Yield text, class and role of every example of a held-out corpus, segmented like the run.

        Every column that the run's manifest names must exist, except the columns ``optional``, which are not read.
        """
        for entry, examples in self._read_documents(paths, optional):
            for example in examples:
                yield example.text, entry.label, example.speaker if is_known_role(example.speaker) else None

    def read_conversations(self, paths: Sequence[str]) -> tuple[list[str], list[str]]:
        """Read conversations or turns (examples joined by a space, as in training), original and masked."""
        documents = [
            [
                (turn, role, example.text)
                for (turn, role), example in zip(iterate_turns(examples), examples, strict=True)
            ]
            for _, examples in self._read_documents(paths, ("id", "user", "label"))
        ]
        if self.model_manifest["settings"]["chat"]["example"] == "turn":
            documents = [[example] for examples in documents for example in examples]
        texts = [text for examples in documents for _, _, text in examples]
        masked = iter([text for _, text in make_run_router(self.run_manifest)(texts)])
        masked_documents = [[(turn, role, next(masked)) for turn, role, _ in examples] for examples in documents]
        as_is, as_masked = (
            [_join_conversation_turns(examples) for examples in form_documents]
            for form_documents in (documents, masked_documents)
        )
        return as_is, as_masked

    def _read_documents(
        self, paths: Sequence[str], optional: Sequence[str]
    ) -> Iterator[tuple[Document, list[Segment]]]:
        input_settings = self.run_manifest["configuration"]["input"].items()
        excluded = ("metadata_columns", "allow_personal_columns", "emit_document_order", *optional)
        columns = {key: value for key, value in input_settings if key not in excluded}
        settings = InputSettings.from_manifest({**columns, "path": tuple(paths)})
        cut = make_multi_text_segmenter(self.segmenter) if settings.has_multiple_texts else self.segmenter
        counts = RowCounts(settings)
        for source in find_sources(settings.path, settings.format, key="evaluate.test"):
            for entry in counts.read_and_count(source):
                if isinstance(entry, Document):
                    yield entry, cut(entry.text)
        # never measure a model on part of a file
        if counts.damaged_files:
            raise counts.damaged_files[0]
        counts.check_totals()

    @property
    def optional_columns(self) -> tuple[str, ...]:
        """The columns that held-out rows may lack: the class, unless it was a prefix in training."""
        return () if self.model_manifest["settings"].get("prefix") == CLASS else ("label",)

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
        training_sample, batch_start = list[TextWithLabel](), 0
        for batch in read_batches(self.run.vault):
            offsets = positions[(positions >= batch_start) & (positions < batch_start + len(batch))] - batch_start
            for row in batch.take(offsets).to_pylist():
                role = row["speaker"] if is_known_role(row["speaker"]) else None
                training_sample.append((row["text"], row.get(CLASS) if by_class else role))
            batch_start += len(batch)
        if not TRAINERS[self.model_manifest["summary"]["trainer"]].uses_policy:
            return [(*row, True) for row in held_out_sample], [(*row, True) for row in training_sample]
        route_texts = make_run_router(self.run_manifest)

        def mask_rows(rows: Sequence[TextWithLabel]) -> list[ComparedText]:
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


def _join_conversation_turns(examples: Sequence[tuple[int, str | None, str]]) -> str:
    from redactory.training.chat import join_turns

    by_turn = groupby(examples, lambda point: point[:2])
    return join_turns((role, " ".join(text for _, _, text in turn_examples)) for (_, role), turn_examples in by_turn)


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
        from redactory.training.data import add_role_prefix

        if chat := evaluation.model_manifest["settings"].get("chat"):
            with report_start_and_end(progress, "mask by the policies"):
                form_texts = dict(zip(("as_is", "masked"), evaluation.read_conversations(paths), strict=True))
            trained = evaluation.load_language_model()
            codec = replace(cast("ChatCodec", trained.tokenizer), loss_scope=chat["loss_on"])
            return measure_perplexities(trained, form_texts, codec)
        held_out = list(evaluation.read_held_out_examples(paths, "id", "user", *evaluation.optional_columns))
        texts = [text for text, _, _ in held_out]
        with report_start_and_end(progress, "mask by the policies"):
            masked = [text for _, text in make_run_router(evaluation.run_manifest)(texts)]
        if prefix := evaluation.model_manifest["settings"].get("prefix"):
            roles = [label if prefix == CLASS else role for _, label, role in held_out]
            texts, masked = (list(map(add_role_prefix, group, roles)) for group in (texts, masked))
        trained, form_texts = evaluation.load_language_model(), {"as_is": texts, "masked": masked}
        return measure_perplexities(trained, form_texts)

    def measure_perplexities(language_model: Any, texts_by_form: Mapping[str, Any], *codec: Any) -> Result:
        trainer = TRAINERS[evaluation.model_manifest["settings"]["trainer"]]
        results = {
            name: measure_perplexity(language_model, texts, progress, *codec) for name, texts in texts_by_form.items()
        }
        return {**results, "learnt_masked": "vault" not in (trainer.noised_folder, *trainer.noise_free_folders)}

    def measure_classifier() -> Result:
        examples = list(evaluation.read_held_out_examples(paths, "id", "user"))
        return measure_accuracy(
            evaluation.load_classifier(),
            [text for text, _, _ in examples],
            [label for _, label, _ in examples],
            progress,
        )

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
        from redactory.evaluation.canary import count_canary_copies, measure_canary_exposure

        copy_counts = count_canary_copies(evaluation.list_training_folders(), planted)
        # a canary in a shard was not masked, even if the trainer reads other folders
        is_missed = [n > 0 for n in count_canary_copies((evaluation.run.public, evaluation.run.private), planted)]
        model = evaluation.load_language_model()
        return measure_canary_exposure(model, planted, copy_counts, progress, samples, seed, is_missed)

    return evaluation.measure_and_seal("canary", measure_exposure, "exposure.svg", plots.plot_exposure)


# Attacks: membership inference, and extraction of secrets from the vault.


def evaluate_membership(
    run: str | Path,
    model: str | None = None,
    *,
    secrets: str | Path | None = None,
    others: str | Path | None = None,
    label: str | None = None,
    reference: str | Path | None = None,
    count: int = 1_000,
    group_size: int = 20,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> Result:
    """Run individual and group membership inference (CRT, appendix A.5) on a model of a finished run.

    A classifier is asked about whole texts, by the probability of their class: ``others`` (default: the run's
    ``evaluate.test``) has rows with a class that were not trained on; ``secrets`` and ``label`` do not apply.

    A language model is asked about secrets. ``secrets`` holds labelled rows of this corpus (default: the run's
    ``evaluate.labelled``); ``label`` is the kind of secret (default: the one with the most values). ``others`` is a
    labelled file of values never trained on; by default values of the same form are drawn. No value that occurs in the
    originals is used.

    ``reference`` is another model of this run, or a run with a model of the same name. Returns
    :func:`redactory.evaluation.membership.run_membership_attack` with {label, fresh_values, reference_model}; ``label``
    is None for a classifier; no text.
    """
    evaluation = ModelEvaluation.open(run, model)
    if count < 4 or group_size < 1:
        raise ConfigurationError("count must be at least 4, group_size at least 1")
    attack = MembershipAttack(evaluation, _open_reference(evaluation, reference), count, group_size, confidence, seed)
    if evaluation.task == CLASSIFY:
        if secrets or label:
            raise ConfigurationError("secrets, label: a classifier is asked about whole texts; give others instead")
        paths = evaluation.require_setting("test", others and [str(others)], "rows not trained on, or with --others")
        run_attack = partial(attack.attack_classifier, paths)
    else:
        labelled = evaluation.require_setting("labelled", secrets, "a file of labelled rows there, or with --secrets")
        run_attack = partial(attack.attack_language_model, Path(labelled), others, label, progress)
    return evaluation.measure_and_seal("membership", run_attack, "roc.svg", plots.plot_membership)


def _open_reference(evaluation: ModelEvaluation, reference: str | Path | None) -> ModelEvaluation | None:
    """Open another model of the run, or of the run in the folder ``reference`` the model of the same name."""
    if reference is None:
        return None
    if str(reference) == evaluation.name:
        raise ConfigurationError("reference: give a model other than the attacked one")
    if Path(reference).is_dir():
        return ModelEvaluation.open(reference, evaluation.name)
    return ModelEvaluation.open(evaluation.run.root, str(reference))


@dataclass(frozen=True)
class MembershipAttack:
    """Membership inference on the model of ``evaluation``, with the options of :func:`evaluate_membership`."""

    evaluation: ModelEvaluation
    reference: ModelEvaluation | None
    count: int
    group_size: int
    confidence: float
    seed: int

    def attack_language_model(
        self, labelled: Path, others: str | Path | None, label: str | None, progress: Progress
    ) -> Result:
        """Distinguish sentences with secrets that were trained on from the same sentences with other values."""
        from redactory.evaluation.membership import run_membership_attack

        sentences = _find_secret_sentences(self.evaluation, labelled, label)
        kind = sentences[0].label
        members, non_members = draw_member_texts(
            sentences, _choose_value_source(self.evaluation, kind, others, self.seed), self.count, self.seed
        )
        reference = self.reference.load_language_model() if self.reference else None
        result = run_membership_attack(
            self.evaluation.load_language_model(),
            members,
            non_members,
            reference=reference,
            progress=progress,
            **self._options,
        )
        return self._describe(kind, "drawn" if others is None else "file") | result

    def attack_classifier(self, paths: Sequence[str]) -> Result:
        """Distinguish texts that were trained on from texts of ``paths``, masked alike."""
        from redactory.evaluation.membership import run_class_membership_attack

        classifier, reference = self.evaluation.load_classifier(), None
        if self.reference:
            reference = self.reference.load_classifier()
            if set(reference.classes) != set(classifier.classes):
                raise ConfigurationError(f"reference: {self.reference.name} was trained on other classes")
        members = self._draw_rows(self.evaluation.read_training_rows(), classifier.classes, "members")
        trained = set(members)
        held_out = self._draw_rows(self._read_masked_alike(paths), classifier.classes, "others")
        others = [row for row in held_out if row not in trained]
        result = run_class_membership_attack(
            classifier, members[: self.count], others[: self.count], reference=reference, **self._options
        )
        return self._describe(None, "file") | result

    def _read_masked_alike(self, paths: Sequence[str]) -> list[TextWithLabel]:
        """Read the rows of ``paths``, masked if the model was trained on masked text."""
        rows = [(text, name) for text, name, _ in self.evaluation.read_held_out_examples(paths, "id", "user")]
        if self.evaluation.run.vault in self.evaluation.list_training_folders():
            return rows
        masked = make_run_router(self.evaluation.run_manifest)([text for text, _ in rows])
        return [(text, name) for (_, text), (_, name) in zip(masked, rows, strict=True)]

    def _draw_rows(
        self, rows: Iterable[TextWithLabel], classes: Collection[str], purpose: str
    ) -> list[tuple[str, str]]:
        """Put the distinct rows with one of ``classes`` in a random order."""
        known = [(text, name) for text, name in dict.fromkeys(rows) if name is not None and name in classes]
        order = RandomStream.from_seed(self.seed).permutation(purpose, 0, len(known))
        return [known[index] for index in order.tolist()]

    @property
    def _options(self) -> dict[str, Any]:
        return {"group_size": self.group_size, "confidence": self.confidence, "seed": self.seed}

    def _describe(self, label: str | None, fresh_values: str) -> Result:
        reference_model = self.reference.name if self.reference else None
        return {"label": label, "fresh_values": fresh_values, "reference_model": reference_model}


def _find_secret_sentences(evaluation: ModelEvaluation, labelled: Path, label: str | None) -> list[SecretSentence]:
    """Return the examples of the labelled rows that occur in the vault and hold a whole secret of ``label``."""
    sentences = [
        SecretSentence(text, span["start"], span["end"], span["label"])
        for row in read_labelled_rows(labelled)
        for text, spans in split_labelled_row(row, evaluation.segmenter)
        for span in spans
    ]
    vault_texts = {sentence.text for sentence in sentences}.intersection(evaluation.read_original_texts())
    in_vault = [sentence for sentence in sentences if sentence.text in vault_texts]
    if not in_vault:
        raise InputError(f"{labelled.name}: none of its labelled secrets occurs in the originals of this run")
    kind = label or find_most_common_label(in_vault)
    selected = [sentence for sentence in in_vault if sentence.label == kind]
    if not selected:
        raise InputError(f"{labelled.name}: no secret labelled {kind} occurs in the originals of this run")
    return selected


def _choose_value_source(
    evaluation: ModelEvaluation, kind: str, others: str | Path | None, seed: int
) -> Callable[[Sequence[SecretSentence]], Sequence[str | None]]:
    def draw_values(sentences: Sequence[SecretSentence]) -> Sequence[str | None]:
        from redactory.evaluation.extraction import make_control_values

        return make_control_values(
            [(kind, sentence.value) for sentence in sentences], lambda v: _find_values_in_vault(evaluation, v), seed
        )

    def read_other_values(sentences: Sequence[SecretSentence]) -> Sequence[str | None]:
        rows = read_labelled_rows(Path(str(others)))
        spans = ((row["text"], s) for row in rows for s in row["spans"] if s["label"] == kind)
        values = list(dict.fromkeys(text[span["start"] : span["end"]] for text, span in spans))
        present = _find_values_in_vault(evaluation, values)
        unused_values = (value for value in values if value not in present)
        return [next(unused_values, None) for _ in sentences]

    return draw_values if others is None else read_other_values


def _find_values_in_vault(evaluation: ModelEvaluation, values: list[str]) -> Collection[str]:
    counts = ValueSearch(values).count_occurrences(evaluation.read_original_texts())
    present = {values[index].casefold() for index in counts}
    return {value for value in values if value.casefold() in present}


def evaluate_extraction(
    run: str | Path,
    model: str | None = None,
    samples: int = 1_000,
    tokens: int = 64,
    temperature: float = 1.0,
    top_k: int | None = None,
    completions: int = 500,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> Result:
    """Search texts that the model writes for secrets of the run's vault, and for control values that it never saw.

    ``samples`` texts of at most ``tokens`` tokens are drawn at ``temperature`` from the ``top_k`` most likely tokens
    (default: all): half without a prompt, half after the first words of public examples. For ``completions`` secrets,
    the prompt is the preceding words. Returns the counts of
    :func:`redactory.evaluation.extraction.run_extraction_attack`; no text.
    """
    if samples < 1 or completions < 0 or tokens < 1:
        raise ConfigurationError("extraction: samples and tokens must be at least 1, completions at least 0")
    evaluation = ModelEvaluation.open(run, model)

    def run_attack() -> Result:
        from redactory.evaluation import extraction as e

        trained = evaluation.load_language_model()
        secrets = e.collect_vault_secrets(evaluation.run, evaluation.list_training_folders())
        named = [(secret.label, secret.value) for secret in secrets]
        controls = e.make_control_values(named, lambda values: _find_values_in_vault(evaluation, values), seed)
        settings = e.ExtractionSettings(samples, tokens, temperature, top_k, completions, seed)
        texts = read_column(evaluation.run.public, "text")
        order = RandomStream.from_seed(seed).permutation("prompts", 0, len(texts))[:MAX_PROMPTS]
        prompts = [" ".join(texts[i].split()[:PROMPT_WORDS]) for i in order.tolist()]
        return e.run_extraction_attack(trained, secrets, controls, settings, prompts, progress)

    return evaluation.measure_and_seal("extraction", run_attack, "extraction.svg", plots.plot_extraction)


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
        from redactory.evaluation import synthetic as s

        held_out = list(evaluation.read_held_out_examples(paths, "id", "user", *evaluation.optional_columns))
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
        features = partial(s.embed_texts, language=language)
        with report_start_and_end(progress, "compare what was written"):
            return {
                "corpus": file_sha256(folder.manifest),
                "rows": len(written),
                "epsilon": read_json(folder.guarantee)["epsilon"],
                **s.measure_text_quality(
                    written, training_rows, held_out_rows, corpus_manifest.get("labels", ()), features, seed
                ),
                **s.measure_leakage(synthetic_texts, member_texts, non_member_texts, planted_canaries, seed=seed),
            }

    return evaluation.measure_and_seal("synthetic", measure_corpus)

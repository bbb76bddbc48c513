"""Fine-tune a Hugging Face token classifier on labelled texts, cut into windows with one label per piece."""

from __future__ import annotations

import bisect
import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from redactory.detectors.classifier.engine import (
    WordPiece,
    compute_window_size,
    hide_progress_bar,
    load_classifier,
    merge_pieces,
    trim_range,
)
from redactory.detectors.settings import FitSettings
from redactory.detectors.tagger.component import OUTSIDE_LABEL
from redactory.detectors.tagger.fitting import (
    UNKNOWN_LABEL,
    LabelledText,
    Reliability,
    ScoredTokens,
    compute_rate_factor,
    fit_temperature,
    randomize_case,
)
from redactory.detectors.torch_inference import isolate_inference, silence_model_libraries
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.progress import Progress, ignore_progress

if TYPE_CHECKING:
    import torch


class EncodedWindow(NamedTuple):
    """The model input for one window, and the word index and label column of each piece.

    A piece without characters, such as [CLS], has the word -1 and the column ``UNKNOWN_LABEL``.
    """

    inputs: dict[str, list[int]]
    words: list[int]
    truth: list[int]


class EncodedRow(NamedTuple):
    """The windows of a labelled text, and the label column of each word."""

    windows: list[EncodedWindow]
    truth: list[int]


@dataclass(frozen=True)
class RowEncoder:
    """Cuts labelled texts into the same windows and words as ``TransformersEngine``.

    ``labels`` are the model's columns, "O" included; ``window`` is the maximum number of tokens at once, ``stride`` the
    number that neighbouring windows share.
    """

    tokenizer: Any
    labels: tuple[str, ...]
    window: int
    stride: int

    def encode(self, row: LabelledText) -> EncodedRow:
        """Encode ``row``; every piece of a word gets the word's label. ``InputError`` messages omit the text."""
        try:
            encoded = self.tokenizer(
                row.text,
                truncation=True,
                max_length=self.window,
                stride=self.stride,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
        except Exception as error:
            problem = type(error).__name__
            raise InputError(f"the base model's tokenizer cannot read a labelled text ({problem})") from None
        ranges = [[trim_range(row.text, *ends) for ends in window] for window in encoded["offset_mapping"]]
        pieces = sorted({place for window in ranges for place in window if place[0] < place[1]})
        words = list(merge_pieces(row.text, [WordPiece(*place, 1.0, "") for place in pieces]))
        starts = [word.start for word in words]
        truth = self._label_words(words, row.spans)
        windows = []
        for index, window in enumerate(ranges):
            inputs = {name: encoded[name][index] for name in self.tokenizer.model_input_names}
            inside = [bisect.bisect_right(starts, start) - 1 if start < end else -1 for start, end in window]
            columns = [truth[word] if word >= 0 else UNKNOWN_LABEL for word in inside]
            windows.append(EncodedWindow(inputs, inside, columns))
        return EncodedRow(windows, truth)

    def _label_words(self, words: Sequence[WordPiece], spans: Sequence[tuple[int, int, str]]) -> list[int]:
        """Return one column per word: the label of a span that overlaps it, or "O"."""
        column = {label: number for number, label in enumerate(self.labels)}
        truth = [column[OUTSIDE_LABEL]] * len(words)
        for start, end, label in spans:
            for number, word in enumerate(words):
                if word.start < end and word.end > start:
                    truth[number] = column.get(label, UNKNOWN_LABEL)
        return truth


def batch_windows(windows: Sequence[EncodedWindow], pieces: int, rng: random.Random) -> list[list[EncodedWindow]]:
    """Group windows of similar length, in random order; a padded batch has at most ``pieces`` pieces."""
    batches: list[list[EncodedWindow]] = []
    for window in sorted(windows, key=lambda w: len(w.truth)):
        if not batches or (len(batches[-1]) + 1) * len(window.truth) > pieces:
            batches.append([])
        batches[-1].append(window)
    rng.shuffle(batches)
    return batches


def pad_batch(batch: Sequence[EncodedWindow], pad: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return model inputs [windows, longest], padded with ``pad`` and masked there, and the true columns."""
    import torch

    longest = max(len(window.truth) for window in batch)

    def to_tensor(rows: Sequence[Sequence[int]], filler: int) -> torch.Tensor:
        return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows])

    inputs = {name: to_tensor([w.inputs[name] for w in batch], 0) for name in batch[0].inputs}
    inputs["input_ids"] = to_tensor([w.inputs["input_ids"] for w in batch], pad)
    inputs["attention_mask"] = to_tensor([[1] * len(w.truth) for w in batch], 0)
    return inputs, to_tensor([w.truth for w in batch], UNKNOWN_LABEL)


BASE_SETTINGS = frozenset({"start", "weight_decay"})
_HEAD_NAMES = ("classifier", "score")
"""Names of the last layer in the library's token classifiers."""


class ClassifierSettings(FitSettings):
    """How to fine-tune a pretrained model; the base folder fixes the architecture."""

    epochs: int = Field(3, ge=1, description="Number of passes over the rows.")
    batch_words: int = Field(1_000, ge=1, description="Maximum word pieces in a step, with padding.")
    learning_rate: float = Field(5e-5, gt=0, description="Maximum learning rate; rises, then decays to zero.")

    @model_validator(mode="after")
    def _reject_base_settings(self) -> Self:
        idle = sorted(BASE_SETTINGS & self.model_fields_set)
        if idle:
            raise ValueError(f"the base folder determines {', '.join(idle)}; remove it")
        return self


@dataclass(frozen=True)
class TrainedClassifier:
    """A token classification model and its matching row encoder."""

    model: Any
    encoder: RowEncoder

    @property
    def head(self) -> torch.nn.Linear:
        """The last layer; ``ConfigurationError`` if the model has no linear one."""
        import torch

        for head in (getattr(self.model, name, None) for name in _HEAD_NAMES):
            if isinstance(head, torch.nn.Linear) and head.out_features == len(self.encoder.labels):
                return head
        kind = type(self.model).__name__
        raise ConfigurationError(f"base: a {kind} has no linear last layer that can be replaced")

    def to_disk(self, folder: Path) -> None:
        """Write a folder for ``detect.transformers.folder``; it contains no path and no word of the rows."""
        # some versions of the library write the path that a model was loaded from
        self.model.config.name_or_path = ""
        self.encoder.tokenizer.backend_tokenizer.no_truncation()
        with silence_model_libraries(), hide_progress_bar():
            self.model.save_pretrained(folder)
            self.encoder.tokenizer.save_pretrained(folder)


def train_classifier(
    base: Path, rows: Sequence[LabelledText], settings: ClassifierSettings, progress: Progress = ignore_progress
) -> TrainedClassifier:
    """Fine-tune the model in folder ``base`` with a new last layer for "O" and the labels of ``rows``.

    Every piece of a word is trained on the word's label: the engine uses a word's most suspicious piece, so an
    untrained piece would give arbitrary predictions. Long texts are cut as the engine cuts them. Training runs on the
    CPU; the same rows, seed and versions give the same bits. ``ConfigurationError`` if ``base`` holds no encoder with a
    fast tokenizer, or if training diverges.
    """
    import torch

    rng = random.Random(settings.seed)
    with _make_reproducible(settings.seed):
        classifier = _create_classifier(base, rows)
        model, encoder = classifier.model.train(), classifier.encoder
        decayed = [weights for weights in model.parameters() if weights.ndim > 1]
        others = [weights for weights in model.parameters() if weights.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate)
        order = list(range(len(rows)))
        for epoch in range(settings.epochs):
            rng.shuffle(order)
            recased = (randomize_case(rows[i], settings, rng) for i in order)
            windows = [w for row in recased for w in encoder.encode(row).windows if max(w.truth) != UNKNOWN_LABEL]
            batches = batch_windows(windows, settings.batch_words, rng)
            for number, batch in enumerate(batches):
                share = (epoch + number / len(batches)) / settings.epochs
                for group in optimizer.param_groups:
                    group["lr"] = settings.learning_rate * compute_rate_factor(share)
                _run_train_step(model, optimizer, batch)
            progress("fit", epoch + 1, settings.epochs, "epochs")
    if not all(torch.isfinite(weights).all() for weights in model.parameters()):
        raise ConfigurationError("learning_rate: the training diverged; use a smaller one")
    model.eval()
    return classifier


def calibrate_classifier(
    classifier: TrainedClassifier, rows: Sequence[LabelledText], held_out: Sequence[LabelledText]
) -> Reliability:
    """Fit the temperature on ``rows`` (Guo et al. 2017) and fold it into the weights.

    The last layer is linear, so dividing it by the temperature divides the logits. A word counts once, with its most
    suspicious piece, as in the engine. Reliability is measured on ``held_out``, which neither weights nor temperature
    saw.
    """
    import torch

    with isolate_inference():
        calibration, evaluation = _score_rows(classifier, rows), _score_rows(classifier, held_out)
    temperature, reliability = fit_temperature(calibration, evaluation, classifier.encoder.labels.index(OUTSIDE_LABEL))
    with torch.no_grad():
        for weights in classifier.head.parameters():
            weights.div_(temperature)
    return reliability


def _score_rows(classifier: TrainedClassifier, rows: Sequence[LabelledText]) -> ScoredTokens:
    logits: list[NDArray[np.float64]] = []
    truth: list[int] = []
    for row in map(classifier.encoder.encode, rows):
        worst = _select_suspicious_logits(classifier.model, row)
        logits += worst.values()
        truth += [row.truth[word] for word in worst]
    if not logits:
        raise InputError("the calibration rows contain no word that the base model's tokenizer knows")
    return np.stack(logits), np.array(truth)


def _select_suspicious_logits(model: Any, row: EncodedRow) -> dict[int, NDArray[np.float64]]:
    """For each word, return the logits of the piece with the least P(non-entity) over all windows; "O" is column 0."""
    import torch

    worst: dict[int, tuple[float, NDArray[np.float64]]] = {}
    for window in row.windows:
        inputs = {name: torch.tensor([ids]) for name, ids in window.inputs.items()}
        logits = model(**inputs).logits[0].double()
        plain = torch.softmax(logits, dim=-1)[:, 0].tolist()
        for word, probability, scores in zip(window.words, plain, logits.numpy(), strict=True):
            if word >= 0 and (word not in worst or probability < worst[word][0]):
                worst[word] = probability, scores
    return {word: scores for word, (_, scores) in worst.items()}


def _run_train_step(model: Any, optimizer: torch.optim.Optimizer, batch: Sequence[EncodedWindow]) -> None:
    import torch

    inputs, truth = pad_batch(batch, model.config.pad_token_id or 0)
    logits = model(**inputs).logits
    loss: Any = torch.nn.functional.cross_entropy(logits.transpose(1, 2), truth, ignore_index=UNKNOWN_LABEL)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


@contextlib.contextmanager
def _make_reproducible(seed: int) -> Iterator[None]:
    """Use one thread, deterministic algorithms and torch randomness from ``seed``; restore on exit."""
    import torch

    previous = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        with torch.random.fork_rng(devices=[]), silence_model_libraries():
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(previous[0])
        torch.use_deterministic_algorithms(previous[1])


def _create_classifier(base: Path, rows: Sequence[LabelledText]) -> TrainedClassifier:
    import torch

    labels = (OUTSIDE_LABEL, *sorted({label for row in rows for _, _, label in row.spans}))
    if OUTSIDE_LABEL in labels[1:]:
        raise InputError(f"a span is labelled '{OUTSIDE_LABEL}', which is reserved for tokens outside spans")
    tokenizer, model = _load_base_model(base, labels)
    classifier = TrainedClassifier(
        model.float(), RowEncoder(tokenizer, labels, *compute_window_size(tokenizer, model.config))
    )
    head = classifier.head
    torch.nn.init.normal_(head.weight, std=getattr(model.config, "initializer_range", 0.02))
    if head.bias is not None:
        torch.nn.init.zeros_(head.bias)
    return classifier


def _load_base_model(base: Path, labels: Sequence[str]) -> tuple[Any, Any]:
    names = {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}
    tokenizer, model, info = load_classifier(base, "base", ignore_mismatched_sizes=True, **names)
    drawn = {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}
    lacking = sorted(key for key in drawn if key.startswith(f"{model.base_model_prefix}."))
    if lacking:
        raise ConfigurationError(f"base: the weights lack parts of the encoder, which would be random: {lacking[0]}, …")
    return tokenizer, model
